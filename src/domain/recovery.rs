//! What is made of the calls that a killed process left behind (semantics, sections 7 and 8).
//!
//! Two witnesses remain. The journal has a started event for every attempt whose
//! handler may have been called, and a completed one for every attempt that is
//! known to have ended. The ledger has a running record for every call that was
//! reserved and not settled. Neither is believed beyond what it can know.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::audit::{CallName, Digest, Event, EventKind};
use super::reason::{Effect, Outcome, Reason};
use super::record::{Ended, Record, State};

/// How an event of a record's call stands to the reservation that the record shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It is of an attempt of this reservation.
    Its,
    /// It is of an attempt of a reservation that ended before this one was made.
    Earlier,
    /// No reservation stood behind it: it lost its claim to this one, or was refused.
    Unreserved,
}

/// The completed event of a pair that was left open, by what the ledger says of its call.
///
/// How long the attempt ran is not known; the duration is 0, so that no wait for
/// a restart enters a metric. A success that only the ledger knows has the
/// result's digest and no summary.
#[must_use]
pub fn close_pair(started: &Event, record: Option<&Record>, now: Timestamp) -> Event {
    let lost = |effect| (Reason::ProcessLost, effect, None);
    let (reason, effect, result_digest) = match record {
        // No reservation ever was, and the handler waits for it.
        None => lost(Effect::None),
        Some(record) => match (&record.state, Standing::of(started, record)) {
            (State::Ended(ended), Standing::Its) if record.last_attempt == started.attempt => {
                known(ended)
            }
            // Settled after its last attempt: no handler was called for a later one.
            (State::Ended(_), Standing::Its) if record.last_attempt < started.attempt => {
                lost(Effect::None)
            }
            (_, Standing::Unreserved) => lost(Effect::None),
            (_, Standing::Its | Standing::Earlier) => lost(at_worst(record)),
        },
    };
    let kind = EventKind::Completed {
        reason,
        duration_us: 0,
        result_summary: None,
        result_digest,
        effect,
    };
    started.completed(now, kind)
}

/// The completed event of a pair that was left open while another ledger was
/// there, or this one was older: what that knew of the call nobody knows.
#[must_use]
pub fn close_unaccounted(started: &Event, is_read: bool, now: Timestamp) -> Event {
    let kind = EventKind::Completed {
        reason: Reason::ProcessLost,
        duration_us: 0,
        result_summary: None,
        result_digest: None,
        effect: if is_read { Effect::None } else { Effect::Unknown },
    };
    started.completed(now, kind)
}

/// How a running record of a dead process ends: by its completed events if its
/// last attempt has one, else as lost. Never run again by itself. Its effect is
/// that of all attempts of the call, those of earlier reservations included.
///
/// `open` and `ended` are the journal's events of any calls, oldest first.
#[must_use]
pub fn settle(
    record: &Record,
    open: &[Arc<Event>],
    ended: &[Arc<Event>],
    now: Timestamp,
) -> (Ended, u32) {
    let call = CallName::of(&record.started);
    let of_call = |event: &&Arc<Event>| CallName::of(event) == call;
    let mut last: Option<(&Event, Reason, Option<Digest>)> = None;
    let mut effect = record.effect_before;
    for event in ended.iter().filter(of_call) {
        let EventKind::Completed { reason, effect: changed, result_digest, .. } = &event.kind
        else {
            continue;
        };
        // A refusal tells of the call, or of another one of its id, and ends no attempt.
        if matches!(reason.outcome(), Outcome::Denied | Outcome::Validation) {
            continue;
        }
        let standing = Standing::of(event, record);
        if event.time < record.started.time && standing == Standing::Its {
            // Of an earlier life of the call's id, which the ledger has forgotten:
            // only after the time for which it keeps one. Or the clock went back
            // under the call, which may then have had its effect.
            if !is_forgotten(event, record) {
                effect = effect.and(at_worst(record));
            }
            continue;
        }
        if standing != Standing::Unreserved {
            effect = effect.and(*changed);
        }
        if standing == Standing::Its {
            last = Some((event, *reason, *result_digest));
        }
    }
    let mut last_open = None;
    for started in open.iter().filter(of_call) {
        let standing = Standing::of(started, record);
        if standing != Standing::Unreserved {
            effect = effect.and(at_worst(record));
        }
        if standing == Standing::Its {
            last_open = Some(started.attempt);
        }
    }
    match (last_open, last) {
        (None, Some((event, reason, result_digest))) => {
            (Ended { reason, effect, at: event.time, result_digest }, event.attempt)
        }
        (attempt, _) => (lost(effect, now), attempt.unwrap_or(record.started.attempt)),
    }
}

/// How a running record of a dead process ends if the journal of its time is
/// gone, so that nobody knows whether an attempt was started.
#[must_use]
pub fn settle_unwitnessed(record: &Record, now: Timestamp) -> (Ended, u32) {
    (lost(record.effect_before.and(at_worst(record)), now), record.last_attempt)
}

/// Whether the pair of a record's first attempt is closed as lost among these
/// events: what a successor writes for a gate whose journal is elsewhere.
#[must_use]
pub fn is_closed(record: &Record, ended: &[Arc<Event>]) -> bool {
    let call = CallName::of(&record.started);
    ended.iter().any(|event| {
        CallName::of(event) == call
            && event.attempt == record.started.attempt
            && event.context.request_id == record.started.context.request_id
            && matches!(event.kind, EventKind::Completed { reason: Reason::ProcessLost, .. })
    })
}

impl Standing {
    /// Of an event of the record's own call. In doubt it is the reservation's.
    fn of(event: &Event, record: &Record) -> Self {
        // A reopened call's attempts are numbered on from those before.
        if event.attempt < record.started.attempt {
            Self::Earlier
        } else if event.context.request_id == record.started.context.request_id {
            Self::Its
        } else {
            Self::Unreserved
        }
    }
}

/// Whether an event is of a call that ended so long before the record began that
/// the ledger need not know of it any more.
fn is_forgotten(event: &Event, record: &Record) -> bool {
    let kept = SignedDuration::try_from(record.kept).unwrap_or(SignedDuration::MAX);
    record.started.time.duration_since(event.time) > kept
}

const fn lost(effect: Effect, at: Timestamp) -> Ended {
    Ended { reason: Reason::ProcessLost, effect, at, result_digest: None }
}

/// What an attempt may have changed whose end nobody knows.
const fn at_worst(record: &Record) -> Effect {
    if record.reads { Effect::None } else { Effect::Unknown }
}

/// The end that the ledger knows. A success without a digest cannot be told as one.
const fn known(ended: &Ended) -> (Reason, Effect, Option<Digest>) {
    match (ended.reason, ended.result_digest) {
        (Reason::Ok, None) => (Reason::ProcessLost, ended.effect, None),
        (reason, digest) => (reason, ended.effect, digest),
    }
}

#[cfg(test)]
mod tests;
