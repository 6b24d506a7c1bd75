//! One process owns a directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Held by the process that writes. The system releases it when that dies.
#[derive(Debug)]
pub(super) struct Lock(File);

/// Why a lock was not taken.
#[derive(Debug)]
pub(super) enum LockFault {
    /// Another process holds it, or another part of this one.
    Held,
    /// The lock file cannot be made or locked.
    Io(io::Error),
}

impl Lock {
    /// Locks a file, made with mode 0600 where it is missing.
    pub(super) fn take(path: &Path) -> Result<Self, LockFault> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(LockFault::Io)?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(LockFault::Held),
            Err(TryLockError::Error(error)) => Err(LockFault::Io(error)),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file alone leaves the lock to a child process that was
        // forked and has not yet executed its program.
        let _ = self.0.unlock();
    }
}
