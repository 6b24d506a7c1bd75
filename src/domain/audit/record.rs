//! One audit event as one line of JSON: writing, and strict reading.
//!
//! A line holds the fields of semantics section 8 in their order; absent ones
//! are left out. The chain ([`super::chain`]) adds the last one, `mac`.
//! Times are RFC 3339 in UTC with microseconds (finer parts are cut off),
//! durations milliseconds with at most three fraction digits, digests
//! lower-case hexadecimal.

mod read;

use std::fmt;
use std::io::Write as _;

use jiff::Timestamp;

use super::{
    AdminEvent, AdminKind, Digest, Entry, Event, EventKind, Head, PayloadSummary, TraceId,
};
use crate::domain::proposal::Context;

pub use read::read_record;

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

/// Appends an entry as one JSON object, without `mac` and without a line end.
pub fn write_record(line: &mut Vec<u8>, entry: &Entry, journal_id: &str, sequence: u64) {
    match entry {
        Entry::Call(event) => write_call(line, event, journal_id, sequence),
        Entry::Admin(event) => write_admin(line, event, journal_id, sequence),
    }
}

/// Appends a record as it stands in the journal at this place, without a line end.
pub fn write_line(line: &mut Vec<u8>, entry: &Entry, journal_id: &str, at: Head) {
    write_record(line, entry, journal_id, at.sequence);
    write_mac(line, &at.mac);
}

/// What every record begins with.
fn write_head(
    line: &mut Vec<u8>,
    event: &str,
    journal_id: &str,
    sequence: u64,
    time: Timestamp,
    context: Option<&Context>,
) {
    line.extend_from_slice(b"{\"event\":");
    string(line, event);
    text(line, "journal_id", journal_id);
    display(line, "sequence", sequence);
    timestamp(line, "time", time);
    if let Some(context) = context {
        text(line, "request_id", &context.request_id);
        text(line, "user_id", &context.user_id);
        text(line, "tenant_id", &context.tenant_id);
        text(line, "conversation_id", &context.conversation_id);
    }
}

fn write_call(line: &mut Vec<u8>, event: &Event, journal_id: &str, sequence: u64) {
    write_head(line, event.event_name(), journal_id, sequence, event.time, Some(&event.context));
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
    if let Some(confirmed) = &event.confirmation {
        text(line, "confirmation_id", &confirmed.confirmation_id);
        text(line, "confirmed_by_user_id", &confirmed.confirmed_by_user_id);
        timestamp(line, "confirmed_at", confirmed.confirmed_at);
        timestamp(line, "confirmation_expires_at", confirmed.expires_at);
        text(line, "confirmation_purpose", &confirmed.purpose);
    }
    if let EventKind::Completed { effect, .. } = event.kind {
        text(line, "effect", effect.as_str());
    }
    write_tail(line, &event.policy_digest, &event.audit_key_id, event.trace_id);
}

fn write_admin(line: &mut Vec<u8>, event: &AdminEvent, journal_id: &str, sequence: u64) {
    let context = event.context.as_deref();
    write_head(line, event.event_name(), journal_id, sequence, event.time, context);
    if let AdminKind::ConfirmationIssued { tool_call_id, tool, .. } = &event.kind {
        text(line, "tool_call_id", tool_call_id);
        text(line, "tool", tool);
    }
    if let Some(confirmation_id) = &event.confirmation_id {
        text(line, "confirmation_id", confirmation_id);
    }
    match &event.kind {
        AdminKind::Reload { result, trigger, policy_digest_before } => {
            text(line, "reload_result", result.as_str());
            text(line, "reload_trigger", trigger.as_str());
            digest(line, "policy_digest_before", policy_digest_before);
        }
        AdminKind::Key { purpose, key_id, .. } => {
            text(line, "key_purpose", purpose.as_str());
            text(line, "key_id", key_id);
        }
        AdminKind::ConfirmationIssued { .. } | AdminKind::ConfirmationRevoked => {}
    }
    if let AdminKind::ConfirmationIssued {
        confirmed_by_user_id,
        confirmed_at,
        confirmation_expires_at,
        ..
    } = &event.kind
    {
        text(line, "confirmed_by_user_id", confirmed_by_user_id);
        timestamp(line, "confirmed_at", *confirmed_at);
        timestamp(line, "confirmation_expires_at", *confirmation_expires_at);
    }
    write_tail(line, &event.policy_digest, &event.audit_key_id, event.trace_id);
}

/// What every record ends with, but for `mac`.
fn write_tail(line: &mut Vec<u8>, policy: &Digest, audit_key_id: &str, trace_id: Option<TraceId>) {
    digest(line, "policy_digest", policy);
    text(line, "audit_key_id", audit_key_id);
    if let Some(trace_id) = trace_id {
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

fn timestamp(line: &mut Vec<u8>, field: &'static str, time: Timestamp) {
    name(line, field);
    put(line, format_args!("\"{time:.6}\""));
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
