//! From events to OpenTelemetry's log records.
//!
//! The attributes are the fields of the event's JSON line ([`json_line`]) under
//! [`PREFIX`], so that what can leave is said once, by the closed set behind it.
//! The objects in a line become attributes with a dot: attributes are flat. What
//! the record has a place for stands there and not among the attributes.

use std::sync::Arc;

use jiff::Timestamp;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;
use serde_json::{Map, Value};

use crate::adapters::sinks::peer::Item;
use crate::domain::audit::{
    AdminKind, Entry, EventKind, ReloadResult, Stamp, TraceId, gap_line, json_line,
};
use crate::domain::reason::Outcome;

/// What names of events and attributes begin with.
const PREFIX: &str = "toolgate.";
/// The name of what stands for events that are gone.
const GAP: &str = "audit_gap";
/// Fields that a record has a place of its own for.
const PLACED: [&str; 3] = ["event", "time", "trace_id"];

/// One request for these items.
pub(super) fn request(
    items: &[Item],
    journal_id: &Arc<str>,
    now: Timestamp,
) -> ExportLogsServiceRequest {
    let record = |item: &Item| match item {
        Item::Record(entry, stamp) => of_event(entry, stamp, now),
        Item::Gap { first, last } => of_gap(journal_id, *first, *last, now),
    };
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let resource = Resource {
        attributes: vec![
            attribute("service.name", Any::StringValue("toolgate".to_owned())),
            attribute("service.version", Any::StringValue(version.clone())),
            // As lasting and as unique as the data directory.
            attribute("service.instance.id", Any::StringValue(journal_id.to_string())),
        ],
        ..Resource::default()
    };
    let scope = InstrumentationScope {
        name: "toolgate.audit".to_owned(),
        version,
        ..InstrumentationScope::default()
    };
    ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs {
            resource: Some(resource),
            scope_logs: vec![ScopeLogs {
                scope: Some(scope),
                log_records: items.iter().map(record).collect(),
                ..ScopeLogs::default()
            }],
            ..ResourceLogs::default()
        }],
    }
}

fn of_event(entry: &Entry, stamp: &Stamp, now: Timestamp) -> LogRecord {
    let (name, time, trace_id, severity) = match entry {
        Entry::Call(event) => {
            (event.event_name(), event.time, event.trace_id, severity_of(&event.kind))
        }
        Entry::Admin(event) => {
            let severity = match event.kind {
                AdminKind::Reload { result: ReloadResult::Failed, .. } => SeverityNumber::Error,
                _ => SeverityNumber::Info,
            };
            (event.event_name(), event.time, event.trace_id, severity)
        }
    };
    LogRecord {
        time_unix_nano: nanoseconds(time),
        trace_id: trace_id.map(TraceId::bytes).map(Vec::from).unwrap_or_default(),
        ..log_record(name, severity, &json_line(entry, stamp), now)
    }
}

fn of_gap(journal_id: &str, first: u64, last: u64, now: Timestamp) -> LogRecord {
    log_record(GAP, SeverityNumber::Error, &gap_line(journal_id, first, last), now)
}

fn log_record(name: &str, severity: SeverityNumber, line: &str, now: Timestamp) -> LogRecord {
    LogRecord {
        observed_time_unix_nano: nanoseconds(now),
        severity_number: severity.into(),
        severity_text: severity.as_str_name().trim_start_matches("SEVERITY_NUMBER_").to_owned(),
        attributes: attributes(line),
        event_name: format!("{PREFIX}{name}"),
        ..LogRecord::default()
    }
}

/// A refusal is a warning: it is what the gate is there for, and what somebody may want to see.
const fn severity_of(kind: &EventKind) -> SeverityNumber {
    match kind {
        EventKind::Started => SeverityNumber::Info,
        EventKind::Completed { reason, .. } => match reason.outcome() {
            Outcome::Success => SeverityNumber::Info,
            Outcome::Validation | Outcome::Denied => SeverityNumber::Warn,
            Outcome::Timeout | Outcome::Error => SeverityNumber::Error,
        },
    }
}

/// The fields of a line.
fn attributes(line: &str) -> Vec<KeyValue> {
    let fields: Map<String, Value> = serde_json::from_str(line)
        .unwrap_or_else(|_| unreachable!("what was written as JSON is JSON"));
    let mut attributes = Vec::with_capacity(fields.len() + 8);
    for (name, value) in fields.into_iter().filter(|(name, _)| !PLACED.contains(&&**name)) {
        match value {
            Value::Object(members) => attributes.extend(
                members
                    .into_iter()
                    .map(|(member, value)| field(&format!("{name}.{member}"), value)),
            ),
            value => attributes.push(field(&name, value)),
        }
    }
    attributes
}

fn field(name: &str, value: Value) -> KeyValue {
    let value = match value {
        // One type for each field: a duration may have a fraction or none.
        Value::Number(number) if name.ends_with("_ms") => {
            Any::DoubleValue(number.as_f64().unwrap_or_default())
        }
        Value::Number(number) => Any::IntValue(number.as_i64().unwrap_or(i64::MAX)),
        Value::Bool(value) => Any::BoolValue(value),
        Value::String(text) => Any::StringValue(text),
        other => Any::StringValue(other.to_string()),
    };
    attribute(&format!("{PREFIX}{name}"), value)
}

fn attribute(key: &str, value: Any) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

/// Nanoseconds since 1970; 0, which stands for none, before it.
fn nanoseconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_nanosecond()).unwrap_or(0)
}
