//! What a ticket says and, with the configuration, why it would be refused.
//!
//! The first half believes nothing: it shows a text that anybody can write. The
//! second is the gate's own verification.

mod verdict;

#[cfg(test)]
mod tests;

use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::{Args, Subcommand};
use jiff::Timestamp;

use super::Failure;
use crate::adapters::clock::SystemClock;
use crate::app;
use crate::config;
use crate::domain::audit::Digest;
use crate::domain::json::{Integers, Object, parse_object};
use crate::domain::prompt::show;
use crate::domain::ticket::{ConfirmationKeys, MAX_TICKET_BYTES};
use crate::ports::Clock as _;
use verdict::Verdict;

/// Reads tickets.
#[derive(Debug, Args)]
pub struct TicketCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print header and claims and, with the configuration, every check in its order
    Inspect {
        /// A file that holds the ticket; - reads standard input
        file: PathBuf,
        /// The configuration whose keys, policy and terms judge it
        #[arg(long, short, value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

impl TicketCommand {
    /// Whether the ticket can be read and, with a configuration, nothing that can
    /// be checked without a call and a ledger would refuse it.
    ///
    /// # Errors
    ///
    /// Where the ticket or the configuration cannot be read.
    pub fn run(self) -> Result<bool, Failure> {
        let Action::Inspect { file, config } = self.action;
        let text = read(&file)?;
        let now = SystemClock.now();
        let mut out = io::stdout().lock();
        if text.trim_end() != text {
            writeln!(out, "White space at the end is left out here; the gate refuses it.\n")?;
        }
        let Some(config) = config else {
            return Ok(inspect(text.trim_end(), None, now, &mut out)?);
        };
        let loaded = config::load(&config)?;
        let terms = loaded.confirmation.as_ref().ok_or_else(|| {
            Failure::new(format!("{}: there are no confirmation keys", config.display()))
        })?;
        let keys = app::confirmation_keys(&terms.secrets)?;
        let contract_digest = |name: &str| Some(loaded.policy.snapshot.contract(name)?.digest);
        let judge = Judge {
            keys: &keys,
            ttl: terms.ticket_ttl,
            skew: terms.skew,
            contract_digest: &contract_digest,
        };
        Ok(inspect(text.trim_end(), Some(&judge), now, &mut out)?)
    }
}

/// A ticket has a bound; what is longer is not even read.
fn read(file: &Path) -> Result<String, Failure> {
    let limit = (MAX_TICKET_BYTES + 2) as u64;
    let mut text = String::new();
    if file == Path::new("-") {
        io::stdin().lock().take(limit).read_to_string(&mut text)?;
    } else {
        let named = |error: io::Error| Failure::new(format!("{}: {error}", file.display()));
        let open = std::fs::File::open(file).map_err(named)?;
        open.take(limit).read_to_string(&mut text).map_err(named)?;
    }
    Ok(text)
}

/// What the gate would judge a ticket by.
pub struct Judge<'a> {
    /// The confirmation keys.
    pub keys: &'a ConfirmationKeys,
    /// How long a ticket lives.
    pub ttl: Duration,
    /// How far into the future a ticket may have been confirmed.
    pub skew: Duration,
    /// The digest of the contract in force of this name.
    pub contract_digest: &'a dyn Fn(&str) -> Option<Digest>,
}

/// Prints header and claims of a ticket and, with a judge, every check in its order.
///
/// Whether it can be read and, with a judge, whether nothing that can be checked
/// without a call would refuse it.
///
/// # Errors
///
/// Only of writing to `out`.
pub fn inspect(
    text: &str,
    judge: Option<&Judge<'_>>,
    now: Timestamp,
    out: &mut dyn Write,
) -> io::Result<bool> {
    let unverified = Unverified::read(text);
    let audience =
        unverified.as_ref().and_then(|unverified| unverified.claims.get("aud")?.as_str());
    let verdict = judge.map(|judge| Verdict::of(text, judge, audience.unwrap_or_default(), now));
    match &unverified {
        Some(unverified) => {
            writeln!(out, "{}", Verdict::headline(verdict.as_ref()))?;
            unverified.print(now, out)?;
        }
        None => writeln!(out, "This is no ticket: {}.", Unverified::FORM)?,
    }
    match verdict {
        Some(verdict) => verdict.print(now, out),
        None => Ok(unverified.is_some()),
    }
}

/// What a text says of itself.
struct Unverified {
    header: Object,
    claims: Object,
}

impl Unverified {
    const FORM: &'static str = "a ticket is three segments of base64url with full stops between \
                                them, the first two JSON objects, together at most 4096 bytes";

    fn read(text: &str) -> Option<Self> {
        if text.len() > MAX_TICKET_BYTES {
            return None;
        }
        let (signed, _) = text.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let object = |segment: &str| {
            let bytes = URL_SAFE_NO_PAD.decode(segment).ok()?;
            parse_object(&bytes, MAX_TICKET_BYTES, Integers::Safe).ok()
        };
        Some(Self { header: object(header)?, claims: object(claims)? })
    }

    fn print(&self, now: Timestamp, out: &mut dyn Write) -> io::Result<()> {
        for (title, members) in [("header", &self.header), ("claims", &self.claims)] {
            writeln!(out, "\n{title}")?;
            for (name, value) in members {
                let time = value.as_integer().filter(|_| matches!(name, "iat" | "exp"));
                let time = time.and_then(|second| Timestamp::from_second(second).ok());
                // A name is the text's own as well: shown as safely as a value.
                let name = show(&name.into());
                let name = name.trim_matches('"');
                match time {
                    Some(time) => {
                        writeln!(
                            out,
                            "  {name:<16} {} ({time}, {})",
                            show(value),
                            from(now, time)
                        )?;
                    }
                    None => writeln!(out, "  {name:<16} {}", show(value))?,
                }
            }
        }
        Ok(())
    }
}

/// How far a time is from now, in whole seconds.
fn from(now: Timestamp, time: Timestamp) -> String {
    match time.as_second().saturating_sub(now.as_second()) {
        0 => "now".to_owned(),
        ahead @ 1.. => format!("in {ahead} s"),
        behind => format!("{} s ago", behind.unsigned_abs()),
    }
}
