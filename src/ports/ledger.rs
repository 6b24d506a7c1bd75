//! The durable record of spent and revoked tickets and of calls that need a record.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use uuid::Uuid;

use crate::domain::record::{CallKey, Claim, Ended, Record, Reservation, TicketUse, Turned};
use crate::domain::watermark::{ClockState, Reading};

/// The ledger. What it has answered is durable, and seen by every later operation.
///
/// Waits are bounded by the caller, who drops the future. A reservation that is
/// dropped before it was answered is given back by the ledger; any other
/// operation that is dropped may still happen. None is undone by a fault:
/// what failed may have become durable.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// The ledger's identity, a UUID: the `aud` of the tickets whose use it remembers.
    fn id(&self) -> Arc<str>;

    /// The record of a call, for who only wants to know: between this answer and
    /// a claim anything can happen.
    ///
    /// # Errors
    ///
    /// See [`LedgerFault`].
    async fn look(&self, key: CallKey) -> Result<Option<Record>, LedgerFault>;

    /// What is known of a ticket, likewise.
    ///
    /// # Errors
    ///
    /// See [`LedgerFault`].
    async fn ticket(
        &self,
        confirmation_id: Uuid,
        expires_at: Timestamp,
    ) -> Result<TicketUse, LedgerFault>;

    /// Spends the tickets and opens or reopens the records of all claims, or
    /// changes nothing. Every claim is decided by what is stored then
    /// ([`crate::domain::record::decide`]), expiry of its ticket included, the
    /// claims before it taken as granted.
    ///
    /// # Errors
    ///
    /// The first claim that loses. With a clock behind the mark by more than the
    /// skew, every one loses.
    async fn reserve(
        &self,
        claims: Vec<Claim>,
        at: Reading,
    ) -> Result<Vec<Reservation>, ReserveFault>;

    /// Gives back reservations of calls that were not started: each record is
    /// what it was before, each ticket unspent (and revoked, if it was meanwhile).
    /// One that is not held any more is passed over.
    ///
    /// # Errors
    ///
    /// See [`LedgerFault`].
    async fn release(&self, reservations: Vec<Reservation>) -> Result<(), LedgerFault>;

    /// Ends the call of a reservation. The first settlement stands; the same
    /// again changes nothing.
    ///
    /// # Errors
    ///
    /// [`LedgerFault::NotHeld`] if the record is not this reservation's, or was
    /// settled otherwise.
    async fn settle(
        &self,
        reservation_id: Uuid,
        key: CallKey,
        settlement: Settlement,
    ) -> Result<(), LedgerFault>;

    /// Revokes a ticket. Of a spent one the revocation is kept as well: a call
    /// that is given back does not bring it to life again.
    ///
    /// # Errors
    ///
    /// See [`LedgerFault`].
    async fn revoke(&self, revocation: Revocation) -> Result<Revoked, LedgerFault>;

    /// The calls that are reserved and not settled, for who closes them at start.
    ///
    /// # Errors
    ///
    /// See [`LedgerFault`].
    async fn running(&self) -> Result<Vec<(CallKey, Record)>, LedgerFault>;

    /// The calls of gates that have died, for which this one answers from now on:
    /// whether their attempts were started another journal knows, and the pairs
    /// that are open there are closed in this one. Told again until they are
    /// settled. To be called every ten seconds; a ledger of one gate has none.
    ///
    /// # Errors
    ///
    /// See [`LedgerFault`].
    async fn take_over(&self) -> Result<Vec<(CallKey, Record)>, LedgerFault> {
        Ok(Vec::new())
    }

    /// Judges the clock, and moves the high-water mark if nothing contradicts
    /// it. To be called every ten seconds.
    ///
    /// # Errors
    ///
    /// See [`LedgerFault`].
    async fn observe(&self, at: Reading) -> Result<ClockState, LedgerFault>;

    /// Believes the clock from now on, whatever the mark says: an operator has looked.
    ///
    /// # Errors
    ///
    /// See [`LedgerFault`].
    async fn accept_clock(&self, at: Reading) -> Result<(), LedgerFault>;

    /// Forgets a bounded number of records, spent and revoked tickets whose time
    /// is over by the high-water mark, and says how many. To be called until
    /// that is none.
    ///
    /// # Errors
    ///
    /// See [`LedgerFault`].
    async fn forget_expired(&self) -> Result<usize, LedgerFault>;

    /// Gives the ledger a new identity: no ticket of before is valid any more.
    /// Then it matters no more which of them it has forgotten, and the mark moves
    /// on to `now`, which makes it as new as any journal.
    ///
    /// # Errors
    ///
    /// See [`LedgerFault`].
    async fn new_identity(&self, now: Timestamp) -> Result<Arc<str>, LedgerFault>;

    /// Whether new work may rely on the ledger.
    fn is_ready(&self) -> bool;
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// What is replayed from now on.
    pub ended: Ended,
    /// The number of its last attempt.
    pub last_attempt: u32,
}

/// A ticket that shall not be spent any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revocation {
    /// The ticket's `jti`.
    pub confirmation_id: Uuid,
    /// When it is revoked, by the gate's clock.
    pub revoked_at: Timestamp,
    /// How long any ticket is valid that was issued by then. Remembered for that
    /// time and some, from the latest time on that the ledger was ever shown: it
    /// may have been issued by a clock that has gone back since.
    pub lifetime: Duration,
}

/// What a revocation has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revoked {
    /// The ticket was not spent and cannot be any more.
    InTime,
    /// The ticket had been spent.
    Spent,
}

/// Why a reservation was not made.
#[derive(Debug, Clone, PartialEq)]
pub enum ReserveFault {
    /// A claim lost; nothing has changed.
    Turned {
        /// Which one, from 0.
        index: usize,
        /// What it is answered.
        turned: Turned,
    },
    /// The ledger failed.
    Ledger(LedgerFault),
}

/// Why the ledger did not do what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerFault {
    /// Reading or writing failed. Whether it became durable is unknown.
    Failed,
    /// Too many operations are waiting. Nothing was taken.
    Full,
    /// The record is not of this reservation, or was settled otherwise.
    NotHeld,
}

impl From<LedgerFault> for ReserveFault {
    fn from(fault: LedgerFault) -> Self {
        Self::Ledger(fault)
    }
}
