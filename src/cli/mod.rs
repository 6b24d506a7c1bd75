//! The command line: one file a subcommand.
//!
//! Exit codes: 0 done, 1 the answer is no (a fault found, a case that disagrees,
//! a gate that cannot start), 2 wrong usage; `diff` answers as diff does.

pub mod audit;
pub mod check;
pub mod client;
pub mod confirm;
pub mod conform;
pub mod demo;
pub mod diff;
pub mod keygen;
pub mod ledger;
pub mod reload;
pub mod sample_upstream;
pub mod serve;
pub mod status;
pub mod ticket;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Decides which tool calls proposed by a language model may take effect.
#[derive(Debug, Parser)]
#[command(version, about, after_help = AFTER_HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  toolgate demo                             see it work, with a sample upstream
  toolgate keygen keys/audit keys/proposer  make secret files, mode 0600
  toolgate check toolgate.yaml              every fault of configuration and policy at once
  toolgate serve --config toolgate.yaml     serve until SIGTERM, then drain; SIGHUP reloads
  toolgate status --secret-file FILE        what is in force in the running gate";

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve until SIGTERM or SIGINT, then drain
    Serve(serve::Serve),
    /// Show what is in force in a running gate
    Status(status::Status),
    /// Have a running gate load its configuration and policy again
    Reload(reload::Reload),
    /// Print every fault of a configuration and its policy
    Check(check::Check),
    /// Say what another policy would change for callers
    Diff(diff::Diff),
    /// Write new secret files, readable by their owner alone
    Keygen(keygen::Keygen),
    /// Look after the ledger; an embedded one with its gate stopped
    Ledger(ledger::LedgerCommand),
    /// Read a confirmation ticket and say why it would be refused
    Ticket(ticket::TicketCommand),
    /// Preview a call and issue its confirmation ticket, for tests and trials
    Confirm(Box<confirm::Confirm>),
    /// Read the audit of a running gate, or verify it on the disk
    Audit(audit::AuditCommand),
    /// Check vector files for canonical form and digests
    Conform {
        /// Files of one JSON case a line
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Play a gated conversation against a sample upstream
    Demo(demo::Demo),
    /// Serve the demo's upstream alone
    SampleUpstream(sample_upstream::SampleUpstream),
}

impl Cli {
    /// Runs the subcommand.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let done = match self.command {
            Command::Serve(serve) => serve.run(),
            Command::Status(status) => status.run(),
            Command::Reload(reload) => reload.run(),
            Command::Check(check) => check.run(),
            Command::Diff(diff) => return diff.run(),
            Command::Keygen(keygen) => keygen.run(),
            Command::Ledger(ledger) => ledger.run(),
            Command::Ticket(ticket) => ticket.run(),
            Command::Confirm(confirm) => confirm.run(),
            Command::Audit(audit) => audit.run(),
            Command::Conform { files } => {
                conform::run(&files, &mut io::stdout().lock()).map_err(Failure::from)
            }
            Command::Demo(demo) => demo.run(),
            Command::SampleUpstream(upstream) => upstream.run(),
        };
        match done {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(1),
            Err(failure) => {
                // Nothing is left to do where even this cannot be written.
                drop(writeln!(io::stderr().lock(), "toolgate: {failure}"));
                ExitCode::from(1)
            }
        }
    }
}

/// Why a subcommand could not do its work: a text for the operator.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    /// A failure with its text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        Self(text)
    }
}

/// A runtime for a subcommand that serves or calls.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}
