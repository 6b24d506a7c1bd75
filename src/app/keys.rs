//! From secrets to the keys that are derived from them (semantics, section 6).

use std::sync::Arc;

use crate::config::{KeySecrets, Secret};
use crate::domain::audit::{AuditKey, Digest, JournalKey, JournalKeys, KeyPurpose};
use crate::domain::json::Value;
use crate::domain::ticket::{ConfirmationKey, ConfirmationKeys, KeysFault};

const AUDIT_PURPOSE: &str = "toolgate/audit/v1";
const JOURNAL_PURPOSE: &str = "toolgate/journal/v1";
const CONFIRMATION_PURPOSE: &str = "toolgate/confirmation/v1";
const ARGUMENTS_PURPOSE: &str = "toolgate/arguments/v1";

/// A key as it is told of, and what tells it from another under its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KnownKey {
    pub(super) purpose: KeyPurpose,
    pub(super) id: Arc<str>,
    pub(super) signs: bool,
    /// What the key makes of nothing. Says no more of it than any digest does.
    pub(super) print: Digest,
}

/// The key that digests, and the chain's keys, the one that signs first.
#[must_use]
pub fn audit_keys(secrets: &KeySecrets) -> (AuditKey, JournalKeys) {
    let chain = |(_, secret): &(Arc<str>, Secret)| JournalKey::new(&secret.derive(JOURNAL_PURPOSE));
    let former = secrets.former.iter().map(chain);
    (audit_key(&secrets.current), JournalKeys::new(chain(&secrets.current), former))
}

/// The keys of tickets and arguments hashes, the one that signs first.
///
/// # Errors
///
/// Where they do not go together.
pub fn confirmation_keys(secrets: &KeySecrets) -> Result<ConfirmationKeys, KeysFault> {
    ConfirmationKeys::new(all(secrets).map(confirmation_key).collect::<Result<_, _>>()?)
}

/// The keys of both purposes, of each the one that signs first.
pub(super) fn known_keys(
    audit: &KeySecrets,
    confirmation: Option<&KeySecrets>,
) -> Result<Vec<KnownKey>, KeysFault> {
    let mut known = Vec::new();
    for (place, key) in all(audit).enumerate() {
        let print = audit_key(key).digest(&Value::Null, &[]);
        let id = Arc::clone(&key.0);
        known.push(KnownKey { purpose: KeyPurpose::Audit, id, signs: place == 0, print });
    }
    for (place, key) in confirmation.into_iter().flat_map(all).enumerate() {
        let print = confirmation_key(key)?.arguments_hash(&Value::Null);
        let id = Arc::clone(&key.0);
        known.push(KnownKey { purpose: KeyPurpose::Confirmation, id, signs: place == 0, print });
    }
    Ok(known)
}

fn all(secrets: &KeySecrets) -> impl Iterator<Item = &(Arc<str>, Secret)> {
    std::iter::once(&secrets.current).chain(&secrets.former)
}

fn audit_key((id, secret): &(Arc<str>, Secret)) -> AuditKey {
    AuditKey::new(Arc::clone(id), &secret.derive(AUDIT_PURPOSE))
}

fn confirmation_key((id, secret): &(Arc<str>, Secret)) -> Result<ConfirmationKey, KeysFault> {
    let signing = secret.derive(CONFIRMATION_PURPOSE);
    let arguments = secret.derive(ARGUMENTS_PURPOSE);
    ConfirmationKey::new(Arc::clone(id), &signing, &arguments)
}
