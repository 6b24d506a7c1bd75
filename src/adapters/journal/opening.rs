//! From a directory to a journal that has verified.
//!
//! Reading starts at the newest checkpoint that verifies, fits the files that are
//! there and lies before everything that is asked for. Where there is none, or
//! where what follows does not verify, all is read from the first record that is
//! kept: that names the place at fault. So a checkpoint can save time, and cannot
//! let through what a full reading would refuse beyond it.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;

use super::anchor::Anchor;
use super::checkpoint::Checkpoint;
use super::disk::{Directory, Segment};
use super::error::OpenError;
use super::kept::{Kept, span_of};
use super::recovery::{Replay, Start, replay};
use super::stop::Stop;
use crate::domain::audit::{CallName, Chain, Digest, Head, JournalKeys, OpenPairs};

/// What is read, and what for.
pub(super) struct Opening<'a> {
    pub(super) directory: &'a Directory,
    pub(super) journal_id: Arc<str>,
    pub(super) keys: &'a JournalKeys,
    /// Calls whose completed events are wanted.
    pub(super) watched: HashSet<CallName>,
    /// The earliest started event of those; `None`: it is not known.
    pub(super) watched_from: Option<Timestamp>,
    pub(super) stop: &'a Stop,
}

/// A journal that has verified.
pub(super) struct Opened {
    pub(super) replay: Replay,
    pub(super) anchor: Option<Anchor>,
    /// Who sealed the anchor.
    pub(super) anchored_by: Option<Digest>,
    /// Segments that retention had begun to delete, by their first sequences.
    pub(super) orphans: Vec<u64>,
    /// The checkpoints that verify, oldest first, each with its segment.
    pub(super) checkpoints: VecDeque<(u64, u64)>,
}

impl Opening<'_> {
    /// Reads and verifies. Changes nothing.
    pub(super) fn read(&self, mut segments: Vec<Segment>) -> Result<Opened, OpenError> {
        let anchor = Anchor::read(self.directory, self.keys, &self.journal_id)?;
        let (anchor, anchored_by) = anchor.unzip();
        let first = anchor.map_or(1, |anchor| anchor.last_deleted.sequence + 1);
        let orphans = segments.iter().map(|segment| segment.first_sequence);
        let orphans = orphans.filter(|sequence| *sequence < first).collect();
        segments.retain(|segment| segment.first_sequence >= first);
        Anchor::check(anchor.as_ref(), &segments, self.directory)?;
        let (checkpoints, broken) =
            Checkpoint::read_all(self.directory, self.keys, &self.journal_id);
        for path in broken {
            tracing::warn!(
                file = %path.display(),
                "a checkpoint of the journal does not verify and is not used"
            );
        }
        let known = checkpoints.iter().rev().map(Checkpoint::place).collect();
        let opened = |replay| Opened { replay, anchor, anchored_by, orphans, checkpoints: known };
        let usable = checkpoints.iter().find(|checkpoint| self.suits(checkpoint, &segments, first));
        if let Some(checkpoint) = usable {
            match replay(&segments, self.start_at(checkpoint, first), &[], self.stop) {
                Ok(replay) => return Ok(opened(replay)),
                Err(OpenError::Stopped) => return Err(OpenError::Stopped),
                // Read once more from the first record on, which names the place.
                Err(_) => {}
            }
        }
        // What comes before the anchor's place is older than anything that is kept.
        let witness = checkpoints.first().map(|newest| newest.head);
        let witness = witness.filter(|head| head.sequence + 1 >= first);
        let replay = replay(&segments, self.start(anchor), witness.as_slice(), self.stop)?;
        match witness {
            Some(Head { sequence, .. }) if replay.met.is_empty() => Err(OpenError::Contradicted {
                path: self.directory.checkpoint(sequence),
                sequence,
                head: replay.chain.head().sequence,
            }),
            _ => Ok(opened(replay)),
        }
    }

    /// From the first record that is kept.
    fn start(&self, anchor: Option<Anchor>) -> Start {
        let (keys, id) = (self.keys.clone(), Arc::clone(&self.journal_id));
        let chain = match anchor {
            None => Chain::new(keys, id),
            Some(anchor) => Chain::resume(keys, id, anchor.last_deleted),
        };
        let newest_recorded = anchor.and_then(|anchor| anchor.newest_recorded);
        let pairs = OpenPairs::resume([], newest_recorded, self.watched.clone());
        Start { chain, pairs, kept: Vec::new() }
    }

    fn start_at(&self, checkpoint: &Checkpoint, first: u64) -> Start {
        let id = Arc::clone(&self.journal_id);
        let open = checkpoint.open.iter().cloned();
        Start {
            chain: Chain::resume(self.keys.clone(), id, checkpoint.head),
            pairs: OpenPairs::resume(open, checkpoint.newest_ended, self.watched.clone()),
            kept: kept_from(&checkpoint.kept, first).to_vec(),
        }
    }

    /// Whether the files are those that the checkpoint tells of, as far as their
    /// lengths and its own record show, and nothing that is wanted lies before it.
    fn suits(&self, checkpoint: &Checkpoint, segments: &[Segment], first: u64) -> bool {
        let kept = kept_from(&checkpoint.kept, first);
        let Some(last) = kept.last().filter(|_| kept[0].first == first) else { return false };
        let there = segments.iter().take_while(|segment| segment.first_sequence <= last.first);
        kept.iter().map(|kept| kept.first).eq(there.map(|segment| segment.first_sequence))
            && kept.iter().all(|kept| self.holds(kept, kept.first == last.first))
            && self.ends_with(last, checkpoint.head)
            && self.keys.cover(&span_of(kept).signers, &self.journal_id).is_ok()
            && self.wants_nothing_before(checkpoint)
    }

    /// The completed event of a call comes after its started one, and that is not
    /// before the checkpoint if its time is later than all that are: whatever the
    /// clock did meanwhile.
    fn wants_nothing_before(&self, checkpoint: &Checkpoint) -> bool {
        self.watched.is_empty() || self.watched_from > checkpoint.newest()
    }

    /// The last one may have grown since.
    fn holds(&self, kept: &Kept, is_last: bool) -> bool {
        let found = std::fs::metadata(self.directory.segment(kept.first));
        found.is_ok_and(
            |found| {
                if is_last { found.len() >= kept.bytes } else { found.len() == kept.bytes }
            },
        )
    }

    fn ends_with(&self, last: &Kept, head: Head) -> bool {
        let end = format!(",\"mac\":\"{}\"}}\n", head.mac);
        let Some(from) = last.bytes.checked_sub(end.len() as u64) else {
            return last.bytes == 0 && last.first == head.sequence + 1;
        };
        let found = read_at(&self.directory.segment(last.first), from, end.len());
        found.is_ok_and(|found| found == end.as_bytes())
    }
}

fn kept_from(kept: &[Kept], first: u64) -> &[Kept] {
    &kept[kept.partition_point(|kept| kept.first < first)..]
}

fn read_at(path: &Path, from: u64, bytes: usize) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut found = vec![0; bytes];
    file.read_exact(&mut found)?;
    Ok(found)
}
