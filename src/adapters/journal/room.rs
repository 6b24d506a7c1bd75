//! Whether there is room for new work, as the writer last measured it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::kept::Kept;
use crate::ports::Held;

/// The room on the journal's disk. Below its bound the journal takes no new work,
/// so that what calls already running owe it can still be written.
#[derive(Debug)]
pub(super) struct Room {
    /// The bound, in bytes.
    least: u64,
    is_low: AtomicBool,
    state: Mutex<JournalRoom>,
}

/// What the journal has room for, and what it keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalRoom {
    /// Bytes free on its disk; `None` before the first measuring, or if it failed.
    pub free_bytes: Option<u64>,
    /// Whether that is too little for new work.
    pub is_low: bool,
    /// The reader for which records are kept that retention would delete.
    pub held_by: Option<Arc<str>>,
    /// The bytes of the kept segments.
    pub kept_bytes: u64,
    /// The oldest record that is kept.
    pub oldest: u64,
    /// Segments deleted since the start.
    pub deleted_segments: u64,
}

impl Room {
    pub(super) fn new(least: u64) -> Self {
        Self { least, is_low: AtomicBool::new(false), state: Mutex::default() }
    }

    pub(super) fn is_low(&self) -> bool {
        self.is_low.load(Ordering::Acquire)
    }

    pub(super) fn state(&self) -> JournalRoom {
        self.lock().clone()
    }

    /// A disk that cannot be asked has no room. Once low it must have an eighth
    /// more than the bound, so that it does not open and close with every file.
    pub(super) fn measured(&self, free: io::Result<u64>) {
        let mut state = self.lock();
        let enough = if state.is_low { self.least + self.least / 8 } else { self.least };
        let is_low = free.as_ref().map_or(true, |free| *free < enough);
        state.free_bytes = free.as_ref().ok().copied();
        let changed = is_low != std::mem::replace(&mut state.is_low, is_low);
        self.is_low.store(is_low, Ordering::Release);
        if !changed {
            return;
        }
        let held_by = state.held_by.as_deref();
        match (is_low, free) {
            (true, Ok(free)) => tracing::error!(
                bytes = free,
                limit = self.least,
                held_by,
                "the journal's disk is almost full; no new call is taken until there is room"
            ),
            (true, Err(error)) => tracing::error!(
                error_kind = %error,
                "the journal's disk cannot be measured; no new call is taken"
            ),
            (false, _) => {
                tracing::info!(bytes = state.free_bytes, "the journal's disk has room again");
            }
        }
    }

    pub(super) fn waits_for(&self, held: Option<Held>) {
        let mut state = self.lock();
        let name = held.as_ref().map(|held| Arc::clone(&held.name));
        if state.held_by != name {
            if let Some(held) = held {
                tracing::warn!(
                    held_by = &*held.name,
                    sequence = held.taken,
                    "retention waits for a reader of the journal that is behind"
                );
            }
            state.held_by = name;
        }
    }

    pub(super) fn keeps(&self, kept: &[Kept]) {
        let mut state = self.lock();
        state.kept_bytes = kept.iter().map(|kept| kept.bytes).sum();
        state.oldest = kept.first().map_or(0, |first| first.first);
    }

    pub(super) fn deletes(&self, segments: u64) {
        self.lock().deleted_segments += segments;
    }

    fn lock(&self) -> MutexGuard<'_, JournalRoom> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
