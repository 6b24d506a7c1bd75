#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::time::Duration;

use uuid::Uuid;

use super::*;
use crate::domain::audit::samples;
use crate::domain::record::Fingerprint;

const NOW: Timestamp = Timestamp::constant(1_800_000_100, 0);
const BEFORE: Timestamp = Timestamp::constant(1_800_000_050, 0);
const RESULT: Digest = Digest([7; 32]);
/// The request that holds the reservation, and one that does not.
const HOLDER: &str = "req-1";
const OTHER: &str = "req-2";

/// `Running`, or how it ended.
type Settled = Option<(Reason, Effect)>;

fn started(request_id: &str, attempt: u32) -> Event {
    let mut event = Event { attempt, ..samples::started("call-1") };
    Arc::make_mut(&mut event.context).request_id = request_id.into();
    event
}

fn completed(request_id: &str, attempt: u32, reason: Reason, effect: Effect) -> Arc<Event> {
    let result = (reason == Reason::Ok).then_some((<_>::default(), RESULT));
    let kind = EventKind::Completed {
        reason,
        duration_us: 1,
        result_summary: result.map(|(summary, _)| summary),
        result_digest: result.map(|(_, digest)| digest),
        effect,
    };
    Arc::new(started(request_id, attempt).completed(BEFORE, kind))
}

/// A record whose reservation begins with this attempt and, while it runs, may
/// go on to the next.
fn record(reads: bool, first: u32, last: u32, settled: Settled) -> Record {
    let state = settled.map_or(State::Running, |(reason, effect)| {
        let result_digest = (reason == Reason::Ok).then_some(RESULT);
        State::Ended(Ended { reason, effect, at: BEFORE, result_digest })
    });
    Record {
        fingerprint: Fingerprint {
            tool: "search".into(),
            user_id: "user-1".into(),
            arguments_hash: Digest([2; 32]),
            key_id: "a1".into(),
        },
        reads,
        reservation_id: Uuid::from_u128(9),
        reserved_at: BEFORE,
        confirmation_id: None,
        last_attempt: last,
        kept: Duration::from_hours(24),
        effect_before: Effect::None,
        started: Arc::new(started(HOLDER, first)),
        state,
    }
}

fn end_of(event: &Event) -> (Reason, Effect, Option<Digest>) {
    event.check().expect("an event that the journal takes");
    match event.kind {
        EventKind::Completed { reason, effect, result_digest, duration_us: 0, .. } => {
            (reason, effect, result_digest)
        }
        _ => panic!("{event:?}"),
    }
}

/// Every state of a record × reads and writes × where the open attempt stands.
#[test]
fn an_open_pair_is_closed_with_what_is_known() {
    use Effect::{Applied, None as Nothing, Unknown};
    use Reason::{AttemptDeadline, HandlerFailed, Ok, ProcessLost};
    // The reservation began with attempt 2; one before it ended with attempt 1.
    // Whose request, which attempt; the record's last attempt and end; what a write is told.
    let rows = [
        // Its only attempt runs: the handler may have been called.
        (HOLDER, 2, 3, None, (ProcessLost, Unknown)),
        (HOLDER, 3, 3, None, (ProcessLost, Unknown)),
        // Settled, and its completed event was not durable yet.
        (HOLDER, 2, 2, Some((Ok, Applied)), (Ok, Applied)),
        (HOLDER, 3, 3, Some((Ok, Applied)), (Ok, Applied)),
        (HOLDER, 2, 2, Some((HandlerFailed, Unknown)), (HandlerFailed, Unknown)),
        (HOLDER, 3, 3, Some((AttemptDeadline, Unknown)), (AttemptDeadline, Unknown)),
        (
            HOLDER,
            2,
            2,
            Some((Reason::AuditStartedFailed, Nothing)),
            (Reason::AuditStartedFailed, Nothing),
        ),
        // Its started event became durable too late for its handler to be called.
        (HOLDER, 3, 2, Some((Reason::AuditStartedFailed, Unknown)), (ProcessLost, Nothing)),
        (HOLDER, 2, 1, Some((Reason::AuditStartedFailed, Nothing)), (ProcessLost, Nothing)),
        // An attempt before the last: nobody knows how it ended.
        (HOLDER, 2, 3, Some((Ok, Applied)), (ProcessLost, Unknown)),
        // An earlier reservation's, of whatever request.
        (HOLDER, 1, 3, None, (ProcessLost, Unknown)),
        (OTHER, 1, 3, None, (ProcessLost, Unknown)),
        (OTHER, 1, 2, Some((Ok, Applied)), (ProcessLost, Unknown)),
        // One that lost its claim to the holder: its handler was not called.
        (OTHER, 2, 3, None, (ProcessLost, Nothing)),
        (OTHER, 3, 3, None, (ProcessLost, Nothing)),
        (OTHER, 2, 2, Some((Ok, Applied)), (ProcessLost, Nothing)),
        (OTHER, 2, 2, Some((HandlerFailed, Unknown)), (ProcessLost, Nothing)),
    ];
    for (request, attempt, last, settled, (reason, effect)) in rows {
        let open = started(request, attempt);
        let digest = (reason == Ok).then_some(RESULT);
        for reads in [false, true] {
            let settled =
                settled.map(|(reason, effect)| (reason, if reads { Nothing } else { effect }));
            let told = close_pair(&open, Some(&record(reads, 2, last, settled)), NOW);
            let wanted = (reason, if reads { Nothing } else { effect }, digest);
            assert_eq!(
                end_of(&told),
                wanted,
                "{request} {attempt}, {settled:?} after {last}, reads: {reads}"
            );
            assert_eq!((told.time, told.attempt), (NOW, attempt));
        }
    }
}

#[test]
fn an_open_pair_without_a_record_had_no_reservation() {
    let told = close_pair(&started(HOLDER, 1), None, NOW);
    assert_eq!(end_of(&told), (Reason::ProcessLost, Effect::None, None));
}

#[test]
fn a_success_without_its_digest_is_not_told_as_one() {
    let mut record = record(false, 1, 1, Some((Reason::Ok, Effect::Applied)));
    if let State::Ended(ended) = &mut record.state {
        ended.result_digest = None;
    }
    let told = close_pair(&started(HOLDER, 1), Some(&record), NOW);
    assert_eq!(end_of(&told), (Reason::ProcessLost, Effect::Applied, None));
}

#[test]
fn what_earlier_reservations_may_have_done_is_not_forgotten_with_their_journal() {
    for (before, unwitnessed) in
        [(Effect::Unknown, Effect::Unknown), (Effect::Applied, Effect::Applied)]
    {
        let record = Record { effect_before: before, ..record(false, 2, 2, None) };
        let (ended, last_attempt) = settle(&record, &[], &[], NOW);
        assert_eq!((ended.reason, ended.effect, last_attempt), (Reason::ProcessLost, before, 2));
        assert_eq!(settle_unwitnessed(&record, NOW).0.effect, unwitnessed);
    }
}

#[test]
fn an_earlier_life_of_a_call_id_tells_nothing() {
    let record = record(false, 1, 1, None);
    let event = |time| {
        let mut event = (*completed(HOLDER, 1, Reason::Ok, Effect::Applied)).clone();
        event.time = time;
        Arc::new(event)
    };
    let started = record.started.time;
    let before = |seconds| started - jiff::SignedDuration::from_secs(seconds);
    let end = |seconds| {
        let ended = settle(&record, &[], &[event(before(seconds))], NOW).0;
        (ended.reason, ended.effect)
    };
    let kept = 24 * 60 * 60;
    assert_eq!(end(kept + 1), (Reason::ProcessLost, Effect::None), "it was forgotten");
    // It could not be forgotten so soon: the clock went back under the call.
    assert_eq!(end(kept), (Reason::ProcessLost, Effect::Unknown));
    assert_eq!(end(1), (Reason::ProcessLost, Effect::Unknown));
    assert_eq!(settle(&record, &[], &[event(started)], NOW).0.reason, Reason::Ok);
}

/// What the journal may hold of a call × reads and writes, and the settlement.
#[test]
fn a_running_record_is_settled_from_the_journal() {
    use Effect::{Applied, None as Nothing, Unknown};
    use Reason::{AttemptDeadline, CallInProgress, ConfirmationRequired, Ok, ProcessLost};
    // The reservation begins with attempt 2. Completed events, open attempts; the
    // reason, the effect of a write, the last attempt.
    type Row<'a> =
        (&'a [(&'a str, u32, Reason, Effect)], &'a [(&'a str, u32)], (Reason, Effect, u32));
    let rows: &[Row<'_>] = &[
        // Reserved, and not started.
        (&[], &[], (ProcessLost, Nothing, 2)),
        // Started, and no more.
        (&[], &[(HOLDER, 2)], (ProcessLost, Unknown, 2)),
        // Ended.
        (&[(HOLDER, 2, Ok, Applied)], &[], (Ok, Applied, 2)),
        (&[(HOLDER, 2, Reason::HandlerFailed, Unknown)], &[], (Reason::HandlerFailed, Unknown, 2)),
        (
            &[(HOLDER, 2, Reason::UpstreamUnavailable, Nothing)],
            &[],
            (Reason::UpstreamUnavailable, Nothing, 2),
        ),
        // Its pair was closed by a start that was cut short.
        (&[(HOLDER, 2, ProcessLost, Unknown)], &[], (ProcessLost, Unknown, 2)),
        // Between attempts, in the second, and after it.
        (&[(HOLDER, 2, AttemptDeadline, Unknown)], &[], (AttemptDeadline, Unknown, 2)),
        (&[(HOLDER, 2, AttemptDeadline, Unknown)], &[(HOLDER, 3)], (ProcessLost, Unknown, 3)),
        (&[(HOLDER, 2, AttemptDeadline, Unknown), (HOLDER, 3, Ok, Applied)], &[], (Ok, Applied, 3)),
        (
            &[
                (HOLDER, 2, AttemptDeadline, Unknown),
                (HOLDER, 3, Reason::UpstreamUnavailable, Nothing),
            ],
            &[],
            (Reason::UpstreamUnavailable, Unknown, 3),
        ),
        // The reservation before this one ended unknown: the call's effect is that of both.
        (&[(OTHER, 1, AttemptDeadline, Unknown)], &[], (ProcessLost, Unknown, 2)),
        (&[(OTHER, 1, AttemptDeadline, Nothing)], &[], (ProcessLost, Nothing, 2)),
        (&[], &[(OTHER, 1)], (ProcessLost, Unknown, 2)),
        (
            &[
                (OTHER, 1, AttemptDeadline, Unknown),
                (HOLDER, 2, Reason::UpstreamUnavailable, Nothing),
            ],
            &[],
            (Reason::UpstreamUnavailable, Unknown, 2),
        ),
        // Refusals of the same id tell nothing of the attempt, before or after it.
        (&[(HOLDER, 2, ConfirmationRequired, Nothing)], &[], (ProcessLost, Nothing, 2)),
        (&[(OTHER, 2, CallInProgress, Unknown)], &[], (ProcessLost, Nothing, 2)),
        (&[(HOLDER, 2, CallInProgress, Unknown)], &[], (ProcessLost, Nothing, 2)),
        (&[(HOLDER, 2, Ok, Applied), (OTHER, 2, CallInProgress, Unknown)], &[], (Ok, Applied, 2)),
        (
            &[
                (HOLDER, 2, Reason::UpstreamUnavailable, Nothing),
                (OTHER, 2, Reason::LedgerFailed, Nothing),
            ],
            &[],
            (Reason::UpstreamUnavailable, Nothing, 2),
        ),
        (&[(OTHER, 2, Reason::LedgerFailed, Nothing)], &[(HOLDER, 2)], (ProcessLost, Unknown, 2)),
        // Who lost the claim to this reservation had started nothing.
        (&[], &[(OTHER, 2)], (ProcessLost, Nothing, 2)),
        (&[(HOLDER, 2, Ok, Applied)], &[(OTHER, 2)], (Ok, Applied, 2)),
    ];
    for (ends, open, (reason, effect, last)) in rows {
        for reads in [false, true] {
            let seen = |effect: Effect| if reads { Nothing } else { effect };
            let ends: Vec<_> = ends
                .iter()
                .map(|(request, attempt, reason, effect)| {
                    completed(request, *attempt, *reason, seen(*effect))
                })
                .collect();
            let opens: Vec<_> = open
                .iter()
                .map(|(request, attempt)| Arc::new(started(request, *attempt)))
                .collect();
            let (told, attempt) = settle(&record(reads, 2, 3, None), &opens, &ends, NOW);
            let what = format!("{ends:?} {opens:?} reads: {reads}");
            assert_eq!(
                (told.reason, told.effect, attempt),
                (*reason, seen(*effect), *last),
                "{what}"
            );
            assert_eq!(told.result_digest, (*reason == Ok).then_some(RESULT), "{what}");
        }
    }
}

#[test]
fn events_of_other_calls_settle_nothing() {
    let other = |change: fn(&mut Event)| {
        let mut event = Arc::unwrap_or_clone(completed(HOLDER, 2, Reason::Ok, Effect::Applied));
        change(&mut event);
        Arc::new(event)
    };
    let ended = [
        other(|event| event.tool_call_id = "call-2".into()),
        other(|event| Arc::make_mut(&mut event.context).tenant_id = "tenant-2".into()),
        other(|event| Arc::make_mut(&mut event.context).conversation_id = "conversation-2".into()),
    ];
    let open: Vec<_> = ended
        .iter()
        .map(|event| Arc::new(Event { kind: EventKind::Started, ..(**event).clone() }))
        .collect();
    let (told, last) = settle(&record(false, 2, 3, None), &open, &ended, NOW);
    assert_eq!((told.reason, told.effect, last), (Reason::ProcessLost, Effect::None, 2));
}

/// What one start has written, a second reads the same: closing first and
/// settling after is safe to interrupt.
#[test]
fn settling_after_the_pairs_are_closed_says_the_same() {
    for reads in [false, true] {
        let record = record(reads, 2, 3, None);
        let open = Arc::new(started(HOLDER, 2));
        let at_once = settle(&record, std::slice::from_ref(&open), &[], NOW);
        let closed = Arc::new(close_pair(&open, Some(&record), NOW));
        assert_eq!(settle(&record, &[], &[closed], BEFORE), at_once, "reads: {reads}");
    }
}
