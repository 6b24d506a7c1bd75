//! `toolgate ledger`: what an operator does to the ledger.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::Timestamp;

use super::{Failure, runtime};
use crate::adapters::clock::SystemClock;
use crate::adapters::ledger::{
    EmbeddedLedger, EmbeddedOptions, PostgresOptions, PostgresStore, script,
};
use crate::config::{self, LedgerConfig};
use crate::domain::watermark::Reading;
use crate::ports::{Clock as _, Ledger as _};

/// Looks after the ledger. An embedded one is locked by its gate: stop that first.
#[derive(Debug, Args)]
pub struct LedgerCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make the ledger in a database, or bring it to the form that this version needs
    ///
    /// Gates of the version before go on meanwhile: migrate, then roll out.
    Migrate {
        /// The configuration file
        #[arg(long, short, value_name = "FILE")]
        config: PathBuf,
        /// Print the statements for an empty database, and connect to none
        #[arg(long)]
        print: bool,
    },
    /// Show what the ledger thinks of the clock, or believe the clock from now on
    Clock {
        /// The configuration file
        #[arg(long, short, value_name = "FILE")]
        config: PathBuf,
        /// Believe the clock from now on, whatever the high-water mark says
        #[arg(long)]
        accept: bool,
    },
    /// Give the ledger a new identity: every ticket that is out ends
    NewIdentity {
        /// The configuration file
        #[arg(long, short, value_name = "FILE")]
        config: PathBuf,
    },
}

/// The ledger that a configuration names, opened.
enum Opened {
    Embedded(Box<EmbeddedLedger>, Timestamp),
    Postgres(Box<PostgresStore>, Timestamp),
}

impl LedgerCommand {
    /// Opens the ledger, does what was asked and closes it.
    ///
    /// # Errors
    ///
    /// Where there is no ledger, or it cannot be opened or written.
    pub fn run(self) -> Result<bool, Failure> {
        let runtime = runtime()?;
        match self.action {
            Action::Migrate { config, print } => runtime.block_on(migrate(&config, print)),
            Action::Clock { config, accept } => runtime.block_on(clock(&config, accept)),
            // Makes one where it was lost: that the gate starts beside its journal needs this.
            Action::NewIdentity { config } => runtime.block_on(new_identity(&config)),
        }
    }
}

async fn migrate(file: &Path, print: bool) -> Result<bool, Failure> {
    let options = match ledger(file)?.0 {
        LedgerConfig::Postgres(options) => options,
        LedgerConfig::Embedded { .. } => {
            return Err(Failure::new(format!(
                "{}: the ledger is embedded, and there is nothing to migrate: the gate makes it at \
                 its start, and beside a journal that had another ledger `toolgate ledger \
                 new-identity` does. To share one in a database, write ledger.kind: postgres first",
                file.display()
            )));
        }
    };
    let mut out = io::stdout().lock();
    if print {
        out.write_all(script().as_bytes())?;
        return Ok(true);
    }
    let migrated =
        PostgresStore::migrate(&options).await.map_err(|fault| told(&options, &fault))?;
    let after = migrated.after;
    match migrated.before {
        None => writeln!(out, "the ledger was made, in form {after}")?,
        Some(before) if before == after => writeln!(out, "the ledger has form {after} already")?,
        Some(before) => writeln!(out, "the ledger went from form {before} to {after}")?,
    }
    Ok(true)
}

async fn clock(file: &Path, accept: bool) -> Result<bool, Failure> {
    let is_made = |directory: &Path| {
        if directory.exists() {
            return Ok(());
        }
        Err(Failure::new(format!(
            "{}: there is no ledger yet: the gate makes one at its first start",
            directory.display()
        )))
    };
    let opened = open(file, is_made).await?;
    let (mark, now) = match &opened {
        Opened::Embedded(ledger, now) => (ledger.mark_at_open(), *now),
        Opened::Postgres(store, _) => store.clock(),
    };
    let mut out = io::stdout().lock();
    match mark {
        Some(mark) => writeln!(out, "high-water mark  {mark:.0}")?,
        None => writeln!(out, "high-water mark  none yet")?,
    }
    writeln!(out, "clock            {now:.0}")?;
    if accept {
        match &opened {
            Opened::Embedded(ledger, now) => {
                let at = Reading { now: *now, monotonic: Duration::ZERO };
                let accepted = ledger.accept_clock(at).await;
                accepted.map_err(|_| Failure::new("the ledger could not be written"))?;
            }
            Opened::Postgres(store, _) => store.accept_clock().await?,
        }
        writeln!(out, "accepted: the clock is believed from now on")?;
    }
    Ok(true)
}

async fn new_identity(file: &Path) -> Result<bool, Failure> {
    let id = match open(file, |_| Ok(())).await? {
        Opened::Embedded(ledger, now) => {
            let renewed = ledger.new_identity(now).await;
            renewed.map_err(|_| Failure::new("the ledger could not be written"))?
        }
        Opened::Postgres(mut store, now) => store.new_identity(now).await?,
    };
    writeln!(io::stdout().lock(), "the ledger is now {id}; every ticket that was out has ended")?;
    Ok(true)
}

/// The ledger of a configuration, and its data directory.
fn ledger(file: &Path) -> Result<(LedgerConfig, PathBuf), Failure> {
    let config = config::load(file)?;
    let terms = config.confirmation.ok_or_else(|| {
        Failure::new(format!("{}: there is no ledger in this configuration", file.display()))
    })?;
    Ok((terms.ledger, config.data))
}

/// Opens it; `may` says whether an embedded one may be made.
async fn open(
    file: &Path,
    may: impl FnOnce(&Path) -> Result<(), Failure>,
) -> Result<Opened, Failure> {
    let now = SystemClock.now();
    match ledger(file)? {
        (LedgerConfig::Embedded { skew }, data) => {
            let directory = data.join("ledger");
            may(&directory)?;
            let options = EmbeddedOptions { skew, ..EmbeddedOptions::new(directory, now) };
            Ok(Opened::Embedded(Box::new(EmbeddedLedger::open(&options)?), now))
        }
        (LedgerConfig::Postgres(options), _) => {
            let opened = PostgresStore::open(&options).await;
            let store = opened.map_err(|fault| told(&options, &fault))?;
            Ok(Opened::Postgres(Box::new(store), now))
        }
    }
}

fn told(options: &PostgresOptions, fault: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("the database {options}: {fault}"))
}
