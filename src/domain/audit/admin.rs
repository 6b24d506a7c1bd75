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
    /// Whose call it concerns; `None` where it concerns the gate.
    pub context: Option<Arc<Context>>,
    /// The ticket that it concerns, where it concerns a call.
    pub confirmation_id: Option<Arc<str>>,
    /// The policy in force, after what was done.
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
    /// Configuration and policy were loaded again.
    Reload {
        /// What came of it.
        result: ReloadResult,
        /// Who or what asked for it.
        trigger: ReloadTrigger,
        /// The policy that was in force before.
        policy_digest_before: Digest,
    },
    /// A key of the configuration changed.
    Key {
        /// How.
        change: KeyChange,
        /// What the key is for.
        purpose: KeyPurpose,
        /// Its id.
        key_id: Arc<str>,
    },
}

/// What came of a reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReloadResult {
    /// What was loaded is in force.
    Applied,
    /// What was loaded was in force already.
    Unchanged,
    /// It has faults; what was in force still is.
    Failed,
}

/// Who or what asked for a reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReloadTrigger {
    /// An operator, by `Admin/Reload`.
    Request,
    /// SIGHUP.
    Signal,
    /// The files have changed.
    Files,
}

/// What happened to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyChange {
    /// It verifies from now on.
    Added,
    /// It denies from now on.
    Removed,
    /// It signs from now on.
    Signs,
}

/// What a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyPurpose {
    /// Digests of events, and the journal's chain.
    Audit,
    /// Tickets and arguments hashes.
    Confirmation,
}

macro_rules! words {
    ($( $name:ident { $( $variant:ident = $word:literal, )+ } )+) => { $(
        impl $name {
            /// Every one.
            pub const ALL: &'static [Self] = &[ $( Self::$variant, )+ ];

            /// The word in journal, logs, metrics and answers.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $word, )+ }
            }

            /// The one of this word.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.as_str() == word)
            }
        }
    )+ };
}

words! {
    ReloadResult { Applied = "applied", Unchanged = "unchanged", Failed = "failed", }
    ReloadTrigger { Request = "request", Signal = "signal", Files = "files", }
    KeyChange { Added = "key_added", Removed = "key_removed", Signs = "key_signs", }
    KeyPurpose { Audit = "audit", Confirmation = "confirmation", }
}

impl AdminKind {
    /// Whether it is of a ticket, and so of somebody's call.
    #[must_use]
    pub const fn is_of_a_confirmation(&self) -> bool {
        matches!(self, Self::ConfirmationIssued { .. } | Self::ConfirmationRevoked)
    }

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
            AdminKind::Reload { .. } => "reload",
            AdminKind::Key { change, .. } => change.as_str(),
        }
    }

    /// Checks every free field against its form.
    ///
    /// # Errors
    ///
    /// The first field outside its form.
    pub fn check(&self) -> Result<(), ClosedSetFault> {
        let fault = |field| Err(ClosedSetFault { field });
        let of_a_call = self.kind.is_of_a_confirmation();
        if of_a_call != self.context.as_ref().is_some_and(|context| context.check().is_ok()) {
            return fault("context");
        }
        if of_a_call != self.confirmation_id.as_deref().is_some_and(is_confirmation_id) {
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
        match &self.kind {
            AdminKind::Key { key_id, .. } if !is_key_id(key_id) => fault("key_id"),
            _ => Ok(()),
        }
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
