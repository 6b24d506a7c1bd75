//! What the writer does beside writing: it measures the room on the disk, closes
//! old segments, deletes what retention lets go, and writes checkpoints.
//!
//! All of it happens in the writer's thread, right after a commit that left
//! nothing unsynced, so that what is written down here is only what no crash
//! takes back. None of it may fail an append.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::watch;

use super::anchor::Anchor;
use super::checkpoint::{Checkpoint, MAX_OPEN};
use super::disk::Beside;
use super::kept::span_of;
use super::keyring::Keyring;
use super::reader::Readable;
use super::retention::{Let, Retaining};
use super::room::Room;
use super::segments::Segments;
use crate::domain::audit::{Chain, Head, OpenPairs};
use crate::failpoint::failpoint;

/// Checkpoints that are kept, each of another segment. The older ones are for a
/// start that wants events from before the newest.
const CHECKPOINTS: usize = 8;

/// When the writer looks beyond its writing.
#[derive(Debug, Clone, Copy)]
pub(super) struct TendingPace {
    /// After this long at the latest.
    pub(super) every: Duration,
    /// After this many bytes.
    pub(super) bytes: u64,
    /// A checkpoint is written after this many records.
    pub(super) checkpoint_records: u64,
}

/// What the writer is, to who tends it.
pub(super) struct Tended<'a> {
    pub(super) chain: &'a Chain,
    pub(super) pairs: &'a OpenPairs,
    pub(super) segments: &'a mut Segments,
    pub(super) keyring: &'a Keyring,
    pub(super) readable: &'a watch::Sender<Readable>,
}

/// What is to be done, and when it was done last.
pub(super) struct Tending {
    pub(super) pace: TendingPace,
    pub(super) room: Arc<Room>,
    pub(super) retaining: Arc<Retaining>,
    /// The time when the journal was opened.
    pub(super) opened: (Timestamp, Instant),
    /// When it was tended last, and how many bytes had been written then.
    pub(super) last: (Instant, u64),
    pub(super) anchor: Option<Anchor>,
    /// Segments that are no part of the journal any more and still have their files.
    pub(super) orphans: Vec<u64>,
    /// Whether deleting one failed, which is told once.
    pub(super) is_stuck: bool,
    /// The checkpoints there are, oldest first, each with its segment.
    pub(super) checkpoints: VecDeque<(u64, u64)>,
    /// The record of the last checkpoint, written or tried.
    pub(super) checked: u64,
}

impl Tending {
    /// How long the writer may wait until it is due again.
    pub(super) fn due_in(&self) -> Duration {
        self.pace.every.saturating_sub(self.last.0.elapsed())
    }

    /// Whether the next commit is to leave nothing unsynced, for [`Tending::tend`].
    pub(super) fn is_due(&self, head: Head, total_bytes: u64) -> bool {
        let many = total_bytes - self.last.1 >= self.pace.bytes;
        self.due_in() == Duration::ZERO || many || self.is_checkpoint_due(head)
    }

    /// Whether a segment has just been closed, and enough has come since the last
    /// checkpoint to write one that a start may want later.
    pub(super) fn is_due_between(&self, segments: &Segments) -> bool {
        let enough = self.pace.checkpoint_records / 16;
        let since = |head: Head| head.sequence.saturating_sub(self.checked);
        segments.is_between_segments()
            && segments.all_synced().is_some_and(|head| since(head) >= enough)
    }

    fn is_checkpoint_due(&self, head: Head) -> bool {
        head.sequence.saturating_sub(self.checked) >= self.pace.checkpoint_records
    }

    /// Measures the room alone, while the journal cannot be written.
    pub(super) fn measure(&mut self, segments: &mut Segments) {
        self.last = (Instant::now(), segments.total_bytes());
        self.room.measured(segments.disk().free_bytes());
    }

    /// Does what is due. Where records are not synced it only measures.
    pub(super) fn tend(&mut self, writer: &mut Tended<'_>) {
        self.measure(writer.segments);
        let Some(head) = writer.segments.all_synced() else { return };
        writer.segments.close_if_old();
        let is_new = self.checkpoints.back().is_none_or(|(newest, _)| *newest < head.sequence);
        if self.is_checkpoint_due(head) || (writer.segments.is_between_segments() && is_new) {
            self.write_checkpoint(writer, head);
        }
        self.retain(writer);
        self.room.keeps(writer.segments.kept());
    }

    /// Leaves a checkpoint of everything, at the end.
    pub(super) fn finish(&mut self, writer: &mut Tended<'_>) {
        if let Some(head) = writer.segments.all_synced()
            && self.checkpoints.back().is_none_or(|(newest, _)| *newest < head.sequence)
        {
            self.write_checkpoint(writer, head);
        }
    }

    /// A checkpoint that cannot be written is tried again when the next is due.
    fn write_checkpoint(&mut self, writer: &mut Tended<'_>, head: Head) {
        if self.checked == head.sequence || writer.pairs.open().len() > MAX_OPEN {
            return;
        }
        self.checked = head.sequence;
        let checkpoint = Checkpoint {
            head,
            kept: writer.segments.kept().to_vec(),
            open: writer.pairs.open().cloned().collect(),
            newest_ended: writer.pairs.newest_ended(),
        };
        let Some(segment) = checkpoint.kept.last().map(|last| last.first) else { return };
        let text = checkpoint.seal(writer.chain.keys(), writer.chain.journal_id());
        let disk = writer.segments.disk();
        let saved = text.and_then(|text| disk.save(Beside::Checkpoint(head.sequence), &text));
        failpoint!("checkpoint-written");
        match saved {
            Ok(()) => {
                self.checkpoints.push_back((head.sequence, segment));
                self.prune_checkpoints(writer);
            }
            Err(error) => {
                tracing::warn!(error_kind = %error, "a checkpoint of the journal was not written");
            }
        }
    }

    /// Keeps the newest of each segment, and of those the newest ones.
    fn prune_checkpoints(&mut self, writer: &mut Tended<'_>) {
        let newest: Vec<_> = self.checkpoints.iter().copied().collect();
        let is_last_of = |place: usize, segment| {
            newest.get(place + 1).is_none_or(|(_, following)| *following != segment)
        };
        let last_ones = newest.iter().enumerate();
        let mut kept: VecDeque<_> = last_ones
            .filter(|(place, (_, segment))| is_last_of(*place, *segment))
            .map(|(_, checkpoint)| *checkpoint)
            .collect();
        while kept.len() > CHECKPOINTS {
            kept.pop_front();
        }
        for (sequence, _) in newest.iter().filter(|checkpoint| !kept.contains(checkpoint)) {
            // One that stays is passed over by a newer one.
            let _ = writer.segments.disk().remove_checkpoint(*sequence);
        }
        self.checkpoints = kept;
    }

    fn retain(&mut self, writer: &mut Tended<'_>) {
        let now = self.opened.0.saturating_add(self.opened.1.elapsed()).unwrap_or(self.opened.0);
        let first_open = writer.pairs.first_open();
        let Let { first_kept, held_by } =
            self.retaining.decide(writer.segments.kept(), first_open, now);
        self.room.waits_for(held_by);
        if let Some(first_kept) = first_kept
            && let Err(error) = self.let_go(writer, first_kept)
        {
            tracing::error!(
                error_kind = %error,
                "retention could not write anchor.json; nothing was deleted"
            );
            return;
        }
        while let Some(first) = self.orphans.first().copied() {
            let removed = writer.segments.disk().remove_segment(first);
            let was_stuck = std::mem::replace(&mut self.is_stuck, removed.is_err());
            if let Err(error) = removed {
                if !was_stuck {
                    tracing::warn!(
                        segment = first,
                        error_kind = %error,
                        "a segment that retention let go could not be deleted; it is tried again"
                    );
                }
                return;
            }
            failpoint!("some-segments-deleted");
            self.orphans.remove(0);
        }
    }

    /// Makes this the first record that is kept: first in the anchor, then for
    /// readers. The files before it are orphans then.
    fn let_go(&mut self, writer: &mut Tended<'_>, first_kept: u64) -> io::Result<()> {
        let kept = writer.segments.kept();
        let (going, staying) = kept.split_at(kept.partition_point(|kept| kept.first < first_kept));
        let previous = staying.first().and_then(|first| first.previous);
        let Some(mac) = previous else { return Err(io::ErrorKind::InvalidInput.into()) };
        let newest = self.anchor.and_then(|anchor| anchor.newest);
        let anchor = Anchor {
            last_deleted: Head { sequence: first_kept - 1, mac },
            newest: newest.max(span_of(going).newest()),
            newest_recorded: writer.pairs.newest_ended(),
        };
        let signers = span_of(staying).signers;
        let deleted: Vec<u64> = going.iter().map(|segment| segment.first).collect();
        let (keys, journal_id) = (writer.chain.keys(), writer.chain.journal_id());
        let text = anchor.seal(keys, journal_id, &signers)?;
        writer.segments.disk().save(Beside::Anchor, &text)?;
        failpoint!("anchored-not-deleted");
        let sealed_by = keys.signer(journal_id);
        self.anchor = Some(anchor);
        writer.keyring.keep(signers.into_iter().chain([sealed_by]));
        writer.segments.forget_before(first_kept);
        writer.readable.send_replace(writer.segments.readable());
        tracing::info!(
            count = deleted.len(),
            sequence = first_kept,
            "retention deletes segments of the journal; it begins with this record now"
        );
        self.room.deletes(deleted.len() as u64);
        self.orphans.extend(deleted);
        Ok(())
    }
}
