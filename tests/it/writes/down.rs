//! A ledger that is down, or fails a confirmation.

use std::sync::Arc;

use toolgate::domain::proposal::{BatchMode, Proposal};
use toolgate::domain::refused::Refused;
use toolgate::gate::BatchReport;
use uuid::Uuid;

use super::stage::{Stage, context, proposal};
use crate::support::fakes::{ScriptedJournal, ScriptedUpstream};
use crate::support::ledger::{LedgerAct, MemoryLedger, Operation};

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
async fn nor_without_the_journal() {
    let (stage, _) = start();
    let seen = stage.seen(context(), proposal("c1", "draft", "a")).await;
    stage.journal.break_down();
    assert_eq!(stage.gate.issue(seen).await.unwrap_err(), Refused::JournalUnavailable);
    let revoked = stage.gate.revoke(&Arc::new(context()), Uuid::new_v4()).await;
    assert_eq!(revoked.unwrap_err(), Refused::JournalUnavailable);
}
