//! `toolgate conform`: checks vector files, so that other implementers and
//! reviewers can test canonical form and digests.
//!
//! A file holds one JSON object a line. With `json`, a text, stand what it must
//! give: `reject`, or `canonical_hex` and `arguments_hash`, for arguments;
//! `bounded_canonical_hex`, `digest` and `summary` for the audit's form of a payload.
//! Every expectation that is there is checked. The keys are the vectors' own.

mod causes;
mod vector;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::domain::audit::{AuditKey, Digest, PayloadSummary, bounded, summarise};
use crate::domain::canonical::canonical;
use crate::domain::json::{Integers, JsonFault, Value, parse, parse_object};
use crate::domain::keyed::ArgumentsKey;
use causes::causes;
use vector::{Expectation, Vector};

/// Bytes of arguments (semantics, section 2).
const MAX_ARGUMENT_BYTES: usize = 64 * 1024;
/// Canonical bytes of arguments (semantics, section 3).
const MAX_CANONICAL_BYTES: usize = 8192;
/// Bytes of a payload: those of the largest result.
const MAX_PAYLOAD_BYTES: usize = 1024 * 1024;

/// Checks the files and prints each disagreement, then the totals of each file and of all.
///
/// True if there were cases and all agreed. A line or a file that cannot be
/// read is a disagreement.
///
/// # Errors
///
/// Only of writing to `out`.
pub fn run(files: &[PathBuf], out: &mut dyn Write) -> io::Result<bool> {
    let keys = Keys::published();
    let mut all = Totals::default();
    for file in files {
        let totals = check_file(file, &keys, out)?;
        writeln!(out, "{}: {totals}", file.display())?;
        all.agreed += totals.agreed;
        all.disagreed += totals.disagreed;
    }
    writeln!(out, "total: {all}")?;
    Ok(all.agreed > 0 && all.disagreed == 0)
}

/// The keys that every vector is computed with. They are public and protect nothing.
struct Keys {
    arguments: ArgumentsKey,
    audit: AuditKey,
}

#[derive(Default)]
struct Totals {
    agreed: usize,
    disagreed: usize,
}

/// One expectation that was not met.
struct Disagreement {
    /// The member of the vector.
    member: &'static str,
    expected: String,
    computed: String,
}

impl Keys {
    fn published() -> Self {
        let counting_from = |first: u8| std::array::from_fn(|index| first + index.to_le_bytes()[0]);
        Self {
            arguments: ArgumentsKey::new("vectors".into(), &counting_from(0x00)),
            audit: AuditKey::new("vectors".into(), &counting_from(0x20)),
        }
    }
}

fn check_file(file: &Path, keys: &Keys, out: &mut dyn Write) -> io::Result<Totals> {
    let mut totals = Totals::default();
    let name = file.display();
    let bytes = match fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) => {
            writeln!(out, "{name}: cannot be read: {error}")?;
            totals.disagreed = 1;
            return Ok(totals);
        }
    };
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let place = format!("{name}:{}", index + 1);
        if check_line(line, &place, keys, out)? {
            totals.agreed += 1;
        } else {
            totals.disagreed += 1;
        }
    }
    if totals.agreed + totals.disagreed == 0 {
        writeln!(out, "{name}: holds no vectors")?;
        totals.disagreed = 1;
    }
    Ok(totals)
}

/// Whether the line is a vector and every expectation in it is met.
fn check_line(line: &[u8], place: &str, keys: &Keys, out: &mut dyn Write) -> io::Result<bool> {
    let vector = match Vector::read(line) {
        Ok(vector) => vector,
        Err(why) => {
            writeln!(out, "{place}: not a vector: {why}")?;
            return Ok(false);
        }
    };
    let disagreements = check(&vector, keys);
    for Disagreement { member, expected, computed } in &disagreements {
        let (expected, computed) = where_they_differ(expected, computed);
        writeln!(out, "{place}: {member}: expected {expected}, computed {computed}")?;
    }
    Ok(disagreements.is_empty())
}

fn check(vector: &Vector, keys: &Keys) -> Vec<Disagreement> {
    match &vector.expectation {
        Expectation::Reject(fault) => check_reject(&vector.json, *fault).into_iter().collect(),
        Expectation::Arguments { canonical_hex, arguments_hash } => {
            let computed = accept_arguments(&vector.json)
                .map(|bytes| [hex(&bytes), keys.arguments.hash_canonical(&bytes).to_string()]);
            compare(
                [("canonical_hex", canonical_hex), ("arguments_hash", arguments_hash)],
                computed,
            )
        }
        Expectation::Audit { bounded_canonical_hex, digest, summary } => {
            let payload = parse(&vector.json, MAX_PAYLOAD_BYTES, Integers::Wide);
            let computed = payload.map(|value| {
                let bytes = canonical(&bounded(&value, &[]));
                let digest: Digest = keys.audit.digest(&value, &[]);
                [hex(&bytes), digest.to_string(), summary_text(summarise(&value, &[]))]
            });
            compare(
                [
                    ("bounded_canonical_hex", bounded_canonical_hex),
                    ("digest", digest),
                    ("summary", &summary.map(summary_text)),
                ],
                computed,
            )
        }
    }
}

/// The canonical bytes of this arguments text.
fn accept_arguments(json: &[u8]) -> Result<Vec<u8>, JsonFault> {
    let value = parse_object(json, MAX_ARGUMENT_BYTES, Integers::Safe).map(Value::Object)?;
    let bytes = canonical(&value);
    if bytes.len() > MAX_CANONICAL_BYTES { Err(JsonFault::TooLarge) } else { Ok(bytes) }
}

fn check_reject(json: &[u8], expected: JsonFault) -> Option<Disagreement> {
    let computed = match accept_arguments(json) {
        Err(fault) if fault == expected => return None,
        // A text can break several rules; a vector names one, and which one is free.
        Err(_) if causes(json, MAX_ARGUMENT_BYTES).contains(&expected) => return None,
        Err(fault) => fault.as_str(),
        Ok(_) => "accepted",
    };
    Some(Disagreement {
        member: "reject",
        expected: expected.as_str().to_owned(),
        computed: computed.to_owned(),
    })
}

fn compare<const N: usize>(
    expected: [(&'static str, &Option<String>); N],
    computed: Result<[String; N], JsonFault>,
) -> Vec<Disagreement> {
    let computed = computed
        .unwrap_or_else(|fault| std::array::from_fn(|_| format!("reject {}", fault.as_str())));
    let pairs = expected.into_iter().zip(computed);
    pairs
        .filter_map(|((member, expected), computed)| {
            let expected = expected.clone().filter(|expected| *expected != computed)?;
            Some(Disagreement { member, expected, computed })
        })
        .collect()
}

fn summary_text(summary: PayloadSummary) -> String {
    format!(
        "field_count {}, scalar_count {}, collection_count {}, redacted_field_count {}, \
         content_field_count {}, identifier_field_count {}",
        summary.field_count,
        summary.scalar_count,
        summary.collection_count,
        summary.redacted_field_count,
        summary.content_field_count,
        summary.identifier_field_count,
    )
}

fn hex(bytes: &[u8]) -> String {
    let digits = b"0123456789abcdef";
    let pairs = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    pairs.map(|digit| char::from(digits[usize::from(digit)])).collect()
}

/// Long texts from a little before their first difference, with its place and their lengths.
fn where_they_differ(expected: &str, computed: &str) -> (String, String) {
    const LONG: usize = 200;
    const BEFORE: usize = 16;
    if expected.len().max(computed.len()) <= LONG {
        return (expected.to_owned(), computed.to_owned());
    }
    let same = expected.chars().zip(computed.chars()).take_while(|(a, b)| a == b).count();
    let from = same.saturating_sub(BEFORE);
    let excerpt = |text: &str| {
        let part: String = text.chars().skip(from).take(LONG).collect();
        format!("{part} (from digit {from} of {})", text.chars().count())
    };
    (excerpt(expected), excerpt(computed))
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} agreed, {} disagreed", self.agreed, self.disagreed)
    }
}

#[cfg(test)]
mod tests;
