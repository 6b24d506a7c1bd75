//! Signed lines on their way into segments.
//!
//! A line once signed is never signed again, and stays in memory until it is
//! synced. A file whose write or sync failed is not written again, because a
//! failed sync may have dropped pages that a second one no longer reports:
//! everything since the last good sync is repeated in a new segment. That is
//! synced before it gets its name, and only then is the old file cut back, so
//! that a process killed at any point leaves every acknowledged record on the
//! disk, and the chain never holds two records of one sequence.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::disk::{Disk, SegmentFile};
use super::reader::Readable;
use crate::failpoint::failpoint;

/// Bounds of what a lost machine may lose, and of what is kept in memory for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// A longer segment is followed by a new one, in bytes.
    pub(super) segment_bytes: u64,
    /// With more bytes than this not synced, a commit syncs.
    pub(super) unsynced_bytes: usize,
    /// With bytes not synced for longer than this, a commit syncs.
    pub(super) unsynced_time: Duration,
}

/// The present segment, and what of it is not known to be durable.
pub(super) struct Segments {
    disk: Box<dyn Disk>,
    limits: Limits,
    file: Option<Box<dyn SegmentFile>>,
    /// A file that failed, and the length up to which it is good.
    failed: Option<(Box<dyn SegmentFile>, u64)>,
    /// The sequence of the first line that is not synced.
    first_unsynced: u64,
    /// Bytes of the present file that are synced; 0 without a file.
    synced_bytes: u64,
    /// All lines after them.
    unsynced: Vec<u8>,
    /// How many bytes of those are written.
    written: usize,
    unsynced_since: Option<Instant>,
    syncs: u64,
    /// The first sequence of every segment that has its name durably, in order.
    published: Arc<[u64]>,
}

impl Segments {
    /// Goes on in a synced file of this length, or in a new one, after the published ones.
    pub(super) fn new(
        disk: Box<dyn Disk>,
        limits: Limits,
        next_sequence: u64,
        last: Option<(Box<dyn SegmentFile>, u64)>,
        published: Arc<[u64]>,
    ) -> Self {
        let (file, synced_bytes) = match last {
            Some((file, len)) if len < limits.segment_bytes => (Some(file), len),
            // A full one, or none: the next commit starts a new one.
            _ => (None, 0),
        };
        Self {
            disk,
            limits,
            file,
            failed: None,
            first_unsynced: next_sequence,
            synced_bytes,
            unsynced: Vec::new(),
            written: 0,
            unsynced_since: None,
            syncs: 0,
            published,
        }
    }

    /// What readers may read: synced records, each in the newest segment that starts before it.
    pub(super) fn readable(&self) -> Readable {
        Readable { head: self.first_unsynced - 1, segments: Arc::clone(&self.published) }
    }

    /// Where signed lines are put before a commit.
    pub(super) fn lines(&mut self) -> &mut Vec<u8> {
        &mut self.unsynced
    }

    /// How many syncs have succeeded.
    pub(super) const fn syncs(&self) -> u64 {
        self.syncs
    }

    /// How long the oldest line that is not synced may wait for it.
    pub(super) fn sync_due_in(&self) -> Option<Duration> {
        self.unsynced_since.map(|since| self.limits.unsynced_time.saturating_sub(since.elapsed()))
    }

    /// Writes all lines, the last of which has the sequence before `next_sequence`,
    /// and syncs them if asked to or if a limit is reached.
    ///
    /// # Errors
    ///
    /// The system's. The lines stay, and the next commit writes them to a new segment.
    pub(super) fn commit(&mut self, next_sequence: u64, sync: bool) -> io::Result<()> {
        let result = self.try_commit(next_sequence, sync);
        if result.is_err()
            && let Some(failed) = self.leave_file()
        {
            self.failed = Some(failed);
        }
        result
    }

    /// Writes no more to the present file, and returns it with its good length.
    fn leave_file(&mut self) -> Option<(Box<dyn SegmentFile>, u64)> {
        let len = std::mem::take(&mut self.synced_bytes);
        self.written = 0;
        self.file.take().map(|file| (file, len))
    }

    fn try_commit(&mut self, next_sequence: u64, sync: bool) -> io::Result<()> {
        if self.unsynced.is_empty() {
            return Ok(());
        }
        self.unsynced_since.get_or_insert_with(Instant::now);
        let bytes = self.synced_bytes + self.unsynced.len() as u64;
        let full = bytes >= self.limits.segment_bytes;
        let sync = sync || full || self.is_sync_due();
        if let Some(file) = &mut self.file {
            file.write_all(&self.unsynced[self.written..])?;
            self.written = self.unsynced.len();
            if sync {
                failpoint!("written-not-synced");
                file.sync()?;
                self.note_synced(next_sequence);
            }
        } else {
            self.start_segment(next_sequence)?;
        }
        if full {
            self.leave_file();
        }
        Ok(())
    }

    fn is_sync_due(&self) -> bool {
        self.unsynced.len() > self.limits.unsynced_bytes
            || self.sync_due_in() == Some(Duration::ZERO)
    }

    /// Makes a segment of all lines that are not synced, which is seen whole or not at all.
    fn start_segment(&mut self, next_sequence: u64) -> io::Result<()> {
        let mut file = self.disk.create()?;
        file.write_all(&self.unsynced)?;
        file.sync()?;
        self.disk.publish(self.first_unsynced)?;
        // One that stood there already, empty, was replaced.
        let before = self.published.iter().copied().filter(|first| *first < self.first_unsynced);
        self.published = before.chain([self.first_unsynced]).collect();
        if let Some((mut failed, good)) = self.failed.take() {
            // Where this fails too, the next start of the gate does it.
            let _ = failed.cut(good);
        }
        self.file = Some(file);
        self.written = self.unsynced.len();
        self.note_synced(next_sequence);
        Ok(())
    }

    fn note_synced(&mut self, next_sequence: u64) {
        self.synced_bytes += self.written as u64;
        self.first_unsynced = next_sequence;
        self.unsynced.clear();
        self.unsynced.shrink_to(2 * self.limits.unsynced_bytes);
        self.written = 0;
        self.unsynced_since = None;
        self.syncs += 1;
    }
}
