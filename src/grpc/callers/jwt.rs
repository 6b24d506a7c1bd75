//! Callers that show a JWT: which issuer's key has signed it, and what it is then worth.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use jiff::Timestamp;

use super::jwt_keys::VerificationKeys;
use crate::domain::jwt::{Cause, Claims, Holder, Terms, Token};

/// The most issuers of one gate.
pub const MAX_ISSUERS: usize = 16;

/// The issuers whose tokens the gate takes. Their keys can be replaced while it runs.
#[derive(Default)]
pub struct Issuers {
    entries: Vec<Issuer>,
}

struct Issuer {
    terms: Terms,
    keys: RwLock<Arc<VerificationKeys>>,
}

impl Issuers {
    /// Issuers with the keys they have at first.
    #[must_use]
    pub fn new(issuers: impl IntoIterator<Item = (Terms, VerificationKeys)>) -> Self {
        let issuer = |(terms, keys)| Issuer { terms, keys: RwLock::new(Arc::new(keys)) };
        Self { entries: issuers.into_iter().map(issuer).collect() }
    }

    /// Whether there is none, so that nothing is a token.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// From now on the issuer of this index has these keys alone. An index beyond
    /// the last is nobody's.
    pub fn replace_keys(&self, index: usize, keys: VerificationKeys) {
        if let Some(issuer) = self.entries.get(index) {
            *issuer.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
        }
    }

    /// Judges a token as of `now`.
    ///
    /// Several issuers may have a key of one id. The token is the one's whose key has
    /// signed it, by that key's algorithm, and whose `iss` and `aud` it carries; what
    /// two of them would take is for neither.
    ///
    /// # Errors
    ///
    /// The first [`Cause`], in the order in which they are found here.
    pub fn verify(&self, text: &[u8], now: Timestamp) -> Result<Holder, Cause> {
        let token = Token::read(text)?;
        let named = self.entries.iter().filter_map(|issuer| {
            let keys = issuer.keys();
            keys.algorithm(token.key_id()).map(|algorithm| (issuer, keys, algorithm))
        });
        let named = at_least_one(named.collect(), Cause::UnknownKey)?;
        let pinned = named.into_iter().filter(|(.., algorithm)| token.is_by(*algorithm));
        let pinned = at_least_one(pinned.collect(), Cause::Algorithm)?;
        let signed = pinned.into_iter().filter(|(_, keys, _)| keys.verify(&token));
        let signed = signed.map(|(issuer, ..)| &issuer.terms);
        let signed = at_least_one(signed.collect(), Cause::Signature)?;

        let claims = Claims::read(&token)?;
        let issued = signed.into_iter().filter(|terms| terms.is_issuer_of(&claims));
        let issued = at_least_one(issued.collect(), Cause::Issuer)?;
        let mut meant = issued.into_iter().filter(|terms| terms.is_audience_of(&claims));
        match (meant.next(), meant.next()) {
            (Some(terms), None) => terms.judge(&claims, now),
            _ => Err(Cause::Audience),
        }
    }
}

impl Issuer {
    fn keys(&self) -> Arc<VerificationKeys> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn at_least_one<T>(found: Vec<T>, otherwise: Cause) -> Result<Vec<T>, Cause> {
    if found.is_empty() { Err(otherwise) } else { Ok(found) }
}

impl fmt::Debug for Issuers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries.iter().map(|issuer| &issuer.terms.issuer)).finish()
    }
}
