//! The ledger on PostgreSQL: the contract, on a database whose clock the tests set.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::Mutex;
use tokio_postgres::NoTls;
use toolgate::adapters::ledger::{PostgresLedger, PostgresOptions, PostgresStore};
use toolgate::domain::record::{CallKey, Claim, Record, TicketUse};
use toolgate::domain::watermark::{ClockState, Reading};
use toolgate::ports::{
    Ledger, LedgerFault, Reservation, ReserveFault, Revocation, Revoked, Settlement,
};
use uuid::Uuid;

use super::Place;
use super::calls::START;
use crate::support::postgres::{self, Database};

/// A database of its own, and the journal of one gate.
pub struct OwnDatabase {
    database: Database<'static>,
    _password: tempfile::TempDir,
    options: PostgresOptions,
    journal_id: Uuid,
    is_made: Mutex<bool>,
}

/// A ledger whose database goes by the clock that operations are given.
struct Steered {
    ledger: PostgresLedger,
    clock: tokio_postgres::Client,
    now: Mutex<Timestamp>,
}

impl OwnDatabase {
    pub fn new() -> Option<Self> {
        let database = postgres::server()?.database();
        let password = tempfile::tempdir().unwrap();
        let options = options(&database, password.path());
        Some(Self {
            database,
            _password: password,
            options,
            journal_id: Uuid::new_v4(),
            is_made: Mutex::new(false),
        })
    }
}

/// How a gate reaches a database of the tests.
pub fn options(database: &Database<'_>, directory: &std::path::Path) -> PostgresOptions {
    let password_file = directory.join("password");
    std::fs::write(&password_file, &database.password).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&password_file, mode).unwrap();
    PostgresOptions {
        host: database.server.directory.to_str().unwrap().to_owned(),
        port: database.server.port,
        database: database.name.clone(),
        user: database.user.clone(),
        password_file: Some(password_file),
        tls: None,
        connections: 8,
        connect_timeout: Duration::from_secs(5),
        takeover_after: Duration::from_secs(30),
        skew: Duration::from_secs(30),
    }
}

#[async_trait]
impl Place for OwnDatabase {
    async fn open(&self) -> Arc<dyn Ledger> {
        let mut is_made = self.is_made.lock().await;
        if !std::mem::replace(&mut *is_made, true) {
            PostgresStore::migrate(&self.options).await.unwrap();
            self.database.sql(&format!(
                "CREATE TABLE clock_of_tests (us bigint);
                 INSERT INTO clock_of_tests VALUES ({});
                 CREATE OR REPLACE FUNCTION toolgate.now_us() RETURNS bigint LANGUAGE sql VOLATILE
                     AS 'SELECT us FROM public.clock_of_tests'",
                START.as_microsecond()
            ));
        }
        let store = PostgresStore::open(&self.options).await.unwrap();
        let ledger = store.start(&self.journal_id.to_string()).await.unwrap();
        let (clock, io) =
            tokio_postgres::connect(&self.database.connection(), NoTls).await.unwrap();
        tokio::spawn(io);
        Arc::new(Steered { ledger, clock, now: Mutex::new(Timestamp::MIN) })
    }
}

impl Steered {
    async fn set(&self, now: Timestamp) {
        let mut known = self.now.lock().await;
        if *known != now {
            let set = "UPDATE clock_of_tests SET us = $1";
            self.clock.execute(set, &[&now.as_microsecond()]).await.unwrap();
            *known = now;
        }
    }
}

#[async_trait]
impl Ledger for Steered {
    fn id(&self) -> Arc<str> {
        self.ledger.id()
    }

    async fn look(&self, key: CallKey) -> Result<Option<Record>, LedgerFault> {
        self.ledger.look(key).await
    }

    async fn ticket(&self, id: Uuid, expires_at: Timestamp) -> Result<TicketUse, LedgerFault> {
        self.ledger.ticket(id, expires_at).await
    }

    async fn reserve(
        &self,
        claims: Vec<Claim>,
        at: Reading,
    ) -> Result<Vec<Reservation>, ReserveFault> {
        self.set(at.now).await;
        self.ledger.reserve(claims, at).await
    }

    async fn release(&self, reservations: Vec<Reservation>) -> Result<(), LedgerFault> {
        self.ledger.release(reservations).await
    }

    async fn settle(
        &self,
        reservation_id: Uuid,
        key: CallKey,
        settlement: Settlement,
    ) -> Result<(), LedgerFault> {
        self.ledger.settle(reservation_id, key, settlement).await
    }

    async fn revoke(&self, revocation: Revocation) -> Result<Revoked, LedgerFault> {
        self.ledger.revoke(revocation).await
    }

    async fn running(&self) -> Result<Vec<(CallKey, Record)>, LedgerFault> {
        self.ledger.running().await
    }

    async fn take_over(&self) -> Result<Vec<(CallKey, Record)>, LedgerFault> {
        self.ledger.take_over().await
    }

    async fn observe(&self, at: Reading) -> Result<ClockState, LedgerFault> {
        self.set(at.now).await;
        self.ledger.observe(at).await
    }

    async fn accept_clock(&self, at: Reading) -> Result<(), LedgerFault> {
        self.set(at.now).await;
        self.ledger.accept_clock(at).await
    }

    async fn forget_expired(&self) -> Result<usize, LedgerFault> {
        self.ledger.forget_expired().await
    }

    async fn new_identity(&self, now: Timestamp) -> Result<Arc<str>, LedgerFault> {
        self.set(now).await;
        self.ledger.new_identity(now).await
    }

    fn is_ready(&self) -> bool {
        self.ledger.is_ready()
    }
}
