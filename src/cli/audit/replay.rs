//! `toolgate audit replay`: the metrics of recorded events.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::path::PathBuf;

use clap::Args;

use super::fault::Told;
use crate::adapters::journal::Verification;
use crate::app::audit_keys;
use crate::cli::Failure;
use crate::config::{self, Config};
use crate::domain::audit::{Entry, MAX_RECORD_BYTES, read_record};
use crate::telemetry::metrics::{Metrics, ToolMetrics};

/// Prints what the metrics of tool calls would be, had all recorded calls ended now: `OpenMetrics`
/// text, by the tools that the configuration registers now.
///
/// Without a file the journal is read, and verified. The lines of a file are the journal's own, as
/// sinks write them and `toolgate audit tail --output json` prints them; each is checked against
/// its closed set.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct Replay {
    /// The configuration file, for the registered tools, the directory and the audit keys
    #[arg(long, short, value_name = "FILE")]
    config: PathBuf,
    /// Recorded events, one JSON object a line; - for standard input
    #[arg(value_name = "EVENTS")]
    events: Option<PathBuf>,
}

const EXIT_CODES: &str = "\
Exit codes: 0 everything was counted; 1 something does not verify, is no event, or cannot be read, \
and nothing is printed; 2 wrong usage.";

impl Replay {
    pub(super) fn run(self) -> Result<bool, Failure> {
        let config = config::load(&self.config)?;
        let contracts = config.policy.snapshot.contracts();
        let metrics = Metrics::new(env!("CARGO_PKG_VERSION"), contracts.len())?;
        let tools = metrics.tools(contracts.map(|contract| &*contract.name));
        match self.events {
            None => replay_journal(&config, &tools)?,
            Some(file) if file.as_os_str() == "-" => {
                replay_lines(&mut io::stdin().lock(), "standard input", &tools)?;
            }
            Some(file) => {
                let name = file.display().to_string();
                let opened = File::open(&file);
                let opened = opened.map_err(|error| Failure::new(format!("{name}: {error}")))?;
                replay_lines(&mut BufReader::new(opened), &name, &tools)?;
            }
        }
        write!(io::stdout().lock(), "{}", metrics.tool_calls_as_open_metrics())?;
        Ok(true)
    }
}

fn replay_journal(config: &Config, tools: &ToolMetrics) -> Result<(), Failure> {
    let (_, keys) = audit_keys(&config.audit_secrets);
    let verification =
        Verification { directory: config.data.join("journal"), keys, heads: Vec::new() };
    let verified = verification.run(&mut |_, entry| count(entry, tools));
    verified.map_err(|fault| Failure::new(Told::of(&fault).to_string().trim_end()))?;
    Ok(())
}

/// Of a line no more is held than of the longest record.
fn replay_lines(lines: &mut impl BufRead, name: &str, tools: &ToolMetrics) -> Result<(), Failure> {
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        lines.by_ref().take(MAX_RECORD_BYTES as u64 + 1).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            break;
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let (entry, _) = read_record(text).map_err(|fault| {
            Failure::new(format!(
                "{name}: line {number}: {fault}. Give it the journal's own lines, whole and unchanged"
            ))
        })?;
        count(&entry, tools);
    }
    Ok(())
}

fn count(entry: &Entry, tools: &ToolMetrics) {
    match entry {
        Entry::Call(event) => tools.completed(event),
        Entry::Admin(_) => {}
    }
}
