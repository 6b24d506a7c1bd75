//! The closed set of fields of an audit event (semantics, section 8).

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use super::admin::{AdminEvent, is_confirmation_id};
use super::{Digest, PayloadSummary};
use crate::domain::proposal::{Context, is_context_text};
use crate::domain::reason::{Effect, Outcome, Reason};

/// One of the two events of a pair. Its type has no place for arguments or results.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Which event of the pair.
    pub kind: EventKind,
    /// When it was built, by the gate's clock.
    pub time: Timestamp,
    /// Whose call it is.
    pub context: Arc<Context>,
    /// The call's id, or [`Event::INVALID_CALL_ID`].
    pub tool_call_id: Arc<str>,
    /// A registered and visible tool, or [`Event::UNKNOWN_TOOL`].
    pub tool: Arc<str>,
    /// Keyed digest of the suggested name as a JSON string.
    pub suggested_tool_hash: Digest,
    /// From 1 to 100.
    pub attempt: u32,
    /// Counts over the arguments.
    pub arguments_summary: PayloadSummary,
    /// Keyed digest of the bounded arguments.
    pub arguments_digest: Digest,
    /// The policy that decided.
    pub policy_digest: Digest,
    /// The audit key behind the digests.
    pub audit_key_id: Arc<str>,
    /// The verified ticket that came with the call.
    pub confirmation: Option<Arc<Confirmed>>,
    /// The request's W3C trace id.
    pub trace_id: Option<TraceId>,
}

/// A verified ticket, as events show it. Times are whole seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmed {
    /// The ticket's `jti`.
    pub confirmation_id: Arc<str>,
    /// Who confirmed.
    pub confirmed_by_user_id: Arc<str>,
    /// When.
    pub confirmed_at: Timestamp,
    /// Until when the ticket is valid.
    pub expires_at: Timestamp,
    /// What was confirmed: the tool's name.
    pub purpose: Arc<str>,
}

/// One record of the journal.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    /// Of a call.
    Call(Arc<Event>),
    /// Of something that was done beside the calls.
    Admin(Arc<AdminEvent>),
}

/// What only one of the two events has.
#[derive(Debug, Clone, PartialEq)]
pub enum EventKind {
    /// The attempt is about to start, or a refusal is being recorded.
    Started,
    /// It has ended.
    Completed {
        /// Why; its outcome follows from it.
        reason: Reason,
        /// Microseconds from started to completed.
        duration_us: u64,
        /// Counts over the result, where there was one. A success that only the
        /// ledger knew after a crash has its digest alone.
        result_summary: Option<PayloadSummary>,
        /// Keyed digest of the bounded result, where there was one.
        result_digest: Option<Digest>,
        /// What the attempt changed.
        effect: Effect,
    },
}

/// The `outcome` field: `started`, or how the call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventOutcome {
    /// Of a started event.
    Started,
    /// Of a completed event.
    Ended(Outcome),
}

/// Where the journal put an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// The journal.
    pub journal_id: Arc<str>,
    /// The event's place in it, from 1.
    pub sequence: u64,
    /// The chain's link.
    pub mac: Digest,
}

/// A W3C trace id: 16 bytes, not all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceId([u8; 16]);

/// An event that holds something its closed set does not allow. Names the field, never its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedSetFault {
    /// The field.
    pub field: &'static str,
}

impl Event {
    /// Stands for an id outside its form.
    pub const INVALID_CALL_ID: &'static str = "invalid";
    /// Stands for a name that is not registered or not visible.
    pub const UNKNOWN_TOOL: &'static str = "unknown";

    /// The `event` field.
    #[must_use]
    pub const fn event_name(&self) -> &'static str {
        match self.kind {
            EventKind::Started => "tool_call_started",
            EventKind::Completed { .. } => "tool_call_completed",
        }
    }

    /// The `outcome` field.
    #[must_use]
    pub const fn outcome(&self) -> EventOutcome {
        match self.kind {
            EventKind::Started => EventOutcome::Started,
            EventKind::Completed { reason, .. } => EventOutcome::Ended(reason.outcome()),
        }
    }

    /// The completed event of a pair that this started event opened.
    #[must_use]
    pub fn completed(&self, time: Timestamp, kind: EventKind) -> Self {
        Self { kind, time, ..self.clone() }
    }

    /// Checks every free field against its form, once more before it leaves the process.
    ///
    /// # Errors
    ///
    /// The first field outside its form.
    pub fn check(&self) -> Result<(), ClosedSetFault> {
        let fault = |field| Err(ClosedSetFault { field });
        if self.context.check().is_err() {
            return fault("context");
        }
        if !is_call_id(&self.tool_call_id) {
            return fault("tool_call_id");
        }
        if !is_tool_name(&self.tool) {
            return fault("tool");
        }
        if !(1..=100).contains(&self.attempt) {
            return fault("attempt");
        }
        if !is_key_id(&self.audit_key_id) {
            return fault("audit_key_id");
        }
        if self.confirmation.as_ref().is_some_and(|confirmed| !confirmed.is_in_form()) {
            return fault("confirmation_id");
        }
        match &self.kind {
            EventKind::Completed { reason, result_digest, result_summary, .. }
                if (result_summary.is_some() && result_digest.is_none())
                    || (*reason == Reason::Ok && result_digest.is_none()) =>
            {
                fault("result_digest")
            }
            _ => Ok(()),
        }
    }
}

impl Confirmed {
    fn is_in_form(&self) -> bool {
        is_confirmation_id(&self.confirmation_id)
            && is_context_text(&self.confirmed_by_user_id)
            && is_tool_name(&self.purpose)
    }
}

impl Entry {
    /// Checks every free field against its form, once more before it leaves the process.
    ///
    /// # Errors
    ///
    /// The first field outside its form.
    pub fn check(&self) -> Result<(), ClosedSetFault> {
        match self {
            Self::Call(event) => event.check(),
            Self::Admin(event) => event.check(),
        }
    }
}

impl From<Arc<Event>> for Entry {
    fn from(event: Arc<Event>) -> Self {
        Self::Call(event)
    }
}

impl TraceId {
    /// The id of these bytes, unless all are zero (W3C Trace Context, 3.2.2.3).
    #[must_use]
    pub fn new(bytes: [u8; 16]) -> Option<Self> {
        (bytes != [0; 16]).then_some(Self(bytes))
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl EventOutcome {
    /// The word in the journal.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Ended(outcome) => outcome.as_str(),
        }
    }
}

impl fmt::Display for ClosedSetFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the event field {} is outside its closed set", self.field)
    }
}

impl std::error::Error for ClosedSetFault {}

/// `[A-Za-z0-9][A-Za-z0-9._:-]{0,127}`: a call id.
#[must_use]
pub fn is_call_id(text: &str) -> bool {
    has_form(text, b"._:-")
}

/// `[A-Za-z0-9][A-Za-z0-9_.-]{0,127}`: a tool name.
#[must_use]
pub fn is_tool_name(text: &str) -> bool {
    has_form(text, b"_.-")
}

/// `[A-Za-z0-9][A-Za-z0-9_.-]{0,63}`: a key id.
#[must_use]
pub fn is_key_id(text: &str) -> bool {
    text.len() <= 64 && has_form(text, b"_.-")
}

fn has_form(text: &str, extra: &[u8]) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= 128
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || extra.contains(byte))
}
