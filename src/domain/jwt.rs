//! A caller's JWT: its form, and what its claims are worth (semantics, section 9).
//!
//! Pure: signatures are verified in [`grpc`](crate::grpc), with keys from the
//! configuration. Nothing in the token chooses the algorithm or the key beyond
//! naming one, and nothing of the payload is decoded before the signature holds.
//!
//! [`Token::read`] → signature → [`Claims::read`] → [`Terms::judge`] → [`Holder`].

mod claims;
mod token;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::caller::{Roles, Tenants};

pub use claims::Claims;
pub use token::{Token, has_form};

/// The most bytes of a token. Access tokens with groups in them pass 4 KiB; a
/// request's head may have 16 KiB in all.
pub const MAX_TOKEN_BYTES: usize = 8_192;

/// The longest `kid`, in bytes.
pub const MAX_KEY_ID_BYTES: usize = 256;

/// The most roles, tenants or roles of a user in one token.
pub const MAX_NAMES: usize = 256;

/// Signature algorithms that a key can be for. Asymmetric only: what the gate
/// could verify with a shared secret, whoever reads its files could sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "RFC 7518, section 3.1 and RFC 8037, section 3.1 name them")]
pub enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

/// What one issuer's tokens must say, and what is made of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// `iss`, exactly.
    pub issuer: String,
    /// One of them is in `aud`, exactly.
    pub audiences: Vec<String>,
    /// The accepted `typ`s; `None`: absent, `JWT` or `at+jwt`.
    pub types: Option<Vec<String>>,
    /// How far the issuer's clock may be off, in seconds.
    pub leeway: i64,
    /// Where the tenants are.
    pub tenants: TenantsFrom,
    /// The claim that names the user; `None`: a service that speaks for its users.
    pub user: Option<Claim>,
    /// The claim with what `roles` maps.
    pub roles_claim: Claim,
    /// What gives which roles. What is not here gives none.
    pub roles: BTreeMap<String, Roles>,
    /// The claim with the user's own roles, for `confirm_by`.
    pub user_roles: Option<Claim>,
    /// Whether one token may propose and confirm.
    pub allows_self_confirmation: bool,
}

/// Where a token's tenants are from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantsFrom {
    /// A claim: one text, or several in a list.
    Claim(Claim),
    /// The configuration, whatever the token says.
    Fixed(Tenants),
}

/// Where a claim is: its name, or a JSON Pointer to a member of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim(Vec<String>);

/// Who shows a token that held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// What it may do.
    pub roles: Roles,
    /// Whom it may do it for.
    pub tenants: Tenants,
    /// The user that it is.
    pub user: Option<Arc<str>>,
    /// That user's own roles.
    pub user_roles: Vec<String>,
}

/// Why a token was refused. For the log and a label; the caller is not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// Not three segments of base64url, not strict JSON, too long, or with `crit`.
    Malformed,
    /// No key of this `kid`.
    UnknownKey,
    /// Not the algorithm that the key is for.
    Algorithm,
    /// The signature is not the key's.
    Signature,
    /// `iss` is not the issuer whose key signed.
    Issuer,
    /// `aud` does not name this gate, or names it twice over.
    Audience,
    /// A token of another kind.
    Type,
    /// `exp` is over.
    Expired,
    /// `nbf` or `iat` is still to come.
    NotYetValid,
    /// A claim is missing or outside its form, or both proposes and confirms.
    Claims,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 9] = [
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
        Self::Es256,
        Self::Es384,
        Self::EdDsa,
    ];

    /// The registered name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
        }
    }
}

impl Claim {
    /// The claim that a text names: a JSON Pointer (RFC 6901) if it begins with `/`, else a name.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let unescaped = |part: &str| part.replace("~1", "/").replace("~0", "~");
        Self(text.strip_prefix('/').map_or_else(
            || vec![text.to_owned()],
            |pointer| pointer.split('/').map(unescaped).collect(),
        ))
    }
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 10] = [
        Self::Malformed,
        Self::UnknownKey,
        Self::Algorithm,
        Self::Signature,
        Self::Issuer,
        Self::Audience,
        Self::Type,
        Self::Expired,
        Self::NotYetValid,
        Self::Claims,
    ];

    /// The word in logs and labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownKey => "unknown_key",
            Self::Algorithm => "algorithm",
            Self::Signature => "signature",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
            Self::Type => "typ",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::Claims => "claims",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
