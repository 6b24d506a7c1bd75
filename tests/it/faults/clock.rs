//! The clock goes back or on by a day: while the gate runs, and over a restart.
//!
//! The ledger is the embedded one, on a disk; the clock is the test's.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use toolgate::adapters::ledger::{EmbeddedLedger, EmbeddedOptions};
use toolgate::domain::proposal::{BatchMode, Proposal};
use toolgate::domain::reason::{Effect, Reason};
use toolgate::domain::record::Whose;
use toolgate::domain::refused::Refused;
use toolgate::domain::watermark::Reading;
use toolgate::ports::Clock as _;

use crate::support::fakes::{ScriptedJournal, ScriptedUpstream};
use crate::support::running::{metric, until};
use crate::writes::stage::{Stage, context, proposal};

const DAY: i64 = 86_400;

/// Gates that come and go on one ledger.
struct House {
    home: TempDir,
    moved: i64,
}

impl House {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap(), moved: 0 }
    }

    fn ledger(&self) -> PathBuf {
        self.home.path().join("ledger")
    }

    /// A gate that has read its clock, which was moved so far in all.
    async fn start(&mut self, moved: i64) -> Stage {
        self.moved += moved;
        let options = EmbeddedOptions::new(self.ledger(), jiff::Timestamp::UNIX_EPOCH);
        let ledger = Arc::new(EmbeddedLedger::open(&options).unwrap());
        let stage = Stage::new(ledger, ScriptedJournal::default(), ScriptedUpstream::default());
        stage.clock.move_by(self.moved);
        look_at_the_clock(&stage).await;
        stage
    }
}

/// What the gate does by itself every ten seconds: it shows the ledger the clock,
/// and lets it forget.
async fn look_at_the_clock(stage: &Stage) {
    let gate = Arc::clone(&stage.gate);
    // The first turn is at once.
    let keeping = tokio::spawn(async move { gate.keep_ledger().await });
    let name = "toolgate_ledger_operation_duration_seconds_count";
    let looks = || {
        let text = stage.metrics.exposition().unwrap().text;
        metric(&text, name, &[("operation", "forget")])
    };
    let before = looks();
    until("the clock was looked at", async || looks() > before).await;
    keeping.abort();
    drop(keeping.await);
}

async fn run(stage: &Stage, call: Proposal) -> (Reason, Effect) {
    let report = stage.execute(BatchMode::Continue, vec![call], None).await.unwrap();
    let end = report.results[0].end.as_ref().unwrap();
    (end.reason, end.effect)
}

async fn reason(stage: &Stage, call: &Proposal) -> Reason {
    run(stage, call.clone()).await.0
}

/// Without a ticket: of a write that needs none, and of a plain read.
async fn note(stage: &Stage, id: &str) -> Reason {
    reason(stage, &proposal(id, "note", "a")).await
}

async fn read(stage: &Stage) -> Reason {
    reason(stage, &proposal("read", "search", "a")).await
}

async fn issued(stage: &Stage, id: &str) -> Result<(), Refused> {
    let seen = stage.seen(context(), proposal(id, "draft", "a")).await;
    stage.gate.issue(seen).await.map(drop)
}

/// How often the handler was called for a call.
fn effects(stage: &Stage, id: &str) -> usize {
    stage.upstream.seen().iter().filter(|seen| seen.tool_call_id == id).count()
}

/// What every gate does whose clock is a day behind.
async fn denies(stage: &Stage, spent: &Proposal, unspent: &Proposal) {
    assert!(!stage.gate.is_clock_trusted());
    assert_eq!(read(stage).await, Reason::Ok, "a read needs no clock");
    for call in [unspent, &proposal("n", "note", "a")] {
        assert_eq!(run(stage, call.clone()).await, (Reason::ClockUntrusted, Effect::None));
    }
    let refused = issued(stage, "c9").await.unwrap_err();
    assert_eq!(refused, Refused::NotConfirmable(Reason::ClockUntrusted));
    // What has happened is not doubted.
    assert_eq!(run(stage, spent.clone()).await, (Reason::CallReplayed, Effect::Applied));
    let told = stage.gate.recorded_call(&context(), "c1", Whose::User("user-1")).await.unwrap();
    assert_eq!(told.effect, Effect::Applied);
}

#[tokio::test]
async fn back_by_a_day_denies_until_it_is_set_right() {
    let stage = House::new().start(0).await;
    let spent = stage.confirmed("c1", "draft", "a").await;
    let unspent = stage.confirmed("c2", "draft", "a").await;
    assert_eq!(reason(&stage, &spent).await, Reason::Ok);
    stage.clock.move_by(-DAY);
    // Nobody has looked yet, and nothing runs all the same.
    assert_eq!(note(&stage, "n0").await, Reason::ClockUntrusted);
    assert_eq!(reason(&stage, &unspent).await, Reason::ConfirmationNotYetValid);
    look_at_the_clock(&stage).await;
    denies(&stage, &spent, &unspent).await;
    stage.clock.move_by(DAY);
    look_at_the_clock(&stage).await;
    assert_eq!(reason(&stage, &unspent).await, Reason::Ok);
    assert_eq!(note(&stage, "n").await, Reason::Ok);
    assert_eq!((effects(&stage, "c1"), effects(&stage, "c2"), effects(&stage, "n")), (1, 1, 1));
}

#[tokio::test]
async fn on_by_a_day_ends_tickets_and_forgets_nothing() {
    let stage = House::new().start(0).await;
    let spent = stage.confirmed("c1", "draft", "a").await;
    let unspent = stage.confirmed("c2", "draft", "a").await;
    assert_eq!(reason(&stage, &spent).await, Reason::Ok);
    stage.clock.move_by(DAY + 60);
    look_at_the_clock(&stage).await;
    assert!(stage.gate.is_clock_trusted());
    assert_eq!(read(&stage).await, Reason::Ok);
    assert_eq!(run(&stage, unspent.clone()).await, (Reason::ConfirmationExpired, Effect::None));
    // What was over by this clock is not forgotten: it may be wrong.
    assert_eq!(reason(&stage, &spent).await, Reason::CallReplayed);
    let ahead = stage.confirmed("c3", "draft", "a").await;
    assert_eq!(note(&stage, "n").await, Reason::Ok);

    // It was. Tickets of then are not good any more, those of before are.
    stage.clock.move_by(-DAY - 60);
    look_at_the_clock(&stage).await;
    assert!(stage.gate.is_clock_trusted());
    assert_eq!(reason(&stage, &ahead).await, Reason::ConfirmationNotYetValid);
    assert_eq!(reason(&stage, &unspent).await, Reason::Ok);
    assert_eq!(reason(&stage, &spent).await, Reason::CallReplayed);
    assert_eq!(note(&stage, "n").await, Reason::CallReplayed);
    for (id, times) in [("c1", 1), ("c2", 1), ("c3", 0), ("n", 1)] {
        assert_eq!(effects(&stage, id), times, "{id}");
    }
}

#[tokio::test]
async fn back_by_a_day_over_a_restart_denies_until_it_is_set_right() {
    let mut house = House::new();
    let stage = house.start(0).await;
    let spent = stage.confirmed("c1", "draft", "a").await;
    let unspent = stage.confirmed("c2", "draft", "a").await;
    assert_eq!(reason(&stage, &spent).await, Reason::Ok);
    drop(stage);
    let stage = house.start(-DAY).await;
    denies(&stage, &spent, &unspent).await;
    assert_eq!(stage.upstream.seen().len(), 1, "the read");
    drop(stage);
    let stage = house.start(DAY).await;
    assert_eq!(reason(&stage, &unspent).await, Reason::Ok);
    assert_eq!(reason(&stage, &spent).await, Reason::CallReplayed);
}

/// Nothing contradicts the clock of a start, so what is over by it is forgotten. No
/// ticket comes to life again by that, when the clock is set right.
#[tokio::test]
async fn on_by_a_day_over_a_restart_brings_no_ticket_to_life() {
    let mut house = House::new();
    let stage = house.start(0).await;
    let spent = stage.confirmed("c1", "draft", "a").await;
    let unspent = stage.confirmed("c2", "draft", "a").await;
    assert_eq!(reason(&stage, &spent).await, Reason::Ok);
    drop(stage);

    let stage = house.start(DAY + 60).await;
    assert_eq!(read(&stage).await, Reason::Ok);
    let none = stage.gate.recorded_call(&context(), "c1", Whose::Everybody).await;
    assert_eq!(none.unwrap_err(), Refused::CallNotRecorded);
    for call in [&spent, &unspent] {
        assert_eq!(reason(&stage, call).await, Reason::ConfirmationExpired);
    }
    drop(stage);

    // Some seconds after the tickets: those of their own second are forgotten with them.
    let stage = house.start(-DAY - 50).await;
    assert!(!stage.gate.is_clock_trusted());
    assert_eq!(reason(&stage, &spent).await, Reason::ClockUntrusted);
    // An operator has looked: the clock is right.
    let at = Reading { now: stage.clock.now(), monotonic: Duration::ZERO };
    stage.ledger.accept_clock(at).await.unwrap();
    look_at_the_clock(&stage).await;
    assert!(stage.gate.is_clock_trusted());
    for call in [&spent, &unspent] {
        assert_eq!(reason(&stage, call).await, Reason::ConfirmationExpired);
    }
    assert!(stage.upstream.seen().is_empty());
    let fresh = stage.confirmed("c2", "draft", "a").await;
    assert_eq!(reason(&stage, &fresh).await, Reason::Ok);
}
