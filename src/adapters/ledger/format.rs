//! A record as JSON, the same in every ledger.
//!
//! Holds digests, identifiers and counts: what the audit may hold, and the keyed
//! hash of the arguments. Times are RFC 3339 in UTC to the nanosecond.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::domain::audit::{Confirmed, Digest, Event, EventKind, PayloadSummary, TraceId};
use crate::domain::proposal::Context;
use crate::domain::reason::{Effect, Reason};
use crate::domain::record::{Ended, Fingerprint, Record, State};

/// Stored bytes that are no record. Names a field, never a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FormatFault(pub(super) &'static str);

/// The record's bytes.
pub(super) fn write(record: &Record) -> Result<Vec<u8>, FormatFault> {
    serde_json::to_vec(&Stored::from(record)).map_err(|_| FormatFault("record"))
}

/// The record of these bytes.
pub(super) fn read(bytes: &[u8]) -> Result<Record, FormatFault> {
    serde_json::from_slice::<Stored>(bytes).map_err(|_| FormatFault("record"))?.into_record()
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    tool: String,
    user_id: String,
    arguments_hash: String,
    arguments_key_id: String,
    reads: bool,
    reservation_id: String,
    reserved_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    confirmation_id: Option<String>,
    last_attempt: u32,
    kept_seconds: u64,
    effect_before: String,
    started: Started,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended: Option<StoredEnd>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredEnd {
    reason: String,
    effect: String,
    at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result_digest: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredConfirmation {
    id: String,
    by_user_id: String,
    at: String,
    expires_at: String,
    purpose: String,
}

/// The first attempt's started event, without what the record says already.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Started {
    time: String,
    request_id: String,
    /// Of the context; the fingerprint's is the same.
    tenant_id: String,
    conversation_id: String,
    tool_call_id: String,
    suggested_tool_hash: String,
    attempt: u32,
    arguments_summary: [u32; 6],
    arguments_digest: String,
    policy_digest: String,
    audit_key_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    confirmation: Option<StoredConfirmation>,
    trace_id: Option<String>,
}

impl From<&Record> for Stored {
    fn from(record: &Record) -> Self {
        let ended = match &record.state {
            State::Running => None,
            State::Ended(ended) => Some(StoredEnd {
                reason: ended.reason.code().to_owned(),
                effect: ended.effect.as_str().to_owned(),
                at: ended.at.to_string(),
                result_digest: ended.result_digest.map(|digest| digest.to_string()),
            }),
        };
        Self {
            tool: record.fingerprint.tool.to_string(),
            user_id: record.fingerprint.user_id.to_string(),
            arguments_hash: record.fingerprint.arguments_hash.to_string(),
            arguments_key_id: record.fingerprint.key_id.to_string(),
            reads: record.reads,
            reservation_id: record.reservation_id.to_string(),
            reserved_at: record.reserved_at.to_string(),
            confirmation_id: record.confirmation_id.map(|id| id.to_string()),
            last_attempt: record.last_attempt,
            kept_seconds: record.kept.as_secs(),
            effect_before: record.effect_before.as_str().to_owned(),
            started: Started::from(&*record.started),
            ended,
        }
    }
}

impl From<&Confirmed> for StoredConfirmation {
    fn from(confirmed: &Confirmed) -> Self {
        Self {
            id: confirmed.confirmation_id.to_string(),
            by_user_id: confirmed.confirmed_by_user_id.to_string(),
            at: confirmed.confirmed_at.to_string(),
            expires_at: confirmed.expires_at.to_string(),
            purpose: confirmed.purpose.to_string(),
        }
    }
}

impl StoredConfirmation {
    fn into_confirmed(self) -> Result<Confirmed, FormatFault> {
        Ok(Confirmed {
            confirmation_id: self.id.into(),
            confirmed_by_user_id: self.by_user_id.into(),
            confirmed_at: time("confirmed_at", &self.at)?,
            expires_at: time("expires_at", &self.expires_at)?,
            purpose: self.purpose.into(),
        })
    }
}

impl From<&Event> for Started {
    fn from(event: &Event) -> Self {
        let counts = event.arguments_summary;
        Self {
            time: event.time.to_string(),
            request_id: event.context.request_id.to_string(),
            tenant_id: event.context.tenant_id.to_string(),
            conversation_id: event.context.conversation_id.to_string(),
            tool_call_id: event.tool_call_id.to_string(),
            suggested_tool_hash: event.suggested_tool_hash.to_string(),
            attempt: event.attempt,
            arguments_summary: [
                counts.field_count,
                counts.scalar_count,
                counts.collection_count,
                counts.redacted_field_count,
                counts.content_field_count,
                counts.identifier_field_count,
            ],
            arguments_digest: event.arguments_digest.to_string(),
            policy_digest: event.policy_digest.to_string(),
            audit_key_id: event.audit_key_id.to_string(),
            confirmation: event.confirmation.as_deref().map(StoredConfirmation::from),
            trace_id: event.trace_id.map(|id| id.to_string()),
        }
    }
}

impl Stored {
    fn into_record(self) -> Result<Record, FormatFault> {
        let (tool, user_id): (Arc<str>, Arc<str>) = (self.tool.into(), self.user_id.into());
        let started = self.started.into_event(&tool, &user_id)?;
        let state = self.ended.map_or(Ok(State::Running), StoredEnd::into_state)?;
        Ok(Record {
            fingerprint: Fingerprint {
                tool,
                user_id,
                arguments_hash: digest("arguments_hash", &self.arguments_hash)?,
                key_id: self.arguments_key_id.into(),
            },
            reads: self.reads,
            reservation_id: uuid("reservation_id", &self.reservation_id)?,
            reserved_at: time("reserved_at", &self.reserved_at)?,
            confirmation_id: self
                .confirmation_id
                .map(|text| uuid("confirmation_id", &text))
                .transpose()?,
            last_attempt: self.last_attempt,
            kept: Duration::from_secs(self.kept_seconds),
            effect_before: Effect::from_word(&self.effect_before)
                .ok_or(FormatFault("effect_before"))?,
            started: Arc::new(started),
            state,
        })
    }
}

impl StoredEnd {
    fn into_state(self) -> Result<State, FormatFault> {
        Ok(State::Ended(Ended {
            reason: Reason::from_code(&self.reason).ok_or(FormatFault("reason"))?,
            effect: Effect::from_word(&self.effect).ok_or(FormatFault("effect"))?,
            at: time("at", &self.at)?,
            result_digest: self
                .result_digest
                .map(|text| digest("result_digest", &text))
                .transpose()?,
        }))
    }
}

impl Started {
    fn into_event(self, tool: &Arc<str>, user_id: &Arc<str>) -> Result<Event, FormatFault> {
        let [field, scalar, collection, redacted, content, identifier] = self.arguments_summary;
        let event = Event {
            kind: EventKind::Started,
            time: time("time", &self.time)?,
            context: Arc::new(Context {
                request_id: self.request_id.into(),
                user_id: Arc::clone(user_id),
                tenant_id: self.tenant_id.into(),
                conversation_id: self.conversation_id.into(),
            }),
            tool_call_id: self.tool_call_id.into(),
            tool: Arc::clone(tool),
            suggested_tool_hash: digest("suggested_tool_hash", &self.suggested_tool_hash)?,
            attempt: self.attempt,
            arguments_summary: PayloadSummary {
                field_count: field,
                scalar_count: scalar,
                collection_count: collection,
                redacted_field_count: redacted,
                content_field_count: content,
                identifier_field_count: identifier,
            },
            arguments_digest: digest("arguments_digest", &self.arguments_digest)?,
            policy_digest: digest("policy_digest", &self.policy_digest)?,
            audit_key_id: self.audit_key_id.into(),
            confirmation: self
                .confirmation
                .map(StoredConfirmation::into_confirmed)
                .transpose()?
                .map(Arc::new),
            trace_id: self.trace_id.map(|text| trace_id(&text)).transpose()?,
        };
        event.check().map_err(|fault| FormatFault(fault.field))?;
        Ok(event)
    }
}

fn digest(field: &'static str, text: &str) -> Result<Digest, FormatFault> {
    Digest::from_hex(text).ok_or(FormatFault(field))
}

fn time(field: &'static str, text: &str) -> Result<Timestamp, FormatFault> {
    text.parse().map_err(|_| FormatFault(field))
}

fn uuid(field: &'static str, text: &str) -> Result<Uuid, FormatFault> {
    Uuid::try_parse(text).map_err(|_| FormatFault(field))
}

fn trace_id(text: &str) -> Result<TraceId, FormatFault> {
    let number = u128::from_str_radix(text, 16).map_err(|_| FormatFault("trace_id"))?;
    TraceId::new(number.to_be_bytes()).ok_or(FormatFault("trace_id"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::domain::audit::samples;

    fn record(state: State) -> Record {
        let mut started = samples::started("call-1");
        started.trace_id = TraceId::new([9; 16]);
        started.arguments_summary = PayloadSummary {
            field_count: 1,
            scalar_count: 2,
            collection_count: 3,
            redacted_field_count: 4,
            content_field_count: 5,
            identifier_field_count: 6,
        };
        Record {
            fingerprint: Fingerprint {
                tool: Arc::clone(&started.tool),
                user_id: Arc::clone(&started.context.user_id),
                arguments_hash: Digest([5; 32]),
                key_id: "a1".into(),
            },
            reads: true,
            reservation_id: Uuid::from_u128(7),
            reserved_at: Timestamp::constant(1_800_000_000, 123_456_789),
            confirmation_id: Some(Uuid::from_u128(8)),
            last_attempt: 3,
            kept: Duration::from_hours(24),
            effect_before: Effect::Unknown,
            started: Arc::new(started),
            state,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for effect in [Effect::None, Effect::Applied, Effect::Unknown] {
            let ended = Ended {
                reason: Reason::AttemptDeadline,
                effect,
                at: Timestamp::constant(1_800_000_001, 1),
                result_digest: Some(Digest([6; 32])),
            };
            let record = record(State::Ended(ended));
            assert_eq!(read(&write(&record).unwrap()), Ok(record));
        }
        let mut plain = record(State::Running);
        plain.confirmation_id = None;
        assert_eq!(read(&write(&plain).unwrap()), Ok(plain));
    }

    #[test]
    fn the_format_of_version_1_stays() {
        let text = String::from_utf8(write(&record(State::Running)).unwrap()).unwrap();
        let hex = |byte: u8| format!("{byte:02x}").repeat(32);
        let wanted = format!(
            r#"{{"tool":"search","user_id":"user-1","arguments_hash":"{}","arguments_key_id":"a1","reads":true,"reservation_id":"00000000-0000-0000-0000-000000000007","reserved_at":"2027-01-15T08:00:00.123456789Z","confirmation_id":"00000000-0000-0000-0000-000000000008","last_attempt":3,"kept_seconds":86400,"effect_before":"unknown","started":{{"time":"2027-01-15T08:00:00.123456Z","request_id":"req-1","tenant_id":"tenant-1","conversation_id":"conversation-1","tool_call_id":"call-1","suggested_tool_hash":"{}","attempt":1,"arguments_summary":[1,2,3,4,5,6],"arguments_digest":"{}","policy_digest":"{}","audit_key_id":"k1","trace_id":"{}"}}}}"#,
            hex(5),
            hex(1),
            hex(2),
            hex(3),
            "09".repeat(16)
        );
        assert_eq!(text, wanted);
    }

    #[test]
    fn damage_is_named_by_its_field() {
        let text = String::from_utf8(write(&record(State::Running)).unwrap()).unwrap();
        let broken = |from: &str, to: &str| {
            assert!(text.contains(from));
            read(text.replacen(from, to, 1).as_bytes())
        };
        assert_eq!(broken("\"reads\":true,", ""), Err(FormatFault("record")));
        assert_eq!(broken("05050505", "0505050x"), Err(FormatFault("arguments_hash")));
        assert_eq!(broken("\"search\"", "\"se arch\""), Err(FormatFault("tool")));
        assert_eq!(broken("\"attempt\":1,", "\"attempt\":101,"), Err(FormatFault("attempt")));
        assert_eq!(broken("{\"tool\"", "{\"more\":1,\"tool\""), Err(FormatFault("record")));
    }
}
