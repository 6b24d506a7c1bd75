//! Authentication: which role the bearer of a secret has.

use std::fmt;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tonic::Extensions;

use crate::domain::caller::{Role, Rpc};
use crate::domain::refused::Refused;

/// Longer credentials are not even hashed.
const MAX_CREDENTIAL_BYTES: usize = 4096;

/// The callers that the gate knows. Keeps digests of their secrets only.
pub struct Callers {
    known: Vec<(Role, [u8; 32])>,
}

/// An authenticated caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// What it may do.
    pub role: Role,
}

impl Callers {
    /// Each secret gives its bearer one role.
    #[must_use]
    pub fn new<'a>(credentials: impl IntoIterator<Item = (Role, &'a [u8])>) -> Self {
        let known = credentials
            .into_iter()
            .map(|(role, credential)| (role, Sha256::digest(credential).into()));
        Self { known: known.collect() }
    }

    /// Takes the caller from the one `authorization: Bearer …` entry (RFC 6750, section 2.1).
    ///
    /// # Errors
    ///
    /// `UNAUTHENTICATED` where it is absent, repeated, of another scheme or unknown.
    pub fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, Refused> {
        let mut entries = headers.get_all(AUTHORIZATION).iter();
        let (Some(entry), None) = (entries.next(), entries.next()) else {
            return Err(Refused::Unauthenticated);
        };
        let credential = bearer(entry.as_bytes()).ok_or(Refused::Unauthenticated)?;
        let shown: [u8; 32] = Sha256::digest(credential).into();
        // Every known secret is compared, in constant time, so that timing tells nothing of them.
        let mut role = None;
        for (known_role, digest) in &self.known {
            if bool::from(digest.ct_eq(&shown)) {
                role = Some(*known_role);
            }
        }
        role.map(|role| Caller { role }).ok_or(Refused::Unauthenticated)
    }
}

impl Caller {
    /// Lets the caller through to a method of its role.
    ///
    /// # Errors
    ///
    /// `PERMISSION_DENIED` otherwise.
    pub fn require(self, rpc: Rpc) -> Result<(), Refused> {
        if self.role.may_call(rpc) { Ok(()) } else { Err(Refused::RoleMissing) }
    }
}

/// Lets a request through whose caller has the method's role.
///
/// # Errors
///
/// `UNAUTHENTICATED` without a caller, `PERMISSION_DENIED` without the role.
pub(super) fn require(extensions: &Extensions, rpc: Rpc) -> Result<(), Refused> {
    extensions.get::<Caller>().ok_or(Refused::Unauthenticated)?.require(rpc)
}

impl fmt::Debug for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.known.iter().map(|(role, _)| role)).finish()
    }
}

fn bearer(entry: &[u8]) -> Option<&[u8]> {
    let (scheme, credential) = entry.split_at_checked("Bearer ".len())?;
    let fits = !credential.is_empty() && credential.len() <= MAX_CREDENTIAL_BYTES;
    (scheme.eq_ignore_ascii_case(b"Bearer ") && fits).then_some(credential)
}
