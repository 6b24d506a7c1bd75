//! Administrative events: what people and operators did, in closed sets of fields without free text.

use std::sync::Arc;

use jiff::Timestamp;

use super::event::{ClosedSetFault, is_call_id, is_key_id, is_tool_name};
use super::{Confirmed, Digest, TraceId};
use crate::domain::proposal::Context;

/// Something that was done beside the calls.
#[derive(Debug, Clone, PartialEq)]
pub struct AdminEvent {
    /// What was done.
    pub kind: AdminKind,
    /// When, by the gate's clock.
    pub time: Timestamp,
    /// Whose call it concerns.
    pub context: Arc<Context>,
    /// The ticket that it concerns.
    pub confirmation_id: Arc<str>,
    /// The policy in force.
    pub policy_digest: Digest,
    /// The audit key in force.
    pub audit_key_id: Arc<str>,
    /// The request's W3C trace id.
    pub trace_id: Option<TraceId>,
}

/// What was done.
#[derive(Debug, Clone, PartialEq)]
pub enum AdminKind {
    /// A ticket was issued.
    ConfirmationIssued {
        /// The confirmed call.
        tool_call_id: Arc<str>,
        /// The confirmed tool, which is also the purpose.
        tool: Arc<str>,
        /// Who confirmed.
        confirmed_by_user_id: Arc<str>,
        /// When, in whole seconds.
        confirmed_at: Timestamp,
        /// Until when the ticket is valid, in whole seconds.
        confirmation_expires_at: Timestamp,
    },
    /// A ticket was revoked.
    ConfirmationRevoked,
}

impl AdminKind {
    /// A ticket was issued for this call.
    #[must_use]
    pub fn issued(confirmed: &Confirmed, tool_call_id: &Arc<str>) -> Self {
        Self::ConfirmationIssued {
            tool_call_id: Arc::clone(tool_call_id),
            tool: Arc::clone(&confirmed.purpose),
            confirmed_by_user_id: Arc::clone(&confirmed.confirmed_by_user_id),
            confirmed_at: confirmed.confirmed_at,
            confirmation_expires_at: confirmed.expires_at,
        }
    }
}

impl AdminEvent {
    /// The `event` field.
    #[must_use]
    pub const fn event_name(&self) -> &'static str {
        match self.kind {
            AdminKind::ConfirmationIssued { .. } => "confirmation_issued",
            AdminKind::ConfirmationRevoked => "confirmation_revoked",
        }
    }

    /// Checks every free field against its form.
    ///
    /// # Errors
    ///
    /// The first field outside its form.
    pub fn check(&self) -> Result<(), ClosedSetFault> {
        let fault = |field| Err(ClosedSetFault { field });
        if self.context.check().is_err() {
            return fault("context");
        }
        if !is_confirmation_id(&self.confirmation_id) {
            return fault("confirmation_id");
        }
        if !is_key_id(&self.audit_key_id) {
            return fault("audit_key_id");
        }
        if let AdminKind::ConfirmationIssued { tool_call_id, tool, confirmed_by_user_id, .. } =
            &self.kind
        {
            if !is_call_id(tool_call_id) {
                return fault("tool_call_id");
            }
            if !is_tool_name(tool) {
                return fault("tool");
            }
            if !crate::domain::proposal::is_context_text(confirmed_by_user_id) {
                return fault("confirmed_by_user_id");
            }
        }
        Ok(())
    }
}

/// A UUID in its one lower-case form (RFC 9562, section 4).
#[must_use]
pub fn is_confirmation_id(text: &str) -> bool {
    let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => digit(byte),
        })
}
