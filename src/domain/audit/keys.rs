//! The audit key and the digests made with it.

use std::fmt;
use std::sync::Arc;

use super::bounded::bounded;
use crate::domain::canonical::canonical;
use crate::domain::json::Value;
use crate::domain::keyed::Keyed;

/// 32 bytes, shown as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

/// The key behind `arguments_digest`, `result_digest` and `suggested_tool_hash`.
///
/// It can be correlated with, but never decides.
#[derive(Clone)]
pub struct AuditKey {
    id: Arc<str>,
    keyed: Keyed,
}

impl AuditKey {
    /// Names a derived 32-byte key. The caller zeroises its own copy.
    #[must_use]
    pub fn new(id: Arc<str>, key: &[u8; 32]) -> Self {
        Self { id, keyed: Keyed::new(key, b"toolgate-audit-payload-v1\0") }
    }

    /// The `audit_key_id` field.
    #[must_use]
    pub const fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// HMAC-SHA256(key, `toolgate-audit-payload-v1\0` ‖ C(B(v))), with further names to redact.
    #[must_use]
    pub fn digest(&self, value: &Value, also_redact: &[String]) -> Digest {
        self.keyed.digest(&canonical(&bounded(value, also_redact)))
    }
}

impl fmt::Debug for AuditKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Digest {
    /// Reads 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = value(pair[0])? << 4 | value(pair[1])?;
        }
        Some(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_digest_reads_back_what_it_shows_and_nothing_else() {
        let digest = Digest(std::array::from_fn(|index| index.to_le_bytes()[0] * 7));
        let shown = digest.to_string();
        assert_eq!(Digest::from_hex(&shown), Some(digest));
        assert_eq!(Digest::from_hex(&shown.to_uppercase()), None);
        assert_eq!(Digest::from_hex(&shown[1..]), None);
        assert_eq!(Digest::from_hex(&format!("{shown}0")), None);
        assert_eq!(Digest::from_hex(&shown.replace("0e", "0g")), None);
    }

    #[test]
    fn a_key_shows_its_id_and_nothing_of_itself() {
        let key = AuditKey::new("a1".into(), &[0x5a; 32]);
        assert_eq!(format!("{key:?}"), r#"AuditKey { id: "a1", .. }"#);
    }
}
