//! Authentication: which principal a request comes from.
//!
//! A caller shows one identity: a bearer secret with the request, or a process's
//! or certificate's with the connection. Two that do not mean the same caller
//! are a conflict, and a conflict is nobody.

pub mod jwt;
pub mod jwt_keys;

use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tonic::Extensions;

use self::jwt::Issuers;
use super::from_wire;
use crate::domain::caller::{Caller, Rpc, User};
use crate::domain::identity::San;
use crate::domain::jwt::{Cause, Holder, has_form};
use crate::domain::proposal::Context;
use crate::domain::refused::Refused;
use crate::ports::Clock;
use crate::proto;

/// Longer credentials are not even hashed.
const MAX_CREDENTIAL_BYTES: usize = 4096;

/// The callers that the gate knows. Keeps digests of their secrets only.
#[derive(Default)]
pub struct Callers {
    secrets: Vec<([u8; 32], Arc<Caller>)>,
    processes: Vec<(ProcessMatch, Arc<Caller>)>,
    certificates: Vec<(San, Arc<Caller>)>,
    tokens: Option<(Arc<Issuers>, Arc<dyn Clock>)>,
}

/// Which processes on the Unix socket are a caller: those of this user, of this
/// group, or of both where both are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessMatch {
    /// The effective user id.
    pub uid: Option<u32>,
    /// The effective group id.
    pub gid: Option<u32>,
}

/// Which ways in a listener has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ways {
    /// Bearer secrets.
    pub secret: bool,
    /// The process at the other end of a Unix socket.
    pub process: bool,
    /// Client certificates.
    pub certificate: bool,
}

/// What a connection itself shows of who is at its other end.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The listener's ways in.
    pub ways: Ways,
    /// Who.
    pub identity: Identity,
}

/// An identity that a connection carries.
#[derive(Debug, Clone)]
pub enum Identity {
    /// None.
    Unknown,
    /// The process that connected to the Unix socket, as the kernel tells.
    Process {
        /// Its effective user id.
        uid: u32,
        /// Its effective group id.
        gid: u32,
    },
    /// The names of a verified client certificate.
    Certificate(Arc<[San]>),
}

/// Why nobody was recognised. A fixed word for the log; the caller is not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nobody {
    /// Nothing was shown.
    Missing,
    /// More than one authorization entry.
    Repeated,
    /// No `Bearer`, or nothing that a secret could be.
    Malformed,
    /// A secret that the gate does not know.
    UnknownSecret,
    /// A process that is no caller.
    UnknownProcess,
    /// A certificate whose names are no caller's.
    UnknownCertificate,
    /// Two identities that do not mean the same caller.
    Conflict,
    /// A token that no configured issuer's terms and keys hold for.
    Token(Cause),
    /// The listener does not take what was shown.
    WayClosed,
}

impl Ways {
    /// Every way that there is.
    pub const ALL: Self = Self { secret: true, process: true, certificate: true };
}

impl ProcessMatch {
    fn matches(self, uid: u32, gid: u32) -> bool {
        self.uid.is_none_or(|wanted| wanted == uid) && self.gid.is_none_or(|wanted| wanted == gid)
    }
}

impl Callers {
    /// Takes a caller that shows this secret.
    pub fn add_secret(&mut self, secret: &[u8], caller: Caller) {
        self.secrets.push((Sha256::digest(secret).into(), Arc::new(caller)));
    }

    /// Takes a caller that is these processes.
    pub fn add_process(&mut self, process: ProcessMatch, caller: Caller) {
        self.processes.push((process, Arc::new(caller)));
    }

    /// Takes a caller that shows a certificate of this name.
    pub fn add_certificate(&mut self, name: San, caller: Caller) {
        self.certificates.push((name, Arc::new(caller)));
    }

    /// Takes tokens of these issuers as well, judged by this clock. From then on what has
    /// the form of a token is not compared with any secret.
    pub fn take_tokens(&mut self, issuers: Arc<Issuers>, clock: Arc<dyn Clock>) {
        self.tokens = (!issuers.is_empty()).then_some((issuers, clock));
    }

    /// Recognises the caller by the one `authorization: Bearer …` entry (RFC 6750,
    /// section 2.1), by the connection, or by both where they mean the same.
    ///
    /// # Errors
    ///
    /// See [`Nobody`].
    pub fn authenticate(
        &self,
        headers: &HeaderMap,
        peer: Option<&Peer>,
    ) -> Result<Arc<Caller>, Nobody> {
        // What came through no listener has no way in.
        let peer = peer.ok_or(Nobody::WayClosed)?;
        let by_connection = self.by_connection(peer)?;
        let mut entries = headers.get_all(AUTHORIZATION).iter();
        let by_secret = match (entries.next(), entries.next()) {
            (None, _) => None,
            (Some(_), Some(_)) => return Err(Nobody::Repeated),
            (Some(_), None) if !peer.ways.secret => return Err(Nobody::WayClosed),
            (Some(entry), None) => Some(self.by_secret(entry.as_bytes())?),
        };
        match (by_secret, by_connection) {
            (None, Connected::Unknown(nobody)) => Err(nobody),
            (None, Connected::Nothing) => Err(Nobody::Missing),
            (Some(caller), Connected::Known(other)) if other != caller => Err(Nobody::Conflict),
            (Some(caller), _) | (None, Connected::Known(caller)) => Ok(caller),
        }
    }

    fn by_secret(&self, entry: &[u8]) -> Result<Arc<Caller>, Nobody> {
        let credential = bearer(entry).ok_or(Nobody::Malformed)?;
        if let Some((issuers, clock)) = &self.tokens
            && has_form(credential)
        {
            let holder = issuers.verify(credential, clock.now()).map_err(Nobody::Token)?;
            return Ok(Arc::new(holder.into()));
        }
        if credential.len() > MAX_CREDENTIAL_BYTES {
            return Err(Nobody::Malformed);
        }
        let shown: [u8; 32] = Sha256::digest(credential).into();
        // Every known secret is compared, in constant time, so that timing tells nothing of them.
        let mut found = None;
        for (digest, caller) in &self.secrets {
            if bool::from(digest.ct_eq(&shown)) {
                found = Some(caller);
            }
        }
        found.cloned().ok_or(Nobody::UnknownSecret)
    }

    fn by_connection(&self, peer: &Peer) -> Result<Connected, Nobody> {
        match &peer.identity {
            Identity::Process { uid, gid } if peer.ways.process => {
                let matching = self.processes.iter().filter(|(known, _)| known.matches(*uid, *gid));
                one_of(matching.map(|(_, caller)| caller), Nobody::UnknownProcess)
            }
            Identity::Certificate(names) if peer.ways.certificate => {
                let matching = self.certificates.iter().filter(|(known, _)| names.contains(known));
                one_of(matching.map(|(_, caller)| caller), Nobody::UnknownCertificate)
            }
            Identity::Unknown | Identity::Process { .. } | Identity::Certificate(_) => {
                Ok(Connected::Nothing)
            }
        }
    }
}

/// What a connection says of its caller.
enum Connected {
    /// Nothing that this listener takes.
    Nothing,
    /// An identity that is no caller's: a secret is needed as well.
    Unknown(Nobody),
    Known(Arc<Caller>),
}

/// The caller that all of these are.
fn one_of<'a>(
    mut callers: impl Iterator<Item = &'a Arc<Caller>>,
    unknown: Nobody,
) -> Result<Connected, Nobody> {
    let Some(first) = callers.next() else { return Ok(Connected::Unknown(unknown)) };
    if callers.all(|caller| caller == first) {
        Ok(Connected::Known(Arc::clone(first)))
    } else {
        Err(Nobody::Conflict)
    }
}

/// Lets a request through whose caller has the method's role.
///
/// # Errors
///
/// `UNAUTHENTICATED` without a caller, `PERMISSION_DENIED` without the role.
pub(super) fn require(extensions: &Extensions, rpc: Rpc) -> Result<&Caller, Refused> {
    let caller = extensions.get::<Arc<Caller>>().ok_or(Refused::Unauthenticated)?;
    caller.require(rpc).map(|()| &**caller)
}

/// The same, and takes the context, for which the caller must speak.
///
/// # Errors
///
/// Also where the context is outside its form, or another tenant's.
pub(super) fn context_for(
    extensions: &Extensions,
    rpc: Rpc,
    context: Option<proto::CallContext>,
) -> Result<Arc<Context>, Refused> {
    let caller = require(extensions, rpc)?;
    let context = from_wire::context(context.map(|context| complete(caller, context)))?;
    caller.speaks_for(rpc, &context).map(|()| context)
}

/// A tenant or user that the caller leaves out is its own, where it has one alone.
fn complete(caller: &Caller, mut context: proto::CallContext) -> proto::CallContext {
    if let (true, Some(user)) = (context.user_id.is_empty(), &caller.user) {
        context.user_id = user.id.to_string();
    }
    if let (true, Some(tenant)) = (context.tenant_id.is_empty(), caller.only_tenant()) {
        tenant.clone_into(&mut context.tenant_id);
    }
    context
}

impl From<Holder> for Caller {
    fn from(Holder { roles, tenants, user, user_roles }: Holder) -> Self {
        let user = user.map(|id| User { id, roles: user_roles.into() });
        Self { roles, tenants, user }
    }
}

impl Nobody {
    /// How they tried to be known, and what came of it: words for a label.
    pub(super) const fn labels(self) -> (&'static str, &'static str) {
        match self {
            Self::Missing | Self::Repeated | Self::Malformed => ("none", "unknown"),
            Self::UnknownSecret => ("secret", "unknown"),
            Self::UnknownProcess => ("process", "unknown"),
            Self::UnknownCertificate => ("certificate", "unknown"),
            Self::Conflict => ("several", "conflict"),
            Self::WayClosed => ("secret", "closed"),
            Self::Token(cause) => ("jwt", cause.as_str()),
        }
    }

    /// The word in logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "no identity was shown",
            Self::Repeated => "more than one authorization entry",
            Self::Malformed => "the authorization entry is malformed",
            Self::UnknownSecret => "unknown secret",
            Self::UnknownProcess => "unknown process",
            Self::UnknownCertificate => "unknown certificate",
            Self::Conflict => "two identities disagree",
            Self::Token(cause) => cause.as_str(),
            Self::WayClosed => "the listener does not take this way in",
        }
    }
}

impl fmt::Debug for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secrets: Vec<_> = self.secrets.iter().map(|(_, caller)| caller).collect();
        f.debug_struct("Callers")
            .field("secrets", &secrets)
            .field("processes", &self.processes)
            .field("certificates", &self.certificates)
            .field("issuers", &self.tokens.as_ref().map(|(issuers, _)| issuers))
            .finish()
    }
}

fn bearer(entry: &[u8]) -> Option<&[u8]> {
    let (scheme, credential) = entry.split_at_checked("Bearer ".len())?;
    let is_bearer = scheme.eq_ignore_ascii_case(b"Bearer ") && !credential.is_empty();
    is_bearer.then_some(credential)
}
