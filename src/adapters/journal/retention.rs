//! Which segments may go.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use super::kept::Kept;
use crate::ports::{Held, Holds};

/// What is deleted by itself: whole segments, the oldest first. By default nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// A segment whose newest event is older goes.
    pub age: Option<Duration>,
    /// The oldest segment goes while all together have more bytes.
    pub bytes: Option<u64>,
}

/// What retention goes by. It deletes nothing before it is started.
#[derive(Debug, Default)]
pub(super) struct Retaining {
    holds: Holds,
    started: Mutex<Option<Retention>>,
}

/// What retention lets go.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Let {
    /// The first record that is kept; `None`: nothing goes.
    pub(super) first_kept: Option<u64>,
    /// The reader without which more would go.
    pub(super) held_by: Option<Held>,
}

impl Retaining {
    pub(super) const fn holds(&self) -> &Holds {
        &self.holds
    }

    pub(super) fn start(&self, retention: Retention) {
        *self.started.lock().unwrap_or_else(PoisonError::into_inner) = Some(retention);
    }

    /// What goes of these segments, the last of which is being written. Nothing
    /// goes that a reader holds, nor a record from the oldest open pair on.
    pub(super) fn decide(&self, kept: &[Kept], first_open: Option<u64>, now: Timestamp) -> Let {
        let started = *self.started.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(retention) = started else { return Let::default() };
        let mut bytes: u64 = kept.iter().map(|kept| kept.bytes).sum();
        let mut decided = Let::default();
        for (segment, following) in kept.iter().zip(kept.iter().skip(1)) {
            let is_old = |age| {
                now.saturating_sub(age)
                    .is_ok_and(|oldest| segment.span.newest().is_none_or(|newest| newest < oldest))
            };
            let is_due = retention.age.is_some_and(is_old)
                || retention.bytes.is_some_and(|most| bytes > most);
            let last = following.first - 1;
            if !is_due || first_open.is_some_and(|open| open <= last) {
                break;
            }
            decided.held_by = self.holds.least().filter(|held| held.taken < last);
            if decided.held_by.is_some() {
                break;
            }
            bytes -= segment.bytes;
            decided.first_kept = Some(following.first);
        }
        decided
    }
}
