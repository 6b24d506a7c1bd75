//! The record of a call that must not happen twice, and what it answers a call
//! that arrives (semantics, section 7).
//!
//! [`decide`] is the table of that section, row by row. A ledger calls it inside
//! the transaction that then opens the record; admission calls it with what a
//! look showed, to refuse early. Only the first counts.

mod told;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use subtle::ConstantTimeEq;
use uuid::Uuid;

use super::admission::MAX_ATTEMPT;
use super::audit::{Digest, Event};
use super::proposal::Context;
use super::reason::{Effect, Reason};
use super::stages::idempotency_key;

pub use told::{Told, Whose};

/// What a record is found by: SHA-256(C([tenant, conversation, `tool_call_id`])),
/// the bytes of the idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallKey(pub Digest);

/// What a call must share with a record of its key to be the same call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    /// The tool.
    pub tool: Arc<str>,
    /// Whose conversation it is.
    pub user_id: Arc<str>,
    /// Keyed hash of the normalised arguments.
    pub arguments_hash: Digest,
    /// The arguments key behind that hash.
    pub key_id: Arc<str>,
}

/// What is remembered of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Which call.
    pub fingerprint: Fingerprint,
    /// Whether the tool only reads.
    pub reads: bool,
    /// The reservation that opened it last: only that one may settle or release it.
    pub reservation_id: Uuid,
    /// When that was.
    pub reserved_at: Timestamp,
    /// The ticket that it spent.
    pub confirmation_id: Option<Uuid>,
    /// The highest attempt number in use: of the last attempt once it has ended,
    /// and until then the highest that it may reach.
    pub last_attempt: u32,
    /// How long it is kept after its end.
    pub kept: Duration,
    /// What earlier reservations of the call may have changed.
    pub effect_before: Effect,
    /// The started event of its first attempt, for whoever must close the pair
    /// of a process that died.
    pub started: Arc<Event>,
    /// Whether it has ended.
    pub state: State,
}

/// Whether a recorded call has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Reserved, and not settled.
    Running,
    /// Settled.
    Ended(Ended),
}

/// How a recorded call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Why; the outcome follows from it.
    pub reason: Reason,
    /// What all its attempts together changed.
    pub effect: Effect,
    /// When.
    pub at: Timestamp,
    /// Keyed digest of the result, where there was one.
    pub result_digest: Option<Digest>,
}

/// An authorised call that asks to run.
#[derive(Debug, Clone)]
pub struct Claim {
    /// What its record is found by.
    pub key: CallKey,
    /// The hash of its arguments under every known key, the current one first.
    pub hashes: ArgumentsHashes,
    /// Whether the tool only reads.
    pub reads: bool,
    /// Whether the handler applies one idempotency key once.
    pub handler_deduplicates: bool,
    /// How often the gate may try.
    pub max_attempts: u32,
    /// How long the record is kept after its end.
    pub kept: Duration,
    /// What became of the ticket in admission.
    pub ticket: TicketShown,
    /// The started event of the first attempt, numbered as the proposal asks:
    /// also says whose call it is, and of which tool.
    pub started: Arc<Event>,
}

/// Hashes of one value under several keys. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgumentsHashes {
    current: (Arc<str>, Digest),
    older: Vec<(Arc<str>, Digest)>,
}

/// What came as the ticket of a call, as admission has verified it (section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketShown {
    /// None is needed and none came.
    NotNeeded,
    /// One is needed and none came.
    Missing,
    /// It is genuine, in time, and of this very call.
    Verified {
        /// Its `jti`.
        confirmation_id: Uuid,
        /// Its `exp`, whole seconds.
        expires_at: Timestamp,
    },
    /// It is not, or nobody asked for one.
    Refused(Reason),
}

/// What the ledger knows of a verified ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketUse {
    /// It was neither spent nor revoked.
    Unused,
    /// It was spent.
    Spent,
    /// It was revoked, spent or not.
    Revoked,
    /// It is so old that its use may have been forgotten.
    Forgotten,
}

/// A call may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// The number of its first attempt.
    pub first_attempt: u32,
}

/// A call that may run: its record is open and its ticket spent. Whoever holds
/// it owes the ledger a settlement or a release.
#[derive(Debug, Clone, PartialEq)]
pub struct Reservation {
    /// Names this reservation, and no other.
    pub id: Uuid,
    /// What the call's record is found by.
    pub key: CallKey,
    /// The number of the first attempt.
    pub first_attempt: u32,
    /// The ended record that was reopened.
    pub before: Option<Box<Record>>,
}

/// A call may not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turned {
    /// Why.
    pub reason: Reason,
    /// How the recorded call ended, for `CALL_REPLAYED`.
    pub replay: Option<Ended>,
}

/// What a record answers a call that arrives at `now`, with what is known of the
/// call's verified ticket.
///
/// The record is asked before the ticket: who asks about a running or an applied
/// call learns of that with any ticket or none. Of a ticket, expiry is judged
/// first, then revocation, then use, as in section 6.
///
/// # Errors
///
/// The row of the table that does not run the call.
pub fn decide(
    record: Option<&Record>,
    claim: &Claim,
    ticket: TicketUse,
    now: Timestamp,
) -> Result<Opening, Turned> {
    let Some(record) = record else {
        return match refused(claim.ticket, ticket, now) {
            None => Ok(Opening { first_attempt: claim.started.attempt }),
            Some(reason) => Err(Turned::for_reason(reason)),
        };
    };
    if !claim.has(&record.fingerprint) {
        return Err(Turned::for_reason(Reason::CallIdConflict));
    }
    let State::Ended(ended) = &record.state else {
        return Err(Turned::for_reason(Reason::CallInProgress));
    };
    let opening = match (ended.effect, refused(claim.ticket, ticket, now)) {
        (Effect::None, Some(reason)) => return Err(Turned::for_reason(reason)),
        (Effect::None, None) => reopen(record, claim),
        (Effect::Unknown, None) if claim.handler_deduplicates => reopen(record, claim),
        (Effect::Unknown | Effect::Applied, _) => None,
    };
    opening.ok_or_else(|| Turned { reason: Reason::CallReplayed, replay: Some(ended.clone()) })
}

impl CallKey {
    /// The key of a call.
    #[must_use]
    pub fn new(context: &Context, tool_call_id: &str) -> Self {
        Self(idempotency_key(context, tool_call_id))
    }
}

impl ArgumentsHashes {
    /// The hash under the current key, and those under the keys that it replaced.
    #[must_use]
    pub const fn new(current: (Arc<str>, Digest), older: Vec<(Arc<str>, Digest)>) -> Self {
        Self { current, older }
    }

    fn under(&self, key_id: &str) -> Option<&Digest> {
        let mut all = std::iter::once(&self.current).chain(&self.older);
        all.find(|(id, _)| **id == *key_id).map(|(_, hash)| hash)
    }
}

impl Claim {
    /// The record that this claim opens in the place of the one before. `started`
    /// is numbered as decided.
    #[must_use]
    pub fn open(
        &self,
        opening: Opening,
        before: Option<&Record>,
        reservation_id: Uuid,
        now: Timestamp,
    ) -> Record {
        let (key_id, arguments_hash) = self.hashes.current.clone();
        let fingerprint = Fingerprint {
            tool: Arc::clone(&self.started.tool),
            user_id: Arc::clone(&self.started.context.user_id),
            arguments_hash,
            key_id,
        };
        let started = if self.started.attempt == opening.first_attempt {
            Arc::clone(&self.started)
        } else {
            Arc::new(Event { attempt: opening.first_attempt, ..(*self.started).clone() })
        };
        Record {
            fingerprint,
            reads: self.reads,
            reservation_id,
            reserved_at: now,
            confirmation_id: self.ticket.confirmation_id(),
            last_attempt: last_of(opening.first_attempt, self.max_attempts),
            kept: self.kept,
            effect_before: effect_of(before),
            started,
            state: State::Running,
        }
    }

    /// Whether this is the call of the fingerprint. It is not, if the key behind
    /// the recorded hash is gone: nobody can tell any more.
    fn has(&self, fingerprint: &Fingerprint) -> bool {
        self.started.tool == fingerprint.tool
            && self.started.context.user_id == fingerprint.user_id
            && self
                .hashes
                .under(&fingerprint.key_id)
                .is_some_and(|hash| bool::from(hash.0.ct_eq(&fingerprint.arguments_hash.0)))
    }
}

impl TicketShown {
    /// The id of a verified ticket.
    #[must_use]
    pub const fn confirmation_id(self) -> Option<Uuid> {
        match self {
            Self::Verified { confirmation_id, .. } => Some(confirmation_id),
            Self::NotNeeded | Self::Missing | Self::Refused(_) => None,
        }
    }
}

impl Reservation {
    /// What the earlier reservations of this call have changed together.
    #[must_use]
    pub fn effect_before(&self) -> Effect {
        effect_of(self.before.as_deref())
    }
}

fn effect_of(record: Option<&Record>) -> Effect {
    match record.map(|record| &record.state) {
        Some(State::Ended(ended)) => ended.effect,
        Some(State::Running) | None => Effect::None,
    }
}

impl Record {
    /// Until when it is remembered: without end while it runs.
    #[must_use]
    pub fn kept_until(&self) -> Option<Timestamp> {
        match &self.state {
            State::Running => None,
            State::Ended(ended) => {
                Some(ended.at.saturating_add(self.kept).unwrap_or(Timestamp::MAX))
            }
        }
    }
}

impl Turned {
    /// A refusal that replays nothing.
    #[must_use]
    pub const fn for_reason(reason: Reason) -> Self {
        Self { reason, replay: None }
    }
}

/// Whether a ticket's time is over at `now`, in whole seconds, `now` floored.
#[must_use]
pub fn is_expired(expires_at: Timestamp, now: Timestamp) -> bool {
    now.as_second() >= expires_at.as_second()
}

/// Why the ticket does not let a call run, if it does not.
fn refused(shown: TicketShown, known: TicketUse, now: Timestamp) -> Option<Reason> {
    match shown {
        TicketShown::NotNeeded => None,
        TicketShown::Missing => Some(Reason::ConfirmationRequired),
        TicketShown::Refused(reason) => Some(reason),
        TicketShown::Verified { expires_at, .. } if is_expired(expires_at, now) => {
            Some(Reason::ConfirmationExpired)
        }
        TicketShown::Verified { .. } => match known {
            TicketUse::Unused => None,
            TicketUse::Forgotten => Some(Reason::ConfirmationExpired),
            TicketUse::Revoked => Some(Reason::ConfirmationRevoked),
            TicketUse::Spent => Some(Reason::ConfirmationConsumed),
        },
    }
}

/// Numbers the attempts on, unless they would pass the last number there is.
fn reopen(record: &Record, claim: &Claim) -> Option<Opening> {
    let first_attempt = claim.started.attempt.max(record.last_attempt.saturating_add(1));
    (last_of(first_attempt, claim.max_attempts) <= MAX_ATTEMPT).then_some(Opening { first_attempt })
}

const fn last_of(first_attempt: u32, max_attempts: u32) -> u32 {
    first_attempt.saturating_add(max_attempts.saturating_sub(1))
}

#[cfg(test)]
mod tests;
