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

impl OpenError {
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { doing, path, source }
    }
}

/// What an operator can do about records that do not verify.
const EVIDENCE: &str = "Keep the directory as evidence: restore the segments from a copy, or move \
                        the journal's directory aside to start a new journal";

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { doing, path, source } => {
                write!(
                    f,
                    "{}: {doing} failed: {source}. The journal needs a directory that this user \
                     can write to, with room",
                    path.display()
                )
            }
            Self::Locked { directory } => write!(
                f,
                "{}: another gate has this journal open. Stop it, or give this one a directory \
                 of its own",
                directory.display()
            ),
            Self::Format { path, found } => write!(
                f,
                "{}: /format is {found}, and this version reads {}. Run the version that wrote \
                 it, or move the journal's directory aside",
                path.display(),
                super::manifest::FORMAT
            ),
            Self::Manifest { path, fault } => write!(f, "{}: {fault}. {EVIDENCE}", path.display()),
            Self::Record { path, line, sequence, fault } => write!(
                f,
                "{}: line {line}, where sequence {sequence} belongs: {fault}. {EVIDENCE}",
                path.display()
            ),
            Self::Missing { path, sequence } => write!(
                f,
                "{}: the records from sequence {sequence} on are missing. {EVIDENCE}",
                path.display()
            ),
            Self::Contradicted { path, sequence, head } if head < sequence => write!(
                f,
                "{}: it was written once record {sequence} was on the disk, and the journal ends \
                 with {head}: the records behind that were removed. {EVIDENCE}. If older segments \
                 were restored on purpose, remove the file",
                path.display()
            ),
            Self::Contradicted { path, sequence, .. } => write!(
                f,
                "{}: another record of sequence {sequence} was there when it was written: the \
                 segments were replaced. {EVIDENCE}. If that was done on purpose, remove the file",
                path.display()
            ),
            Self::Stopped => f.write_str("the journal was not read to its end: it was stopped"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
