//! What only a disk that hangs, fails or loses power shows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod fake_disk;

use std::future::Future;
use std::task::{Context, Poll, Waker};

use tempfile::TempDir;

use self::fake_disk::FakeDisk;
use super::*;
use crate::domain::audit::{Digest, samples};
use crate::domain::reason::{Effect, Reason};
use crate::domain::record::{ArgumentsHashes, Ended, State, TicketShown};

const START: Timestamp = Timestamp::constant(1_800_000_000, 0);
const AT: Reading = Reading { now: START, monotonic: Duration::from_secs(1_000) };

/// A ledger on a fake disk, and the directory of its other files.
struct Bench {
    directory: TempDir,
    disk: FakeDisk,
    ledger: EmbeddedLedger,
}

impl Bench {
    fn new() -> Self {
        Self::with_queue(4_096)
    }

    fn with_queue(queue: usize) -> Self {
        let directory = TempDir::new().unwrap();
        let disk = FakeDisk::default();
        let options =
            EmbeddedOptions { queue, ..EmbeddedOptions::new(directory.path().into(), START) };
        let ledger = EmbeddedLedger::open_on(&options, |_| disk.clone()).unwrap();
        Self { directory, disk, ledger }
    }

    /// The ledger as another machine would find it on these bytes.
    fn reopened_on(&self, bytes: Vec<u8>) -> (TempDir, EmbeddedLedger) {
        let directory = TempDir::new().unwrap();
        for name in ["ledger.json", "ledger.redb"] {
            std::fs::copy(self.directory.path().join(name), directory.path().join(name)).unwrap();
        }
        let options = EmbeddedOptions::new(directory.path().into(), START);
        let ledger = EmbeddedLedger::open_on(&options, |_| FakeDisk::holding(bytes)).unwrap();
        (directory, ledger)
    }

    fn after_power_loss(&self) -> (TempDir, EmbeddedLedger) {
        self.reopened_on(self.disk.durable())
    }

    async fn reserve(&self, number: u128) -> Reservation {
        self.ledger.reserve(vec![claim(number)], AT).await.unwrap().remove(0)
    }
}

fn key(number: u128) -> CallKey {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&number.to_be_bytes());
    CallKey(Digest(bytes))
}

fn claim(number: u128) -> Claim {
    Claim {
        key: key(number),
        hashes: ArgumentsHashes::new(("a1".into(), Digest([4; 32])), Vec::new()),
        reads: false,
        handler_deduplicates: false,
        max_attempts: 1,
        kept: Duration::from_hours(24),
        ticket: TicketShown::Verified {
            confirmation_id: Uuid::from_u128(number),
            expires_at: expiry(),
        },
        started: Arc::new(samples::started("call-1")),
    }
}

fn expiry() -> Timestamp {
    START + Duration::from_mins(5)
}

fn end() -> Settlement {
    let ended =
        Ended { reason: Reason::Ok, effect: Effect::Applied, at: START, result_digest: None };
    Settlement { ended, last_attempt: 1 }
}

fn revocation(number: u128) -> Revocation {
    Revocation {
        confirmation_id: Uuid::from_u128(number),
        revoked_at: START,
        lifetime: Duration::from_mins(5),
    }
}

async fn ticket(ledger: &EmbeddedLedger, number: u128) -> TicketUse {
    ledger.ticket(Uuid::from_u128(number), expiry()).await.unwrap()
}

/// Polls once, as a caller does that goes away later.
fn poll_once<F: Future + ?Sized>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test]
async fn what_is_answered_survives_a_loss_of_power() {
    let bench = Bench::new();
    let reservation = bench.reserve(1).await;
    let (_directory, after) = bench.after_power_loss();
    assert_eq!(after.running().await.unwrap().len(), 1, "reserved");
    assert_eq!(ticket(&after, 1).await, TicketUse::Spent);

    bench.ledger.settle(reservation.id, reservation.key, end()).await.unwrap();
    let (_directory, after) = bench.after_power_loss();
    let record = after.look(key(1)).await.unwrap().unwrap();
    assert_eq!(record.state, State::Ended(end().ended), "settled");

    let reservation = bench.reserve(2).await;
    bench.ledger.release(vec![reservation]).await.unwrap();
    let (_directory, after) = bench.after_power_loss();
    assert_eq!(ticket(&after, 2).await, TicketUse::Unused, "released");

    bench.ledger.revoke(revocation(3)).await.unwrap();
    let (_directory, after) = bench.after_power_loss();
    assert_eq!(ticket(&after, 3).await, TicketUse::Revoked, "revoked");

    let late = Reading {
        now: START + Duration::from_secs(100),
        monotonic: AT.monotonic + Duration::from_secs(100),
    };
    bench.ledger.observe(late).await.unwrap();
    let (_directory, after) = bench.after_power_loss();
    assert_eq!(after.observe(AT).await, Ok(ClockState::Behind), "observed");
}

#[tokio::test]
async fn power_lost_within_a_sync_costs_nothing_that_was_answered() {
    let bench = Bench::new();
    for number in 0..10 {
        bench.reserve(number).await;
    }
    bench.disk.keep_torn();
    for number in 10..14 {
        bench.reserve(number).await;
        let torn = bench.disk.take_torn();
        assert!(!torn.is_empty());
        for bytes in torn {
            let (_directory, after) = bench.reopened_on(bytes);
            let running = after.running().await.unwrap().len();
            let before = usize::try_from(number).unwrap();
            assert!(running == before || running == before + 1, "{running} after {number}");
            for earlier in 0..number {
                assert_eq!(ticket(&after, earlier).await, TicketUse::Spent);
            }
        }
    }
}

#[tokio::test]
async fn a_failed_sync_closes_the_ledger() {
    let bench = Bench::new();
    let held = bench.reserve(1).await;
    bench.disk.fail();
    let failed = bench.ledger.reserve(vec![claim(2)], AT).await;
    assert_eq!(failed, Err(ReserveFault::Ledger(LedgerFault::Failed)));
    assert!(!bench.ledger.is_ready());
    let settled = bench.ledger.settle(held.id, held.key, end()).await;
    assert_eq!(settled, Err(LedgerFault::Failed));
    assert_eq!(bench.ledger.look(key(1)).await, Err(LedgerFault::Failed));
    let (_directory, after) = bench.after_power_loss();
    assert!(after.is_ready());
    assert_eq!(ticket(&after, 1).await, TicketUse::Spent);
}

#[tokio::test]
async fn a_reservation_that_nobody_waits_for_is_given_back() {
    let bench = Bench::new();
    bench.disk.hang();
    let mut abandoned = bench.ledger.reserve(vec![claim(1)], AT);
    assert!(poll_once(abandoned.as_mut()).is_pending());
    bench.disk.wait_until_it_hangs();
    drop(abandoned);
    bench.disk.go_on();
    // Once the first is answered the release is in line, before the second.
    for _ in 0..2 {
        bench.ledger.observe(AT).await.unwrap();
    }
    assert_eq!(bench.ledger.look(key(1)).await, Ok(None));
    assert_eq!(ticket(&bench.ledger, 1).await, TicketUse::Unused);
}

#[tokio::test]
async fn a_reservation_that_arrived_unread_is_given_back() {
    let bench = Bench::new();
    bench.disk.hang();
    let mut abandoned = bench.ledger.reserve(vec![claim(1)], AT);
    assert!(poll_once(abandoned.as_mut()).is_pending());
    bench.disk.wait_until_it_hangs();
    bench.disk.go_on();
    bench.ledger.observe(AT).await.unwrap();
    assert_eq!(ticket(&bench.ledger, 1).await, TicketUse::Spent);
    drop(abandoned);
    bench.ledger.observe(AT).await.unwrap();
    assert_eq!(bench.ledger.look(key(1)).await, Ok(None));
    assert_eq!(ticket(&bench.ledger, 1).await, TicketUse::Unused);
}

#[tokio::test]
async fn what_queues_up_is_one_transaction() {
    let bench = Bench::new();
    bench.reserve(0).await;
    let before = bench.disk.syncs();
    bench.disk.hang();
    let mut waiting: Vec<_> =
        (1..=100).map(|number| bench.ledger.reserve(vec![claim(number)], AT)).collect();
    assert!(waiting.iter_mut().all(|future| poll_once(future.as_mut()).is_pending()));
    bench.disk.wait_until_it_hangs();
    bench.disk.go_on();
    for future in waiting {
        future.await.unwrap();
    }
    let syncs = bench.disk.syncs() - before;
    // Two transactions, and some for a file that grows.
    assert!(syncs <= 5, "{syncs} syncs for 100 reservations");
}

#[tokio::test]
async fn operations_of_one_transaction_see_each_other() {
    let bench = Bench::new();
    bench.disk.hang();
    let mut first = bench.ledger.observe(AT);
    assert!(poll_once(first.as_mut()).is_pending());
    bench.disk.wait_until_it_hangs();
    let mut twice = [1, 1].map(|number| bench.ledger.reserve(vec![claim(number)], AT));
    assert!(twice.iter_mut().all(|future| poll_once(future.as_mut()).is_pending()));
    bench.disk.go_on();
    let [winner, loser] = twice;
    assert!(winner.await.is_ok());
    match loser.await {
        Err(ReserveFault::Turned { turned, .. }) => {
            assert_eq!(turned.reason, Reason::CallInProgress);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_full_queue_takes_nothing() {
    let bench = Bench::with_queue(1);
    bench.disk.hang();
    let mut running = bench.ledger.reserve(vec![claim(1)], AT);
    assert!(poll_once(running.as_mut()).is_pending());
    bench.disk.wait_until_it_hangs();
    let mut waiting = bench.ledger.reserve(vec![claim(2)], AT);
    assert!(poll_once(waiting.as_mut()).is_pending());
    let full = bench.ledger.reserve(vec![claim(3)], AT).await;
    assert_eq!(full, Err(ReserveFault::Ledger(LedgerFault::Full)));
    bench.disk.go_on();
    assert!(running.await.is_ok() && waiting.await.is_ok());
    assert_eq!(bench.ledger.look(key(3)).await, Ok(None));
    assert!(bench.ledger.is_ready());
}

#[tokio::test]
async fn dropping_writes_what_is_queued() {
    let Bench { directory, disk, ledger } = Bench::new();
    let mut last = ledger.revoke(revocation(1));
    assert!(poll_once(last.as_mut()).is_pending());
    drop(last);
    drop(ledger);
    let options = EmbeddedOptions::new(directory.path().into(), START);
    let disk = FakeDisk::holding(disk.durable());
    let ledger = EmbeddedLedger::open_on(&options, |_| disk).unwrap();
    assert_eq!(ticket(&ledger, 1).await, TicketUse::Revoked);
}
