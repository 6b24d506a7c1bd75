//! One process writes a journal.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;

use super::disk::Directory;
use super::error::OpenError;

/// Held by the process that writes. The system releases it when that dies.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Lock {
    pub(super) fn take(directory: &Directory) -> Result<Self, OpenError> {
        let path = directory.lock();
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(OpenError::io("opening the lock file", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => {
                Err(OpenError::Locked { directory: directory.root().to_path_buf() })
            }
            Err(TryLockError::Error(error)) => {
                Err(OpenError::io("locking the lock file", &path)(error))
            }
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
