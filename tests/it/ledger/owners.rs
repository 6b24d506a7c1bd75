//! What is PostgreSQL's own: several gates on one database, and a way to it that breaks.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio_postgres::NoTls;
use toolgate::adapters::ledger::{
    Lost, PostgresLedger, PostgresOptions, PostgresStore, PostgresTls,
};
use toolgate::domain::generation::Generation;
use toolgate::domain::reason::{Effect, Reason};
use toolgate::domain::record::{Claim, State, TicketShown, TicketUse};
use toolgate::domain::watermark::{ClockState, Reading};
use toolgate::ports::{Ledger, LedgerFault, Reservation, ReserveFault};
use uuid::Uuid;

use super::calls::{claim, settlement};
use super::postgres::options;
use crate::support::postgres::{self, Database, Server};
use crate::support::proxy::{Cut, Proxy, Way};
use crate::support::running::until;

/// The class of the advisory lock that reservations share.
const WORKING: i32 = 0x7467_7700;

/// A database with a ledger.
pub(super) struct Shared<'a> {
    pub(super) database: Database<'a>,
    directory: TempDir,
    pub(super) options: PostgresOptions,
}

impl<'a> Shared<'a> {
    pub(super) async fn on(server: &'a Server) -> Self {
        let database = server.database();
        let directory = tempfile::tempdir().unwrap();
        let options = PostgresOptions {
            takeover_after: Duration::from_secs(1),
            connections: 4,
            ..options(&database, directory.path())
        };
        PostgresStore::migrate(&options).await.unwrap();
        Self { database, directory, options }
    }

    pub(super) async fn start(&self, journal: u128) -> PostgresLedger {
        start(&self.options, journal).await
    }

    /// The same database behind a network that fails on demand.
    pub(super) async fn behind_a_proxy(&self) -> (Proxy, PostgresOptions) {
        let server: SocketAddr =
            format!("127.0.0.1:{}", self.database.server.port).parse().unwrap();
        let proxy = Proxy::start(server).await;
        let options = PostgresOptions {
            host: "127.0.0.1".into(),
            port: proxy.address.port(),
            ..self.options.clone()
        };
        (proxy, options)
    }
}

pub(super) async fn start(options: &PostgresOptions, journal: u128) -> PostgresLedger {
    let store = PostgresStore::open(options).await.unwrap();
    store.start(&Uuid::from_u128(journal).to_string()).await.unwrap()
}

/// A ticket that is valid now.
pub(super) fn ticket(number: u128) -> TicketShown {
    let expires_at = jiff::Timestamp::now() + jiff::SignedDuration::from_mins(5);
    TicketShown::Verified { confirmation_id: Uuid::from_u128(number), expires_at }
}

pub(super) fn now() -> Reading {
    Reading { now: jiff::Timestamp::now(), monotonic: Duration::ZERO }
}

pub(super) async fn reserve(
    ledger: &PostgresLedger,
    claim: Claim,
) -> Result<Reservation, ReserveFault> {
    Ok(ledger.reserve(vec![claim], now()).await?.remove(0))
}

fn end() -> toolgate::ports::Settlement {
    settlement(Reason::Ok, Effect::Applied, 0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_the_journal_fences_the_starts_before() {
    let Some(server) = postgres::server() else { return };
    let shared = Shared::on(server).await;
    // It looks seldom, and so does not know by itself what has happened.
    let seldom =
        PostgresOptions { takeover_after: Duration::from_secs(30), ..shared.options.clone() };
    let first = start(&seldom, 1).await;
    let held = reserve(&first, claim("call-1", ticket(1))).await.unwrap();
    let ended = reserve(&first, claim("call-2", ticket(2))).await.unwrap();
    first.settle(ended.id, ended.key, end()).await.unwrap();

    let second = shared.start(1).await;
    assert_eq!(second.epoch(), first.epoch() + 1);
    let inherited = second.running().await.unwrap();
    assert_eq!(inherited.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [held.key]);

    // The first is not dead. It changes nothing any more, and learns why.
    first.settle(held.id, held.key, end()).await.unwrap_err();
    first.release(vec![held.clone()]).await.unwrap();
    let refused = reserve(&first, claim("call-3", ticket(3))).await;
    assert_eq!(refused, Err(ReserveFault::Ledger(LedgerFault::Failed)));
    let lost = tokio::time::timeout(Duration::from_secs(30), first.lost()).await;
    assert_eq!(lost, Ok(Lost::TakenOver));
    assert!(!first.is_ready());
    assert_eq!(second.running().await.unwrap().len(), 1);
    second.settle(held.id, held.key, end()).await.unwrap();
    assert_eq!(
        second.ticket(Uuid::from_u128(3), jiff::Timestamp::MAX).await,
        Ok(TicketUse::Unused)
    );
}

/// Otherwise a call that is being reserved would be nobody's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_waits_for_what_is_on_its_way() {
    let Some(server) = postgres::server() else { return };
    let shared = Shared::on(server).await;
    let first = shared.start(1).await;
    reserve(&first, claim("call-1", ticket(1))).await.unwrap();
    // A reservation of the first's that has not been committed.
    let (client, io) = tokio_postgres::connect(&shared.database.connection(), NoTls).await.unwrap();
    tokio::spawn(io);
    let on_its_way = format!("SELECT pg_advisory_xact_lock_shared({WORKING}, {})", first.epoch());
    client.batch_execute(&format!("BEGIN; {on_its_way}")).await.unwrap();
    let opens = "INSERT INTO toolgate.calls SELECT '\\x02', gen_random_uuid(), running, owner, \
                 witness, confirmation_id, forget_at, record FROM toolgate.calls";
    client.batch_execute(opens).await.unwrap();
    let second = shared.start(1);
    let waits = async {
        let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        until("the second waits", async || shared.database.sql(waiting) == "1").await;
        client.batch_execute("COMMIT").await.unwrap();
    };
    let keys = async {
        let second = second.await;
        shared
            .database
            .sql(&format!("SELECT count(*) FROM toolgate.calls WHERE owner = {}", second.epoch()))
    };
    assert_eq!(tokio::join!(keys, waits).0, "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expiry_is_judged_by_the_databases_clock() {
    let Some(server) = postgres::server() else { return };
    let shared = Shared::on(server).await;
    let ledger = shared.start(1).await;
    let clock = |ahead: i64| {
        shared.database.sql(&format!(
            "CREATE OR REPLACE FUNCTION toolgate.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS \
             'SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {ahead} * 1000000'"
        ))
    };
    clock(301);
    let refused = reserve(&ledger, claim("call-1", ticket(1))).await.unwrap_err();
    let ReserveFault::Turned { turned, .. } = refused else { panic!("{refused:?}") };
    assert_eq!(turned.reason, Reason::ConfirmationExpired);
    assert_eq!(
        ledger.ticket(Uuid::from_u128(1), jiff::Timestamp::MAX).await,
        Ok(TicketUse::Unused)
    );
    // It goes back further than clocks may be apart.
    assert_eq!(ledger.observe(now()).await, Ok(ClockState::Trusted));
    clock(0);
    let refused = reserve(&ledger, claim("call-1", ticket(1))).await.unwrap_err();
    let ReserveFault::Turned { turned, .. } = refused else { panic!("{refused:?}") };
    assert_eq!(turned.reason, Reason::ClockUntrusted);
}

/// The journal says whether an attempt was started, and only the one that the
/// reserving start has written, as far as it goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_is_a_witness_of_its_own_starts() {
    let Some(server) = postgres::server() else { return };
    let shared = Shared::on(server).await;
    let first = shared.start(1).await;
    reserve(&first, claim("call-1", ticket(1))).await.unwrap();
    let beside = |number| Generation { ledger_id: first.id(), number };
    for (knows, wanted) in
        [(Some(first.epoch()), true), (Some(first.epoch() - 1), false), (None, false)]
    {
        let next = shared.start(1).await;
        let beside = knows.map(beside);
        let inherited = next.inherited(beside.as_ref()).await.unwrap();
        assert_eq!(inherited.iter().map(|it| it.2).collect::<Vec<_>>(), [wanted], "{knows:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gate_that_lives_is_not_taken_over_whatever_the_time() {
    let Some(server) = postgres::server() else { return };
    let shared = Shared::on(server).await;
    let (proxy, through) = shared.behind_a_proxy().await;
    let first = start(&through, 1).await;
    let held = reserve(&first, claim("call-1", ticket(1))).await.unwrap();
    let second = shared.start(2).await;
    until("the first holds its lock", async || is_locked(&shared.database, first.epoch())).await;
    // It gives no sign of life, but its session is there.
    proxy.hang(Way::Up);
    shared.database.sql("UPDATE toolgate.owners SET seen_us = 0");
    assert_eq!(second.take_over().await, Ok(Vec::new()));
    // Its session is gone, but it has just been there.
    shared.database.sql("UPDATE toolgate.owners SET seen_us = toolgate.now_us() + 60000000");
    proxy.refuse();
    until("the session is gone", async || !is_locked(&shared.database, first.epoch())).await;
    assert_eq!(second.take_over().await, Ok(Vec::new()));
    assert_eq!(first.running().await, Err(LedgerFault::Failed));
    // Both. No journal here has seen it, however new that is.
    let newest = Generation { ledger_id: second.id(), number: 99 };
    second.inherited(Some(&newest)).await.unwrap();
    shared.database.sql("UPDATE toolgate.owners SET seen_us = 0");
    let taken = second.take_over().await.unwrap();
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].0, held.key);
    assert_eq!(taken[0].1.state, State::Running);
    assert_eq!(second.take_over().await.unwrap(), taken, "told until it is settled");
    let lost = settlement(Reason::ProcessLost, Effect::Unknown, 0);
    second.settle(held.id, held.key, lost).await.unwrap();
    assert_eq!(second.take_over().await, Ok(Vec::new()));
    // The first comes back, and is told.
    proxy.pass();
    tokio::time::timeout(Duration::from_secs(30), first.lost()).await.unwrap();
}

pub(super) fn is_locked(database: &Database<'_>, epoch: u64) -> bool {
    let count = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = ";
    database.sql(&format!("{count} {epoch} AND classid = 1952932096 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")) == "1"
}

/// The commit is there, and nobody was told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_acknowledgement_counts_as_spent() {
    let Some(server) = postgres::server() else { return };
    let shared = Shared::on(server).await;
    let (proxy, through) = shared.behind_a_proxy().await;
    let ledger = start(&through, 1).await;
    for (number, cut) in
        [(1_usize, Cut::Unanswered(b"COMMIT".to_vec())), (2, Cut::Before(b"COMMIT".to_vec()))]
    {
        // There is a connection already: what it is cut in is the reservation.
        ledger.look(claim("warm", ticket(9)).key).await.unwrap();
        let committed = matches!(cut, Cut::Unanswered(_));
        proxy.cut_once(cut);
        let claim = claim(&format!("call-{number}"), ticket(number as u128));
        let key = claim.key;
        let failed = reserve(&ledger, claim.clone()).await;
        assert_eq!(failed, Err(ReserveFault::Ledger(LedgerFault::Failed)), "{number}");
        assert_eq!(proxy.cuts(), number);
        until("the database is back", async || ledger.is_ready()).await;
        if committed {
            let mut record = None;
            for _ in 0..400 {
                record = ledger.look(key).await.unwrap();
                if record.as_ref().is_some_and(|record| record.state != State::Running) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
            let State::Ended(ended) = record.unwrap().state else { panic!("it still runs") };
            assert_eq!((ended.reason, ended.effect), (Reason::LedgerFailed, Effect::None));
            let known = ledger.ticket(Uuid::from_u128(number as u128), jiff::Timestamp::MAX).await;
            assert_eq!(known, Ok(TicketUse::Spent));
            // A fresh ticket runs it.
            let fresh = Claim { ticket: ticket(number as u128 + 100), ..claim };
            reserve(&ledger, fresh).await.unwrap();
        } else {
            assert_eq!(ledger.look(key).await, Ok(None));
            reserve(&ledger, claim).await.unwrap();
        }
    }
}

/// A settlement that was not acknowledged is repeated until it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_owed_is_paid_when_the_database_is_back() {
    let Some(server) = postgres::server() else { return };
    let shared = Shared::on(server).await;
    let (proxy, through) = shared.behind_a_proxy().await;
    let ledger = start(&through, 1).await;
    let settled = reserve(&ledger, claim("call-1", ticket(1))).await.unwrap();
    let released = reserve(&ledger, claim("call-2", ticket(2))).await.unwrap();
    proxy.refuse();
    assert_eq!(ledger.settle(settled.id, settled.key, end()).await, Err(LedgerFault::Failed));
    assert_eq!(ledger.release(vec![released.clone()]).await, Err(LedgerFault::Failed));
    until("it is told", async || !ledger.is_ready()).await;
    proxy.pass();
    until("the database is back", async || ledger.is_ready()).await;
    let running = || shared.database.sql("SELECT count(*) FROM toolgate.calls WHERE running");
    until("paid", async || running() == "0").await;
    let record = ledger.look(settled.key).await.unwrap().unwrap();
    assert!(matches!(record.state, State::Ended(ended) if ended.reason == Reason::Ok));
    assert_eq!(ledger.look(released.key).await, Ok(None));
    let known = ledger.ticket(Uuid::from_u128(2), jiff::Timestamp::MAX).await;
    assert_eq!(known, Ok(TicketUse::Unused));
}

/// A reservation whose caller has gone is given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_that_nobody_takes_is_given_back() {
    let Some(server) = postgres::server() else { return };
    let shared = Shared::on(server).await;
    let ledger = Arc::new(shared.start(1).await);
    for number in 0..20_u32 {
        let claim = claim(&format!("call-{number}"), ticket(number.into()));
        let patience = Duration::from_micros(50 * u64::from(number));
        if let Ok(taken) = tokio::time::timeout(patience, reserve(&ledger, claim)).await {
            ledger.release(vec![taken.unwrap()]).await.unwrap();
        }
    }
    let calls = || shared.database.sql("SELECT count(*) FROM toolgate.calls WHERE running");
    until("given back", async || calls() == "0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_identity_is_not_changed_under_a_running_gate() {
    let Some(server) = postgres::server() else { return };
    let shared = Shared::on(server).await;
    let ledger = shared.start(1).await;
    until("it holds its lock", async || is_locked(&shared.database, ledger.epoch())).await;
    let mut store = PostgresStore::open(&shared.options).await.unwrap();
    let fault = store.new_identity(jiff::Timestamp::now()).await.unwrap_err().to_string();
    assert!(fault.contains("stop them all first"), "{fault}");
    ledger.close().await;
    assert_ne!(store.new_identity(jiff::Timestamp::now()).await.unwrap(), ledger.id());
}

async fn refused(options: &PostgresOptions) -> String {
    match PostgresStore::open(options).await {
        Ok(_) => panic!("it opens"),
        Err(fault) => fault.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_may_lose_what_it_has_committed_is_refused() {
    let Some(server) = postgres::server() else { return };
    let shared = Shared::on(server).await;
    let role = &shared.database.user;
    for (value, is_refused) in [("off", true), ("local", false), ("remote_apply", false)] {
        server.sql(&format!("ALTER ROLE {role} SET synchronous_commit = {value}"));
        let opened = PostgresStore::open(&shared.options).await;
        assert_eq!(opened.is_err(), is_refused, "{value}");
    }
    server.sql(&format!("ALTER ROLE {role} SET synchronous_commit = off"));
    assert!(refused(&shared.options).await.contains("synchronous_commit = on"));
    let Some(careless) = Server::start_own(&[("fsync", "off")]) else { return };
    let shared = Shared::on(&careless).await;
    assert!(refused(&shared.options).await.contains("fsync = on"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forms_of_other_versions() {
    let Some(server) = postgres::server() else { return };
    let database = server.database();
    let directory = tempfile::tempdir().unwrap();
    let options = options(&database, directory.path());
    assert!(refused(&options).await.contains("toolgate ledger migrate"));
    let (first, second) =
        tokio::join!(PostgresStore::migrate(&options), PostgresStore::migrate(&options));
    let mut made = [first.unwrap().before, second.unwrap().before];
    made.sort();
    assert_eq!(made, [None, Some(1)], "two at a time wait for each other");
    // A newer version has added to it, and lets this one go on.
    let ledger = start(&options, 1).await;
    database.sql(
        "ALTER TABLE toolgate.calls ADD COLUMN cost bigint NOT NULL DEFAULT 0;
         ALTER TABLE toolgate.tickets ADD COLUMN note text;
         CREATE TABLE toolgate.budgets (key bytea PRIMARY KEY);
         INSERT INTO toolgate.versions VALUES (2, 1)",
    );
    let held = reserve(&ledger, claim("call-1", ticket(1))).await.unwrap();
    let other = start(&options, 2).await;
    ledger.settle(held.id, held.key, end()).await.unwrap();
    reserve(&other, claim("call-2", ticket(2))).await.unwrap();
    // Until it does not.
    database.sql("INSERT INTO toolgate.versions VALUES (3, 2)");
    assert!(refused(&options).await.contains("run the newer version"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_verified_and_files_are_read_again() {
    let Some(server) = postgres::server() else { return };
    let shared = Shared::on(server).await;
    let tls = |ca: &Path| Some(PostgresTls { ca: ca.to_owned(), identity: None });
    let options = PostgresOptions {
        host: Server::HOST.into(),
        port: server.port,
        tls: tls(&server.ca()),
        ..shared.options.clone()
    };
    PostgresStore::open(&options).await.unwrap();
    // By its address, which is in the certificate as well.
    let by_address = PostgresOptions { host: "127.0.0.1".into(), ..options.clone() };
    PostgresStore::open(&by_address).await.unwrap();
    let other = crate::support::certificates::Authority::new();
    let ca = shared.directory.path().join("other.crt");
    std::fs::write(&ca, &other.pem).unwrap();
    let fault = refused(&PostgresOptions { tls: tls(&ca), ..options.clone() }).await;
    assert!(fault.contains("UnknownIssuer") || fault.contains("TLS"), "{fault}");

    let password_file = options.password_file.clone().unwrap();
    std::fs::write(&password_file, "another").unwrap();
    assert!(refused(&options).await.contains("SQLSTATE 28P01"));
    std::fs::write(&password_file, format!("{}\n", shared.database.password)).unwrap();
    PostgresStore::open(&options).await.unwrap();
}
