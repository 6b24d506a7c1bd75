//! The caller gone at every millisecond of a write, under paused time: one effect
//! at most, every pair closed, every record settled or given back.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use toolgate::domain::proposal::{BatchMode, Proposal};
use toolgate::domain::reason::Reason;
use toolgate::domain::record::State;
use toolgate::gate::BatchReport;

use super::stage::Stage;
use crate::support::fakes::{Act, JournalAct, ScriptedJournal, ScriptedUpstream};
use crate::support::journal::endings_of;
use crate::support::ledger::{LedgerAct, MemoryLedger, Operation};
use crate::support::running::metric;

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A gate whose every await takes its time.
struct Slow {
    stage: Stage,
    ledger: Arc<MemoryLedger>,
}

impl Slow {
    fn new(acts: &[(&str, Vec<Act>)]) -> Self {
        let ledger = Arc::new(MemoryLedger::default());
        let acts = acts.iter().map(|(tool, acts)| ((*tool).to_owned(), acts.clone()));
        let journal = ScriptedJournal::new([JournalAct::TakeAfter(ms(50)); 16]);
        let stage = Stage::new(ledger.clone(), journal, ScriptedUpstream::new(acts));
        Self { stage, ledger }
    }

    /// Looks of 50 ms, reservations of 100, settlements of 70, releases of 30.
    fn slow_down(&self) {
        let after = |time| vec![LedgerAct::TakeAfter(ms(time)); 16];
        self.ledger.script([
            (Operation::Look, after(50)),
            (Operation::Reserve, after(100)),
            (Operation::Settle, after(70)),
            (Operation::Release, after(30)),
        ]);
    }

    /// Executes, goes away half a millisecond after `step`, and waits for the end
    /// of what still runs. Tells of each call what the ledger knows then.
    async fn leave(&self, step: u64, mode: BatchMode, calls: Vec<Proposal>) -> Vec<String> {
        let ids: Vec<_> = calls.iter().map(|call| call.tool_call_id.clone()).collect();
        self.slow_down();
        let at = ms(step) + Duration::from_micros(500);
        // Whether it was answered before does not matter.
        drop(timeout(at, self.stage.execute(mode, calls, None)).await);
        self.stage.gate.drain(Duration::from_mins(1)).await;
        self.ledger.script([]);
        self.assert_nothing_is_owed(step);
        let mut known = Vec::new();
        for id in ids {
            known.push(self.stage.known_of(&id).await);
        }
        known
    }

    fn assert_nothing_is_owed(&self, step: u64) {
        let events: Vec<_> =
            self.stage.journal.taken().iter().map(|event| (**event).clone()).collect();
        // Fails where a pair is open.
        let ends = endings_of(&events);
        let records = self.ledger.records();
        assert!(records.iter().all(|record| record.state != State::Running), "{step}: {records:?}");
        assert_eq!(self.ledger.spent(), records.len(), "{step}: a ticket a record");
        let text = self.stage.metrics.exposition().unwrap().text;
        let counted = metric(&text, "toolgate_tool_calls_total", &[]);
        assert_eq!(counted, i64::try_from(ends.len()).unwrap(), "{step}");
        assert_eq!(metric(&text, "toolgate_requests_in_flight", &[]), 0, "{step}");
        assert!(self.attempts() <= ends.len(), "{step}: a pair an attempt");
    }

    fn attempts(&self) -> usize {
        self.stage.upstream.seen().len()
    }
}

fn answer() -> Act {
    Act::AnswerAfter(ms(100), r#"{"id":1}"#.to_owned())
}

const NOTHING: &str = "none, unused";
const APPLIED: &str = "OK applied 1, spent";

#[tokio::test(start_paused = true)]
async fn one_write_is_not_started_or_ends() {
    for step in 0..400 {
        let slow = Slow::new(&[("draft", vec![answer()])]);
        let call = slow.stage.confirmed("c1", "draft", "a").await;
        let known = slow.leave(step, BatchMode::StopOnFailure, vec![call]).await;
        // Looked at until 50, reserved until 150, answered at 250, settled at 320.
        let wanted = if step < 50 { NOTHING } else { APPLIED };
        assert_eq!(known, [wanted], "{step}");
        assert_eq!(slow.stage.upstream.cancelled(), 0, "{step}: a running write is not cut off");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_timed_out_is_not_tried_again() {
    for step in (0..1_600).step_by(5) {
        let slow = Slow::new(&[("draft", vec![Act::Hang, answer()])]);
        let call = slow.stage.confirmed("c1", "draft", "a").await;
        let known = slow.leave(step, BatchMode::Continue, vec![call]).await;
        // The attempt runs from 150 to 1150, and is recorded at 1200.
        let wanted = match step {
            0..50 => NOTHING,
            50..1_200 => "ATTEMPT_DEADLINE unknown 1, spent",
            _ => "OK applied 2, spent",
        };
        assert_eq!(known, [wanted], "{step}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_batch_is_given_back() {
    for step in 0..700 {
        let slow = Slow::new(&[("draft", vec![answer()])]);
        let calls = vec![
            slow.stage.confirmed("c1", "draft", "a").await,
            slow.stage.confirmed("c2", "draft", "b").await,
        ];
        let known = slow.leave(step, BatchMode::StopOnFailure, calls).await;
        // Looked at until 100, reserved until 200; each started, answered and settled in 220.
        let wanted = match step {
            0..200 => [NOTHING, NOTHING],
            200..420 => [APPLIED, NOTHING],
            _ => [APPLIED, APPLIED],
        };
        assert_eq!(known, wanted, "{step}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_batch_that_goes_on_is_not_reserved() {
    for step in 0..800 {
        let slow = Slow::new(&[("draft", vec![answer()])]);
        let calls = vec![
            slow.stage.confirmed("c1", "draft", "a").await,
            slow.stage.confirmed("c2", "draft", "b").await,
        ];
        let known = slow.leave(step, BatchMode::Continue, calls).await;
        // The second is looked at from 320 to 370.
        let wanted = match step {
            0..50 => [NOTHING, NOTHING],
            50..370 => [APPLIED, NOTHING],
            _ => [APPLIED, APPLIED],
        };
        assert_eq!(known, wanted, "{step}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_confirmed_read_is_cancelled_and_settled() {
    let mut cancelled = 0;
    for step in 0..400 {
        let slow = Slow::new(&[("reveal", vec![answer()])]);
        let call = slow.stage.confirmed("c1", "reveal", "a").await;
        let known = slow.leave(step, BatchMode::StopOnFailure, vec![call]).await;
        let wanted = match step {
            0..50 => NOTHING,
            50..250 => "CANCELLED none 1, spent",
            _ => "OK none 1, spent",
        };
        assert_eq!(known, [wanted], "{step}");
        cancelled += slow.stage.upstream.cancelled();
    }
    // Before 150 the handler has not been called yet.
    assert_eq!(cancelled, 250 - 150);
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_loses_patience_lets_a_running_write_end() {
    let slow = Slow::new(&[("draft", vec![answer()])]);
    let calls = vec![
        slow.stage.confirmed("c1", "draft", "a").await,
        slow.stage.confirmed("c2", "draft", "b").await,
    ];
    slow.slow_down();
    let (report, ()) = tokio::join!(
        slow.stage.execute(BatchMode::StopOnFailure, calls, None),
        slow.stage.gate.drain(ms(300)),
    );
    slow.ledger.script([]);
    let results = report.unwrap().results;
    assert!(results[0].end.is_some() && results[1].end.is_none(), "{results:?}");
    assert_eq!(slow.stage.known_of("c1").await, APPLIED);
    assert_eq!(slow.stage.known_of("c2").await, NOTHING);
    slow.assert_nothing_is_owed(0);
}

#[tokio::test(start_paused = true)]
async fn many_at_once_with_one_ticket_have_one_effect() {
    let slow = Slow::new(&[("refund", vec![answer()])]);
    let call = slow.stage.confirmed("c1", "refund", "a").await;
    slow.slow_down();
    let execute = || slow.stage.execute(BatchMode::Continue, vec![call.clone()], None);
    let reports = futures_util::future::join_all([execute(), execute(), execute(), execute()]);
    let mut reasons: Vec<_> = reports
        .await
        .into_iter()
        .map(|report| report.unwrap().results.remove(0).end.unwrap().reason.code())
        .collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["CALL_IN_PROGRESS", "CALL_IN_PROGRESS", "CALL_IN_PROGRESS", "OK"]);
    assert_eq!(slow.attempts(), 1);
    assert_eq!(slow.stage.known_of("c1").await, APPLIED);
}

#[tokio::test(start_paused = true)]
async fn who_looks_while_the_call_is_reserved_learns_that_it_runs() {
    let slow = Slow::new(&[("refund", vec![answer()])]);
    let call = slow.stage.confirmed("c1", "refund", "a").await;
    // The second asks of the ticket after, and could have asked of the call before.
    slow.ledger.script([
        (Operation::Reserve, vec![LedgerAct::TakeAfter(ms(5))]),
        (Operation::Ticket, vec![LedgerAct::Take, LedgerAct::TakeAfter(ms(10))]),
    ]);
    let execute = || slow.stage.execute(BatchMode::Continue, vec![call.clone()], None);
    let (first, second) = tokio::join!(execute(), execute());
    let reason = |mut report: BatchReport| report.results.remove(0).end.unwrap().reason;
    assert_eq!(reason(first.unwrap()), Reason::Ok);
    assert_eq!(reason(second.unwrap()), Reason::CallInProgress);
}
