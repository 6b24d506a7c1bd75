//! Wire events as the records of the journal.

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use toolgate::proto::{AuditEvent, AuditEventType, Effect, Outcome, PayloadSummary, Reason};

/// The journal's record of a wire event: every field of both, and no others.
pub fn record(event: &AuditEvent) -> Value {
    // Taken apart whole, so that a new field is a compile error here.
    let AuditEvent {
        event: kind,
        journal_id,
        sequence,
        time,
        request_id,
        user_id,
        tenant_id,
        conversation_id,
        tool_call_id,
        tool,
        suggested_tool_hash,
        attempt,
        outcome,
        reason,
        duration_ms,
        arguments_summary,
        arguments_digest,
        result_summary,
        result_digest,
        model_suggested,
        confirmation_id,
        confirmed_by_user_id,
        confirmed_at,
        confirmation_expires_at,
        confirmation_purpose,
        effect,
        policy_digest,
        audit_key_id,
        trace_id,
        mac,
    } = event.clone();
    let time = time.unwrap();
    let time = Timestamp::new(time.seconds, time.nanos).unwrap();
    assert_eq!(time.subsec_nanosecond() % 1_000, 0, "no sink keeps more than microseconds");
    assert_eq!((confirmation_id, confirmed_by_user_id, confirmation_purpose), Default::default());
    assert_eq!((confirmed_at, confirmation_expires_at), (None, None));
    let completed = kind == i32::from(AuditEventType::ToolCallCompleted);
    let mut record = Map::new();
    let mut put =
        |name: &str, value: Value| assert!(record.insert(name.to_owned(), value).is_none());
    put(
        "event",
        json!(lower(AuditEventType::try_from(kind).unwrap().as_str_name(), "AUDIT_EVENT_TYPE_")),
    );
    put("journal_id", json!(journal_id));
    put("sequence", json!(sequence));
    put("time", json!(format!("{time:.6}")));
    put("request_id", json!(request_id));
    put("user_id", json!(user_id));
    put("tenant_id", json!(tenant_id));
    put("conversation_id", json!(conversation_id));
    put("tool_call_id", json!(tool_call_id));
    put("tool", json!(tool));
    put("suggested_tool_hash", json!(suggested_tool_hash));
    put("attempt", json!(attempt));
    let outcome = Outcome::try_from(outcome).unwrap();
    put(
        "outcome",
        json!(if completed {
            lower(outcome.as_str_name(), "OUTCOME_")
        } else {
            "started".to_owned()
        }),
    );
    put("arguments_summary", summary(arguments_summary.unwrap()));
    put("arguments_digest", json!(arguments_digest));
    put("model_suggested", json!(model_suggested));
    put("policy_digest", json!(policy_digest));
    put("audit_key_id", json!(audit_key_id));
    put("mac", json!(mac));
    if !trace_id.is_empty() {
        put("trace_id", json!(trace_id));
    }
    if completed {
        put(
            "reason",
            json!(Reason::try_from(reason).unwrap().as_str_name().strip_prefix("REASON_").unwrap()),
        );
        put("effect", json!(lower(Effect::try_from(effect).unwrap().as_str_name(), "EFFECT_")));
        put("duration_ms", number(duration_ms));
    } else {
        let unset =
            (Outcome::Unspecified, i32::from(Reason::Unspecified), i32::from(Effect::Unspecified));
        assert_eq!((outcome, reason, effect), unset);
        assert!(duration_ms.abs() < f64::EPSILON);
    }
    if let Some(counts) = result_summary {
        put("result_summary", summary(counts));
        put("result_digest", json!(result_digest));
    } else {
        assert_eq!(result_digest, "");
    }
    Value::Object(record)
}

fn lower(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap().to_lowercase()
}

/// As the record writes it: at most three fraction digits, none where there are none.
fn number(milliseconds: f64) -> Value {
    serde_json::from_str(&format!("{milliseconds}")).unwrap()
}

fn summary(summary: PayloadSummary) -> Value {
    let PayloadSummary {
        field_count,
        scalar_count,
        collection_count,
        redacted_field_count,
        content_field_count,
        identifier_field_count,
    } = summary;
    json!({
        "field_count": field_count, "scalar_count": scalar_count, "collection_count": collection_count,
        "redacted_field_count": redacted_field_count, "content_field_count": content_field_count,
        "identifier_field_count": identifier_field_count,
    })
}
