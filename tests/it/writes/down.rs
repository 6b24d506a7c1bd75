//! A ledger that is down, or fails a confirmation.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;
use toolgate::adapters::ledger::{EmbeddedLedger, EmbeddedOptions};
use toolgate::domain::proposal::{BatchMode, Proposal};
use toolgate::domain::reason::{Effect, Reason};
use toolgate::domain::record::Whose;
use toolgate::domain::refused::Refused;
use toolgate::gate::BatchReport;
use uuid::Uuid;

use super::stage::{Stage, context, proposal};
use crate::support::fakes::{JournalAct, ScriptedJournal, ScriptedUpstream};
use crate::support::ledger::{LedgerAct, MemoryLedger, Operation};

const START: Timestamp = Timestamp::UNIX_EPOCH;

fn start() -> (Stage, Arc<MemoryLedger>) {
    let ledger = Arc::new(MemoryLedger::default());
    let upstream = ScriptedUpstream::default();
    (Stage::new(ledger.clone(), ScriptedJournal::default(), upstream), ledger)
}

async fn execute(stage: &Stage, calls: Vec<Proposal>) -> Result<BatchReport, Refused> {
    stage.execute(BatchMode::Continue, calls, None).await
}

#[tokio::test(start_paused = true)]
async fn what_may_need_the_ledger_is_refused_as_a_whole() {
    let (stage, ledger) = start();
    let write = stage.confirmed("c1", "draft", "a").await;
    ledger.break_down();
    let read = || proposal("c2", "search", "a");
    for calls in [vec![write.clone()], vec![read(), write], vec![proposal("c3", "reveal", "a")]] {
        let checked = stage.gate.check(&Arc::new(context()), &calls).await;
        assert_eq!(checked.unwrap_err(), Refused::LedgerUnavailable);
        assert_eq!(execute(&stage, calls).await.unwrap_err(), Refused::LedgerUnavailable);
    }
    assert!(stage.journal.taken().is_empty());
    // A plain read, and a call of no tool at all, need no ledger.
    execute(&stage, vec![read(), proposal("c4", "nothing", "a")]).await.unwrap();
    assert_eq!(stage.upstream.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_ticket_is_not_issued_blindly() {
    let (stage, ledger) = start();
    for act in [LedgerAct::Fail, LedgerAct::Hang] {
        let seen = stage.seen(context(), proposal("c1", "draft", "a")).await;
        ledger.script([(Operation::Look, vec![act])]);
        assert_eq!(stage.gate.issue(seen).await.unwrap_err(), Refused::LedgerUnavailable);
        ledger.script([(Operation::Revoke, vec![act])]);
        let revoked = stage.gate.revoke(&Arc::new(context()), Uuid::new_v4()).await;
        assert_eq!(revoked.unwrap_err(), Refused::LedgerUnavailable);
    }
}

#[tokio::test(start_paused = true)]
async fn nor_is_told_of_a_call() {
    let (stage, ledger) = start();
    let write = stage.confirmed("c1", "draft", "a").await;
    execute(&stage, vec![write]).await.unwrap();
    let told = async || stage.gate.recorded_call(&context(), "c1", Whose::User("user-1")).await;
    let kept = Duration::from_hours(24);
    assert_eq!(told().await.unwrap().kept_for, Some(kept));
    stage.clock.move_by(3_600);
    assert_eq!(told().await.unwrap().kept_for, Some(Duration::from_hours(23)));
    // What is over and not forgotten is told.
    stage.clock.move_by(23 * 3_600 + 1);
    assert_eq!(told().await.unwrap().kept_for, Some(Duration::ZERO));
    for act in [LedgerAct::Fail, LedgerAct::Hang] {
        ledger.script([(Operation::Look, vec![act])]);
        assert_eq!(told().await.unwrap_err(), Refused::LedgerUnavailable);
    }
}

/// The clock is read and judged for each ticket, and not ten seconds before.
#[tokio::test]
async fn a_clock_that_went_back_issues_nothing_at_once() {
    let home = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions::new(home.path().join("ledger"), START);
    let ledger = Arc::new(EmbeddedLedger::open(&options).unwrap());
    let stage = Stage::new(ledger, ScriptedJournal::default(), ScriptedUpstream::default());
    stage.confirmed("c1", "draft", "a").await;
    let seen = stage.seen(context(), proposal("c2", "draft", "a")).await;
    stage.clock.move_by(-31);
    assert!(stage.gate.is_clock_trusted());
    let refused = stage.gate.issue(seen).await.unwrap_err();
    assert_eq!(refused, Refused::NotConfirmable(Reason::ClockUntrusted));
    assert!(!stage.gate.is_clock_trusted(), "and everything else is told");
    stage.clock.move_by(31);
    stage.confirmed("c3", "draft", "a").await;
    assert!(stage.gate.is_clock_trusted());
}

/// A fault inside the gate is told with what the call has done by then.
#[tokio::test(start_paused = true)]
async fn a_fault_after_the_handler_does_not_hide_the_effect() {
    let (stage, ledger) = start();
    let write = stage.confirmed("c1", "draft", "a").await;
    ledger.script([(Operation::Settle, vec![LedgerAct::Panic])]);
    let report = execute(&stage, vec![write]).await.unwrap();
    let end = report.results[0].end.as_ref().unwrap();
    assert_eq!((end.reason, end.effect), (Reason::Internal, Effect::Applied));
    assert_eq!(end.result_json, None);
    assert_eq!(stage.known_of("c1").await, "INTERNAL applied 1, spent");
}

/// So is one before it: what was reserved for a call that never started is given back.
#[tokio::test(start_paused = true)]
async fn a_fault_before_the_handler_gives_the_ticket_back() {
    let ledger = Arc::new(MemoryLedger::default());
    // The started event takes the time of the attempt; then the pair's end meets a fault.
    let journal = ScriptedJournal::new([
        JournalAct::TakeAfter(Duration::from_millis(150)),
        JournalAct::Panic,
    ]);
    let stage = Stage::new(ledger.clone(), journal, ScriptedUpstream::default());
    let write = stage.confirmed("c1", "draft", "a").await;
    let deadline = Some(Instant::now() + Duration::from_millis(200));
    let report = stage.execute(BatchMode::Continue, vec![write], deadline).await.unwrap();
    let end = report.results[0].end.as_ref().unwrap();
    assert_eq!((end.reason, end.effect), (Reason::Internal, Effect::None));
    assert_eq!(stage.known_of("c1").await, "none, unused");
    assert!(stage.upstream.seen().is_empty());
}

#[tokio::test(start_paused = true)]
async fn nor_without_the_journal() {
    let (stage, _) = start();
    let seen = stage.seen(context(), proposal("c1", "draft", "a")).await;
    stage.journal.break_down();
    assert_eq!(stage.gate.issue(seen).await.unwrap_err(), Refused::JournalUnavailable);
    let revoked = stage.gate.revoke(&Arc::new(context()), Uuid::new_v4()).await;
    assert_eq!(revoked.unwrap_err(), Refused::JournalUnavailable);
}
