//! One line of a vector file.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

use crate::domain::audit::PayloadSummary;
use crate::domain::json::JsonFault;

/// A text and what it must give.
pub(super) struct Vector {
    /// The text, byte for byte: not UTF-8 where a vector escapes half a surrogate pair.
    pub(super) json: Vec<u8>,
    pub(super) expectation: Expectation,
}

/// What a vector expects. At least one member is there.
pub(super) enum Expectation {
    Reject(JsonFault),
    Arguments {
        canonical_hex: Option<String>,
        arguments_hash: Option<String>,
    },
    Audit {
        bounded_canonical_hex: Option<String>,
        digest: Option<String>,
        summary: Option<PayloadSummary>,
    },
}

impl Vector {
    /// Reads a line. The error says what to mend.
    pub(super) fn read(line: &[u8]) -> Result<Self, String> {
        let line: Line = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        let audit =
            line.bounded_canonical_hex.is_some() || line.digest.is_some() || line.summary.is_some();
        let arguments = line.canonical_hex.is_some() || line.arguments_hash.is_some();
        let expectation = match (line.reject, arguments, audit) {
            (Some(name), false, false) => {
                let fault = JsonFault::from_name(&name);
                Expectation::Reject(fault.ok_or_else(|| unknown_cause(&name))?)
            }
            (None, true, false) => Expectation::Arguments {
                canonical_hex: line.canonical_hex,
                arguments_hash: line.arguments_hash,
            },
            (None, false, true) => Expectation::Audit {
                bounded_canonical_hex: line.bounded_canonical_hex,
                digest: line.digest,
                summary: line.summary.map(Into::into),
            },
            (None, false, false) => return Err(NOTHING_EXPECTED.to_owned()),
            _ => return Err(KINDS_MIXED.to_owned()),
        };
        Ok(Self { json: line.json.0, expectation })
    }
}

const NOTHING_EXPECTED: &str = "it expects nothing; give `reject`, or `canonical_hex` and \
    `arguments_hash`, or `bounded_canonical_hex`, `digest` and `summary`";

const KINDS_MIXED: &str = "it has members of more than one kind; give `reject`, the members of \
    arguments and those of the audit a line each";

fn unknown_cause(name: &str) -> String {
    let known = JsonFault::ALL.map(JsonFault::as_str).join(", ");
    format!("`reject` is {name:?}; it must be one of {known}")
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    json: Text,
    reject: Option<String>,
    canonical_hex: Option<String>,
    arguments_hash: Option<String>,
    bounded_canonical_hex: Option<String>,
    digest: Option<String>,
    summary: Option<Summary>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_field_names, reason = "the names of the format")]
struct Summary {
    field_count: u32,
    scalar_count: u32,
    collection_count: u32,
    redacted_field_count: u32,
    content_field_count: u32,
    identifier_field_count: u32,
}

impl From<Summary> for PayloadSummary {
    fn from(summary: Summary) -> Self {
        Self {
            field_count: summary.field_count,
            scalar_count: summary.scalar_count,
            collection_count: summary.collection_count,
            redacted_field_count: summary.redacted_field_count,
            content_field_count: summary.content_field_count,
            identifier_field_count: summary.identifier_field_count,
        }
    }
}

/// The bytes of a JSON string, half surrogate pairs included.
struct Text(Vec<u8>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Text, E> {
                Ok(Text(bytes.to_vec()))
            }
        }

        // serde_json gives bytes without asking whether they are UTF-8.
        deserializer.deserialize_bytes(Bytes)
    }
}
