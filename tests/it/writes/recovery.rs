//! What a start makes of records that could not be settled, from the events that
//! a gate has really left.

use std::sync::Arc;

use jiff::Timestamp;
use toolgate::domain::audit::{Event, EventKind};
use toolgate::domain::proposal::BatchMode;
use toolgate::domain::reason::{Effect, Reason};
use toolgate::domain::record::{Ended, Record, State};
use toolgate::domain::recovery;

use super::stage::Stage;
use crate::support::fakes::{Act, ScriptedJournal, ScriptedUpstream};
use crate::support::ledger::{LedgerAct, MemoryLedger, Operation};

/// A gate whose ledger takes neither settlements nor releases from now on.
struct Failing {
    stage: Stage,
    ledger: Arc<MemoryLedger>,
}

impl Failing {
    fn new(acts: Vec<Act>) -> Self {
        let ledger = Arc::new(MemoryLedger::default());
        let upstream = ScriptedUpstream::new([("draft".to_owned(), acts)]);
        let stage = Stage::new(ledger.clone(), ScriptedJournal::default(), upstream);
        Self { stage, ledger }
    }

    fn fail(&self) {
        let acts = || vec![LedgerAct::Fail; 8];
        self.ledger.script([(Operation::Settle, acts()), (Operation::Release, acts())]);
    }

    async fn execute(&self, ids: &[&str]) -> Vec<Option<Reason>> {
        let mut calls = Vec::new();
        for id in ids {
            calls.push(self.stage.confirmed(id, "draft", "a").await);
        }
        self.run(calls).await
    }

    async fn run(&self, calls: Vec<toolgate::domain::proposal::Proposal>) -> Vec<Option<Reason>> {
        let report = self.stage.execute(BatchMode::StopOnFailure, calls, None).await.unwrap();
        report.results.into_iter().map(|result| result.end.map(|end| end.reason)).collect()
    }

    /// Asks again for a call that is still on record as running.
    async fn ask_again(&self, id: &str) {
        let bare = super::stage::proposal(id, "draft", "a");
        assert_eq!(self.run(vec![bare]).await, [Some(Reason::CallInProgress)]);
    }

    /// How the next start settles the call.
    fn settled(&self, id: &str) -> (Ended, u32) {
        let taken = self.stage.journal.taken();
        let is_completed = |event: &&Arc<Event>| matches!(event.kind, EventKind::Completed { .. });
        let ended: Vec<_> = taken.iter().filter(is_completed).cloned().collect();
        recovery::settle(&self.record(id), &[], &ended, Timestamp::MAX)
    }

    fn record(&self, id: &str) -> Record {
        let records = self.ledger.records();
        let record = records.into_iter().find(|record| *record.started.tool_call_id == *id);
        let record = record.unwrap();
        assert_eq!(record.state, State::Running);
        record
    }
}

fn answer() -> Act {
    Act::Answer(r#"{"id":1}"#.to_owned())
}

#[tokio::test]
async fn who_asked_meanwhile_does_not_settle_the_call() {
    let failing = Failing::new(vec![answer()]);
    failing.fail();
    assert_eq!(failing.execute(&["c1"]).await, [Some(Reason::Ok)]);
    failing.ask_again("c1").await;
    let (ended, last_attempt) = failing.settled("c1");
    assert_eq!((ended.reason, ended.effect, last_attempt), (Reason::Ok, Effect::Applied, 1));
    assert!(ended.result_digest.is_some() && ended.at < Timestamp::MAX);
}

#[tokio::test]
async fn a_call_that_was_never_started_changed_nothing_whoever_asked() {
    let failing = Failing::new(vec![Act::Status("INTERNAL")]);
    failing.fail();
    assert_eq!(failing.execute(&["c1", "c2"]).await, [Some(Reason::HandlerFailed), None]);
    failing.ask_again("c2").await;
    let (ended, last_attempt) = failing.settled("c2");
    assert_eq!((ended.reason, ended.effect, last_attempt), (Reason::ProcessLost, Effect::None, 1));
}

#[tokio::test]
async fn what_an_earlier_reservation_may_have_changed_is_not_forgotten() {
    let failing = Failing::new(vec![Act::Lost, Act::Unavailable]);
    assert_eq!(failing.execute(&["c1"]).await, [Some(Reason::UpstreamUnavailable)]);
    failing.fail();
    assert_eq!(failing.execute(&["c1"]).await, [Some(Reason::UpstreamUnavailable)]);
    let (ended, last_attempt) = failing.settled("c1");
    let wanted = (Reason::UpstreamUnavailable, Effect::Unknown, 2);
    assert_eq!((ended.reason, ended.effect, last_attempt), wanted);
}

#[tokio::test]
async fn nor_where_the_later_one_was_never_started() {
    let failing = Failing::new(vec![Act::Lost]);
    assert_eq!(failing.execute(&["c1"]).await, [Some(Reason::UpstreamUnavailable)]);
    failing.fail();
    assert_eq!(failing.execute(&["c0", "c1"]).await, [Some(Reason::UpstreamUnavailable), None]);
    let (ended, last_attempt) = failing.settled("c1");
    let wanted = (Reason::ProcessLost, Effect::Unknown, 2);
    assert_eq!((ended.reason, ended.effect, last_attempt), wanted);
}
