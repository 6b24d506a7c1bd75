//! What an owner still owes the database when the way to it broke.
//!
//! A settlement or a release that failed may or may not have become durable: it is
//! repeated until the database says so, which changes nothing where it had. A
//! reservation whose commit was not acknowledged may have become durable, and
//! nobody has run it: its tickets count as spent, and its calls end without an
//! effect.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use uuid::Uuid;

use crate::domain::reason::Reason;
use crate::domain::record::{CallKey, Ended, Reservation};
use crate::ports::Settlement;

/// The most that may be owed. What is owed beyond it the next start settles.
const MOST: usize = 4_096;

/// One thing that is owed.
#[derive(Debug, Clone)]
pub(super) enum Debt {
    /// The end of a call.
    Settle(Uuid, CallKey, Settlement),
    /// What was not started.
    Release(Vec<Reservation>),
    /// What may have been reserved, and was not run.
    Abandon(Vec<(Uuid, CallKey, Settlement)>),
}

/// Everything that is owed, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Owed(Mutex<VecDeque<Debt>>);

impl Owed {
    /// Remembers a debt; whether there was room for it.
    pub(super) fn push(&self, debt: Debt) -> bool {
        let mut debts = self.lock();
        let has_room = debts.len() < MOST;
        if has_room {
            debts.push_back(debt);
        }
        has_room
    }

    /// The oldest.
    pub(super) fn first(&self) -> Option<Debt> {
        self.lock().front().cloned()
    }

    /// The oldest is paid.
    pub(super) fn pay(&self) {
        self.lock().pop_front();
    }

    /// Whether the end of this reservation's call is on its way.
    pub(super) fn settles(&self, reservation_id: Uuid) -> bool {
        self.lock().iter().any(|debt| match debt {
            Debt::Settle(id, ..) => *id == reservation_id,
            Debt::Abandon(all) => all.iter().any(|(id, ..)| *id == reservation_id),
            Debt::Release(_) => false,
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Debt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a call ends that may have been reserved and was not run.
pub(super) fn abandoned(reservation: &Reservation, at: jiff::Timestamp) -> Settlement {
    let effect = reservation.effect_before();
    let ended = Ended { reason: Reason::LedgerFailed, effect, at, result_digest: None };
    Settlement { ended, last_attempt: reservation.first_attempt }
}
