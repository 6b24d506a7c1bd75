//! A reading that somebody may want to end early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::OpenError;

/// Asks the opening of a journal to give up. Clones are one.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on the opening ends with [`OpenError::Stopped`], before its next record.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn check(&self) -> Result<(), OpenError> {
        if self.0.load(Ordering::Relaxed) { Err(OpenError::Stopped) } else { Ok(()) }
    }
}
