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
use super::kept::{Kept, Span};
use super::reader::Readable;
use crate::domain::audit::{Chain, Entry, Head, Stamp};
use crate::failpoint::failpoint;

/// Bounds of what a lost machine may lose, and of what is kept in memory for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// A longer segment is followed by a new one, in bytes.
    pub(super) segment_bytes: u64,
    /// One with older records too.
    pub(super) segment_age: Duration,
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
    /// Since when the present file has records.
    begun: Option<Instant>,
    /// The newest record that is synced.
    synced: Head,
    /// Bytes of the present file that are synced; 0 without a file.
    synced_bytes: u64,
    /// All lines after them.
    unsynced: Vec<u8>,
    /// Their records.
    unsynced_span: Span,
    /// How many bytes of those are written.
    written: usize,
    unsynced_since: Option<Instant>,
    syncs: u64,
    /// Bytes that were synced since the start.
    total_bytes: u64,
    /// Every segment that has its name durably, in order, with its synced records.
    kept: Vec<Kept>,
    /// Their first sequences.
    published: Arc<[u64]>,
}

impl Segments {
    /// Goes on after this record, in a synced file that holds the last of the
    /// kept segments and has had records for this long, or in a new one.
    pub(super) fn new(
        disk: Box<dyn Disk>,
        limits: Limits,
        head: Head,
        last: Option<(Box<dyn SegmentFile>, Duration)>,
        kept: Vec<Kept>,
    ) -> Self {
        let len = kept.last().map_or(0, |last| last.bytes);
        let mut segments = Self {
            disk,
            limits,
            file: None,
            failed: None,
            begun: None,
            synced: head,
            synced_bytes: 0,
            unsynced: Vec::new(),
            unsynced_span: Span::default(),
            written: 0,
            unsynced_since: None,
            syncs: 0,
            total_bytes: 0,
            published: published(&kept),
            kept,
        };
        // After a full one, or none, the next commit starts a new one.
        if let Some((file, age)) = last.filter(|_| len < limits.segment_bytes) {
            (segments.file, segments.synced_bytes) = (Some(file), len);
            segments.begun = if len > 0 { Instant::now().checked_sub(age) } else { None };
        }
        segments
    }

    /// What readers may read: synced records, each in the newest segment that starts before it.
    pub(super) fn readable(&self) -> Readable {
        Readable { head: self.synced.sequence, segments: Arc::clone(&self.published) }
    }

    /// Signs an entry as the next line, which the next commit writes.
    pub(super) fn sign(&mut self, chain: &mut Chain, entry: &Entry) -> Stamp {
        let stamp = chain.append(&mut self.unsynced, entry);
        self.unsynced_span.add(entry, chain.signer());
        stamp
    }

    /// The newest synced record, if none after it is signed.
    pub(super) fn all_synced(&self) -> Option<Head> {
        self.unsynced.is_empty().then_some(self.synced)
    }

    /// Every segment, in order, with its synced records.
    pub(super) fn kept(&self) -> &[Kept] {
        &self.kept
    }

    /// Forgets the segments before this one, which are about to be deleted.
    pub(super) fn forget_before(&mut self, first_sequence: u64) {
        self.kept.retain(|kept| kept.first >= first_sequence);
        self.published = published(&self.kept);
    }

    /// What the segments are on.
    pub(super) fn disk(&mut self) -> &mut dyn Disk {
        &mut *self.disk
    }

    /// Whether lines are not synced for longer than they may.
    pub(super) fn is_sync_due(&self) -> bool {
        self.unsynced.len() > self.limits.unsynced_bytes
            || self.sync_due_in() == Some(Duration::ZERO)
    }

    /// Whether the present segment was closed, so that the next line begins another.
    pub(super) const fn is_between_segments(&self) -> bool {
        self.file.is_none()
    }

    /// Closes the present segment if all its lines are synced and it is old enough.
    pub(super) fn close_if_old(&mut self) {
        let is_old = |begun: Instant| begun.elapsed() >= self.limits.segment_age;
        if self.all_synced().is_some() && self.begun.is_some_and(is_old) {
            self.leave_file();
        }
    }

    /// How many syncs have succeeded.
    pub(super) const fn syncs(&self) -> u64 {
        self.syncs
    }

    /// How many bytes they have made durable.
    pub(super) const fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// How long the oldest line that is not synced may wait for it.
    pub(super) fn sync_due_in(&self) -> Option<Duration> {
        self.unsynced_since.map(|since| self.limits.unsynced_time.saturating_sub(since.elapsed()))
    }

    /// Writes all lines, the last of which is `head`, and syncs them if asked to or if a limit is reached.
    ///
    /// # Errors
    ///
    /// The system's. The lines stay, and the next commit writes them to a new segment.
    pub(super) fn commit(&mut self, head: Head, sync: bool) -> io::Result<()> {
        let result = self.try_commit(head, sync);
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
        self.begun = None;
        self.file.take().map(|file| (file, len))
    }

    fn try_commit(&mut self, head: Head, sync: bool) -> io::Result<()> {
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
                self.note_synced(head);
            }
        } else {
            self.start_segment(head)?;
        }
        if full {
            self.leave_file();
        }
        Ok(())
    }

    /// Makes a segment of all lines that are not synced, which is seen whole or not at all.
    fn start_segment(&mut self, head: Head) -> io::Result<()> {
        let mut file = self.disk.create()?;
        file.write_all(&self.unsynced)?;
        file.sync()?;
        let new = Kept::after(self.synced);
        self.disk.publish(new.first)?;
        // One that stood there already, empty, was replaced.
        self.kept.retain(|kept| kept.first < new.first);
        self.kept.push(new);
        self.published = published(&self.kept);
        if let Some((mut failed, good)) = self.failed.take() {
            // Where this fails too, the next start of the gate does it.
            let _ = failed.cut(good);
        }
        self.file = Some(file);
        self.written = self.unsynced.len();
        self.note_synced(head);
        Ok(())
    }

    fn note_synced(&mut self, head: Head) {
        self.synced_bytes += self.written as u64;
        self.total_bytes += self.written as u64;
        self.begun.get_or_insert_with(Instant::now);
        self.synced = head;
        if let Some(last) = self.kept.last_mut() {
            last.bytes = self.synced_bytes;
            last.span.join(&std::mem::take(&mut self.unsynced_span));
        }
        self.unsynced.clear();
        self.unsynced.shrink_to(2 * self.limits.unsynced_bytes);
        self.written = 0;
        self.unsynced_since = None;
        self.syncs += 1;
    }
}

fn published(kept: &[Kept]) -> Arc<[u64]> {
    kept.iter().map(|kept| kept.first).collect()
}
