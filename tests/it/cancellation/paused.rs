//! Points in time: a dropped `execute` at each of them, under paused time.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use toolgate::domain::audit::{Event, EventKind};
use toolgate::domain::policy::PolicySnapshot;
use toolgate::domain::proposal::{BatchMode, Context, Proposal};
use toolgate::domain::reason::Reason;
use toolgate::gate::{ExecuteRequest, Gate, Ports};
use toolgate::ports::{Durability, Upstream};
use toolgate::telemetry::metrics::Metrics;

use crate::support::fakes::{
    Act, JournalAct, ScriptedJournal, ScriptedUpstream, SteppedClock, gate,
};
use crate::support::journal::endings_of;
use crate::support::policies;
use crate::support::running::metric;

/// Loaded once for the thousands of gates.
static POLICY: LazyLock<Arc<PolicySnapshot>> = LazyLock::new(policies::cases);

struct Stage {
    gate: Arc<Gate>,
    journal: Arc<ScriptedJournal>,
    upstream: Arc<ScriptedUpstream>,
    metrics: Metrics,
}

impl Stage {
    fn new(tool: &str, acts: Vec<Act>, journal: impl IntoIterator<Item = JournalAct>) -> Self {
        let journal = Arc::new(ScriptedJournal::new(journal));
        let upstream = Arc::new(ScriptedUpstream::new([(tool.to_owned(), acts)]));
        let policy = Arc::clone(&POLICY);
        let ports = Ports {
            journal: journal.clone(),
            upstream: upstream.clone() as Arc<dyn Upstream>,
            clock: Arc::new(SteppedClock::new()),
        };
        let (gate, metrics) = gate(policy, 1, None, ports);
        Self { gate, journal, upstream, metrics }
    }

    /// Executes, and stops waiting after `time`. Whether the answer came before that.
    async fn execute_for(&self, time: Duration, proposals: Vec<Proposal>, mode: BatchMode) -> bool {
        let request = ExecuteRequest {
            context: Arc::new(Context {
                request_id: "request-1".into(),
                user_id: "user-1".into(),
                tenant_id: "tenant-1".into(),
                conversation_id: "conversation-1".into(),
            }),
            mode,
            proposals,
            deadline: None,
            trace: None,
        };
        timeout(time, self.gate.execute(request)).await.is_ok()
    }

    /// Waits for the end of what still runs and gives the events that the journal took, in order.
    async fn end(&self) -> Vec<Event> {
        let before = Instant::now();
        self.gate.drain(Duration::from_mins(1)).await;
        assert!(before.elapsed() < Duration::from_mins(1), "nothing had to be abandoned");
        self.journal.taken().iter().map(|event| (**event).clone()).collect()
    }

    fn metric(&self, name: &str, labels: &[(&str, &str)]) -> i64 {
        metric(&self.metrics.exposition().unwrap().text, name, labels)
    }

    fn assert_counted(&self, ends: &[(String, u32, Reason)], at: Duration) {
        let counted = self.metric("toolgate_tool_calls_total", &[]);
        assert_eq!(counted, i64::try_from(ends.len()).unwrap(), "{at:?}");
        assert_eq!(self.metric("toolgate_requests_in_flight", &[]), 0, "{at:?}");
    }
}

fn proposal(id: &str, tool: &str) -> Proposal {
    Proposal {
        tool_call_id: id.into(),
        name: tool.into(),
        arguments_json: "{}".into(),
        attempt: None,
        ticket: None,
    }
}

const ATTEMPT: Duration = Duration::from_millis(500);

#[tokio::test(start_paused = true)]
async fn a_caller_may_go_at_any_moment_of_three_attempts() {
    let mut cancelled = 0;
    // Half a millisecond beside each whole one: no tie decides.
    for step in 0..1_501 {
        let at = Duration::from_micros(500) + Duration::from_millis(step);
        let stage = Stage::new("patient", vec![Act::Hang], []);
        let answered =
            stage.execute_for(at, vec![proposal("c1", "patient")], BatchMode::StopOnFailure).await;
        assert_eq!(answered, at > 3 * ATTEMPT, "{at:?}");
        let left = Instant::now();
        let events = stage.end().await;
        assert_eq!(left.elapsed(), Duration::ZERO, "{at:?}: the read was not cancelled at once");

        let ends = endings_of(&events);
        let whole = u32::try_from(at.as_millis() / ATTEMPT.as_millis()).unwrap();
        let mut wanted: Vec<_> = (1..=whole)
            .map(|attempt| ("c1".to_owned(), attempt, Reason::AttemptDeadline))
            .collect();
        if !answered {
            wanted.push(("c1".to_owned(), whole + 1, Reason::Cancelled));
            cancelled += 1;
        }
        assert_eq!(ends, wanted, "{at:?}");
        let delivered = stage.upstream.seen().len();
        assert_eq!((delivered, stage.upstream.cancelled()), (ends.len(), ends.len()), "{at:?}");
        stage.assert_counted(&ends, at);
        assert_last_duration(&events, at, answered);
    }
    assert_eq!(cancelled, 1_500);
}

/// The cancelled attempt lasted until the caller went.
fn assert_last_duration(events: &[Event], at: Duration, answered: bool) {
    let EventKind::Completed { duration_us, .. } = events.last().unwrap().kind else {
        panic!("an open pair")
    };
    let whole = u128::from(duration_us);
    let wanted = if answered { ATTEMPT.as_micros() } else { at.as_micros() % ATTEMPT.as_micros() };
    // The runtime's timer has a grain of a millisecond.
    assert!(whole.abs_diff(wanted) <= 1_000, "{at:?}: {whole} for {wanted}");
}

#[tokio::test(start_paused = true)]
async fn a_caller_may_go_before_anything_was_polled_twice() {
    // Nothing was polled: no request, no pair.
    let stage = Stage::new("patient", vec![Act::Hang], []);
    drop(stage.gate.execute(ExecuteRequest {
        context: Arc::new(Context {
            request_id: "r".into(),
            user_id: "u".into(),
            tenant_id: "t".into(),
            conversation_id: "c".into(),
        }),
        mode: BatchMode::StopOnFailure,
        proposals: vec![proposal("c1", "patient")],
        deadline: None,
        trace: None,
    }));
    assert!(stage.end().await.is_empty());

    // Polled once: the task exists, the caller has gone before its first step, so nothing starts.
    let stage = Stage::new("patient", vec![Act::Hang], []);
    let answered = stage
        .execute_for(Duration::ZERO, vec![proposal("c1", "patient")], BatchMode::StopOnFailure)
        .await;
    assert!(!answered);
    let ends = endings_of(&stage.end().await);
    assert!(ends.iter().all(|(.., reason)| *reason == Reason::Cancelled), "{ends:?}");
    stage.assert_counted(&ends, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn nothing_else_of_the_batch_starts() {
    for mode in [BatchMode::StopOnFailure, BatchMode::Continue] {
        for step in 0..450 {
            let at = Duration::from_micros(500) + Duration::from_millis(step);
            let acts = vec![Act::AnswerAfter(Duration::from_millis(150), "{}".to_owned())];
            let stage = Stage::new("patient", acts, []);
            let calls = ["c1", "c2", "c3"].map(|id| proposal(id, "patient")).to_vec();
            assert!(!stage.execute_for(at, calls, mode).await, "{at:?}");
            let ends = endings_of(&stage.end().await);
            let done = usize::try_from(at.as_millis() / 150).unwrap();
            let reasons: Vec<_> = ends.iter().map(|(_, _, reason)| *reason).collect();
            let mut wanted = vec![Reason::Ok; done];
            wanted.push(Reason::Cancelled);
            assert_eq!(reasons, wanted, "{mode:?} {at:?}");
            assert_eq!(stage.upstream.seen().len(), done + 1, "{mode:?} {at:?}");
            assert_eq!(stage.upstream.cancelled(), 1, "{mode:?} {at:?}");
            stage.assert_counted(&ends, at);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_may_go_while_the_journal_is_waited_for() {
    for mode in [BatchMode::StopOnFailure, BatchMode::Continue] {
        for step in (0..2_000).step_by(50) {
            let at = Duration::from_micros(500) + Duration::from_millis(step);
            // The started event hangs: its failure stands, and no handler runs.
            let hangs = vec![JournalAct::Hang];
            go_while_the_journal_hangs(mode, at, hangs, Reason::AuditStartedFailed, 0).await;
            // The completed event hangs: the ending that it tells stands.
            let hangs = vec![JournalAct::Take, JournalAct::Hang];
            go_while_the_journal_hangs(mode, at, hangs, Reason::Ok, 1).await;
        }
    }
}

async fn go_while_the_journal_hangs(
    mode: BatchMode,
    at: Duration,
    journal: Vec<JournalAct>,
    wanted: Reason,
    delivered: usize,
) {
    let stage = Stage::new("patient", vec![Act::Answer("{}".to_owned())], journal);
    let calls = vec![proposal("c1", "patient"), proposal("c2", "patient")];
    assert!(!stage.execute_for(at, calls, mode).await, "{at:?}");
    let mut events = stage.end().await;
    events.extend(stage.journal.owed().iter().map(|event| (**event).clone()));
    // Completed behind started, whichever of them the journal still owes.
    events.sort_by_key(|event| event.kind != EventKind::Started);
    let ends = endings_of(&events);
    assert_eq!(ends, [("c1".to_owned(), 1, wanted)], "{mode:?} {at:?}");
    assert!(stage.journal.asked().iter().all(|asked| *asked == Durability::Written));
    assert_eq!(stage.upstream.seen().len(), delivered, "{mode:?} {at:?}");
    stage.assert_counted(&ends, at);
    let outcome = wanted.outcome().as_str();
    assert_eq!(stage.metric("toolgate_tool_calls_total", &[("outcome", outcome)]), 1, "{at:?}");
}

#[tokio::test(start_paused = true)]
async fn a_started_event_that_becomes_durable_too_late_calls_no_handler() {
    let late = JournalAct::TakeAfter(Duration::from_secs(1));
    let stage = Stage::new("patient", vec![Act::Hang], [late]);
    let at = Duration::from_millis(500);
    assert!(!stage.execute_for(at, vec![proposal("c1", "patient")], BatchMode::Continue).await);
    let ends = endings_of(&stage.end().await);
    assert_eq!(ends, [("c1".to_owned(), 1, Reason::Cancelled)]);
    assert!(stage.upstream.seen().is_empty());
    stage.assert_counted(&ends, at);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_while_a_time_out_is_recorded_gets_no_retry() {
    let late = JournalAct::TakeAfter(Duration::from_secs(1));
    for call_after in [false, true] {
        let stage = Stage::new("patient", vec![Act::Hang], [JournalAct::Take, late]);
        let ids: &[&str] = if call_after { &["c1", "c2"] } else { &["c1"] };
        let calls = ids.iter().map(|id| proposal(id, "patient")).collect();
        // The attempt ends after half a second, its completed event a second later.
        assert!(!stage.execute_for(Duration::from_secs(1), calls, BatchMode::Continue).await);
        let ends = endings_of(&stage.end().await);
        assert_eq!(ends, [("c1".to_owned(), 1, Reason::AttemptDeadline)]);
        assert_eq!(stage.upstream.seen().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_place_in_flight_is_held_until_the_last_pair_is_closed() {
    // The completed event of the cancelled read hangs for its two seconds.
    let stage = Stage::new("patient", vec![Act::Hang], [JournalAct::Take, JournalAct::Hang]);
    let answered = stage.execute_for(
        Duration::from_millis(100),
        vec![proposal("c1", "patient")],
        BatchMode::StopOnFailure,
    );
    assert!(!answered.await);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(stage.upstream.cancelled(), 1);
    assert_eq!(stage.metric("toolgate_requests_in_flight", &[]), 1);
    let other = stage.execute_for(
        Duration::from_millis(1),
        vec![proposal("c2", "patient")],
        BatchMode::StopOnFailure,
    );
    assert!(other.await, "the one place was taken: the second request is shed at once");
    assert_eq!(stage.metric("toolgate_requests_shed_total", &[]), 1);
    stage.end().await;
    assert_eq!(stage.metric("toolgate_requests_in_flight", &[]), 0);
}
