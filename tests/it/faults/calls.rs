//! Syncs that fail, are slow, or do not return.
//!
//! The gate is a process of its own, and the kernel itself is made to answer so.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use toolgate::domain::reason::Reason as Ended;
use toolgate::proto::{AuditState, Effect, Reason, ToolResult};

use super::stage::{Gate, Place};
use crate::support::journal;
use crate::support::running::{Does, until};
use crate::support::strace::{Faults, Meets};

/// Longer than any wait of the gate, and than this test.
const HANGS: Meets = Meets::Delay(120_000);
const EIO: Meets = Meets::Error("EIO");

struct Stage {
    place: Place,
    gate: Gate,
    go: Arc<Notify>,
}

impl Stage {
    async fn start() -> Option<Self> {
        if !Faults::are_possible() {
            return None;
        }
        let place = Place::new().await;
        let gate = place.serve().await;
        let first = gate.confirmed("first").await;
        assert!(gate.run(&first).await.is_done());
        let go = Arc::new(Notify::new());
        Some(Self { place, gate, go })
    }

    fn faults(&self, file: &Path, meets: Meets) -> Faults {
        Faults::of_syncs(self.gate.process.id(), file, meets)
    }

    /// The segment that is written to.
    fn segment(&self) -> PathBuf {
        let segments = fs::read_dir(self.place.data(Some("journal")).join("segments")).unwrap();
        segments.map(|entry| entry.unwrap().path()).max().unwrap()
    }

    fn ledger(&self) -> PathBuf {
        self.place.data(Some("ledger")).join("ledger.redb")
    }

    /// A call whose handler has been entered, and waits for [`Stage::finish`].
    async fn under_way(&self, id: &str) -> JoinHandle<ToolResult> {
        let answer = r#"{"id": 7}"#.to_owned();
        self.place.handler.set("draft", Does::Wait(Arc::clone(&self.go), answer));
        let (call, sides) = (self.gate.confirmed(id).await, self.gate.sides.clone());
        let running = tokio::spawn(async move { sides.execute(&call).await });
        until("the handler is entered", async || self.place.handler.running() == 1).await;
        running
    }

    async fn finish(&self, running: JoinHandle<ToolResult>) -> ToolResult {
        self.go.notify_one();
        let result = running.await.unwrap();
        self.place.handler.set("draft", Does::Answer("{}".to_owned()));
        result
    }

    /// With another gate on the same data.
    async fn restarted(self) -> Self {
        let Self { place, gate, go } = self;
        gate.stop().await;
        let gate = place.serve().await;
        Self { place, gate, go }
    }

    /// Nothing is wrong any more, and the journal has these ends.
    async fn ends(self, wanted: &[(&str, Ended)]) {
        let last = self.gate.confirmed("last").await;
        assert!(self.gate.run(&last).await.is_done());
        self.gate.stop().await;
        let endings = journal::endings(self.place.directory.path());
        for (id, reason) in [("first", Ended::Ok), ("last", Ended::Ok)].iter().chain(wanted) {
            let ending = ((*id).to_owned(), 1, *reason);
            assert!(endings.contains(&ending), "{ending:?} is not in {endings:?}");
        }
    }
}

#[tokio::test]
async fn a_started_event_whose_sync_fails_runs_nothing() {
    let Some(stage) = Stage::start().await else { return };
    let call = stage.gate.confirmed("c1").await;
    let faults = stage.faults(&stage.segment(), EIO);
    let told = stage.gate.run(&call).await;
    assert_eq!(told.reason(), "AUDIT_STARTED_FAILED");
    let result = told.result();
    assert_eq!((result.effect(), result.audit()), (Effect::None, AuditState::StartedFailed));
    assert_eq!(stage.place.effects("c1"), 0);
    // It goes on in another file, with what it owed first; the ticket stays spent.
    stage.gate.until_readiness("200 OK").await;
    assert_eq!(stage.gate.run(&call).await.reason(), "CONFIRMATION_CONSUMED");
    drop(faults);
    stage.ends(&[("c1", Ended::AuditStartedFailed)]).await;
}

#[tokio::test]
async fn a_completed_event_whose_sync_fails_withholds_the_result() {
    let Some(stage) = Stage::start().await else { return };
    let running = stage.under_way("c1").await;
    let faults = stage.faults(&stage.segment(), EIO);
    let result = stage.finish(running).await;
    assert_eq!((result.reason(), result.effect()), (Reason::Ok, Effect::Applied));
    assert_eq!((result.audit(), &*result.result_json), (AuditState::CompletedFailed, ""));
    stage.gate.until_readiness("200 OK").await;
    assert_eq!(stage.gate.recorded("c1").await.unwrap().effect(), Effect::Applied);
    drop(faults);
    stage.ends(&[("c1", Ended::Ok)]).await;
}

#[tokio::test]
async fn a_reservation_whose_sync_fails_runs_nothing() {
    let Some(stage) = Stage::start().await else { return };
    let call = stage.gate.confirmed("c1").await;
    let faults = stage.faults(&stage.ledger(), EIO);
    let told = stage.gate.run(&call).await;
    assert_eq!((&*told.reason(), told.result().effect()), ("LEDGER_FAILED", Effect::None));
    assert_eq!(stage.gate.run(&call).await.reason(), "LEDGER_UNAVAILABLE");
    assert!(stage.gate.read("read").await.is_done());
    drop(faults);
    // What failed may be on the disk or not; only opening it again tells.
    assert_eq!(stage.gate.run(&call).await.reason(), "LEDGER_UNAVAILABLE");
    let stage = stage.restarted().await;
    let again = stage.gate.run(&call).await.reason();
    assert!(["OK", "CONFIRMATION_CONSUMED"].contains(&&*again), "{again}");
    assert_eq!(stage.place.effects("c1"), usize::from(again == "OK"));
    stage.ends(&[("c1", Ended::LedgerFailed)]).await;
}

#[tokio::test]
async fn a_settlement_whose_sync_fails_is_made_up_for_by_the_next_start() {
    let Some(stage) = Stage::start().await else { return };
    let running = stage.under_way("c1").await;
    let faults = stage.faults(&stage.ledger(), EIO);
    let result = stage.finish(running).await;
    assert_eq!((result.reason(), result.audit()), (Reason::Ok, AuditState::Recorded));
    assert_eq!((result.effect(), &*result.result_json), (Effect::Applied, r#"{"id": 7}"#));
    stage.gate.until_readiness("ledger down").await;
    drop(faults);
    let stage = stage.restarted().await;
    let recorded = stage.gate.recorded("c1").await.unwrap();
    assert_eq!((recorded.running, recorded.effect()), (false, Effect::Applied));
    assert_eq!(stage.place.effects("c1"), 1);
    stage.ends(&[("c1", Ended::Ok)]).await;
}

#[tokio::test]
async fn slow_syncs_make_slow_answers_and_no_others() {
    let Some(stage) = Stage::start().await else { return };
    let call = stage.gate.confirmed("c1").await;
    // Two waits for each of them: below the time-outs of the gate.
    for file in [stage.segment(), stage.ledger()] {
        let _faults = stage.faults(&file, Meets::Delay(300));
        let again = stage.gate.run(&call).await;
        assert!(again.is_done() || again.reason() == "CALL_REPLAYED", "{again:?}");
    }
    assert_eq!(stage.place.effects("c1"), 1);
    stage.ends(&[("c1", Ended::Ok)]).await;
}

#[tokio::test]
async fn a_journal_that_hangs_refuses_until_it_goes_on() {
    let Some(stage) = Stage::start().await else { return };
    let call = stage.gate.confirmed("c1").await;
    let other = stage.gate.confirmed("c2").await;
    let faults = stage.faults(&stage.segment(), HANGS);
    // Given up after two seconds, as all that waits for a disk.
    let told = stage.gate.run(&call).await;
    assert_eq!((&*told.reason(), told.result().effect()), ("AUDIT_STARTED_FAILED", Effect::None));
    for call in [&call, &other] {
        assert_eq!(stage.gate.run(call).await.reason(), "JOURNAL_UNAVAILABLE");
    }
    stage.gate.until_readiness("journal down").await;
    drop(faults);
    stage.gate.until_readiness("200 OK").await;
    assert!(stage.gate.run(&other).await.is_done());
    assert_eq!((stage.place.effects("c1"), stage.place.effects("c2")), (0, 1));
    stage.ends(&[("c1", Ended::AuditStartedFailed), ("c2", Ended::Ok)]).await;
}

#[tokio::test]
async fn a_completed_event_that_hangs_is_withheld_and_written_when_it_goes_on() {
    let Some(stage) = Stage::start().await else { return };
    let running = stage.under_way("c1").await;
    let faults = stage.faults(&stage.segment(), HANGS);
    let result = stage.finish(running).await;
    assert_eq!((result.reason(), result.effect()), (Reason::Ok, Effect::Applied));
    assert_eq!((result.audit(), &*result.result_json), (AuditState::CompletedFailed, ""));
    drop(faults);
    stage.gate.until_readiness("200 OK").await;
    stage.ends(&[("c1", Ended::Ok)]).await;
}

#[tokio::test]
async fn a_ledger_that_hangs_in_reserving_gives_the_ticket_back_when_it_goes_on() {
    let Some(stage) = Stage::start().await else { return };
    let call = stage.gate.confirmed("c1").await;
    let faults = stage.faults(&stage.ledger(), HANGS);
    let told = stage.gate.run(&call).await;
    assert_eq!((&*told.reason(), told.result().effect()), ("LEDGER_FAILED", Effect::None));
    assert_eq!(stage.place.effects("c1"), 0);
    drop(faults);
    // For a moment it is reserved for a caller that has gone; who asks while it is
    // given back may see the ticket before that, and the record after it.
    until("the ticket is given back", async || {
        let told = stage.gate.run(&call).await;
        let is_early = ["CALL_IN_PROGRESS", "CONFIRMATION_CONSUMED"].contains(&&*told.reason());
        assert!(told.is_done() || is_early, "{told:?}");
        told.is_done()
    })
    .await;
    assert_eq!(stage.place.effects("c1"), 1);
    stage.ends(&[("c1", Ended::LedgerFailed), ("c1", Ended::Ok)]).await;
}

#[tokio::test]
async fn a_ledger_that_hangs_in_settling_settles_when_it_goes_on() {
    let Some(stage) = Stage::start().await else { return };
    let running = stage.under_way("c1").await;
    let faults = stage.faults(&stage.ledger(), HANGS);
    let result = stage.finish(running).await;
    assert_eq!((result.reason(), result.audit()), (Reason::Ok, AuditState::Recorded));
    assert_eq!(result.result_json, r#"{"id": 7}"#);
    drop(faults);
    until("it is settled", async || !stage.gate.recorded("c1").await.unwrap().running).await;
    assert_eq!(stage.gate.recorded("c1").await.unwrap().effect(), Effect::Applied);
    stage.ends(&[("c1", Ended::Ok)]).await;
}
