//! `checkpoints/`: what is known of all records up to one, so that a start need
//! not read them again.
//!
//! A checkpoint is written only once all records up to its own are synced, and is
//! believed only under the journal's key. It is an aid: one that is missing, torn
//! or does not verify costs time and nothing else. One that verifies and tells of
//! records that are not there shows that they were taken away.

use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::disk::Directory;
use super::kept::{Kept, Span};
use super::sealed;
use crate::domain::audit::{
    Digest, Entry, Head, JournalKeys, OpenPair, Sealed, read_record, write_line,
};

/// The only format so far.
const FORMAT: u64 = 1;

/// With more pairs open than this no checkpoint is written.
pub(super) const MAX_OPEN: usize = 4_096;

/// What is known of all records up to one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Checkpoint {
    /// The last of the records.
    pub(super) head: Head,
    /// The segments that hold them. The last one's bytes are where the next record begins.
    pub(super) kept: Vec<Kept>,
    /// The pairs that are open, oldest first.
    pub(super) open: Vec<OpenPair>,
    /// When there last was what a ledger must know of, but for the open pairs.
    pub(super) newest_ended: Option<Timestamp>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: u64,
    journal_id: String,
    sequence: u64,
    /// The link of the record.
    link: String,
    newest_ended: Option<Timestamp>,
    segments: Vec<Segment>,
    /// The lines of the started events.
    open: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Segment {
    first: u64,
    previous: Option<String>,
    bytes: u64,
    times: Option<(Timestamp, Timestamp)>,
    signers: Vec<String>,
}

impl Checkpoint {
    /// The file's text.
    pub(super) fn seal(&self, keys: &JournalKeys, journal_id: &str) -> std::io::Result<Vec<u8>> {
        let file = File {
            format: FORMAT,
            journal_id: journal_id.to_owned(),
            sequence: self.head.sequence,
            link: self.head.mac.to_string(),
            newest_ended: self.newest_ended,
            segments: self.kept.iter().map(Segment::of).collect(),
            open: self.open.iter().map(|pair| line_of(pair, journal_id)).collect(),
        };
        sealed::seal(Sealed::Checkpoint, keys, &file)
    }

    /// Every checkpoint that verifies, newest first, and the files that do not.
    pub(super) fn read_all(
        directory: &Directory,
        keys: &JournalKeys,
        journal_id: &str,
    ) -> (Vec<Self>, Vec<PathBuf>) {
        let (mut sound, mut broken) = (Vec::new(), Vec::new());
        // A directory that cannot be listed has none.
        for (sequence, path) in directory.list_checkpoints().unwrap_or_default().into_iter().rev() {
            let read = sealed::read::<File>(&path, Sealed::Checkpoint, keys, journal_id);
            if matches!(read, Ok(None)) {
                // Removed since it was listed.
                continue;
            }
            let read = read.ok().flatten().and_then(|(file, _)| file.into_checkpoint(journal_id));
            match read.filter(|read| read.head.sequence == sequence) {
                Some(checkpoint) => sound.push(checkpoint),
                None => broken.push(path),
            }
        }
        (sound, broken)
    }

    /// Its record, and the segment that ends with that.
    pub(super) fn place(&self) -> (u64, u64) {
        (self.head.sequence, self.kept.last().map_or(0, |last| last.first))
    }

    /// The latest time among the events up to here, those excepted that were deleted.
    pub(super) fn newest(&self) -> Option<Timestamp> {
        self.kept.iter().filter_map(|kept| kept.span.newest()).max()
    }
}

impl File {
    fn into_checkpoint(self, journal_id: &str) -> Option<Checkpoint> {
        if self.format != FORMAT || self.journal_id != journal_id {
            return None;
        }
        let head = Head { sequence: self.sequence, mac: Digest::from_hex(&self.link)? };
        let kept: Option<Vec<_>> = self.segments.into_iter().map(Segment::into_kept).collect();
        let open: Option<Vec<_>> = self.open.iter().map(|line| pair_of(line)).collect();
        let kept = kept.filter(|kept| !kept.is_empty())?;
        Some(Checkpoint { head, kept, open: open?, newest_ended: self.newest_ended })
    }
}

impl Segment {
    fn of(kept: &Kept) -> Self {
        Self {
            first: kept.first,
            previous: kept.previous.as_ref().map(Digest::to_string),
            bytes: kept.bytes,
            times: kept.span.times,
            signers: kept.span.signers.iter().map(Digest::to_string).collect(),
        }
    }

    fn into_kept(self) -> Option<Kept> {
        let previous = match self.previous {
            Some(previous) => Some(Digest::from_hex(&previous)?),
            None => None,
        };
        let signers: Option<_> = self.signers.iter().map(|one| Digest::from_hex(one)).collect();
        let span = Span { times: self.times, signers: signers? };
        Some(Kept { first: self.first, previous, bytes: self.bytes, span })
    }
}

fn line_of(pair: &OpenPair, journal_id: &str) -> String {
    let entry = Entry::Call(Arc::clone(&pair.started));
    let mut line = Vec::new();
    write_line(&mut line, &entry, journal_id, pair.at);
    String::from_utf8(line).unwrap_or_else(|_| unreachable!("a record is text"))
}

fn pair_of(line: &str) -> Option<OpenPair> {
    match read_record(line.as_bytes()) {
        Ok((Entry::Call(started), stamp)) => {
            Some(OpenPair { started, at: Head { sequence: stamp.sequence, mac: stamp.mac } })
        }
        _ => None,
    }
}
