//! A step of the stream as one line: for people, or as JSON.

use jiff::Timestamp;
use serde_json::Value;

use crate::domain::audit::{escaped, gap_line};
use crate::domain::proposal::is_forbidden;
use crate::proto::watch_response::Step;
use crate::proto::{AdministrativeEvent, AuditEvent, AuditGap, PayloadSummary};

/// An event's fields as JSON, named and ordered as in the journal; absent ones are left out.
struct Fields(Vec<(&'static str, String)>);

/// The journal's own line of an event, or `gap` and its bounds; nothing for progress.
pub(super) fn json(step: &Step) -> Option<String> {
    let fields = match step {
        Step::Event(event) => Fields::of_call(event),
        Step::AdministrativeEvent(event) => Fields::of_admin(event),
        Step::Gap(gap) => {
            return Some(gap_line(&gap.journal_id, gap.first_sequence, gap.last_sequence));
        }
        Step::Progress(_) => return None,
    };
    let members: Vec<_> =
        fields.0.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    Some(escaped(format!("{{{}}}", members.join(","))))
}

/// A line for people; nothing for progress.
pub(super) fn human(step: &Step) -> Option<String> {
    let fields = match step {
        Step::Event(event) => Fields::of_call(event),
        Step::AdministrativeEvent(event) => Fields::of_admin(event),
        Step::Gap(gap) => return Some(gap_told(gap)),
        Step::Progress(_) => return None,
    };
    let texts = [
        "sequence",
        "time",
        "event",
        "tool",
        "tool_call_id",
        "reason",
        "effect",
        "tenant_id",
        "user_id",
        "conversation_id",
        "confirmation_id",
        "confirmed_by_user_id",
        "reload_result",
        "reload_trigger",
        "key_purpose",
        "key_id",
    ];
    let mut words: Vec<String> = texts.iter().filter_map(|name| fields.text(name)).collect();
    words.extend(fields.text("attempt").map(|attempt| format!("attempt {attempt}")));
    words.extend(fields.text("duration_ms").map(|time| format!("{time} ms")));
    Some(words.join("  ").replace(is_forbidden, "\u{fffd}"))
}

/// What is missing, for people.
pub(super) fn gap_told(gap: &AuditGap) -> String {
    let AuditGap { journal_id, first_sequence, last_sequence } = gap;
    let told = format!(
        "GAP: events {first_sequence} to {last_sequence} of journal {journal_id} are missing, the gate no longer keeps them"
    );
    told.replace(is_forbidden, "\u{fffd}")
}

impl Fields {
    fn of_call(event: &AuditEvent) -> Self {
        let mut fields = Self(Vec::new());
        let is_completed = event.reason != 0;
        fields.word("event", event.event().as_str_name(), "AUDIT_EVENT_TYPE_");
        fields.head(&event.journal_id, event.sequence);
        fields.time("time", event.time.map(|time| (time.seconds, time.nanos)));
        let AuditEvent { request_id, user_id, tenant_id, conversation_id, .. } = event;
        fields.context([request_id, user_id, tenant_id, conversation_id]);
        fields.add("tool_call_id", &event.tool_call_id);
        fields.add("tool", &event.tool);
        fields.add("suggested_tool_hash", &event.suggested_tool_hash);
        fields.value("attempt", event.attempt);
        let outcome = event.outcome().as_str_name().trim_start_matches("OUTCOME_");
        let outcome = if is_completed { outcome.to_lowercase() } else { "started".to_owned() };
        fields.add("outcome", &outcome);
        if is_completed {
            fields.add("reason", event.reason().as_str_name().trim_start_matches("REASON_"));
            fields.value("duration_ms", event.duration_ms);
        }
        fields.counts("arguments_summary", event.arguments_summary.as_ref());
        fields.add("arguments_digest", &event.arguments_digest);
        fields.counts("result_summary", event.result_summary.as_ref());
        fields.add("result_digest", &event.result_digest);
        fields.value("model_suggested", event.model_suggested);
        fields.add("confirmation_id", &event.confirmation_id);
        fields.add("confirmed_by_user_id", &event.confirmed_by_user_id);
        fields.time("confirmed_at", event.confirmed_at.map(|time| (time.seconds, time.nanos)));
        let expires_at = event.confirmation_expires_at.map(|time| (time.seconds, time.nanos));
        fields.time("confirmation_expires_at", expires_at);
        fields.add("confirmation_purpose", &event.confirmation_purpose);
        if is_completed {
            let effect = event.effect().as_str_name().trim_start_matches("EFFECT_");
            fields.add("effect", &effect.to_lowercase());
        }
        fields.tail([&event.policy_digest, &event.audit_key_id, &event.trace_id, &event.mac]);
        fields
    }

    fn of_admin(event: &AdministrativeEvent) -> Self {
        let mut fields = Self(Vec::new());
        fields.word("event", event.event().as_str_name(), "ADMINISTRATIVE_EVENT_TYPE_");
        fields.head(&event.journal_id, event.sequence);
        fields.time("time", event.time.map(|time| (time.seconds, time.nanos)));
        let AdministrativeEvent { request_id, user_id, tenant_id, conversation_id, .. } = event;
        fields.context([request_id, user_id, tenant_id, conversation_id]);
        fields.add("tool_call_id", &event.tool_call_id);
        fields.add("tool", &event.tool);
        fields.add("confirmation_id", &event.confirmation_id);
        fields.word("reload_result", event.reload_result().as_str_name(), "RELOAD_RESULT_");
        fields.word("reload_trigger", event.reload_trigger().as_str_name(), "RELOAD_TRIGGER_");
        fields.add("policy_digest_before", &event.policy_digest_before);
        fields.word("key_purpose", event.key_purpose().as_str_name(), "KEY_PURPOSE_");
        fields.add("key_id", &event.key_id);
        fields.add("confirmed_by_user_id", &event.confirmed_by_user_id);
        fields.time("confirmed_at", event.confirmed_at.map(|time| (time.seconds, time.nanos)));
        let expires_at = event.confirmation_expires_at.map(|time| (time.seconds, time.nanos));
        fields.time("confirmation_expires_at", expires_at);
        fields.tail([&event.policy_digest, &event.audit_key_id, &event.trace_id, &event.mac]);
        fields
    }

    fn head(&mut self, journal_id: &str, sequence: u64) {
        self.add("journal_id", journal_id);
        self.value("sequence", sequence);
    }

    fn context(&mut self, texts: [&str; 4]) {
        let names = ["request_id", "user_id", "tenant_id", "conversation_id"];
        names.iter().zip(texts).for_each(|(name, text)| self.add(name, text));
    }

    fn tail(&mut self, texts: [&str; 4]) {
        for (name, text) in ["policy_digest", "audit_key_id", "trace_id", "mac"].iter().zip(texts) {
            self.add(name, text);
        }
    }

    fn value(&mut self, name: &'static str, value: impl Into<Value>) {
        self.0.push((name, value.into().to_string()));
    }

    fn add(&mut self, name: &'static str, text: &str) {
        if !text.is_empty() {
            self.value(name, text);
        }
    }

    /// The journal's word for a value of an enum that is there.
    fn word(&mut self, name: &'static str, of_wire: &str, prefix: &str) {
        let word = of_wire.trim_start_matches(prefix);
        if word != "UNSPECIFIED" {
            self.add(name, &word.to_lowercase());
        }
    }

    /// Seconds and nanoseconds of a wire time, as the journal writes it.
    fn time(&mut self, name: &'static str, parts: Option<(i64, i32)>) {
        let time = parts.and_then(|(seconds, nanos)| Timestamp::new(seconds, nanos).ok());
        if let Some(time) = time {
            self.value(name, format!("{time:.6}"));
        }
    }

    /// Written out, since its members are in the journal's order.
    fn counts(&mut self, name: &'static str, counts: Option<&PayloadSummary>) {
        let Some(counts) = counts else { return };
        let text = format!(
            "{{\"field_count\":{},\"scalar_count\":{},\"collection_count\":{},\
             \"redacted_field_count\":{},\"content_field_count\":{},\
             \"identifier_field_count\":{}}}",
            counts.field_count,
            counts.scalar_count,
            counts.collection_count,
            counts.redacted_field_count,
            counts.content_field_count,
            counts.identifier_field_count,
        );
        self.0.push((name, text));
    }

    /// A field for people: without the quotation marks of a text.
    fn text(&self, name: &str) -> Option<String> {
        let (_, json) = self.0.iter().find(|(known, _)| *known == name)?;
        Some(serde_json::from_str(json).unwrap_or_else(|_| json.clone()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_is_printed() {
        let hostile: String =
            (0..=0x9f_u8).map(char::from).chain("\u{202e}\u{200b}\u{e0041}x".chars()).collect();
        let event = AuditEvent {
            event: 2,
            tool: hostile.clone(),
            tenant_id: hostile.clone(),
            journal_id: hostile.clone(),
            confirmation_id: hostile.clone(),
            ..AuditEvent::default()
        };
        let admin = AdministrativeEvent { user_id: hostile.clone(), ..<_>::default() };
        let gap = AuditGap { journal_id: hostile.clone(), ..AuditGap::default() };
        for step in [Step::Event(event), Step::AdministrativeEvent(admin), Step::Gap(gap)] {
            for line in [json(&step).unwrap(), human(&step).unwrap()] {
                assert!(!line.contains(is_forbidden), "{line:?}");
            }
            let value: Value = serde_json::from_str(&json(&step).unwrap()).unwrap();
            assert!(value.to_string().contains('x'), "{value}");
        }
    }
}
