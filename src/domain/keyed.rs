//! HMAC-SHA256 under keys that were absorbed once, when they were loaded.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::ZeroizeOnDrop;

use super::audit::Digest;
use super::canonical::canonical;
use super::json::Value;

/// The key behind `arguments_hash`: what a person confirmed is what runs.
#[derive(Clone)]
pub struct ArgumentsKey {
    id: Arc<str>,
    keyed: Keyed,
}

/// A key, and with it what it is used for: the label that begins every message.
///
/// Holds the two hash states after the key's blocks, so that a message costs
/// no key schedule. They are as secret as the key, and are zeroised on drop, as is
/// the buffer of a message that was begun. What the absorbing of the key
/// left on the stack is not ours to reach.
#[derive(Clone)]
pub(super) struct Keyed {
    state: Hmac<Sha256>,
}

impl ArgumentsKey {
    /// Names a derived 32-byte key. The caller zeroises its own copy.
    #[must_use]
    pub fn new(id: Arc<str>, key: &[u8; 32]) -> Self {
        Self { id, keyed: Keyed::new(key, b"toolgate-authorization-arguments-v1\0") }
    }

    /// The key's id, which stands beside every hash made with it.
    #[must_use]
    pub const fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// HMAC-SHA256(key, `toolgate-authorization-arguments-v1\0` ‖ C(v)).
    #[must_use]
    pub fn arguments_hash(&self, value: &Value) -> Digest {
        self.hash_canonical(&canonical(value))
    }

    /// The same, for who holds C(v) already.
    #[must_use]
    pub fn hash_canonical(&self, canonical: &[u8]) -> Digest {
        self.keyed.digest(canonical)
    }
}

impl fmt::Debug for ArgumentsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArgumentsKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Keyed {
    pub(super) fn new(key: &[u8; 32], label: &[u8]) -> Self {
        // An HMAC is two states and one buffer of its hash. This does not compile
        // where a feature of sha2 is lost that has them zeroised.
        const fn assert_zeroised<T: ZeroizeOnDrop>() {}
        const { assert_zeroised::<Sha256>() };

        let mut state = Hmac::new_from_slice(key)
            .unwrap_or_else(|_| unreachable!("HMAC takes a key of any length"));
        state.update(label);
        Self { state }
    }

    pub(super) fn digest(&self, message: &[u8]) -> Digest {
        let mut mac = self.state.clone();
        mac.update(message);
        Digest(mac.finalize().into_bytes().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_shows_its_id_and_nothing_of_itself() {
        let key = ArgumentsKey::new("c1".into(), &[0x5a; 32]);
        assert_eq!(format!("{key:?}"), r#"ArgumentsKey { id: "c1", .. }"#);
    }

    #[test]
    fn the_two_uses_of_one_key_have_nothing_in_common() {
        let arguments = ArgumentsKey::new("c1".into(), &[7; 32]);
        let audit = crate::domain::audit::AuditKey::new("c1".into(), &[7; 32]);
        assert_ne!(arguments.arguments_hash(&Value::Null), audit.digest(&Value::Null, &[]));
    }
}
