//! `anchor.json`: where the records begin, once retention has deleted the first ones.
//!
//! It is durable before the first file goes, so that what is left verifies from
//! its first record on whenever the process dies. What a start must know of the
//! deleted records stands in it too.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::disk::{Directory, Segment};
use super::error::{ManifestCause, OpenError};
use super::sealed::{self, SealFault};
use crate::domain::audit::{Digest, Head, JournalKeys, Sealed};

/// The only format so far.
const FORMAT: u64 = 1;

/// The beginning of the kept records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Anchor {
    /// The last record that was deleted.
    pub(super) last_deleted: Head,
    /// The latest time among the events that were deleted.
    pub(super) newest: Option<Timestamp>,
    /// When there last was among them what a ledger must know of.
    pub(super) newest_recorded: Option<Timestamp>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: u64,
    journal_id: String,
    last_deleted: u64,
    last_deleted_mac: String,
    newest: Option<Timestamp>,
    newest_recorded: Option<Timestamp>,
    /// The keys that the kept records need, for who looks for them.
    signers: Vec<String>,
}

impl Anchor {
    /// The file's text.
    pub(super) fn seal(
        &self,
        keys: &JournalKeys,
        journal_id: &str,
        signers: &[Digest],
    ) -> std::io::Result<Vec<u8>> {
        let file = File {
            format: FORMAT,
            journal_id: journal_id.to_owned(),
            last_deleted: self.last_deleted.sequence,
            last_deleted_mac: self.last_deleted.mac.to_string(),
            newest: self.newest,
            newest_recorded: self.newest_recorded,
            signers: signers.iter().map(Digest::to_string).collect(),
        };
        sealed::seal(Sealed::Anchor, keys, &file)
    }

    /// The journal's anchor and who sealed it; `None` where nothing was deleted.
    pub(super) fn read(
        directory: &Directory,
        keys: &JournalKeys,
        journal_id: &str,
    ) -> Result<Option<(Self, Digest)>, OpenError> {
        let path = directory.anchor();
        let fault = |fault, cause| OpenError::Manifest { path: path.clone(), fault, cause };
        let read = sealed::read::<File>(&path, Sealed::Anchor, keys, journal_id);
        let (file, signer) = match read {
            Ok(None) => return Ok(None),
            Ok(Some(found)) => found,
            Err(SealFault::Io(error)) => {
                return Err(OpenError::io("reading the file", &path)(error));
            }
            Err(SealFault::Broken) => {
                return Err(fault(
                    "it does not verify: it was edited, or the key that sealed it is not among \
                     audit.keys",
                    ManifestCause::Changed,
                ));
            }
            Err(SealFault::Content) => {
                return Err(fault(
                    "it is of another version of toolgate",
                    ManifestCause::OtherVersion,
                ));
            }
        };
        let mac = Digest::from_hex(&file.last_deleted_mac);
        match mac.filter(|_| file.format == FORMAT && file.journal_id == journal_id) {
            Some(mac) => {
                let last_deleted = Head { sequence: file.last_deleted, mac };
                let File { newest, newest_recorded, .. } = file;
                Ok(Some((Self { last_deleted, newest, newest_recorded }, signer)))
            }
            None => Err(fault(
                "it is of another journal, or of another version of toolgate",
                ManifestCause::OtherVersion,
            )),
        }
    }

    /// Whether the segments that are kept begin where the anchor says, or without
    /// one with the first record of all.
    pub(super) fn check(
        anchor: Option<&Self>,
        kept: &[Segment],
        directory: &Directory,
    ) -> Result<(), OpenError> {
        let found = kept.first().map(|segment| segment.first_sequence);
        match (anchor, found) {
            (None, Some(first)) if first != 1 => {
                Err(OpenError::Unanchored { path: directory.anchor(), first })
            }
            (Some(anchor), found) if found != Some(anchor.last_deleted.sequence + 1) => {
                let sequence = anchor.last_deleted.sequence + 1;
                let (path, anchor) = (directory.segment(sequence), directory.anchor());
                Err(OpenError::FirstGone { path, anchor, sequence })
            }
            _ => Ok(()),
        }
    }
}
