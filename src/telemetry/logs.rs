//! Logs: one JSON object a line, of fields on an allowlist, redacted and bounded.
//!
//! A record holds `time`, `level`, `target`, `message` and the fields of
//! [`FIELDS`] that the event or its spans carry; `dropped_fields` counts those
//! that are not on the list. Of dependencies only warnings and errors are kept,
//! as the place in their source: their text may repeat what a peer sent.

pub mod redact;

use std::fmt;
use std::io::{self, Write};
use std::panic::{Location, PanicHookInfo};
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::SetGlobalDefaultError;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Scope};

/// The fields that a record may hold beside its head. What is not here is dropped.
///
/// Each takes a registered or checked name, a number, a fixed word, or the text of one of the
/// gate's own errors; none takes what a model, a user or an upstream wrote.
pub const FIELDS: [&str; 52] = [
    "address",
    "attempt",
    "attempts",
    "audit_key_id",
    "bytes",
    "call",
    "calls",
    "code",
    "column",
    "contracts",
    "count",
    "digest",
    "duration_ms",
    "duration_us",
    "effect",
    "epoch",
    "error_kind",
    "events",
    "fault",
    "field",
    "file",
    "held_by",
    "in_flight",
    "journal_id",
    "last_sequence",
    "limit",
    "line",
    "listener",
    "method",
    "outcome",
    "path",
    "pid",
    "pointer",
    "policy_digest",
    "reason",
    "request_id",
    "result",
    "role",
    "rpc",
    "segment",
    "sequence",
    "service",
    "signal",
    "sink",
    "status",
    "timeout_ms",
    "tool",
    "tool_call_id",
    "trace_id",
    "trigger",
    "upstream",
    "version",
];

/// Logs to standard error from now on, panics included. Standard output stays free for the
/// commands' own output and for the stream of audit events.
///
/// `level` is that of the gate; dependencies are never more talkative than warnings.
///
/// # Errors
///
/// If the process has a global subscriber already.
pub fn init<W>(writer: W, level: LevelFilter) -> Result<(), SetGlobalDefaultError>
where
    W: Write + Send + 'static,
{
    tracing::subscriber::set_global_default(subscriber(writer, level))?;
    std::panic::set_hook(Box::new(panic_hook));
    Ok(())
}

/// A subscriber that writes records to `writer` and does nothing else.
pub fn subscriber<W>(writer: W, level: LevelFilter) -> impl Subscriber + Send + Sync
where
    W: Write + Send + 'static,
{
    tracing_subscriber::registry().with(layer(writer, level))
}

/// A layer that writes one record an event to `writer`, in one write each.
pub fn layer<S, W>(writer: W, level: LevelFilter) -> impl Layer<S> + Send + Sync
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: Write + Send + 'static,
{
    let filter =
        Targets::new().with_target(OWN_TARGET, level).with_default(level.min(LevelFilter::WARN));
    JsonLines { writer: Mutex::new(writer) }.with_filter(filter)
}

/// Writes a record of a panic to standard error: where, never what, since the payload may hold
/// anything. It passes by the subscriber, which may be what panicked.
pub fn panic_hook(info: &PanicHookInfo<'_>) {
    // With standard error gone there is nobody to tell.
    let _ = io::stderr().write_all(panic_record(info.location()).as_bytes());
}

const OWN_TARGET: &str = "toolgate";
const WITHHELD: &str = "a dependency warns; its text is withheld";

struct JsonLines<W> {
    writer: Mutex<W>,
}

/// The allowed fields of an event or a span.
#[derive(Default)]
struct Fields {
    message: String,
    kept: Vec<(&'static str, Value)>,
    dropped: u64,
}

impl<S, W> Layer<S> for JsonLines<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: Write + Send + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            if is_own(span.metadata()) {
                attributes.record(&mut fields);
            }
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && is_own(span.metadata())
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        for span in context.event_scope(event).into_iter().flat_map(Scope::from_root) {
            if let Some(outer) = span.extensions().get::<Fields>() {
                fields.inherit(outer);
            }
        }
        let metadata = event.metadata();
        if is_own(metadata) {
            event.record(&mut fields);
        } else {
            fields.withhold(metadata);
        }
        let line = fields.line(metadata.level().as_str(), metadata.target());
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        // A log that cannot be written must not stop a call, and there is nowhere else to say it.
        let _ = writer.write_all(line.as_bytes());
    }
}

impl Fields {
    fn inherit(&mut self, outer: &Self) {
        for (name, value) in &outer.kept {
            self.keep(name, value.clone());
        }
        self.dropped += outer.dropped;
    }

    /// In place of what a dependency says: where it says it.
    fn withhold(&mut self, metadata: &Metadata<'_>) {
        WITHHELD.clone_into(&mut self.message);
        // The last part of the path: the rest is the build machine's.
        if let Some(file) = metadata.file().and_then(|file| file.rsplit(['/', '\\']).next()) {
            self.keep("file", Value::from(file));
        }
        if let Some(line) = metadata.line() {
            self.keep("line", Value::from(line));
        }
    }

    /// Of several values for one name the last stays.
    fn keep(&mut self, name: &'static str, value: Value) {
        match self.kept.iter_mut().find(|(kept, _)| *kept == name) {
            Some((_, kept)) => *kept = value,
            None => self.kept.push((name, value)),
        }
    }

    fn take(&mut self, field: &Field, value: Value) {
        if FIELDS.contains(&field.name()) {
            self.keep(field.name(), value);
        } else {
            self.dropped += 1;
        }
    }

    /// The record, with the end of its line.
    fn line(&self, level: &str, target: &str) -> String {
        let time = format!("{:.6}", Timestamp::now());
        let head = [("time", &*time), ("level", level), ("target", target)];
        let mut line = String::with_capacity(256);
        line.push('{');
        for (name, text) in head {
            write_member(&mut line, name, &Value::from(text));
        }
        write_member(&mut line, "message", &Value::from(&*self.message));
        for (name, value) in &self.kept {
            write_member(&mut line, name, value);
        }
        if self.dropped > 0 {
            write_member(&mut line, "dropped_fields", &Value::from(self.dropped));
        }
        line.push_str("}\n");
        line
    }
}

impl Visit for Fields {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.take(field, Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.take(field, Value::from(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.take(field, Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.take(field, Value::from(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.take(field, Value::from(value));
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // What is dropped is not even formatted.
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else if FIELDS.contains(&field.name()) {
            self.keep(field.name(), Value::from(format!("{value:?}")));
        } else {
            self.dropped += 1;
        }
    }
}

fn panic_record(location: Option<&Location<'_>>) -> String {
    let mut fields = Fields { message: "a thread panicked".to_owned(), ..Fields::default() };
    if let Some(location) = location {
        fields.keep("file", Value::from(location.file()));
        fields.keep("line", Value::from(location.line()));
        fields.keep("column", Value::from(location.column()));
    }
    fields.line("ERROR", "toolgate::panic")
}

fn is_own(metadata: &Metadata<'_>) -> bool {
    let rest = metadata.target().strip_prefix(OWN_TARGET);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn write_member(line: &mut String, name: &str, value: &Value) {
    if !line.ends_with('{') {
        line.push(',');
    }
    redact::write_string(line, name);
    line.push(':');
    redact::write_field(line, name, value);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

    use super::*;

    #[test]
    fn the_allowlist_is_sorted_and_names_nothing_that_is_redacted_or_of_the_head() {
        assert!(FIELDS.is_sorted_by(|a, b| a < b));
        for name in FIELDS {
            let mut out = String::new();
            redact::write_field(&mut out, name, &Value::from("x"));
            assert_eq!(out, r#""x""#, "{name} would always be redacted");
        }
        for head in ["time", "level", "target", "message", "dropped_fields"] {
            assert!(!FIELDS.contains(&head));
        }
    }

    #[test]
    fn a_record_begins_with_its_head() {
        let line = Fields::default().line("INFO", "toolgate");
        assert!(line.starts_with("{\"time\":\"20"), "{line}");
        assert!(
            line.ends_with("Z\",\"level\":\"INFO\",\"target\":\"toolgate\",\"message\":\"\"}\n")
        );
    }
}
