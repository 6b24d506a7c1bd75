//! How far a sink is, in a file of its own.

use std::fmt;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::adapters::manifest::{self, ManifestFault};
use crate::domain::audit::{Digest, Stamp};

/// The only format so far.
const FORMAT: u64 = 1;

/// The last record that a sink's receiver has taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cursor {
    format: u64,
    /// The journal that it counts in.
    pub(super) journal_id: String,
    /// The record; 0 before the first.
    pub(super) sequence: u64,
    /// The record's link, which tells it from one that took its place after the
    /// journal was put back from a copy. Absent where the record was gone already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
}

/// Why the sinks' files cannot be used.
#[derive(Debug)]
pub enum OpenError {
    /// The directory cannot be made.
    Directory {
        /// Which.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// A file cannot be read.
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// A file is not in the form in which it is written.
    Form {
        /// Which.
        path: PathBuf,
    },
    /// The thread that writes to standard output cannot be started.
    Thread(io::Error),
}

impl Cursor {
    /// Before the first record of a journal.
    pub(super) fn start(journal_id: &str) -> Self {
        Self { format: FORMAT, journal_id: journal_id.to_owned(), sequence: 0, mac: None }
    }

    /// At a record.
    pub(super) fn at(stamp: &Stamp) -> Self {
        let mac = Some(stamp.mac.to_string());
        Self { sequence: stamp.sequence, mac, ..Self::start(&stamp.journal_id) }
    }

    /// Behind records that are gone.
    pub(super) fn behind(journal_id: &str, sequence: u64) -> Self {
        Self { sequence, ..Self::start(journal_id) }
    }

    /// Whether this can be the link of its record.
    pub(super) fn fits(&self, mac: &Digest) -> bool {
        self.mac.as_ref().is_none_or(|known| *known == mac.to_string())
    }

    /// Reads the file of a sink; `None` where there is none. Blocks the thread.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, OpenError> {
        let path = path.to_owned();
        match manifest::read(&path, FORMAT) {
            Ok(cursor) => Ok(cursor),
            Err(ManifestFault::Io(source)) => Err(OpenError::Unreadable { path, source }),
            Err(ManifestFault::NoFormat | ManifestFault::Format(_) | ManifestFault::Content) => {
                Err(OpenError::Form { path })
            }
        }
    }

    /// Writes the file in the place of what is there, atomically and durably.
    /// Blocks the thread.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        manifest::write(path, self)
    }
}

/// Makes the directory of the files, for the gate's user alone. Blocks the thread.
pub(super) fn make_directory(path: &Path) -> Result<(), OpenError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| OpenError::Directory { path: path.to_owned(), source })
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory { path, .. } => {
                write!(f, "making the directory {} failed", path.display())
            }
            Self::Unreadable { path, .. } => {
                write!(f, "{}: how far the sink is cannot be read", path.display())
            }
            Self::Form { path } => write!(
                f,
                "{}: this is not in the form in which this version writes how far a sink is; \
                 remove the file to have the sink send the whole journal again, or put it back",
                path.display()
            ),
            Self::Thread(_) => {
                f.write_str("the thread that writes events to standard output cannot be started")
            }
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Directory { source, .. }
            | Self::Unreadable { source, .. }
            | Self::Thread(source) => Some(source),
            Self::Form { .. } => None,
        }
    }
}
