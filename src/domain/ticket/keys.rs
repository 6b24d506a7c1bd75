//! The keys that sign tickets and hash arguments.

use std::fmt;
use std::sync::Arc;

use super::compact;
use crate::domain::audit::{Digest, is_key_id};
use crate::domain::canonical::canonical;
use crate::domain::json::Value;
use crate::domain::keyed::{ArgumentsKey, Keyed};

/// Every key that is known: the first signs, all verify. Zeroised on drop.
///
/// A key that is not here any more denies at once what it signed.
#[derive(Clone)]
pub struct ConfirmationKeys {
    /// Never empty; each id once.
    keys: Vec<ConfirmationKey>,
}

/// What is derived from one confirmation secret. Zeroised on drop.
#[derive(Clone)]
pub struct ConfirmationKey {
    arguments: ArgumentsKey,
    signing: Keyed,
    /// The header segment of every ticket of this key.
    header: String,
}

/// A hash of arguments, and the key that it is made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgumentsHash {
    /// The key's id.
    pub key_id: Arc<str>,
    /// HMAC-SHA256(arguments key, `toolgate-authorization-arguments-v1\0` ‖ C(v)).
    pub hash: Digest,
}

/// Why keys cannot be used together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeysFault {
    /// There is none.
    Empty,
    /// An id is outside `[A-Za-z0-9][A-Za-z0-9_.-]{0,63}`.
    BadId(Arc<str>),
    /// Two keys have this id.
    IdTwice(Arc<str>),
}

impl ConfirmationKeys {
    /// Keys, the one that signs first.
    ///
    /// # Errors
    ///
    /// See [`KeysFault`].
    pub fn new(keys: Vec<ConfirmationKey>) -> Result<Self, KeysFault> {
        if keys.is_empty() {
            return Err(KeysFault::Empty);
        }
        for (index, key) in keys.iter().enumerate() {
            if keys[..index].iter().any(|earlier| earlier.id() == key.id()) {
                return Err(KeysFault::IdTwice(Arc::clone(key.id())));
            }
        }
        Ok(Self { keys })
    }

    /// The key that signs.
    #[must_use]
    pub fn current(&self) -> &ConfirmationKey {
        &self.keys[0]
    }

    /// The key of this id.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&ConfirmationKey> {
        self.keys.iter().find(|key| **key.id() == *id)
    }

    /// The ids, that of the signing key first.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = &Arc<str>> {
        self.keys.iter().map(ConfirmationKey::id)
    }

    /// The hash of these arguments under every key, that of the signing key first.
    #[must_use]
    pub fn arguments_hashes(&self, arguments: &Value) -> Vec<ArgumentsHash> {
        let canonical = canonical(arguments);
        let hash = |key: &ConfirmationKey| ArgumentsHash {
            key_id: Arc::clone(key.id()),
            hash: key.arguments.hash_canonical(&canonical),
        };
        self.keys.iter().map(hash).collect()
    }

    pub(super) fn with_header(&self, header: &str) -> Option<&ConfirmationKey> {
        self.keys.iter().find(|key| key.header == header)
    }
}

impl ConfirmationKey {
    /// Names two derived keys: one that signs, one that hashes arguments. The caller
    /// zeroises its own copies.
    ///
    /// # Errors
    ///
    /// [`KeysFault::BadId`].
    pub fn new(id: Arc<str>, signing: &[u8; 32], arguments: &[u8; 32]) -> Result<Self, KeysFault> {
        if !is_key_id(&id) {
            return Err(KeysFault::BadId(id));
        }
        // An id holds nothing that JSON would escape.
        let header = format!(r#"{{"alg":"HS256","kid":"{id}","typ":"toolgate-confirmation+jwt"}}"#);
        Ok(Self {
            arguments: ArgumentsKey::new(id, arguments),
            // RFC 7515 signs the text itself, without a label before it.
            signing: Keyed::new(signing, b""),
            header: compact::encode(&header),
        })
    }

    /// The key's id: the `kid` of its tickets.
    #[must_use]
    pub const fn id(&self) -> &Arc<str> {
        self.arguments.id()
    }

    /// The hash of these arguments.
    #[must_use]
    pub fn arguments_hash(&self, arguments: &Value) -> Digest {
        self.arguments.arguments_hash(arguments)
    }

    pub(super) fn header(&self) -> &str {
        &self.header
    }

    pub(super) fn sign(&self, text: &str) -> Digest {
        self.signing.digest(text.as_bytes())
    }
}

impl fmt::Debug for ConfirmationKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}

impl fmt::Debug for ConfirmationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfirmationKey").field("id", self.id()).finish_non_exhaustive()
    }
}

impl fmt::Display for KeysFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("there is no confirmation key"),
            Self::BadId(id) => write!(
                f,
                "{id:?} is no id for a key: use 1 to 64 of A-Z a-z 0-9 _ . - and start with a letter or digit"
            ),
            Self::IdTwice(id) => write!(f, "two confirmation keys have the id {id:?}"),
        }
    }
}

impl std::error::Error for KeysFault {}
