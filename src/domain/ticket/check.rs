//! What a ticket is checked for, in order, and what a failure says.

use super::Claims;
use crate::domain::reason::Reason;

/// One check of a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// Within the size, and three segments of base64url.
    Shape,
    /// The header is that of a known key, byte for byte.
    Header,
    /// The MAC is that of the key, over header and payload as they stand.
    Mac,
    /// The claims are the closed set, each once and of its type and form.
    Claims,
    /// `exp` is `iat` and the lifetime.
    Lifetime,
    /// `exp` is not reached.
    Expiry,
    /// `iat` is not in the future by more than the skew.
    ConfirmedAt,
    /// `aud` is the ledger's id.
    Ledger,
    /// The confirmation is not revoked.
    Revocation,
    /// `tool_call_id` is the call's.
    CallId,
    /// `tool` is the call's.
    Tool,
    /// `purpose` is the call's tool.
    Purpose,
    /// `tenant_id` is the call's.
    Tenant,
    /// `conversation_id` is the call's.
    Conversation,
    /// `user_id` is the call's.
    User,
    /// `contract_digest` is that of the tool's contract in force.
    Contract,
    /// `arguments_hash` is that of the call's arguments.
    Arguments,
}

/// A ticket that did not pass, and what may be kept of it.
#[derive(Debug, Clone, PartialEq)]
pub struct RefusedTicket {
    check: Check,
    claims: Option<Box<Claims>>,
}

impl Check {
    /// Every check, in the order in which they are made.
    pub const ALL: [Self; 17] = [
        Self::Shape,
        Self::Header,
        Self::Mac,
        Self::Claims,
        Self::Lifetime,
        Self::Expiry,
        Self::ConfirmedAt,
        Self::Ledger,
        Self::Revocation,
        Self::CallId,
        Self::Tool,
        Self::Purpose,
        Self::Tenant,
        Self::Conversation,
        Self::User,
        Self::Contract,
        Self::Arguments,
    ];

    /// The reason of a call whose ticket fails here.
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            Self::Shape | Self::Header | Self::Mac | Self::Claims | Self::Lifetime => {
                Reason::ConfirmationInvalid
            }
            Self::Expiry => Reason::ConfirmationExpired,
            Self::ConfirmedAt => Reason::ConfirmationNotYetValid,
            Self::Ledger => Reason::ConfirmationOtherLedger,
            Self::Revocation => Reason::ConfirmationRevoked,
            Self::CallId
            | Self::Tool
            | Self::Purpose
            | Self::Tenant
            | Self::Conversation
            | Self::User
            | Self::Contract
            | Self::Arguments => Reason::ConfirmationMismatch,
        }
    }
}

impl RefusedTicket {
    /// The ticket is signed, so that its claims may be kept.
    pub(super) fn authentic(check: Check, claims: Claims) -> Self {
        Self { check, claims: Some(Box::new(claims)) }
    }

    /// The first check that it did not pass.
    #[must_use]
    pub const fn check(&self) -> Check {
        self.check
    }

    /// Why the call is refused.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.check.reason()
    }

    /// What the ticket says, for the audit. `None` unless the gate signed it.
    #[must_use]
    pub fn claims(&self) -> Option<&Claims> {
        self.claims.as_deref()
    }
}

/// A ticket of which nothing is known.
impl From<Check> for RefusedTicket {
    fn from(check: Check) -> Self {
        Self { check, claims: None }
    }
}
