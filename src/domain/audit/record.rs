//! One audit event as one line of JSON: writing, and strict reading.
//!
//! A line holds the fields of semantics section 8 in their order; absent ones
//! are left out. The chain ([`super::chain`]) adds the last one, `mac`.
//! Times are RFC 3339 in UTC with microseconds (finer parts are cut off),
//! durations milliseconds with at most three fraction digits, digests
//! lower-case hexadecimal.

use std::fmt;
use std::io::Write as _;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;

use super::{Digest, Event, EventKind, PayloadSummary, Stamp, TraceId};
use crate::domain::proposal::Context;
use crate::domain::reason::{Effect, Reason};

/// No line is longer: four context fields of 128 four-byte characters and every
/// other field at its longest stay below.
pub const MAX_RECORD_BYTES: usize = 8 * 1024;

/// The longest duration that a line can hold, about 31 years; longer ones are
/// written as this. Up to here a double keeps every microsecond.
pub const MAX_DURATION_US: u64 = 1_000_000_000_000_000;

/// Why a line is not a record. Names a field or a place, never a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordFault {
    /// No JSON object, or a field is unknown, missing, repeated or of another type.
    Malformed {
        /// Where reading stopped, in bytes from 1.
        column: usize,
    },
    /// A field holds what it cannot, or what does not fit the others.
    Field(&'static str),
    /// It says what a record says, but not in the one form that is written.
    NotAsWritten,
}

/// Appends an event as one JSON object, without `mac` and without a line end.
pub fn write_record(line: &mut Vec<u8>, event: &Event, journal_id: &str, sequence: u64) {
    let context = &*event.context;
    line.extend_from_slice(b"{\"event\":");
    string(line, event.event_name());
    text(line, "journal_id", journal_id);
    display(line, "sequence", sequence);
    name(line, "time");
    put(line, format_args!("\"{:.6}\"", event.time));
    text(line, "request_id", &context.request_id);
    text(line, "user_id", &context.user_id);
    text(line, "tenant_id", &context.tenant_id);
    text(line, "conversation_id", &context.conversation_id);
    text(line, "tool_call_id", &event.tool_call_id);
    text(line, "tool", &event.tool);
    digest(line, "suggested_tool_hash", &event.suggested_tool_hash);
    display(line, "attempt", event.attempt);
    text(line, "outcome", event.outcome().as_str());
    if let EventKind::Completed { reason, duration_us, .. } = event.kind {
        text(line, "reason", reason.code());
        duration(line, "duration_ms", duration_us);
    }
    summary(line, "arguments_summary", event.arguments_summary);
    digest(line, "arguments_digest", &event.arguments_digest);
    if let EventKind::Completed { result_summary, result_digest, .. } = &event.kind {
        if let Some(counts) = result_summary {
            summary(line, "result_summary", *counts);
        }
        if let Some(result) = result_digest {
            digest(line, "result_digest", result);
        }
    }
    line.extend_from_slice(b",\"model_suggested\":true");
    if let EventKind::Completed { effect, .. } = event.kind {
        text(line, "effect", effect.as_str());
    }
    digest(line, "policy_digest", &event.policy_digest);
    text(line, "audit_key_id", &event.audit_key_id);
    if let Some(trace_id) = event.trace_id {
        name(line, "trace_id");
        put(line, format_args!("\"{trace_id}\""));
    }
    line.push(b'}');
}

/// Appends the last field to an object that ends the buffer.
pub(super) fn write_mac(line: &mut Vec<u8>, mac: &Digest) {
    line.pop();
    digest(line, "mac", mac);
    line.push(b'}');
}

/// Reads one sealed record, without its line end, and checks the event against
/// its closed set once more. Whether `mac` is right only the chain can tell.
///
/// # Errors
///
/// The first fault: nothing but the exact bytes that are written for an event is read.
pub fn read_record(line: &[u8]) -> Result<(Event, Stamp), RecordFault> {
    let fields: Fields = serde_json::from_slice(line)
        .map_err(|error| RecordFault::Malformed { column: error.column() })?;
    let (event, stamp) = fields.into_record()?;
    event.check().map_err(|fault| RecordFault::Field(fault.field))?;
    let mut again = Vec::with_capacity(line.len());
    write_record(&mut again, &event, &stamp.journal_id, stamp.sequence);
    write_mac(&mut again, &stamp.mac);
    if again == line { Ok((event, stamp)) } else { Err(RecordFault::NotAsWritten) }
}

impl fmt::Display for RecordFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { column } => {
                write!(
                    f,
                    "it is not a JSON object of exactly the record's fields (column {column})"
                )
            }
            Self::Field(field) => write!(f, "its field {field} is outside its closed set"),
            Self::NotAsWritten => f.write_str("it is not in the form in which records are written"),
        }
    }
}

impl std::error::Error for RecordFault {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    event: String,
    journal_id: String,
    sequence: u64,
    time: String,
    request_id: String,
    user_id: String,
    tenant_id: String,
    conversation_id: String,
    tool_call_id: String,
    tool: String,
    suggested_tool_hash: String,
    attempt: u32,
    outcome: String,
    reason: Option<String>,
    duration_ms: Option<f64>,
    arguments_summary: Counts,
    arguments_digest: String,
    result_summary: Option<Counts>,
    result_digest: Option<String>,
    model_suggested: bool,
    effect: Option<String>,
    policy_digest: String,
    audit_key_id: String,
    trace_id: Option<String>,
    mac: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_field_names, reason = "the names are the wire's")]
struct Counts {
    field_count: u32,
    scalar_count: u32,
    collection_count: u32,
    redacted_field_count: u32,
    content_field_count: u32,
    identifier_field_count: u32,
}

impl Fields {
    fn into_record(self) -> Result<(Event, Stamp), RecordFault> {
        let kind = self.kind()?;
        if !self.model_suggested {
            return Err(RecordFault::Field("model_suggested"));
        }
        let stamp = Stamp {
            journal_id: self.journal_id.into(),
            sequence: self.sequence,
            mac: read_digest("mac", &self.mac)?,
        };
        let event = Event {
            kind,
            time: self.time.parse::<Timestamp>().map_err(|_| RecordFault::Field("time"))?,
            context: Arc::new(Context {
                request_id: self.request_id.into(),
                user_id: self.user_id.into(),
                tenant_id: self.tenant_id.into(),
                conversation_id: self.conversation_id.into(),
            }),
            tool_call_id: self.tool_call_id.into(),
            tool: self.tool.into(),
            suggested_tool_hash: read_digest("suggested_tool_hash", &self.suggested_tool_hash)?,
            attempt: self.attempt,
            arguments_summary: (&self.arguments_summary).into(),
            arguments_digest: read_digest("arguments_digest", &self.arguments_digest)?,
            policy_digest: read_digest("policy_digest", &self.policy_digest)?,
            audit_key_id: self.audit_key_id.into(),
            trace_id: self.trace_id.as_deref().map(read_trace_id).transpose()?,
        };
        if self.outcome != event.outcome().as_str() {
            return Err(RecordFault::Field("outcome"));
        }
        Ok((event, stamp))
    }

    /// What only one of the two events has. A field of the other event is a
    /// fault by itself, or by the form: writing would leave it out.
    fn kind(&self) -> Result<EventKind, RecordFault> {
        match self.event.as_str() {
            "tool_call_started" => Ok(EventKind::Started),
            "tool_call_completed" => Ok(EventKind::Completed {
                reason: self
                    .reason
                    .as_deref()
                    .and_then(Reason::from_code)
                    .ok_or(RecordFault::Field("reason"))?,
                duration_us: self
                    .duration_ms
                    .and_then(read_duration)
                    .ok_or(RecordFault::Field("duration_ms"))?,
                result_summary: self.result_summary.as_ref().map(PayloadSummary::from),
                result_digest: self
                    .result_digest
                    .as_deref()
                    .map(|hex| read_digest("result_digest", hex))
                    .transpose()?,
                effect: self
                    .effect
                    .as_deref()
                    .and_then(read_effect)
                    .ok_or(RecordFault::Field("effect"))?,
            }),
            _ => Err(RecordFault::Field("event")),
        }
    }
}

impl From<&Counts> for PayloadSummary {
    fn from(counts: &Counts) -> Self {
        Self {
            field_count: counts.field_count,
            scalar_count: counts.scalar_count,
            collection_count: counts.collection_count,
            redacted_field_count: counts.redacted_field_count,
            content_field_count: counts.content_field_count,
            identifier_field_count: counts.identifier_field_count,
        }
    }
}

fn read_digest(field: &'static str, hex: &str) -> Result<Digest, RecordFault> {
    Digest::from_hex(hex).ok_or(RecordFault::Field(field))
}

fn read_trace_id(hex: &str) -> Result<TraceId, RecordFault> {
    // Shorter, signed and upper-case digits pass here and fail by their form.
    u128::from_str_radix(hex, 16)
        .ok()
        .and_then(|bits| TraceId::new(bits.to_be_bytes()))
        .ok_or(RecordFault::Field("trace_id"))
}

fn read_effect(word: &str) -> Option<Effect> {
    [Effect::None, Effect::Applied, Effect::Unknown]
        .into_iter()
        .find(|effect| effect.as_str() == word)
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range is checked, and doubles are exact within it"
)]
fn read_duration(milliseconds: f64) -> Option<u64> {
    let microseconds = (milliseconds * 1_000.0).round();
    (0.0..=MAX_DURATION_US as f64).contains(&microseconds).then_some(microseconds as u64)
}

fn name(line: &mut Vec<u8>, name: &'static str) {
    line.extend_from_slice(b",\"");
    line.extend_from_slice(name.as_bytes());
    line.extend_from_slice(b"\":");
}

fn text(line: &mut Vec<u8>, field: &'static str, value: &str) {
    name(line, field);
    string(line, value);
}

fn display(line: &mut Vec<u8>, field: &'static str, value: impl fmt::Display) {
    name(line, field);
    put(line, format_args!("{value}"));
}

fn duration(line: &mut Vec<u8>, field: &'static str, microseconds: u64) {
    let microseconds = microseconds.min(MAX_DURATION_US);
    display(line, field, microseconds / 1_000);
    let fraction = microseconds % 1_000;
    if fraction != 0 {
        put(line, format_args!(".{fraction:03}"));
        while line.last() == Some(&b'0') {
            line.pop();
        }
    }
}

fn summary(line: &mut Vec<u8>, field: &'static str, counts: PayloadSummary) {
    name(line, field);
    put(
        line,
        format_args!(
            "{{\"field_count\":{},\"scalar_count\":{},\"collection_count\":{},\
             \"redacted_field_count\":{},\"content_field_count\":{},\
             \"identifier_field_count\":{}}}",
            counts.field_count,
            counts.scalar_count,
            counts.collection_count,
            counts.redacted_field_count,
            counts.content_field_count,
            counts.identifier_field_count,
        ),
    );
}

fn digest(line: &mut Vec<u8>, field: &'static str, digest: &Digest) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    name(line, field);
    line.push(b'"');
    for byte in digest.0 {
        line.push(DIGITS[usize::from(byte >> 4)]);
        line.push(DIGITS[usize::from(byte & 0xf)]);
    }
    line.push(b'"');
}

fn string(line: &mut Vec<u8>, value: &str) {
    serde_json::to_writer(line, value)
        .unwrap_or_else(|_| unreachable!("a string is written to memory"));
}

fn put(line: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    line.write_fmt(text).unwrap_or_else(|_| unreachable!("text is written to memory"));
}

#[cfg(test)]
mod tests;
