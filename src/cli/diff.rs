//! `toolgate diff`: what another policy would change for callers.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::Failure;
use super::status::Output;
use crate::config::{self, policy, restart_needed};
use crate::domain::policy::PolicySnapshot;
use crate::domain::policy_diff::{Bearing, Change, PolicyDiff};

/// Says what changes between two policy directories or two configuration files.
///
/// Exit codes: 0 nothing changes, 1 something does, 2 one of them has faults.
#[derive(Debug, Args)]
pub struct Diff {
    /// The policy directory, or the configuration file, before
    old: PathBuf,
    /// The same after
    new: PathBuf,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Output::Human)]
    output: Output,
}

const SAME: u8 = 0;
const DIFFERENT: u8 = 1;
const TROUBLE: u8 = 2;

/// One side of the comparison.
struct Side {
    policy: PolicySnapshot,
    /// The configuration, where there is one.
    document: Option<Value>,
}

impl Diff {
    /// Compares, prints and answers as `diff` does.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let code = self.compare().unwrap_or_else(|failure| {
            // Nothing is left to do where even this cannot be written.
            drop(writeln!(io::stderr().lock(), "toolgate: {failure}"));
            TROUBLE
        });
        ExitCode::from(code)
    }

    fn compare(&self) -> Result<u8, Failure> {
        let (old, new) = (Side::load(&self.old)?, Side::load(&self.new)?);
        let diff = PolicyDiff::between(&old.policy, &new.policy);
        let restart: Vec<String> = match (&old.document, &new.document) {
            (Some(old), Some(new)) => {
                restart_needed(old, new).into_iter().map(|finding| finding.pointer).collect()
            }
            _ => Vec::new(),
        };
        let mut out = io::stdout().lock();
        match self.output {
            Output::Human => write!(out, "{}", human(&diff, &restart))?,
            Output::Json => writeln!(out, "{}", as_json(&diff, &restart))?,
        }
        Ok(if diff.is_empty() && restart.is_empty() { SAME } else { DIFFERENT })
    }
}

impl Side {
    fn load(path: &Path) -> Result<Self, Failure> {
        let named = |faults| Failure::new(format!("{}\n{faults}", path.display()));
        if path.is_dir() {
            let policy = policy::load_alone(path).map_err(named)?.snapshot;
            return Ok(Self { policy, document: None });
        }
        let config = config::load(path).map_err(named)?;
        Ok(Self { policy: config.policy.snapshot, document: Some(config.source.document) })
    }
}

fn human(diff: &PolicyDiff, restart: &[String]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    let mut line = |one: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{one}");
    };
    if diff.is_empty() && restart.is_empty() {
        line(format!("no change: policy {}", diff.after));
        return text;
    }
    line(format!("policy {} -> {}", diff.before, diff.after));
    let mut last = None;
    for Change { tool, bearing, text, .. } in &diff.changes {
        if tool.is_some() && last != Some(tool) {
            line(tool.as_deref().unwrap_or_default().to_owned());
        }
        last = Some(tool);
        line(format!("  {} {text}", mark(*bearing)));
    }
    if !diff.tickets_end.is_empty() {
        let names: Vec<&str> = diff.tickets_end.iter().map(|name| &**name).collect();
        line(format!("tickets that are out end: {}", names.join(", ")));
    }
    for pointer in restart {
        line(format!("needs a restart: {pointer}"));
    }
    let count = diff.changes.len();
    let noun = if count == 1 { "change" } else { "changes" };
    line(format!("{count} {noun} (- refuses more, + lets more through, ~ either, . neither)"));
    text
}

const fn mark(bearing: Bearing) -> char {
    match bearing {
        Bearing::Narrower => '-',
        Bearing::Wider => '+',
        Bearing::Either => '~',
        Bearing::Neither => '.',
    }
}

fn as_json(diff: &PolicyDiff, restart: &[String]) -> Value {
    let change = |change: &Change| {
        json!({
            "tool": change.tool.as_deref(),
            "kind": change.kind,
            "bearing": change.bearing.as_str(),
            "text": change.text,
        })
    };
    json!({
        "policy_digest_before": diff.before.to_string(),
        "policy_digest": diff.after.to_string(),
        "changes": diff.changes.iter().map(change).collect::<Vec<_>>(),
        "tickets_end": diff.tickets_end.iter().map(|name| &**name).collect::<Vec<_>>(),
        "restart_needed": restart,
    })
}
