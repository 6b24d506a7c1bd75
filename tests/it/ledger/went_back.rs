//! A database that lacks what it has acknowledged, as after a restore or a fail-over.

use std::time::Duration;

use toolgate::adapters::ledger::{Lost, PostgresOptions, PostgresStore};
use toolgate::domain::generation::Generation;
use toolgate::domain::watermark::ClockState;
use toolgate::ports::{Ledger, LedgerFault, ReserveFault, Revocation};
use uuid::Uuid;

use super::calls::claim;
use super::owners::{Shared, is_locked, now, reserve, start, ticket};
use crate::support::postgres;
use crate::support::running::until;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_went_back_is_found() {
    let Some(server) = postgres::server() else { return };
    let shared = Shared::on(server).await;
    let ledger = shared.start(1).await;
    let beats =
        || -> i64 { shared.database.sql("SELECT beats FROM toolgate.owners").parse().unwrap() };
    until("signs of life", async || beats() > 3).await;
    shared.database.sql("UPDATE toolgate.owners SET beats = beats - 3");
    let lost = tokio::time::timeout(Duration::from_secs(30), ledger.lost()).await;
    assert_eq!(lost, Ok(Lost::WentBack));
    let refused = reserve(&ledger, claim("call-1", ticket(1))).await;
    assert_eq!(refused, Err(ReserveFault::Ledger(LedgerFault::Failed)));
}

/// A connection to a database that lacks what is known to be there is not used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_connection_finds_it_before_the_next_sign_of_life() {
    let Some(server) = postgres::server() else { return };
    let shared = Shared::on(server).await;
    let seldom =
        PostgresOptions { takeover_after: Duration::from_secs(30), ..shared.options.clone() };
    let ledger = start(&seldom, 1).await;
    let beats = || shared.database.sql("SELECT beats FROM toolgate.owners");
    until("a sign of life", async || beats() == "1").await;
    // Told to whoever gave it only after it is there.
    until("it holds its lock", async || is_locked(&shared.database, ledger.epoch())).await;
    shared.database.sql("UPDATE toolgate.owners SET beats = -1");
    // All connections but the one that gives signs of life.
    shared.database.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
          WHERE datname = current_database() AND pid <> pg_backend_pid()
            AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')",
    );
    // The first may still take one that was ended.
    for _ in 0..3 {
        let refused = reserve(&ledger, claim("call-1", ticket(1))).await;
        assert_eq!(refused, Err(ReserveFault::Ledger(LedgerFault::Failed)));
    }
    assert_eq!(shared.database.sql("SELECT count(*) FROM toolgate.tickets"), "0");
}

/// As after a fail-over to a standby that lacked the last commits: everything that
/// the start is known by is there, and the newest spent ticket is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_without_the_newest_commit_is_found_when_it_is_back() {
    let Some(server) = postgres::server() else { return };
    let shared = Shared::on(server).await;
    for what in ["reserved", "revoked"] {
        let (proxy, through) = shared.behind_a_proxy().await;
        let seldom = PostgresOptions { takeover_after: Duration::from_secs(30), ..through };
        let ledger = start(&seldom, 1).await;
        let other = start(&shared.options, 2).await;
        let copy = format!("CREATE TABLE kept_{what} AS SELECT * FROM toolgate.work");
        shared.database.sql(&copy);
        if what == "reserved" {
            reserve(&ledger, claim("call-1", ticket(1))).await.unwrap();
        } else {
            let revoked_at = jiff::Timestamp::now();
            let lifetime = Duration::from_mins(5);
            let confirmation_id = Uuid::from_u128(2);
            ledger.revoke(Revocation { confirmation_id, revoked_at, lifetime }).await.unwrap();
        }
        proxy.refuse();
        shared.database.sql(&format!(
            "DELETE FROM toolgate.tickets; DELETE FROM toolgate.calls; DELETE FROM toolgate.work;
             INSERT INTO toolgate.work SELECT * FROM kept_{what}"
        ));
        proxy.pass();
        let lost = tokio::time::timeout(Duration::from_mins(1), ledger.lost()).await;
        assert_eq!(lost, Ok(Lost::WentBack), "{what}");
        let again = reserve(&ledger, claim("call-1", ticket(1))).await;
        assert_eq!(again, Err(ReserveFault::Ledger(LedgerFault::Failed)), "{what}");
        // Another gate has lost nothing, and is told.
        until("all are told", async || {
            shared.database.sql("SELECT lacks_us IS NOT NULL FROM toolgate.ledger") == "t"
        })
        .await;
        let there = reserve(&other, claim("call-1", ticket(1))).await;
        assert_eq!(there, Err(ReserveFault::Ledger(LedgerFault::Failed)), "{what}");
        let lost = tokio::time::timeout(Duration::from_mins(1), other.lost()).await;
        assert_eq!(lost, Ok(Lost::WentBack), "{what}");
        assert_eq!(shared.database.sql("SELECT count(*) FROM toolgate.tickets"), "0", "{what}");
        let mut store = PostgresStore::open(&shared.options).await.unwrap();
        let again = PostgresStore::open(&shared.options).await.unwrap();
        let fault = again.start(&Uuid::from_u128(3).to_string()).await.err().unwrap().to_string();
        assert!(fault.contains("new-identity"), "{fault}");
        until("all have left", async || store.new_identity(jiff::Timestamp::now()).await.is_ok())
            .await;
    }
}

/// Whatever other gates do to a ledger that was put back, it stays too old for a
/// journal that knows more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_of_another_gate_makes_no_old_ledger_new() {
    let Some(server) = postgres::server() else { return };
    let shared = Shared::on(server).await;
    let journal = Uuid::from_u128(1).to_string();
    let first = shared.start(1).await;
    reserve(&first, claim("call-1", ticket(1))).await.unwrap();
    let beside = Generation { ledger_id: first.id(), number: first.epoch() };
    first.close().await;
    let found = async |number| {
        let store = PostgresStore::open(&shared.options).await.unwrap();
        let beside = Generation { number, ..beside.clone() };
        store.found_by(&journal, Some(&beside)).await.unwrap()
    };
    let shown = found(beside.number).await.seen.unwrap();
    assert!(jiff::Timestamp::now().duration_since(shown) < jiff::SignedDuration::from_secs(20));
    // Put back to before: the time that this journal's starts have shown is older.
    shared.database.sql(
        "UPDATE toolgate.work SET shown_us = shown_us - 60000000;
         UPDATE toolgate.owners SET started_us = started_us - 60000000",
    );
    let other = shared.start(2).await;
    assert_eq!(other.observe(now()).await, Ok(ClockState::Trusted));
    reserve(&other, claim("call-2", ticket(2))).await.unwrap();
    let after = found(beside.number).await;
    assert_eq!(after.seen, Some(shown - jiff::SignedDuration::from_mins(1)));
    assert_eq!(after.generation.number, other.epoch());
    // Nor is it the ledger of a start that it does not know, or knows as another's.
    for number in [other.epoch(), 99, u64::MAX] {
        assert_eq!(found(number).await.generation.number, 0, "{number}");
    }
}
