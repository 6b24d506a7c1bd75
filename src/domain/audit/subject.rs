//! Building events: what a request and a call have in common over all of theirs.

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    AdminEvent, AdminKind, AuditKey, Confirmed, Digest, Event, EventKind, PayloadSummary, TraceId,
    summarise,
};
use crate::domain::contract::Contract;
use crate::domain::json::{Object, Value};
use crate::domain::proposal::Context;

/// What every event of one request shares.
#[derive(Debug, Clone)]
pub struct Scope {
    /// Whose request it is.
    pub context: Arc<Context>,
    /// The policy that decides.
    pub policy_digest: Digest,
    /// The audit key in force.
    pub key: AuditKey,
    /// The request's trace.
    pub trace_id: Option<TraceId>,
}

/// What every event of one call shares: enough to find the call, nothing of what it said.
#[derive(Debug, Clone, PartialEq)]
pub struct Subject {
    /// The call's id, or [`Event::INVALID_CALL_ID`].
    pub tool_call_id: Arc<str>,
    /// A registered and visible tool, or [`Event::UNKNOWN_TOOL`].
    pub tool: Arc<str>,
    /// Keyed digest of the suggested name as a JSON string.
    pub suggested_tool_hash: Digest,
    /// Counts over the arguments.
    pub arguments_summary: PayloadSummary,
    /// Keyed digest of the bounded arguments.
    pub arguments_digest: Digest,
    /// The verified ticket that came with the call.
    pub confirmation: Option<Arc<Confirmed>>,
}

impl Scope {
    /// The subject of a call whose arguments were not parsed: it carries the digest of `{}`.
    #[must_use]
    pub fn subject(
        &self,
        tool_call_id: Arc<str>,
        suggested: &str,
        contract: Option<&Contract>,
    ) -> Subject {
        self.subject_of(tool_call_id, suggested, contract, &Value::Object(Object::default()))
    }

    /// The subject of a call with these arguments, parsed or normalised.
    #[must_use]
    pub fn subject_of(
        &self,
        tool_call_id: Arc<str>,
        suggested: &str,
        contract: Option<&Contract>,
        arguments: &Value,
    ) -> Subject {
        let redact = contract.map_or(&[][..], |contract| &contract.redact);
        Subject {
            tool_call_id,
            tool: contract
                .map_or_else(|| Event::UNKNOWN_TOOL.into(), |contract| Arc::clone(&contract.name)),
            suggested_tool_hash: self.key.digest(&Value::String(suggested.to_owned()), &[]),
            arguments_summary: summarise(arguments, redact),
            arguments_digest: self.key.digest(arguments, redact),
            confirmation: None,
        }
    }

    /// An event of something done beside the calls.
    #[must_use]
    pub fn administrative(
        &self,
        confirmation_id: Arc<str>,
        kind: AdminKind,
        now: Timestamp,
    ) -> AdminEvent {
        AdminEvent {
            kind,
            time: now,
            context: Some(Arc::clone(&self.context)),
            confirmation_id: Some(confirmation_id),
            policy_digest: self.policy_digest,
            audit_key_id: Arc::clone(self.key.id()),
            trace_id: self.trace_id,
        }
    }

    /// The event that opens a pair.
    #[must_use]
    pub fn started(&self, subject: &Subject, attempt: u32, now: Timestamp) -> Event {
        Event {
            kind: EventKind::Started,
            time: now,
            context: Arc::clone(&self.context),
            tool_call_id: Arc::clone(&subject.tool_call_id),
            tool: Arc::clone(&subject.tool),
            suggested_tool_hash: subject.suggested_tool_hash,
            attempt,
            arguments_summary: subject.arguments_summary,
            arguments_digest: subject.arguments_digest,
            policy_digest: self.policy_digest,
            audit_key_id: Arc::clone(self.key.id()),
            confirmation: subject.confirmation.clone(),
            trace_id: self.trace_id,
        }
    }
}
