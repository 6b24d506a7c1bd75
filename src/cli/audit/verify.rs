//! `toolgate audit verify`: the journal on the disk, read to its last byte.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use serde_json::{Value, json};

use super::fault::Told;
use super::{Output, notice};
use crate::adapters::journal::{Verification, Verified};
use crate::app::audit_keys;
use crate::cli::Failure;
use crate::config;
use crate::domain::audit::{Digest, Head};

/// Verifies a journal from its first record on and names the first that was edited, deleted,
/// moved, repeated, inserted or cut off.
///
/// It only reads, and needs no lock: the gate may run meanwhile. Newest records that were cut off
/// show only against a head that was kept elsewhere: give it with --head.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct Verify {
    /// The configuration file, for the directory and the audit keys
    #[arg(long, short, value_name = "FILE")]
    config: PathBuf,
    /// A head that was kept elsewhere, as `toolgate status` prints it; may be given several times
    #[arg(long = "head", value_name = "SEQUENCE:MAC")]
    heads: Vec<KeptHead>,
    /// Another directory than the configuration's: a copy of the journal
    #[arg(long, value_name = "DIRECTORY")]
    journal: Option<PathBuf>,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Output::Human)]
    output: Output,
}

const EXIT_CODES: &str = "\
Exit codes: 0 everything verifies; 1 something does not, or cannot be read; 2 wrong usage.";

/// `SEQUENCE:MAC`.
#[derive(Debug, Clone, Copy)]
struct KeptHead(Head);

impl Verify {
    pub(super) fn run(self) -> Result<bool, Failure> {
        let config = config::load(&self.config)?;
        let directory = self.journal.unwrap_or_else(|| config.data.join("journal"));
        let (_, keys) = audit_keys(&config.audit_secrets);
        let heads = self.heads.into_iter().map(|KeptHead(head)| head).collect();
        let verified = Verification { directory, keys, heads }.run(&mut |_, _| {});
        for path in verified.iter().flat_map(|verified| &verified.broken_checkpoints) {
            notice(&format!(
                "{}: the checkpoint does not verify: it was torn or edited, and no start uses it. \
                 If the machine did not go down meanwhile, ask who could write to the disk",
                path.display()
            ));
        }
        let mut out = io::stdout().lock();
        match (&verified, self.output) {
            (Ok(verified), Output::Human) => write!(out, "{}", human(verified))?,
            (Ok(verified), Output::Json) => writeln!(out, "{}", as_json(verified))?,
            (Err(fault), Output::Human) => write!(out, "{}", Told::of(fault))?,
            (Err(fault), Output::Json) => writeln!(out, "{}", Told::of(fault).json())?,
        }
        Ok(verified.is_ok())
    }
}

fn human(verified: &Verified) -> String {
    let Verified { journal_id, first, head, segments, bytes, open_pairs, .. } = verified;
    let mut text = format!(
        "journal        {journal_id}\n\
         records        {first} to {}, {bytes} bytes in {segments} segments\n\
         head           {}:{}\n\
         open pairs     {open_pairs}\n",
        head.sequence, head.sequence, head.mac,
    );
    for (path, bytes) in &verified.beyond {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "beyond         {bytes} bytes of {}: a record that is being written, or what a crash \
             left for the next start to cut",
            path.display()
        );
    }
    text.push_str("every record verifies\n");
    text
}

fn as_json(verified: &Verified) -> Value {
    let beyond = verified.beyond.iter();
    let broken = verified.broken_checkpoints.iter();
    json!({
        "verifies": true,
        "journal_id": &*verified.journal_id,
        "first_sequence": verified.first,
        "head": format!("{}:{}", verified.head.sequence, verified.head.mac),
        "segments": verified.segments,
        "bytes": verified.bytes,
        "open_pairs": verified.open_pairs,
        "beyond": beyond
            .map(|(path, bytes)| json!({"file": path.to_string_lossy(), "bytes": bytes}))
            .collect::<Vec<_>>(),
        "broken_checkpoints": broken.map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
    })
}

impl FromStr for KeptHead {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once(':');
        let head = parts.and_then(|(sequence, mac)| {
            Some(Head { sequence: sequence.parse().ok()?, mac: Digest::from_hex(mac)? })
        });
        head.map(Self).ok_or("write a sequence, a colon and 64 lower-case hexadecimal digits")
    }
}
