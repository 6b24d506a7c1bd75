//! A database as a start finds it, and what an operator does to it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::PostgresLedger;
use super::connect::{Connection, Connector, PostgresOptions};
use super::error::{Fault, PostgresError};
use super::migrate::{self, Form};
use super::owner::{Owner, alive};
use super::session::{Stand, key_and_record};
use crate::domain::generation::{Generation, LedgerFound, Renewed};
use crate::domain::record::{CallKey, Record};

/// A database with a ledger that a gate may start on.
pub struct PostgresStore {
    connector: Arc<Connector>,
    options: PostgresOptions,
    connection: Connection,
    found: LedgerFound,
    stand: Stand,
    id: Uuid,
    lacks: bool,
}

/// What a migration has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migrated {
    /// The form before; `None` where there was no ledger.
    pub before: Option<i32>,
    /// The form now.
    pub after: i32,
}

/// How often a start waits for what its predecessor has on its way.
const TRIES: u32 = 5;

impl PostgresStore {
    /// Connects, and looks at the ledger.
    ///
    /// # Errors
    ///
    /// See [`PostgresError`].
    pub async fn open(options: &PostgresOptions) -> Result<Self, PostgresError> {
        let connector = Arc::new(Connector::new(options));
        let connection = connector.connect_to_ledger().await?;
        let row = connection.client.query_one(FOUND, &[]).await?;
        let stand = Stand::read(&row)?;
        let id: Uuid = row.try_get(3)?;
        let renewed: Option<i64> = row.try_get(5)?;
        let renewed = match renewed.map(Timestamp::from_microsecond).transpose() {
            Ok(renewed) => renewed.map_or(Renewed::Not, Renewed::At),
            Err(_) => return Err(PostgresError::Content("renewed_us")),
        };
        let number = u64::try_from(row.try_get::<_, i32>(4)?).unwrap_or_default();
        let generation = Generation { ledger_id: id.to_string().into(), number };
        let found = LedgerFound { generation, is_shared: true, renewed, seen: stand.seen };
        let lacks = row.try_get(6)?;
        Ok(Self { connector, options: options.clone(), connection, found, stand, id, lacks })
    }

    /// What earlier starts have left.
    #[must_use]
    pub const fn found(&self) -> &LedgerFound {
        &self.found
    }

    /// The same as one journal is to be held against: what was shown by starts
    /// with that journal, since others go on showing the time to a ledger that is
    /// too old for this one. A start that the ledger does not know makes it older.
    ///
    /// # Errors
    ///
    /// See [`PostgresError`].
    pub async fn found_by(
        &self,
        journal_id: &str,
        beside: Option<&Generation>,
    ) -> Result<LedgerFound, PostgresError> {
        let mut found = self.found.clone();
        let Some(beside) = beside.filter(|it| it.ledger_id == found.generation.ledger_id) else {
            return Ok(found);
        };
        let journal_id =
            Uuid::try_parse(journal_id).map_err(|_| PostgresError::Content("journal_id"))?;
        let number = i32::try_from(beside.number).unwrap_or(i32::MAX);
        let row = self.connection.client.query_one(SHOWN, &[&journal_id, &number]).await?;
        if !row.try_get::<_, bool>(0)? {
            found.generation.number = 0;
        }
        let shown: Option<i64> = row.try_get(1)?;
        let shown = shown.map(Timestamp::from_microsecond).transpose();
        found.seen = shown.map_err(|_| PostgresError::Content("shown_us"))?;
        Ok(found)
    }

    /// The high-water mark, and the database's clock.
    #[must_use]
    pub const fn clock(&self) -> (Option<Timestamp>, Timestamp) {
        (self.stand.mark, self.stand.now)
    }

    /// The running calls of all gates, to know which events of a journal matter.
    ///
    /// # Errors
    ///
    /// See [`PostgresError`].
    pub async fn running(&self) -> Result<Vec<(CallKey, Record)>, PostgresError> {
        let rows = self.connection.client.query(RUNNING, &[]).await?;
        let running: Result<Vec<_>, Fault> = rows.iter().map(key_and_record).collect();
        Ok(running?)
    }

    /// Starts on the ledger, as the successor of every start with this journal.
    ///
    /// # Errors
    ///
    /// See [`PostgresError`].
    pub async fn start(mut self, journal_id: &str) -> Result<PostgresLedger, PostgresError> {
        if self.lacks {
            return Err(PostgresError::Lacks);
        }
        let journal_id =
            Uuid::try_parse(journal_id).map_err(|_| PostgresError::Content("journal_id"))?;
        let mut tries = 0;
        let owner = loop {
            tries += 1;
            let client = &mut self.connection.client;
            match Owner::succeed(client, self.id, journal_id, self.options.takeover_after).await {
                Ok(owner) => break owner,
                // The predecessor's last statement still runs on the server.
                Err(Fault::Database(fault))
                    if tries < TRIES
                        && fault.code.as_deref() == Some(SqlState::LOCK_NOT_AVAILABLE.code()) => {}
                Err(fault) => return Err(fault.into()),
            }
        };
        PostgresLedger::new(self.connector, &self.options, owner, journal_id, self.stand.mark)
    }

    /// Believes the database's clock from now on, whatever the mark says.
    ///
    /// # Errors
    ///
    /// See [`PostgresError`].
    pub async fn accept_clock(&self) -> Result<(), PostgresError> {
        accept_clock(&self.connection.client).await?;
        Ok(())
    }

    /// Gives the ledger a new identity: no ticket of before is valid any more.
    ///
    /// # Errors
    ///
    /// [`PostgresError::InUse`] while a gate runs on it.
    pub async fn new_identity(&mut self, now: Timestamp) -> Result<Arc<str>, PostgresError> {
        let gates = alive(&self.connection.client, None).await?;
        if gates > 0 {
            return Err(PostgresError::InUse(gates));
        }
        let id = renew(&mut self.connection.client, now, None).await?;
        Ok(id.to_string().into())
    }

    /// Brings a database to the form that this version needs.
    ///
    /// # Errors
    ///
    /// See [`PostgresError`]; nothing is changed then.
    pub async fn migrate(options: &PostgresOptions) -> Result<Migrated, PostgresError> {
        let mut connection = Connector::new(options).connect().await?;
        // It may have to wait for running gates.
        let patient =
            format!("SET lock_timeout = {0}; SET statement_timeout = {0}", PATIENCE.as_millis());
        connection.client.batch_execute(&patient).await?;
        let (before, after) = migrate::migrate(&mut connection.client).await?;
        Form::check(after)
            .map_err(|fault| PostgresError::Connect(super::ConnectFault::Form(fault)))?;
        let version = |form: Form| form.version;
        let after = after.map(version).unwrap_or_default();
        Ok(Migrated { before: before.map(version), after })
    }
}

/// The statements that bring an empty database to the form that this version needs.
#[must_use]
pub fn script() -> String {
    format!("BEGIN;\n{}COMMIT;\n", migrate::script(None))
}

/// How long a migration may take.
const PATIENCE: Duration = Duration::from_mins(10);

pub(super) async fn accept_clock(client: &Client) -> Result<Timestamp, Fault> {
    let accepted = "UPDATE toolgate.clock SET mark_us = toolgate.now_us() RETURNING mark_us";
    let micros: i64 = client.query_one_scalar(accepted, &[]).await?;
    Timestamp::from_microsecond(micros).map_err(|_| Fault::Content("time"))
}

/// Gives the ledger another id, unless another gate than this one runs on it.
pub(super) async fn renew(
    client: &mut Client,
    now: Timestamp,
    own: Option<i32>,
) -> Result<Uuid, Fault> {
    if alive(client, own).await? > 0 {
        return Err(Fault::Content("owners: other gates are running"));
    }
    let transaction = client.transaction().await?;
    let now = now.as_microsecond();
    let id = transaction.client().query_one_scalar(RENEW, &[&now]).await?;
    transaction.execute(SHOW, &[&now]).await?;
    transaction.commit().await?;
    Ok(id)
}

const FOUND: &str = "
    SELECT toolgate.now_us(), c.mark_us, c.seen_us, l.id, l.epoch, l.renewed_us,
           l.lacks_us IS NOT NULL
      FROM toolgate.ledger l, toolgate.clock c";

/// Whether a start was with this journal, and the latest time that its starts have
/// shown; before the first the journal was beside another ledger.
const SHOWN: &str = "
    SELECT EXISTS (SELECT FROM toolgate.owners WHERE epoch = $2 AND journal_id = $1),
           greatest((SELECT max(w.shown_us) FROM toolgate.work w
                       JOIN toolgate.owners o ON o.epoch = w.epoch WHERE o.journal_id = $1),
                    (SELECT min(started_us) FROM toolgate.owners WHERE journal_id = $1),
                    (SELECT renewed_us FROM toolgate.ledger))";

const RUNNING: &str = "SELECT key, record FROM toolgate.calls WHERE running";

const RENEW: &str = "
    UPDATE toolgate.ledger
       SET id = gen_random_uuid(), lacks_us = NULL, renewed_us = greatest($1, toolgate.now_us())
    RETURNING id";

const SHOW: &str = "
    UPDATE toolgate.clock SET mark_us = greatest(mark_us, $1, toolgate.now_us()),
           seen_us = greatest(seen_us, $1, toolgate.now_us())";
