//! From the domain to wire types.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use jiff::Timestamp;

use super::admin::{key_purpose, reload_result, reload_trigger};
use crate::domain::admission::Refusal;
use crate::domain::audit::{
    AdminEvent, AdminKind, Confirmed, Event, EventKind, KeyChange, MAX_DURATION_US, PayloadSummary,
    Stamp,
};
use crate::domain::authorisation::Preview;
use crate::domain::contract::{Contract, ToolEffect};
use crate::domain::policy::PolicySnapshot;
use crate::domain::proposal::Context;
use crate::domain::reason::{Effect, Outcome, Reason};
use crate::domain::record::{Ended, Told};
use crate::domain::schema::SchemaFault;
use crate::domain::ticket::Issued;
use crate::gate::{
    AuditState, BatchReport, CallResult, Checked, RecordedEvent, Revocation, Step, Verdict,
};
use crate::proto;

pub(super) fn execute_response(report: BatchReport) -> proto::ExecuteResponse {
    proto::ExecuteResponse {
        results: report.results.into_iter().map(tool_result).collect(),
        events: report.events.iter().map(audit_event).collect(),
        policy_digest: report.policy_digest.to_string(),
    }
}

pub(super) fn execute_step(step: Step) -> proto::ExecuteStreamResponse {
    use proto::execute_stream_response::Step as Wire;
    let step = match step {
        Step::Event(recorded) => Wire::Event(audit_event(&recorded)),
        Step::Result(index, result) => Wire::Result(proto::IndexedToolResult {
            // A message of 64 MiB holds fewer calls.
            index: u32::try_from(index).unwrap_or(u32::MAX),
            result: Some(tool_result(*result)),
        }),
    };
    proto::ExecuteStreamResponse { step: Some(step) }
}

pub(super) fn check_response(
    ids: impl Iterator<Item = String>,
    checked: Checked,
) -> proto::CheckResponse {
    proto::CheckResponse {
        verdicts: ids
            .zip(checked.verdicts)
            .map(|(id, verdict)| check_verdict(id, verdict))
            .collect(),
        policy_digest: checked.policy_digest.to_string(),
    }
}

pub(super) fn list_tools_response(policy: &PolicySnapshot) -> proto::ListToolsResponse {
    proto::ListToolsResponse {
        tools: policy.contracts().map(|contract| tool(contract)).collect(),
        policy_digest: policy.digest().to_string(),
    }
}

fn tool(contract: &Contract) -> proto::Tool {
    let effect = match contract.effect {
        ToolEffect::Read => proto::ToolEffect::Read,
        ToolEffect::Write => proto::ToolEffect::Write,
    };
    proto::Tool {
        name: contract.name.to_string(),
        description: contract.description.clone(),
        arguments_schema_json: contract.arguments_schema.text().to_owned(),
        effect: effect.into(),
        confirmation_required: contract.needs_ticket(),
        contract_digest: contract.digest.to_string(),
    }
}

fn tool_result(result: CallResult) -> proto::ToolResult {
    let tool_call_id = result.tool_call_id.unwrap_or_default();
    let Some(end) = result.end else {
        return proto::ToolResult {
            tool_call_id,
            outcome: proto::Outcome::NotRun.into(),
            effect: proto::Effect::None.into(),
            message: "This tool call was not reached.".to_owned(),
            ..proto::ToolResult::default()
        };
    };
    let retryable = end.retryable;
    proto::ToolResult {
        tool_call_id,
        outcome: outcome(end.reason.outcome()).into(),
        reason: reason(end.reason).into(),
        message: end.message.into_owned(),
        result_json: end.result_json.unwrap_or_default(),
        faults: end.faults.into_iter().map(argument_fault).collect(),
        retryable,
        retry_after: None,
        remaining: None,
        effect: effect(end.effect).into(),
        audit: audit_state(end.audit).into(),
        attempt: end.attempt.unwrap_or(0),
        recorded: end.recorded.as_ref().map(recorded_call),
    }
}

pub(super) fn get_call_response(tool_call_id: String, told: Told) -> proto::GetCallResponse {
    let Told { tool, user_id, confirmation_id, reserved_at, ended, kept_for, .. } = told;
    let recorded = ended.as_ref().map(recorded_call).unwrap_or_default();
    proto::GetCallResponse {
        tool_call_id,
        tool: tool.to_string(),
        running: ended.is_none(),
        outcome: recorded.outcome,
        reason: recorded.reason,
        effect: effect(told.effect).into(),
        attempt: told.attempt,
        reserved_at: Some(timestamp(reserved_at)),
        ended_at: recorded.ended_at,
        result_digest: recorded.result_digest,
        kept_for: kept_for.map(duration),
        user_id: user_id.to_string(),
        confirmation_id: confirmation_id.map(|id| id.to_string()).unwrap_or_default(),
    }
}

/// Whole seconds, rounded down: a promise that is kept.
fn duration(duration: Duration) -> prost_types::Duration {
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    prost_types::Duration { seconds, nanos: 0 }
}

fn recorded_call(ended: &Ended) -> proto::RecordedCall {
    proto::RecordedCall {
        outcome: outcome(ended.reason.outcome()).into(),
        reason: reason(ended.reason).into(),
        effect: effect(ended.effect).into(),
        ended_at: Some(timestamp(ended.at)),
        result_digest: ended.result_digest.map(|digest| digest.to_string()).unwrap_or_default(),
    }
}

pub(super) fn issue_response(issued: Issued) -> proto::IssueResponse {
    let claims = issued.claims;
    let time = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
    proto::IssueResponse {
        ticket: issued.ticket,
        claims: Some(proto::ConfirmationClaims {
            confirmation_id: claims.confirmation_id.to_string(),
            tool_call_id: claims.tool_call_id.to_string(),
            tool: claims.tool.to_string(),
            arguments_hash: claims.arguments_hash.to_string(),
            contract_digest: claims.contract_digest.to_string(),
            tenant_id: claims.tenant_id.to_string(),
            conversation_id: claims.conversation_id.to_string(),
            user_id: claims.user_id.to_string(),
            confirmed_by_user_id: claims.confirmed_by_user_id.to_string(),
            confirmed_at: time(claims.confirmed_at),
            expires_at: time(claims.expires_at),
            purpose: claims.purpose.to_string(),
            audience: claims.audience.to_string(),
        }),
    }
}

pub(super) fn revoke_response(revocation: Revocation) -> proto::RevokeResponse {
    proto::RevokeResponse {
        revoked_at: Some(timestamp(revocation.revoked_at)),
        was_spent: revocation.was_spent,
    }
}

fn check_verdict(tool_call_id: String, verdict: Verdict) -> proto::CheckVerdict {
    match verdict {
        Verdict::Admitted(preview) => proto::CheckVerdict {
            tool_call_id,
            admitted: true,
            preview: preview.map(confirmation_preview),
            ..proto::CheckVerdict::default()
        },
        Verdict::NotReached => proto::CheckVerdict {
            tool_call_id,
            outcome: proto::Outcome::NotRun.into(),
            ..proto::CheckVerdict::default()
        },
        Verdict::Refused(refusal, preview) => proto::CheckVerdict {
            preview: preview.map(confirmation_preview),
            ..refused_verdict(tool_call_id, &refusal)
        },
    }
}

fn confirmation_preview(preview: Preview) -> proto::ConfirmationPreview {
    proto::ConfirmationPreview {
        prompt: preview.prompt,
        normalised_arguments_json: preview.arguments_json,
        arguments_hash: preview.arguments_hash.to_string(),
        key_id: preview.key_id.to_string(),
        contract_digest: preview.contract_digest.to_string(),
    }
}

fn refused_verdict(tool_call_id: String, refusal: &Refusal) -> proto::CheckVerdict {
    proto::CheckVerdict {
        tool_call_id,
        admitted: false,
        outcome: outcome(refusal.reason.outcome()).into(),
        reason: reason(refusal.reason).into(),
        message: refusal.message().into_owned(),
        faults: refusal.faults().iter().cloned().map(argument_fault).collect(),
        retryable: refusal.reason.row().retryable,
        preview: None,
    }
}

fn argument_fault(fault: SchemaFault) -> proto::ArgumentFault {
    proto::ArgumentFault {
        pointer: fault.pointer,
        keyword: fault.keyword,
        missing: fault.missing.unwrap_or_default(),
    }
}

/// The fields of a verified ticket.
fn confirmed(confirmed: &Confirmed) -> proto::AuditEvent {
    proto::AuditEvent {
        confirmation_id: confirmed.confirmation_id.to_string(),
        confirmed_by_user_id: confirmed.confirmed_by_user_id.to_string(),
        confirmed_at: Some(timestamp(confirmed.confirmed_at)),
        confirmation_expires_at: Some(timestamp(confirmed.expires_at)),
        confirmation_purpose: confirmed.purpose.to_string(),
        ..proto::AuditEvent::default()
    }
}

pub(super) fn audit_event(recorded: &RecordedEvent) -> proto::AuditEvent {
    let Event { kind, context, .. } = &*recorded.event;
    let event = &recorded.event;
    let opened = proto::AuditEvent {
        event: proto::AuditEventType::ToolCallStarted.into(),
        time: Some(timestamp(event.time)),
        request_id: context.request_id.to_string(),
        user_id: context.user_id.to_string(),
        tenant_id: context.tenant_id.to_string(),
        conversation_id: context.conversation_id.to_string(),
        tool_call_id: event.tool_call_id.to_string(),
        tool: event.tool.to_string(),
        suggested_tool_hash: event.suggested_tool_hash.to_string(),
        attempt: event.attempt,
        arguments_summary: Some(payload_summary(event.arguments_summary)),
        arguments_digest: event.arguments_digest.to_string(),
        model_suggested: true,
        policy_digest: event.policy_digest.to_string(),
        audit_key_id: event.audit_key_id.to_string(),
        trace_id: event.trace_id.map(|id| id.to_string()).unwrap_or_default(),
        journal_id: recorded
            .stamp
            .as_ref()
            .map(|stamp| stamp.journal_id.to_string())
            .unwrap_or_default(),
        sequence: recorded.stamp.as_ref().map(|stamp| stamp.sequence).unwrap_or_default(),
        mac: recorded.stamp.as_ref().map(|stamp| stamp.mac.to_string()).unwrap_or_default(),
        ..event.confirmation.as_deref().map(confirmed).unwrap_or_default()
    };
    match kind {
        EventKind::Started => opened,
        EventKind::Completed {
            reason: why,
            duration_us,
            result_summary,
            result_digest,
            effect: changed,
        } => proto::AuditEvent {
            event: proto::AuditEventType::ToolCallCompleted.into(),
            outcome: outcome(why.outcome()).into(),
            reason: reason(*why).into(),
            duration_ms: milliseconds(*duration_us),
            result_summary: result_summary.map(payload_summary),
            result_digest: result_digest.map(|digest| digest.to_string()).unwrap_or_default(),
            effect: effect(*changed).into(),
            ..opened
        },
    }
}

pub(super) fn administrative_event(
    event: &AdminEvent,
    stamp: &Stamp,
) -> proto::AdministrativeEvent {
    use proto::AdministrativeEventType as Type;
    let of = |text: fn(&Context) -> &Arc<str>| {
        event.context.as_deref().map(|context| text(context).to_string()).unwrap_or_default()
    };
    let common = proto::AdministrativeEvent {
        event: Type::ConfirmationRevoked.into(),
        journal_id: stamp.journal_id.to_string(),
        sequence: stamp.sequence,
        time: Some(timestamp(event.time)),
        request_id: of(|context| &context.request_id),
        user_id: of(|context| &context.user_id),
        tenant_id: of(|context| &context.tenant_id),
        conversation_id: of(|context| &context.conversation_id),
        confirmation_id: event.confirmation_id.as_deref().unwrap_or_default().to_owned(),
        policy_digest: event.policy_digest.to_string(),
        audit_key_id: event.audit_key_id.to_string(),
        trace_id: event.trace_id.map(|id| id.to_string()).unwrap_or_default(),
        mac: stamp.mac.to_string(),
        ..proto::AdministrativeEvent::default()
    };
    match &event.kind {
        AdminKind::ConfirmationRevoked => common,
        AdminKind::ConfirmationIssued {
            tool_call_id,
            tool,
            confirmed_by_user_id,
            confirmed_at,
            confirmation_expires_at,
        } => proto::AdministrativeEvent {
            event: Type::ConfirmationIssued.into(),
            tool_call_id: tool_call_id.to_string(),
            tool: tool.to_string(),
            confirmed_by_user_id: confirmed_by_user_id.to_string(),
            confirmed_at: Some(timestamp(*confirmed_at)),
            confirmation_expires_at: Some(timestamp(*confirmation_expires_at)),
            ..common
        },
        AdminKind::Reload { result, trigger, policy_digest_before } => proto::AdministrativeEvent {
            event: Type::Reload.into(),
            reload_result: reload_result(*result).into(),
            reload_trigger: reload_trigger(*trigger).into(),
            policy_digest_before: policy_digest_before.to_string(),
            ..common
        },
        AdminKind::Key { change, purpose, key_id } => proto::AdministrativeEvent {
            event: match change {
                KeyChange::Added => Type::KeyAdded,
                KeyChange::Removed => Type::KeyRemoved,
                KeyChange::Signs => Type::KeySigns,
            }
            .into(),
            key_purpose: key_purpose(*purpose).into(),
            key_id: key_id.to_string(),
            ..common
        },
    }
}

const fn payload_summary(summary: PayloadSummary) -> proto::PayloadSummary {
    proto::PayloadSummary {
        field_count: summary.field_count,
        scalar_count: summary.scalar_count,
        collection_count: summary.collection_count,
        redacted_field_count: summary.redacted_field_count,
        content_field_count: summary.content_field_count,
        identifier_field_count: summary.identifier_field_count,
    }
}

/// The double next to the decimal that the journal writes.
#[allow(clippy::cast_precision_loss, reason = "up to the bound a double keeps every microsecond")]
fn milliseconds(microseconds: u64) -> f64 {
    microseconds.min(MAX_DURATION_US) as f64 / 1e3
}

pub(super) fn timestamp(time: Timestamp) -> prost_types::Timestamp {
    // A negative fraction belongs to the second before (google.protobuf.Timestamp).
    let (mut seconds, mut nanos) = (time.as_second(), time.subsec_nanosecond());
    if nanos < 0 {
        seconds -= 1;
        nanos += 1_000_000_000;
    }
    prost_types::Timestamp { seconds, nanos }
}

const fn outcome(outcome: Outcome) -> proto::Outcome {
    match outcome {
        Outcome::Validation => proto::Outcome::Validation,
        Outcome::Denied => proto::Outcome::Denied,
        Outcome::Timeout => proto::Outcome::Timeout,
        Outcome::Success => proto::Outcome::Success,
        Outcome::Error => proto::Outcome::Error,
    }
}

const fn effect(effect: Effect) -> proto::Effect {
    match effect {
        Effect::None => proto::Effect::None,
        Effect::Applied => proto::Effect::Applied,
        Effect::Unknown => proto::Effect::Unknown,
    }
}

const fn audit_state(state: AuditState) -> proto::AuditState {
    match state {
        AuditState::Recorded => proto::AuditState::Recorded,
        AuditState::StartedFailed => proto::AuditState::StartedFailed,
        AuditState::CompletedFailed => proto::AuditState::CompletedFailed,
    }
}

/// The wire enum carries the codes of the domain's table: looked up once, in its order.
static REASONS: LazyLock<Vec<proto::Reason>> = LazyLock::new(|| {
    let wire = |reason: &Reason| {
        let name = format!("REASON_{}", reason.code());
        proto::Reason::from_str_name(&name)
            .unwrap_or_else(|| unreachable!("a test holds the enum and the table together"))
    };
    Reason::ALL.iter().map(wire).collect()
});

fn reason(reason: Reason) -> proto::Reason {
    REASONS[reason as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_has_every_reason_of_the_table_and_no_other() {
        for known in Reason::ALL {
            assert_eq!(reason(*known).as_str_name(), format!("REASON_{}", known.code()));
        }
        let on_the_wire = (1..1_000).filter_map(|number| proto::Reason::try_from(number).ok());
        assert_eq!(on_the_wire.count(), Reason::ALL.len());
    }
}
