//! Why a ledger does not open, and what an operator does about it.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use crate::adapters::ledger::format::FormatFault;

/// Why a ledger does not open. Nothing that it remembers was changed.
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
    /// Another process has the ledger open.
    Locked {
        /// The ledger's directory.
        directory: PathBuf,
    },
    /// The ledger's format is of another version of this program.
    Format {
        /// The manifest.
        path: PathBuf,
        /// The version found.
        found: u64,
    },
    /// The manifest cannot be read, or manifest and store are not both there.
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong.
        fault: &'static str,
    },
    /// The store is damaged or cannot be read.
    Store {
        /// The store's file.
        path: PathBuf,
        /// What went wrong.
        source: StoreFault,
    },
}

/// Reading or writing the store failed.
#[derive(Debug)]
pub enum StoreFault {
    /// The storage did.
    Storage(Box<redb::Error>),
    /// What is stored is not what was written. Names a field, never a value.
    Content(&'static str),
}

/// What an operator can do about a ledger that cannot be trusted.
const ADVICE: &str = "Restore the whole directory from a copy and run `toolgate ledger \
                      new-identity`, or move it aside to start a new ledger: tickets that were \
                      issued before are void then";

impl OpenError {
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { doing, path, source }
    }

    pub(super) fn store<E: Into<StoreFault>>(path: &Path) -> impl FnOnce(E) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Store { path, source: source.into() }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { doing, path, source } => write!(
                f,
                "{}: {doing} failed: {source}. The ledger needs a directory that this user can \
                 write to, with room",
                path.display()
            ),
            Self::Locked { directory } => write!(
                f,
                "{}: another gate has this ledger open. Stop it, or give this one a directory of \
                 its own",
                directory.display()
            ),
            Self::Format { path, found } => write!(
                f,
                "{}: /format is {found}, and this version reads {}. Run the version that wrote \
                 it, or move the ledger's directory aside",
                path.display(),
                super::manifest::FORMAT
            ),
            Self::Manifest { path, fault } => write!(f, "{}: {fault}. {ADVICE}", path.display()),
            Self::Store { path, source } => write!(f, "{}: {source}. {ADVICE}", path.display()),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Store { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl fmt::Display for StoreFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Storage(error) => write!(f, "the store failed: {error}"),
            Self::Content(field) => write!(f, "the stored {field} cannot be read"),
        }
    }
}

impl std::error::Error for StoreFault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Storage(error) => Some(&**error),
            Self::Content(_) => None,
        }
    }
}

impl From<FormatFault> for StoreFault {
    fn from(fault: FormatFault) -> Self {
        Self::Content(fault.0)
    }
}

macro_rules! from_redb {
    ($($error:ident),+) => { $(
        impl From<redb::$error> for StoreFault {
            fn from(error: redb::$error) -> Self {
                Self::Storage(Box::new(error.into()))
            }
        }
    )+ };
}

from_redb!(
    CommitError,
    DatabaseError,
    SetDurabilityError,
    StorageError,
    TableError,
    TransactionError
);
