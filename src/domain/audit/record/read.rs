//! Reading a line: nothing but the exact bytes that are written for an event is read.

mod admin;

use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;

use super::{MAX_DURATION_US, RecordFault, write_mac, write_record};
use crate::domain::audit::{
    Confirmed, Digest, Entry, Event, EventKind, PayloadSummary, Stamp, TraceId,
};
use crate::domain::proposal::Context;
use crate::domain::reason::{Effect, Reason};
use admin::AdminFields;

/// Reads one sealed record, without its line end, and checks the event against
/// its closed set once more. Whether `mac` is right only the chain can tell.
///
/// # Errors
///
/// The first fault: nothing but the exact bytes that are written for an event is read.
pub fn read_record(line: &[u8]) -> Result<(Entry, Stamp), RecordFault> {
    // Every record begins with its `event`; one that does not is not as written.
    let (entry, stamp) = if line.starts_with(b"{\"event\":\"tool_call_") {
        parse::<Fields>(line)?.into_record()?
    } else {
        parse::<AdminFields>(line)?.into_record()?
    };
    entry.check().map_err(|fault| RecordFault::Field(fault.field))?;
    let mut again = Vec::with_capacity(line.len());
    write_record(&mut again, &entry, &stamp.journal_id, stamp.sequence);
    write_mac(&mut again, &stamp.mac);
    if again == line { Ok((entry, stamp)) } else { Err(RecordFault::NotAsWritten) }
}

fn parse<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, RecordFault> {
    serde_json::from_slice(line).map_err(|error| RecordFault::Malformed { column: error.column() })
}

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
    confirmation_id: Option<String>,
    confirmed_by_user_id: Option<String>,
    confirmed_at: Option<String>,
    confirmation_expires_at: Option<String>,
    confirmation_purpose: Option<String>,
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
    fn into_record(self) -> Result<(Entry, Stamp), RecordFault> {
        let kind = self.kind()?;
        let confirmation = self.confirmation()?.map(Arc::new);
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
            time: read_time("time", &self.time)?,
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
            confirmation,
            trace_id: self.trace_id.as_deref().map(read_trace_id).transpose()?,
        };
        if self.outcome != event.outcome().as_str() {
            return Err(RecordFault::Field("outcome"));
        }
        Ok((Entry::Call(Arc::new(event)), stamp))
    }

    /// The five fields of a ticket, which stand together or not at all.
    fn confirmation(&self) -> Result<Option<Confirmed>, RecordFault> {
        let Some(confirmation_id) = &self.confirmation_id else { return Ok(None) };
        let field = |field, value: &Option<String>| value.clone().ok_or(RecordFault::Field(field));
        let confirmed_at = field("confirmed_at", &self.confirmed_at)?;
        let expires_at = field("confirmation_expires_at", &self.confirmation_expires_at)?;
        Ok(Some(Confirmed {
            confirmation_id: confirmation_id.as_str().into(),
            confirmed_by_user_id: field("confirmed_by_user_id", &self.confirmed_by_user_id)?.into(),
            confirmed_at: read_time("confirmed_at", &confirmed_at)?,
            expires_at: read_time("confirmation_expires_at", &expires_at)?,
            purpose: field("confirmation_purpose", &self.confirmation_purpose)?.into(),
        }))
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
                    .and_then(Effect::from_word)
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

fn read_time(field: &'static str, text: &str) -> Result<Timestamp, RecordFault> {
    text.parse().map_err(|_| RecordFault::Field(field))
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
