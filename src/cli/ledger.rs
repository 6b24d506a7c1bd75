//! `toolgate ledger`: what an operator does to the ledger of a stopped gate.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use jiff::Timestamp;

use super::{Failure, runtime};
use crate::adapters::clock::SystemClock;
use crate::adapters::ledger::{EmbeddedLedger, EmbeddedOptions};
use crate::config;
use crate::domain::watermark::Reading;
use crate::ports::{Clock as _, Ledger as _};

/// Looks after the ledger. The gate must be stopped: it holds the ledger's lock.
#[derive(Debug, Args)]
pub struct LedgerCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
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

impl LedgerCommand {
    /// Opens the ledger, does what was asked and closes it.
    ///
    /// # Errors
    ///
    /// Where there is no ledger, or it cannot be opened or written.
    pub fn run(self) -> Result<bool, Failure> {
        match self.action {
            Action::Clock { config, accept } => clock(&config, accept),
            // Makes one where it was lost: that the gate starts beside its journal needs this.
            Action::NewIdentity { config } => new_identity(&config),
        }
    }
}

fn clock(config: &Path, accept: bool) -> Result<bool, Failure> {
    let directory = config::load(config)?.data.join("ledger");
    if !directory.exists() {
        return Err(Failure::new(format!(
            "{}: there is no ledger yet: the gate makes one at its first start",
            directory.display()
        )));
    }
    let (ledger, now) = open(config)?;
    let mut out = io::stdout().lock();
    match ledger.mark_at_open() {
        Some(mark) => writeln!(out, "high-water mark  {mark:.0}")?,
        None => writeln!(out, "high-water mark  none yet")?,
    }
    writeln!(out, "clock            {now:.0}")?;
    if accept {
        let at = Reading { now, monotonic: std::time::Duration::ZERO };
        runtime()?
            .block_on(ledger.accept_clock(at))
            .map_err(|_| Failure::new("the ledger could not be written"))?;
        writeln!(out, "accepted: the clock is believed from now on")?;
    }
    Ok(true)
}

fn new_identity(config: &Path) -> Result<bool, Failure> {
    let (ledger, now) = open(config)?;
    let id = runtime()?
        .block_on(ledger.new_identity(now))
        .map_err(|_| Failure::new("the ledger could not be written"))?;
    writeln!(io::stdout().lock(), "the ledger is now {id}; every ticket that was out has ended")?;
    Ok(true)
}

fn open(file: &Path) -> Result<(EmbeddedLedger, Timestamp), Failure> {
    let config = config::load(file)?;
    let terms = config.confirmation.ok_or_else(|| {
        Failure::new(format!("{}: there is no ledger in this configuration", file.display()))
    })?;
    let now = SystemClock.now();
    let options = EmbeddedOptions {
        skew: terms.skew,
        ..EmbeddedOptions::new(config.data.join("ledger"), now)
    };
    Ok((EmbeddedLedger::open(&options)?, now))
}
