//! The ledger of a start: opened before the journal, started once both are there.

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;

use super::{Running, StartError};
use crate::adapters::ledger::{
    EmbeddedLedger, EmbeddedOptions, Lost, PostgresError, PostgresLedger, PostgresStore,
};
use crate::config::LedgerConfig;
use crate::domain::generation::{Generation, LedgerFound};
use crate::domain::record::{CallKey, Record};
use crate::ports::Ledger;

/// A ledger that nobody has started on.
pub(super) enum Unstarted {
    Embedded(Arc<EmbeddedLedger>),
    Postgres(Box<PostgresStore>, String),
}

/// A ledger that this process answers for.
#[derive(Clone)]
pub(super) enum Started {
    Embedded(Arc<EmbeddedLedger>),
    Postgres(Arc<PostgresLedger>),
}

/// A call that was reserved and not settled.
pub(super) struct Unsettled {
    pub(super) key: CallKey,
    pub(super) record: Record,
    /// Whether the journal here has seen its attempts, if that is as new as the ledger.
    pub(super) is_of_this_journal: bool,
}

impl Unstarted {
    /// Opens what the configuration names.
    pub(super) async fn open(
        config: &LedgerConfig,
        data: &Path,
        now: Timestamp,
    ) -> Result<Self, StartError> {
        match config {
            LedgerConfig::Embedded { skew } => {
                let new = EmbeddedOptions::new(data.join("ledger"), now);
                let options = EmbeddedOptions { skew: *skew, ..new };
                let ledger = EmbeddedLedger::open(&options).map_err(StartError::Ledger)?;
                Ok(Self::Embedded(Arc::new(ledger)))
            }
            LedgerConfig::Postgres(options) => {
                let database = options.to_string();
                let store = PostgresStore::open(options).await.map_err(unusable(&database))?;
                Ok(Self::Postgres(Box::new(store), database))
            }
        }
    }

    /// What earlier starts have left, as this journal is to be held against.
    pub(super) async fn found(
        &self,
        journal_id: &str,
        beside: Option<&Generation>,
    ) -> Result<LedgerFound, StartError> {
        match self {
            Self::Embedded(ledger) => Ok(ledger.found().clone()),
            Self::Postgres(store, database) => {
                store.found_by(journal_id, beside).await.map_err(unusable(database))
            }
        }
    }

    /// Every call that may turn out to be this start's to settle.
    pub(super) async fn running(&self) -> Result<Vec<(CallKey, Record)>, StartError> {
        match self {
            Self::Embedded(ledger) => {
                ledger.running().await.map_err(|_| StartError::LedgerRecovery)
            }
            Self::Postgres(store, database) => store.running().await.map_err(unusable(database)),
        }
    }

    /// Answers from now on for what the starts before it with this journal have left.
    pub(super) async fn start(
        self,
        journal_id: &str,
        beside: Option<&Generation>,
    ) -> Result<(Started, Vec<Unsettled>), StartError> {
        match self {
            Self::Embedded(ledger) => {
                let running = ledger.running().await.map_err(|_| StartError::LedgerRecovery)?;
                let unsettled = running.into_iter().map(|(key, record)| Unsettled {
                    key,
                    record,
                    is_of_this_journal: true,
                });
                let unsettled = unsettled.collect();
                Ok((Started::Embedded(ledger), unsettled))
            }
            Self::Postgres(store, database) => {
                let ledger = store.start(journal_id).await.map_err(unusable(&database))?;
                let running =
                    ledger.inherited(beside).await.map_err(|_| StartError::LedgerRecovery)?;
                let unsettled = running.into_iter().map(|(key, record, is_of_this_journal)| {
                    Unsettled { key, record, is_of_this_journal }
                });
                let unsettled = unsettled.collect();
                Ok((Started::Postgres(Arc::new(ledger)), unsettled))
            }
        }
    }
}

fn unusable(database: &str) -> impl FnOnce(PostgresError) -> StartError {
    let database = database.to_owned();
    |source| StartError::Postgres { database, source }
}

impl Started {
    /// The start that the journal is to remember. Counted durably.
    pub(super) async fn count(&self) -> Result<Generation, StartError> {
        match self {
            Self::Embedded(ledger) => {
                ledger.start_generation().await.map_err(|_| StartError::LedgerRecovery)
            }
            Self::Postgres(ledger) => {
                Ok(Generation { ledger_id: ledger.id(), number: ledger.epoch() })
            }
        }
    }

    pub(super) fn port(&self) -> Arc<dyn Ledger> {
        match self {
            Self::Embedded(ledger) => Arc::clone(ledger) as Arc<dyn Ledger>,
            Self::Postgres(ledger) => Arc::clone(ledger) as Arc<dyn Ledger>,
        }
    }

    /// Returns if the ledger is of no more use to this process; never, mostly.
    pub(super) async fn lost(&self) -> Lost {
        match self {
            Self::Embedded(_) => std::future::pending().await,
            Self::Postgres(ledger) => ledger.lost().await,
        }
    }

    /// What the journal is to remember of a ledger that went back: no start of it is
    /// as new as the journal, until an operator has given it a new identity.
    pub(super) fn older_than_its_journal(&self) -> Generation {
        Generation { ledger_id: self.port().id(), number: u64::MAX }
    }

    /// Says goodbye to a database. A file is closed once nobody has it any more.
    pub(super) async fn close(&self) {
        match self {
            Self::Embedded(_) => {}
            Self::Postgres(ledger) => ledger.close().await,
        }
    }
}

impl Running {
    /// Returns if nothing but a restart helps any more, and why. A ledger that went
    /// back is remembered: the next start refuses it.
    pub async fn lost(&self) -> Lost {
        let Some(ledger) = &self.ledger else { return std::future::pending().await };
        let lost = ledger.lost().await;
        if lost == Lost::WentBack
            && let Err(error) = self.journal.set_beside(&ledger.older_than_its_journal())
        {
            tracing::error!(fault = %error, "that the ledger went back could not be remembered");
        }
        lost
    }
}
