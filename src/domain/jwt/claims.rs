//! What the claims of a verified token say, held against its issuer's terms.

use std::sync::Arc;

use jiff::Timestamp;

use super::token::{self, Token};
use super::{Cause, Claim, Holder, MAX_NAMES, TenantsFrom, Terms};
use crate::domain::caller::{Roles, Tenants};
use crate::domain::json::{Object, Value};
use crate::domain::proposal::is_context_text;

/// The payload of a token whose signature has been verified.
#[derive(Debug)]
pub struct Claims {
    payload: Object,
    kind: Option<String>,
}

/// What is accepted as `typ` where the configuration says nothing: access tokens
/// by RFC 9068, and what most issuers write instead.
const TYPES: [&str; 2] = ["at+jwt", "jwt"];

impl Claims {
    /// Decodes the payload. That the signature holds is the caller's to know.
    ///
    /// # Errors
    ///
    /// [`Cause::Malformed`].
    pub fn read(verified: &Token<'_>) -> Result<Self, Cause> {
        let kind = verified.kind().map(str::to_owned);
        token::object(verified.payload()).map(|payload| Self { payload, kind })
    }

    fn at(&self, claim: &Claim) -> Option<&Value> {
        let (name, members) = claim.0.split_first()?;
        members.iter().try_fold(self.payload.get(name)?, |value, member| value.get(member))
    }

    /// A time in seconds, rounded by `round` where it is no whole number (RFC 7519, section 2).
    #[allow(clippy::cast_possible_truncation, reason = "saturates: finite, rounded")]
    fn time(&self, name: &str, round: fn(f64) -> f64) -> Result<Option<i64>, Cause> {
        match self.payload.get(name) {
            None => Ok(None),
            Some(Value::Integer(seconds)) => Ok(Some(*seconds)),
            Some(Value::Double(seconds)) => Ok(Some(round(*seconds) as i64)),
            Some(_) => Err(Cause::Claims),
        }
    }
}

impl Terms {
    /// Whether the token says that this issuer made it.
    #[must_use]
    pub fn is_issuer_of(&self, claims: &Claims) -> bool {
        claims.payload.get("iss").and_then(Value::as_str) == Some(&self.issuer)
    }

    /// Whether the token is meant for this gate.
    #[must_use]
    pub fn is_audience_of(&self, claims: &Claims) -> bool {
        let is_ours = |value: &Value| {
            value.as_str().is_some_and(|text| self.audiences.iter().any(|ours| ours == text))
        };
        match claims.payload.get("aud") {
            Some(Value::Array(audiences)) => audiences.iter().any(is_ours),
            Some(audience) => is_ours(audience),
            None => false,
        }
    }

    /// Judges a token that is this issuer's and for this gate.
    ///
    /// # Errors
    ///
    /// The first of `Issuer`, `Audience`, `Type`, `Expired`, `NotYetValid` and `Claims`.
    pub fn judge(&self, claims: &Claims, now: Timestamp) -> Result<Holder, Cause> {
        if !self.is_issuer_of(claims) {
            return Err(Cause::Issuer);
        }
        if !self.is_audience_of(claims) {
            return Err(Cause::Audience);
        }
        if !self.takes_type(claims.kind.as_deref()) {
            return Err(Cause::Type);
        }
        self.is_in_time(claims, now)?;
        self.holder(claims)
    }

    /// Media types are compared without case, and may leave out `application/`
    /// (RFC 7515, section 4.1.9).
    fn takes_type(&self, kind: Option<&str>) -> bool {
        let short = |kind: &str| {
            let kind = kind.to_ascii_lowercase();
            kind.strip_prefix("application/").map_or(kind.clone(), str::to_owned)
        };
        match (&self.types, kind) {
            (None, None) => true,
            (None, Some(kind)) => TYPES.contains(&short(kind).as_str()),
            (Some(_), None) => false,
            (Some(types), Some(kind)) => types.iter().any(|ours| short(ours) == short(kind)),
        }
    }

    /// In whole seconds, now floored: valid while `now < exp + leeway`, from
    /// `nbf - leeway` and `iat - leeway` on.
    fn is_in_time(&self, claims: &Claims, now: Timestamp) -> Result<(), Cause> {
        let now = now.as_microsecond().div_euclid(1_000_000);
        let expires = claims.time("exp", f64::floor)?.ok_or(Cause::Claims)?;
        let begins = claims.time("nbf", f64::ceil)?;
        let issued = claims.time("iat", f64::ceil)?;
        if now >= expires.saturating_add(self.leeway) {
            return Err(Cause::Expired);
        }
        let is_to_come = |time: i64| now < time.saturating_sub(self.leeway);
        if begins.is_some_and(is_to_come) || issued.is_some_and(is_to_come) {
            return Err(Cause::NotYetValid);
        }
        Ok(())
    }

    fn holder(&self, claims: &Claims) -> Result<Holder, Cause> {
        let roles: Roles = names(claims.at(&self.roles_claim), Some(' '))?
            .into_iter()
            .filter_map(|name| self.roles.get(name))
            .flat_map(|roles| roles.iter())
            .collect();
        if roles.may_confirm_its_own() && !self.allows_self_confirmation {
            return Err(Cause::Claims);
        }
        let tenants = match &self.tenants {
            TenantsFrom::Claim(claim) => {
                let tenants = names(claims.at(claim), None)?;
                if tenants.is_empty() || !tenants.iter().all(|tenant| is_context_text(tenant)) {
                    return Err(Cause::Claims);
                }
                Tenants::Only(Arc::new(tenants.into_iter().map(Arc::from).collect()))
            }
            TenantsFrom::Fixed(tenants) => tenants.clone(),
        };
        let user = match &self.user {
            None => None,
            Some(claim) => {
                let user = claims.at(claim).and_then(Value::as_str);
                Some(user.filter(|user| is_context_text(user)).ok_or(Cause::Claims)?.into())
            }
        };
        let user_roles = match &self.user_roles {
            None => Vec::new(),
            Some(claim) => {
                names(claims.at(claim), Some(' '))?.into_iter().map(str::to_owned).collect()
            }
        };
        Ok(Holder { roles, tenants, user, user_roles })
    }
}

/// The names in a claim: the texts of a list, or of one text what `separator` parts,
/// as in `scope` (RFC 8693, section 4.2). None where the claim is absent.
fn names(value: Option<&Value>, separator: Option<char>) -> Result<Vec<&str>, Cause> {
    let names: Vec<&str> = match (value, separator) {
        (None, _) => Vec::new(),
        (Some(Value::String(text)), None) => vec![text],
        (Some(Value::String(text)), Some(separator)) => {
            text.split(separator).filter(|name| !name.is_empty()).collect()
        }
        (Some(Value::Array(items)), _) => {
            items.iter().map(|item| item.as_str().ok_or(Cause::Claims)).collect::<Result<_, _>>()?
        }
        (Some(_), _) => return Err(Cause::Claims),
    };
    if names.len() > MAX_NAMES { Err(Cause::Claims) } else { Ok(names) }
}
