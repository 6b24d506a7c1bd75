//! Small files beside the journal that nobody without its key can have written.
//!
//! `mac` = HMAC-SHA256(journal key, label ‖ text), where the label names the kind
//! of file and ends in a zero byte. No label is the beginning of another, nor of
//! what a chain's link is made of but by guessing a `mac`.

use hmac::Mac as _;

use super::{Digest, JournalKey, JournalKeys};

/// What a sealed file is, so that one is never taken for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sealed {
    /// Where the records begin that are kept.
    Anchor,
    /// What is known of all records up to one.
    Checkpoint,
}

impl Sealed {
    const fn label(self) -> &'static [u8] {
        match self {
            Self::Anchor => b"toolgate-journal-anchor-v1\0",
            Self::Checkpoint => b"toolgate-journal-checkpoint-v1\0",
        }
    }
}

impl JournalKeys {
    /// The seal of a text, by the key that signs.
    #[must_use]
    pub fn seal(&self, kind: Sealed, text: &[u8]) -> Digest {
        let mac = self.current().mac([kind.label(), text, b""]);
        Digest(mac.finalize().into_bytes().into())
    }

    /// Who sealed the text, as [`Chain::signer`](super::Chain::signer) names it;
    /// `None` if none of the keys did.
    #[must_use]
    pub fn sealed_by(
        &self,
        kind: Sealed,
        text: &[u8],
        mac: &Digest,
        journal_id: &str,
    ) -> Option<Digest> {
        let sealed =
            |key: &&JournalKey| key.mac([kind.label(), text, b""]).verify_slice(&mac.0).is_ok();
        self.all().find(sealed).map(|key| key.origin(journal_id))
    }
}

#[cfg(test)]
mod tests {
    use super::super::JournalKey;
    use super::*;

    #[test]
    fn a_seal_is_of_its_text_its_kind_and_a_known_key() {
        let (old, new) = (JournalKey::new(&[7; 32]), JournalKey::new(&[8; 32]));
        let sealing = JournalKeys::from(old.clone());
        let mac = sealing.seal(Sealed::Anchor, b"text");
        let both = JournalKeys::new(new.clone(), [old]);
        let by = |keys: &JournalKeys, kind, text: &[u8]| keys.sealed_by(kind, text, &mac, "j");
        assert_eq!(by(&both, Sealed::Anchor, b"text"), Some(sealing.signer("j")));
        assert_eq!(by(&both, Sealed::Anchor, b"texT"), None);
        assert_eq!(by(&both, Sealed::Checkpoint, b"text"), None);
        assert_eq!(by(&JournalKeys::from(new), Sealed::Anchor, b"text"), None);
    }
}
