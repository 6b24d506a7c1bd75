//! The chain that binds every record to all before it.
//!
//! `mac` = HMAC-SHA256(journal key, previous `mac` ‖ record), where both are
//! bytes: the previous `mac` is 32 of them, and the record is its line without
//! `,"mac":"…"` and without the line end. Before the first record stands
//! HMAC-SHA256(journal key, `toolgate-journal-v1\0` ‖ `journal_id`). The key may
//! change from one record to the next: every record is signed with the key that
//! was current, and verified with any that is known. Without the key no
//! record can be edited, removed, inserted or moved, except that the newest
//! ones can be cut off: that shows only against a [`Head`] kept elsewhere.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::record::{read_record, write_mac, write_record};
use super::{Digest, Entry, RecordFault, Stamp};

/// The key behind the chain.
///
/// Holds the HMAC state after the key was absorbed. The state is zeroised on drop.
#[derive(Clone)]
pub struct JournalKey {
    keyed: Hmac<Sha256>,
}

/// The keys of a chain: the current one signs, all verify.
#[derive(Debug, Clone)]
pub struct JournalKeys {
    current: JournalKey,
    former: Vec<JournalKey>,
}

/// The newest record of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Its place, from 1; 0 before the first.
    pub sequence: u64,
    /// Its link, or what stands before the first record.
    pub mac: Digest,
}

/// A journal's chain up to its head.
#[derive(Debug, Clone)]
pub struct Chain {
    keys: JournalKeys,
    journal_id: Arc<str>,
    head: Head,
    /// The last signer, as [`Chain::signer`] names it, and its place among the
    /// keys, so that it is not named anew for each line.
    signer: Option<(usize, Digest)>,
}

/// The place of the key that signs, among the keys.
const CURRENT: usize = 0;

/// Keys without which records of the journal would not verify any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignerMissing;

/// Why a line does not continue the chain. Never holds a value of the line but its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainFault {
    /// It was not written here with this key.
    Broken,
    /// It reads as a record of another place.
    Misplaced {
        /// The place that it claims.
        found: u64,
    },
    /// It was written with this key but is no record of this journal.
    NotARecord(RecordFault),
}

impl JournalKey {
    /// Takes a derived 32-byte key.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Self {
        let keyed = Hmac::new_from_slice(key)
            .unwrap_or_else(|_| unreachable!("HMAC takes a key of any length"));
        Self { keyed }
    }

    /// What stands before the first record.
    pub(super) fn origin(&self, journal_id: &str) -> Digest {
        let mac = self.mac([b"toolgate-journal-v1\0", journal_id.as_bytes(), b""]);
        Digest(mac.finalize().into_bytes().into())
    }

    pub(super) fn mac(&self, parts: [&[u8]; 3]) -> Hmac<Sha256> {
        let mut mac = self.keyed.clone();
        for part in parts {
            mac.update(part);
        }
        mac
    }
}

impl JournalKeys {
    /// One key that signs, and those that signed before it.
    #[must_use]
    pub fn new(current: JournalKey, former: impl IntoIterator<Item = JournalKey>) -> Self {
        Self { current, former: former.into_iter().collect() }
    }

    /// Whether every record of these signers would verify.
    ///
    /// # Errors
    ///
    /// A signer is not among the keys.
    pub fn cover(&self, signers: &[Digest], journal_id: &str) -> Result<(), SignerMissing> {
        let known: Vec<Digest> = self.all().map(|key| key.origin(journal_id)).collect();
        if signers.iter().all(|signer| known.contains(signer)) {
            Ok(())
        } else {
            Err(SignerMissing)
        }
    }

    /// The key that signs, as [`Chain::signers`] names it.
    #[must_use]
    pub fn signer(&self, journal_id: &str) -> Digest {
        self.current.origin(journal_id)
    }

    /// The one that signs.
    pub(super) const fn current(&self) -> &JournalKey {
        &self.current
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &JournalKey> {
        std::iter::once(&self.current).chain(&self.former)
    }
}

impl From<JournalKey> for JournalKeys {
    fn from(key: JournalKey) -> Self {
        Self::new(key, [])
    }
}

impl fmt::Debug for JournalKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JournalKey").finish_non_exhaustive()
    }
}

impl Chain {
    /// The chain of a journal without records.
    #[must_use]
    pub fn new(keys: JournalKeys, journal_id: Arc<str>) -> Self {
        let head = Head { sequence: 0, mac: keys.current.origin(&journal_id) };
        Self { keys, journal_id, head, signer: None }
    }

    /// The chain of a journal whose records up to this one are known to verify.
    #[must_use]
    pub fn resume(keys: JournalKeys, journal_id: Arc<str>, head: Head) -> Self {
        match head.sequence {
            // What stands before the first record is the signing key's.
            0 => Self::new(keys, journal_id),
            _ => Self { keys, journal_id, head, signer: None },
        }
    }

    /// Signs and verifies with these keys from the next record on.
    pub fn use_keys(&mut self, keys: JournalKeys) {
        self.keys = keys;
        self.signer = None;
        if self.head.sequence == 0 {
            // What stands before the first record is the signing key's.
            self.head.mac = self.keys.current.origin(&self.journal_id);
        }
    }

    /// The key that signed the newest record, by what it puts before the first
    /// one; `None` before there is one.
    #[must_use]
    pub fn signer(&self) -> Option<Digest> {
        self.signer.map(|(_, signer)| signer)
    }

    /// The keys that sign and verify.
    #[must_use]
    pub const fn keys(&self) -> &JournalKeys {
        &self.keys
    }

    /// The newest record.
    #[must_use]
    pub const fn head(&self) -> Head {
        self.head
    }

    /// The journal.
    #[must_use]
    pub const fn journal_id(&self) -> &Arc<str> {
        &self.journal_id
    }

    /// Signs an entry as the next record and appends its line, with its line end.
    pub fn append(&mut self, lines: &mut Vec<u8>, entry: &Entry) -> Stamp {
        let sequence = self.head.sequence + 1;
        let start = lines.len();
        write_record(lines, entry, &self.journal_id, sequence);
        let link = self.keys.current.mac([&self.head.mac.0, &lines[start..], b""]);
        let mac = Digest(link.finalize().into_bytes().into());
        write_mac(lines, &mac);
        lines.push(b'\n');
        self.head = Head { sequence, mac };
        self.note_signer(CURRENT);
        Stamp { journal_id: Arc::clone(&self.journal_id), sequence, mac }
    }

    /// Reads a line, without its end, as the next record.
    ///
    /// # Errors
    ///
    /// Why it is not the next record; the chain stays where it was.
    pub fn verify(&mut self, line: &[u8]) -> Result<Entry, ChainFault> {
        let sequence = self.head.sequence + 1;
        let Some((mac, signer)) = self.verified_mac(line) else {
            // Only to say more about a line that is refused already.
            return Err(match read_record(line) {
                Ok((_, stamp)) if stamp.sequence != sequence => {
                    ChainFault::Misplaced { found: stamp.sequence }
                }
                _ => ChainFault::Broken,
            });
        };
        let (entry, stamp) = read_record(line).map_err(ChainFault::NotARecord)?;
        if stamp.sequence != sequence {
            return Err(ChainFault::Misplaced { found: stamp.sequence });
        }
        if stamp.journal_id != self.journal_id {
            return Err(ChainFault::NotARecord(RecordFault::Field("journal_id")));
        }
        self.head = Head { sequence, mac };
        self.note_signer(signer);
        Ok(entry)
    }

    fn note_signer(&mut self, place: usize) {
        if self.signer.is_none_or(|(last, _)| last != place) {
            let key = self.keys.all().nth(place);
            self.signer = key.map(|key| (place, key.origin(&self.journal_id)));
        }
    }

    /// The line's `mac`, and the place among the keys of the one behind it.
    fn verified_mac(&self, line: &[u8]) -> Option<(Digest, usize)> {
        let (line, digits) = line.strip_suffix(b"\"}")?.split_last_chunk::<64>()?;
        let record = line.strip_suffix(b",\"mac\":\"")?;
        let mac = Digest::from_hex(str::from_utf8(digits).ok()?)?;
        let verifies = |key: &JournalKey| {
            // What stands before the first record depends on the key that signed it.
            let previous = match self.head.sequence {
                0 => key.origin(&self.journal_id),
                _ => self.head.mac,
            };
            key.mac([&previous.0, record, b"}"]).verify_slice(&mac.0).is_ok()
        };
        Some((mac, self.keys.all().position(verifies)?))
    }
}

impl fmt::Display for SignerMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key that signed records of the journal is missing")
    }
}

impl std::error::Error for SignerMissing {}

impl fmt::Display for ChainFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken => f.write_str(
                "the record does not verify: it was edited or inserted, a record before it was \
                 removed, or the audit secret is not the one it was written with",
            ),
            Self::Misplaced { found } => write!(
                f,
                "the record of sequence {found} stands here: records were removed, repeated or moved"
            ),
            Self::NotARecord(fault) => write!(f, "the record verifies but cannot be read: {fault}"),
        }
    }
}

impl std::error::Error for ChainFault {}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

    use super::super::samples;
    use super::*;

    fn chain() -> Chain {
        Chain::new(JournalKey::new(&[7; 32]).into(), "0190a8f0-0000-4000-8000-000000000000".into())
    }

    /// Three records, each without its line end.
    fn lines() -> Vec<Vec<u8>> {
        let mut signed = Vec::new();
        let mut writer = chain();
        for event in [samples::started("a"), samples::completed("a"), samples::started("b")] {
            writer.append(&mut signed, &samples::entry(event));
        }
        signed
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(<[u8]>::to_vec)
            .collect()
    }

    #[test]
    fn a_link_is_the_hmac_of_the_previous_link_and_the_line_without_it() {
        fn hmac(parts: &[&[u8]]) -> [u8; 32] {
            let mut mac = Hmac::<Sha256>::new_from_slice(&[7; 32]).unwrap();
            for part in parts {
                mac.update(part);
            }
            mac.finalize().into_bytes().into()
        }
        let mut previous =
            hmac(&[b"toolgate-journal-v1\0", b"0190a8f0-0000-4000-8000-000000000000"]);
        assert_eq!(chain().head(), Head { sequence: 0, mac: Digest(previous) });
        for line in lines() {
            let text = String::from_utf8(line).unwrap();
            let (record, mac) = text.split_once(",\"mac\":\"").unwrap();
            previous = hmac(&[&previous, record.as_bytes(), b"}"]);
            assert_eq!(mac, format!("{}\"}}", Digest(previous)));
        }
    }

    #[test]
    fn a_line_verifies_only_in_its_place() {
        let lines = lines();
        let mut reader = chain();
        assert_eq!(reader.verify(&lines[1]), Err(ChainFault::Misplaced { found: 2 }));
        assert_eq!(reader.verify(&lines[0]), Ok(samples::entry(samples::started("a"))));
        assert_eq!(reader.verify(&lines[0]), Err(ChainFault::Misplaced { found: 1 }));
        assert_eq!(reader.verify(&lines[1]), Ok(samples::entry(samples::completed("a"))));
        assert_eq!(reader.verify(&lines[2]), Ok(samples::entry(samples::started("b"))));
        assert_eq!(reader.head().sequence, 3);
    }

    #[test]
    fn records_of_a_former_key_verify_until_it_is_removed() {
        let former = lines();
        let id = chain().journal_id().clone();
        let (old, new) = (JournalKey::new(&[7; 32]), JournalKey::new(&[8; 32]));
        let mut rotated = Chain::new(JournalKeys::new(new.clone(), [old]), Arc::clone(&id));
        for line in &former {
            assert!(rotated.verify(line).is_ok());
        }
        let mut signed = Vec::new();
        rotated.append(&mut signed, &samples::entry(samples::completed("b")));
        let signed = signed.strip_suffix(b"\n").unwrap();

        let mut with_both = chain();
        with_both.keys.former.push(new.clone());
        for line in &former {
            assert!(with_both.verify(line).is_ok());
        }
        assert_eq!(with_both.clone().verify(signed), Ok(samples::entry(samples::completed("b"))));
        with_both.keys.former.clear();
        assert_eq!(with_both.verify(signed), Err(ChainFault::Broken));
        let mut without_old = Chain::new(new.into(), id);
        assert_eq!(without_old.verify(&former[0]), Err(ChainFault::Broken));
    }

    #[test]
    fn a_chain_changes_its_key_between_two_records() {
        let id = chain().journal_id().clone();
        let (old, new) = (JournalKey::new(&[7; 32]), JournalKey::new(&[8; 32]));
        let both = JournalKeys::new(new.clone(), [old.clone()]);
        for before in 0..3 {
            let mut writer = chain();
            let mut signed = Vec::new();
            for place in 0..3 {
                if place == before {
                    writer.use_keys(both.clone());
                }
                writer.append(&mut signed, &samples::entry(samples::started("a")));
            }
            let mut reader = Chain::new(both.clone(), Arc::clone(&id));
            let mut signers = Vec::new();
            for line in signed.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                assert!(reader.verify(line).is_ok(), "changed before record {before}");
                signers.extend(reader.signer());
            }
            assert_eq!(signers.len(), 3);
            assert_eq!(writer.signer(), Some(signers[2]));
            signers.dedup();
            // The keys that are needed from now on are those that have signed.
            let signers = &signers;
            assert_eq!(signers.len(), if before == 0 { 1 } else { 2 });
            assert_eq!(both.cover(signers, &id), Ok(()));
            let only_new = JournalKeys::from(new.clone());
            assert_eq!(only_new.cover(signers, &id).is_ok(), before == 0);
            assert_eq!(JournalKeys::from(old.clone()).cover(signers, &id), Err(SignerMissing));
        }
    }

    #[test]
    fn every_changed_byte_is_found_and_moves_nothing() {
        let line = &lines()[0];
        for at in 0..line.len() {
            for flip in [0x01, 0x20, 0x80] {
                let mut edited = line.clone();
                edited[at] ^= flip;
                let mut reader = chain();
                assert!(reader.verify(&edited).is_err(), "byte {at} ^ {flip:#x}");
                assert_eq!(reader.head().sequence, 0);
            }
            assert!(chain().verify(&line[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn another_key_or_journal_verifies_nothing() {
        let line = &lines()[0];
        let mut other =
            Chain::new(JournalKey::new(&[8; 32]).into(), Arc::clone(chain().journal_id()));
        assert_eq!(other.verify(line), Err(ChainFault::Broken));
        let mut other = Chain::new(JournalKey::new(&[7; 32]).into(), "other".into());
        assert_eq!(other.verify(line), Err(ChainFault::Broken));
    }
}
