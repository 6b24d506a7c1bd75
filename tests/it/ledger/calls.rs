//! Calls, tickets and readings to try ledgers with.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use toolgate::domain::audit::{Digest, Event, EventKind, PayloadSummary};
use toolgate::domain::proposal::Context;
use toolgate::domain::reason::{Effect, Reason};
use toolgate::domain::record::{ArgumentsHashes, CallKey, Claim, Ended, TicketShown, Turned};
use toolgate::domain::watermark::Reading;
use toolgate::ports::{Ledger, Reservation, ReserveFault, Settlement};
use uuid::Uuid;

/// When everything begins.
pub const START: Timestamp = Timestamp::constant(1_800_000_000, 0);
/// How long a record is kept.
pub const KEPT: i64 = 86_400;
/// How long a ticket is valid.
pub const LIFETIME: Duration = Duration::from_mins(5);
/// Until when a ticket is remembered: TTL and twice the skew.
pub const REMEMBERED: i64 = 360;

/// This many seconds after the start.
pub fn time(second: i64) -> Timestamp {
    START + SignedDuration::from_secs(second)
}

/// Both clocks this many seconds after the start.
pub fn at(second: i64) -> Reading {
    Reading {
        now: time(second),
        monotonic: Duration::from_secs((1_000_000 + second).try_into().unwrap()),
    }
}

/// A genuine ticket, issued at the start for 300 seconds.
pub fn ticket(number: u128) -> TicketShown {
    TicketShown::Verified { confirmation_id: Uuid::from_u128(number), expires_at: time(300) }
}

/// A write whose handler does not deduplicate, of one attempt.
pub fn claim(tool_call_id: &str, ticket: TicketShown) -> Claim {
    let context = Context {
        request_id: "req-1".into(),
        user_id: "user-1".into(),
        tenant_id: "tenant-1".into(),
        conversation_id: "conversation-1".into(),
    };
    let key = CallKey::new(&context, tool_call_id);
    let started = Event {
        kind: EventKind::Started,
        time: START,
        context: Arc::new(context),
        tool_call_id: tool_call_id.into(),
        tool: "create_draft".into(),
        suggested_tool_hash: Digest([1; 32]),
        attempt: 1,
        arguments_summary: PayloadSummary::default(),
        arguments_digest: Digest([2; 32]),
        policy_digest: Digest([3; 32]),
        audit_key_id: "k1".into(),
        confirmation: None,
        trace_id: None,
    };
    Claim {
        key,
        hashes: ArgumentsHashes::new(("a1".into(), Digest([4; 32])), Vec::new()),
        reads: false,
        handler_deduplicates: false,
        max_attempts: 1,
        kept: Duration::from_secs(KEPT.try_into().unwrap()),
        ticket,
        started: Arc::new(started),
    }
}

/// The end of a first attempt at this second.
pub fn settlement(reason: Reason, effect: Effect, second: i64) -> Settlement {
    let ended = Ended { reason, effect, at: time(second), result_digest: None };
    Settlement { ended, last_attempt: 1 }
}

/// Reserves one call.
pub async fn reserve(
    ledger: &Arc<dyn Ledger>,
    claim: Claim,
    second: i64,
) -> Result<Reservation, Turned> {
    match ledger.reserve(vec![claim], at(second)).await {
        Ok(mut reservations) => Ok(reservations.remove(0)),
        Err(ReserveFault::Turned { index: 0, turned }) => Err(turned),
        Err(other) => panic!("{other:?}"),
    }
}

/// The reason why one call cannot be reserved.
pub async fn refusal(ledger: &Arc<dyn Ledger>, claim: Claim, second: i64) -> Option<Reason> {
    reserve(ledger, claim, second).await.err().map(|turned| turned.reason)
}

/// Reserves and settles one call.
pub async fn run(ledger: &Arc<dyn Ledger>, claim: Claim, settlement: Settlement) -> Reservation {
    let reservation = reserve(ledger, claim, 0).await.unwrap();
    ledger.settle(reservation.id, reservation.key, settlement).await.unwrap();
    reservation
}
