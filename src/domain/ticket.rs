//! Confirmation tickets: the proof that a person confirmed one exact call (semantics, section 6).
//!
//! A ticket is a JWS in compact serialisation, HS256. The gate issues it and
//! the gate alone reads it, so that nothing of it is negotiable: the header is one
//! constant for each key, and the claims are one closed set.
//!
//! [`verify`] → [`Verified`] → [`Verified::matches`] → [`ConfirmedTicket`]. Each has a
//! private constructor. No claim can be read before the MAC has verified: until then
//! there is no [`Claims`], neither in the proof nor in the refusal.

mod check;
mod claims;
mod compact;
mod keys;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

use super::audit::Digest;
use super::contract::Confirmation;
use super::json::Value;
use super::proposal::Context;

pub use check::{Check, RefusedTicket};
pub use claims::Claims;
pub use compact::MAX_TICKET_BYTES;
pub use keys::{ArgumentsHash, ConfirmationKey, ConfirmationKeys, KeysFault};

/// What every ticket of this process is issued and judged by.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// How long a ticket lives, in whole seconds.
    pub ttl: Duration,
    /// How far into the future a ticket may have been confirmed, in whole seconds.
    pub skew: Duration,
    /// The id of the ledger that remembers the ticket's use: 1 to 64 bytes.
    pub audience: &'a str,
}

/// The call that a ticket is issued for, or is held against.
#[derive(Debug, Clone, Copy)]
pub struct CallInHand<'a> {
    /// Its id.
    pub tool_call_id: &'a str,
    /// The registered tool.
    pub tool: &'a str,
    /// The digest of that tool's contract in force.
    pub contract_digest: Digest,
    /// Whose call it is.
    pub context: &'a Context,
    /// The arguments as they were validated and will be sent.
    pub arguments: &'a Value,
}

/// A new ticket and what it says.
pub struct Issued {
    /// The ticket. Whoever holds it holds the confirmation.
    pub ticket: String,
    /// Its claims.
    pub claims: Claims,
}

/// A ticket that this gate signed, in its time, for this ledger, and not revoked.
/// Of what call it is, nothing is known yet.
#[derive(Debug)]
pub struct Verified<'k> {
    claims: Claims,
    key: &'k ConfirmationKey,
}

/// The proof that the call in hand was confirmed. Whether the ticket is spent, the ledger knows.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfirmedTicket {
    claims: Claims,
    key_id: Arc<str>,
}

/// Somebody tried to confirm who may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MayNotConfirm;

/// Signs a confirmation with the first key, as of `now` in whole seconds.
///
/// That `confirmed_by` may confirm ([`may_confirm`]) and that they saw these arguments is
/// the caller's to know. `confirmation_id` is a new random UUID.
#[must_use]
pub fn issue(
    keys: &ConfirmationKeys,
    confirmation_id: Uuid,
    call: &CallInHand<'_>,
    confirmed_by: &str,
    terms: &Terms<'_>,
    now: Timestamp,
) -> Issued {
    let key = keys.current();
    let confirmed_at = whole_seconds(now);
    let claims = Claims {
        confirmation_id: confirmation_id.hyphenated().to_string().into(),
        tool_call_id: call.tool_call_id.into(),
        tool: call.tool.into(),
        arguments_hash: key.arguments_hash(call.arguments),
        contract_digest: call.contract_digest,
        tenant_id: Arc::clone(&call.context.tenant_id),
        conversation_id: Arc::clone(&call.context.conversation_id),
        user_id: Arc::clone(&call.context.user_id),
        confirmed_by_user_id: confirmed_by.into(),
        confirmed_at,
        expires_at: confirmed_at.saturating_add(whole(terms.ttl)),
        purpose: call.tool.into(),
        audience: terms.audience.into(),
    };
    Issued { ticket: compact::sign(key, &claims.to_json()), claims }
}

/// Judges a ticket by itself, in the order of [`Check::ALL`], up to the call in hand.
///
/// `is_revoked` is asked last, with the confirmation's id.
///
/// # Errors
///
/// The first check that it does not pass.
pub fn verify<'k>(
    keys: &'k ConfirmationKeys,
    text: &str,
    terms: &Terms<'_>,
    now: Timestamp,
    is_revoked: impl FnOnce(&str) -> bool,
) -> Result<Verified<'k>, RefusedTicket> {
    // The MAC covers the payload's text: nothing of it is decoded before.
    let (key, payload) = compact::authenticate(keys, text)?;
    let claims = Claims::read(payload).ok_or(Check::Claims)?;
    match judge(&claims, terms, whole_seconds(now), is_revoked) {
        Ok(()) => Ok(Verified { claims, key }),
        Err(check) => Err(RefusedTicket::authentic(check, claims)),
    }
}

/// Whether a person may confirm a call in this user's conversation: the user alone, unless
/// the contract's `confirm_by` names a role that the person holds.
///
/// # Errors
///
/// [`MayNotConfirm`].
pub fn may_confirm<'r>(
    confirmation: &Confirmation,
    user_id: &str,
    confirmed_by: &str,
    roles: impl IntoIterator<Item = &'r str>,
) -> Result<(), MayNotConfirm> {
    let is_named = |role: &str| confirmation.confirm_by.as_deref() == Some(role);
    if confirmed_by == user_id || roles.into_iter().any(is_named) {
        Ok(())
    } else {
        Err(MayNotConfirm)
    }
}

impl Verified<'_> {
    /// What the ticket says.
    #[must_use]
    pub const fn claims(&self) -> &Claims {
        &self.claims
    }

    /// The id of the key that signed it.
    #[must_use]
    pub fn key_id(&self) -> &Arc<str> {
        self.key.id()
    }

    /// Holds the ticket against the call in hand, whose arguments are hashed here
    /// under the ticket's own key.
    ///
    /// # Errors
    ///
    /// The first difference, in the order of [`Check::ALL`].
    pub fn matches(self, call: &CallInHand<'_>) -> Result<ConfirmedTicket, RefusedTicket> {
        let claims = &self.claims;
        let differences = [
            (Check::CallId, *claims.tool_call_id == *call.tool_call_id),
            (Check::Tool, *claims.tool == *call.tool),
            (Check::Purpose, *claims.purpose == *call.tool),
            (Check::Tenant, claims.tenant_id == call.context.tenant_id),
            (Check::Conversation, claims.conversation_id == call.context.conversation_id),
            (Check::User, claims.user_id == call.context.user_id),
            (Check::Contract, is_same(&claims.contract_digest, &call.contract_digest)),
            (
                Check::Arguments,
                is_same(&claims.arguments_hash, &self.key.arguments_hash(call.arguments)),
            ),
        ];
        match differences.into_iter().find(|(_, is_equal)| !is_equal) {
            Some((check, _)) => Err(RefusedTicket::authentic(check, self.claims)),
            None => Ok(ConfirmedTicket { claims: self.claims, key_id: Arc::clone(self.key.id()) }),
        }
    }
}

impl ConfirmedTicket {
    /// What was confirmed, by whom and until when.
    #[must_use]
    pub const fn claims(&self) -> &Claims {
        &self.claims
    }

    /// The id of the key that signed it, and under which its arguments were hashed.
    #[must_use]
    pub const fn key_id(&self) -> &Arc<str> {
        &self.key_id
    }
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued").field("claims", &self.claims).finish_non_exhaustive()
    }
}

impl fmt::Display for MayNotConfirm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("only the user of the conversation, or a holder of the role that the contract names under confirm_by, may confirm this call")
    }
}

impl std::error::Error for MayNotConfirm {}

/// Lifetime, times, ledger and revocation. `now` is in whole seconds.
fn judge(
    claims: &Claims,
    terms: &Terms<'_>,
    now: i64,
    is_revoked: impl FnOnce(&str) -> bool,
) -> Result<(), Check> {
    if claims.confirmed_at.checked_add(whole(terms.ttl)) != Some(claims.expires_at) {
        return Err(Check::Lifetime);
    }
    if now >= claims.expires_at {
        return Err(Check::Expiry);
    }
    if claims.confirmed_at > now.saturating_add(whole(terms.skew)) {
        return Err(Check::ConfirmedAt);
    }
    if *claims.audience != *terms.audience {
        return Err(Check::Ledger);
    }
    if is_revoked(&claims.confirmation_id) {
        return Err(Check::Revocation);
    }
    Ok(())
}

/// Without telling by the time it takes how much is equal.
fn is_same(a: &Digest, b: &Digest) -> bool {
    a.0.ct_eq(&b.0).into()
}

/// The second in which a moment lies, before 1970 as well.
fn whole_seconds(moment: Timestamp) -> i64 {
    let second = moment.as_second();
    if moment.subsec_nanosecond() < 0 { second - 1 } else { second }
}

fn whole(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}
