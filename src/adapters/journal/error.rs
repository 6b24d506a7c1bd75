//! Why a journal does not open, and what an operator does about it.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use crate::domain::audit::ChainFault;

/// Why a journal does not open. No record that verifies was changed.
#[derive(Debug)]
pub enum OpenError {
    /// A file operation failed.
    Io {
        /// What was being done.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another process has the journal open.
    Locked {
        /// The journal's directory.
        directory: PathBuf,
    },
    /// The journal's format is of another version of this program.
    Format {
        /// The manifest.
        path: PathBuf,
        /// The version found.
        found: u64,
    },
    /// The manifest cannot be read, or is missing beside segments.
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong.
        fault: &'static str,
        /// Where that comes from.
        cause: ManifestCause,
    },
    /// Nothing says what came before the first segment.
    Unanchored {
        /// The anchor, which is not there.
        path: PathBuf,
        /// The first record that is there.
        first: u64,
    },
    /// The segment that the anchor tells of is gone.
    FirstGone {
        /// The segment.
        path: PathBuf,
        /// The anchor.
        anchor: PathBuf,
        /// The first record of the segment.
        sequence: u64,
    },
    /// A record does not continue the chain.
    Record {
        /// The segment.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The sequence that belongs there.
        sequence: u64,
        /// What is wrong.
        fault: ChainFault,
    },
    /// Records are missing at the end of a segment, or the whole segment is.
    Missing {
        /// The segment that ends too early or starts too late.
        path: PathBuf,
        /// The first missing sequence.
        sequence: u64,
    },
    /// A checkpoint that verifies tells of records that are not there.
    Contradicted {
        /// The checkpoint.
        path: PathBuf,
        /// The record that it tells of.
        sequence: u64,
        /// The newest record that is there.
        head: u64,
    },
    /// It was asked to give up.
    Stopped,
}

/// What a file beside the segments that says nothing comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManifestCause {
    /// There is no journal in the directory.
    NoJournal,
    /// Another version of this program wrote it.
    OtherVersion,
    /// It was changed or removed.
    Changed,
}

impl OpenError {
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { doing, path, source }
    }

    /// The file or directory at fault.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. }
            | Self::Locked { directory: path }
            | Self::Format { path, .. }
            | Self::Manifest { path, .. }
            | Self::Unanchored { path, .. }
            | Self::FirstGone { path, .. }
            | Self::Record { path, .. }
            | Self::Missing { path, .. }
            | Self::Contradicted { path, .. } => Some(path),
            Self::Stopped => None,
        }
    }

    /// What is wrong with it.
    #[must_use]
    pub fn problem(&self) -> String {
        match self {
            Self::Io { doing, source, .. } => format!("{doing} failed: {source}"),
            Self::Locked { .. } => "another gate has this journal open".to_owned(),
            Self::Format { found, .. } => {
                format!("/format is {found}, and this version reads {}", super::manifest::FORMAT)
            }
            Self::Manifest { fault, .. } => (*fault).to_owned(),
            Self::Unanchored { first, .. } => format!(
                "the file is missing, though the first segment begins with record {first}: either \
                 it was removed, or the segments before that were"
            ),
            Self::FirstGone { anchor, sequence, .. } => format!(
                "the file is missing, though {} says that the journal begins with its record \
                 {sequence}",
                anchor.display()
            ),
            Self::Record { line, sequence, fault, .. } => {
                format!("line {line}, where sequence {sequence} belongs: {fault}")
            }
            Self::Missing { sequence, .. } => {
                format!("the records from sequence {sequence} on are missing")
            }
            Self::Contradicted { sequence, head, .. } if head < sequence => format!(
                "it was written once record {sequence} was on the disk, and the journal ends with \
                 {head}: the records behind that were removed"
            ),
            Self::Contradicted { sequence, .. } => format!(
                "another record of sequence {sequence} was there when it was written: the segments \
                 were replaced"
            ),
            Self::Stopped => "the journal was not read to its end: it was stopped".to_owned(),
        }
    }

    /// What a gate's operator does about it.
    fn mend(&self) -> Option<&'static str> {
        match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::IsADirectory => {
                Some(EVIDENCE)
            }
            Self::Io { .. } => {
                Some("The journal needs a directory that this user can write to, with room")
            }
            Self::Locked { .. } => Some("Stop it, or give this one a directory of its own"),
            Self::Format { .. } | Self::Manifest { cause: ManifestCause::OtherVersion, .. } => {
                Some("Run the version that wrote it, or move the journal's directory aside")
            }
            Self::Manifest { .. }
            | Self::Unanchored { .. }
            | Self::FirstGone { .. }
            | Self::Record { .. }
            | Self::Missing { .. } => Some(EVIDENCE),
            Self::Contradicted { .. } | Self::Stopped => None,
        }
    }

    /// What somebody does about it who only reads.
    #[must_use]
    pub fn mend_of_reader(&self) -> &'static str {
        match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "run it as a user that can read the directory"
            }
            Self::Format { .. } | Self::Manifest { cause: ManifestCause::OtherVersion, .. } => {
                "run the version of toolgate that wrote it"
            }
            Self::Manifest { cause: ManifestCause::NoJournal, .. } => {
                "give it the journal of a gate: data.directory with /journal, or --journal DIRECTORY"
            }
            _ => {
                "keep the directory as evidence, and restore the file from a copy; if the disk is at \
                 fault, read it elsewhere"
            }
        }
    }
}

/// What an operator can do about records that do not verify.
const EVIDENCE: &str = "Keep the directory as evidence: restore the segments from a copy, or move \
                        the journal's directory aside to start a new journal";

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = self.path() {
            write!(f, "{}: ", path.display())?;
        }
        f.write_str(&self.problem())?;
        match self {
            Self::Contradicted { sequence, head, .. } if head < sequence => write!(
                f,
                ". {EVIDENCE}. If older segments were restored on purpose, remove the file"
            ),
            Self::Contradicted { .. } => {
                write!(f, ". {EVIDENCE}. If that was done on purpose, remove the file")
            }
            _ => self.mend().map_or(Ok(()), |mend| write!(f, ". {mend}")),
        }
    }
}

/// Its text has all of it, the system's error too.
impl std::error::Error for OpenError {}
