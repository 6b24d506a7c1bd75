//! Readers beside the writer.
//!
//! Only synced records are readable. One that is merely written can vanish with
//! the machine; its sequence then goes to another record, and whoever had read
//! the first would go on behind it and never see the second. Syncing takes at
//! most a second (`mod.rs`), so that is how far a reader can be behind.
//!
//! After a failed sync the writer repeats records in a new segment and cuts the
//! old one (`segments.rs`). What it repeats was not readable before, and a record
//! is read only from the newest segment that starts at or before it, so a reader
//! meets each record once. The writer tells where records are and how far they
//! are durable in one value, so no reader can see one without the other.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::{Semaphore, watch};
use tokio_util::task::AbortOnDropHandle;

use super::disk::Directory;
use crate::domain::audit::{Entry, MAX_RECORD_BYTES, Stamp, read_record};
use crate::ports::{AuditReader, Step, Unreadable};

/// Records in one step.
const STEP_RECORDS: usize = 64;
/// Bytes read in one step, also of records that are passed over to find a place.
const STEP_BYTES: usize = 64 * 1024;
const _: () = assert!(STEP_BYTES > MAX_RECORD_BYTES, "a step gets on by a record at least");
/// Steps that may occupy threads at once, however many readers there are.
const STEPS_AT_ONCE: usize = 8;

/// What can be read, as the writer tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Readable {
    /// The newest synced record; 0 before the first.
    pub(super) head: u64,
    /// The first sequence of each segment that is kept, in order.
    pub(super) segments: Arc<[u64]>,
}

/// Where readers come from.
#[derive(Debug, Clone)]
pub(super) struct Readers {
    journal_id: Arc<str>,
    directory: Directory,
    readable: watch::Receiver<Readable>,
    steps: Arc<Semaphore>,
}

/// One reader: a place, and nothing that is open.
#[derive(Debug)]
pub(super) struct SegmentReader {
    readers: Readers,
    /// The record that comes next.
    next: u64,
    place: Place,
}

/// Where in the files a record begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    /// The segment, by its first sequence.
    segment: u64,
    /// The record.
    sequence: u64,
    /// Where it begins, in bytes.
    offset: u64,
}

/// Why a record could not be read.
#[derive(Debug)]
enum Fault {
    /// The system's.
    Io(io::ErrorKind),
    /// Its line is not there, or is no record of this place.
    NotThere,
}

impl Readable {
    fn oldest(&self) -> u64 {
        self.segments.first().copied().unwrap_or(1)
    }

    /// The segment that holds a record, and the last record to be read from it.
    fn holding(&self, sequence: u64) -> Option<(u64, u64)> {
        let following = self.segments.partition_point(|first| *first <= sequence);
        let segment = *self.segments.get(following.checked_sub(1)?)?;
        let next = self.segments.get(following);
        Some((segment, next.map_or(self.head, |next| self.head.min(next - 1))))
    }
}

impl Readers {
    pub(super) fn new(
        journal_id: Arc<str>,
        directory: Directory,
        readable: watch::Receiver<Readable>,
    ) -> Self {
        Self { journal_id, directory, readable, steps: Arc::new(Semaphore::new(STEPS_AT_ONCE)) }
    }

    pub(super) fn head(&self) -> u64 {
        self.readable.borrow().head
    }

    pub(super) fn read_from(&self, sequence: u64) -> SegmentReader {
        let next = if sequence == 0 { self.readable.borrow().oldest() } else { sequence };
        let place = Place { segment: 0, sequence: 0, offset: 0 };
        SegmentReader { readers: self.clone(), next, place }
    }

    /// Reads on from a place up to the last record, with one bounded read. The
    /// records before `next` are passed over unread. Blocks the thread.
    fn step(
        &self,
        mut place: Place,
        next: u64,
        last: u64,
    ) -> Result<(Place, Vec<(Entry, Stamp)>), Fault> {
        let mut file = File::open(self.directory.segment(place.segment))?;
        file.seek(SeekFrom::Start(place.offset))?;
        let mut bytes = Vec::new();
        file.take(STEP_BYTES as u64).read_to_end(&mut bytes)?;
        let begun = place;
        let mut records = Vec::new();
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let Some(record) = line.strip_suffix(b"\n") else { break };
            if place.sequence > last || records.len() == STEP_RECORDS {
                break;
            }
            if place.sequence >= next {
                records.push(self.check(record, place.sequence)?);
            }
            place.sequence += 1;
            place.offset += line.len() as u64;
        }
        // A synced line is whole and no longer than a step.
        if place == begun { Err(Fault::NotThere) } else { Ok((place, records)) }
    }

    /// Nothing leaves that is not exactly a record of this journal and place.
    fn check(&self, line: &[u8], sequence: u64) -> Result<(Entry, Stamp), Fault> {
        match read_record(line) {
            Ok((entry, stamp))
                if stamp.sequence == sequence && stamp.journal_id == self.journal_id =>
            {
                Ok((entry, stamp))
            }
            _ => Err(Fault::NotThere),
        }
    }
}

impl SegmentReader {
    /// Reads from the present place, in a thread that may block.
    ///
    /// It waits for its turn in a task of its own: a turn goes to whoever is next
    /// in line, and nobody polls a reader whose client has stopped taking.
    async fn read(&self, place: Place, last: u64) -> Result<(Place, Vec<(Entry, Stamp)>), Fault> {
        let (readers, next) = (self.readers.clone(), self.next);
        let step = tokio::spawn(async move {
            let turn = Arc::clone(&readers.steps).acquire_owned().await;
            let step = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                readers.step(place, next, last)
            });
            step.await
        });
        // Only a runtime that goes down cancels it.
        let interrupted = Err(Fault::Io(io::ErrorKind::Interrupted));
        AbortOnDropHandle::new(step).await.and_then(|step| step).unwrap_or(interrupted)
    }
}

#[async_trait]
impl AuditReader for SegmentReader {
    async fn next(&mut self) -> Result<Step, Unreadable> {
        loop {
            let next = self.next;
            let is_there = |known: &Readable| known.head >= next;
            let known = self.readers.readable.wait_for(is_there).await;
            let known = known.map_err(|_| Unreadable)?.clone();
            if next < known.oldest() {
                self.next = known.oldest();
                return Ok(Step::Gap { first: next, last: self.next - 1 });
            }
            let (segment, last) = known.holding(next).ok_or(Unreadable)?;
            let from = match self.place {
                place if place.segment == segment => place,
                _ => Place { segment, sequence: segment, offset: 0 },
            };
            match self.read(from, last).await {
                Ok((place, records)) => {
                    self.place = place;
                    if !records.is_empty() {
                        self.next = place.sequence;
                        return Ok(Step::Records(records));
                    }
                }
                Err(fault) => {
                    // Removed while it was being opened: what is kept says what comes next.
                    if next < self.readers.readable.borrow().oldest() {
                        continue;
                    }
                    fault.log(next);
                    return Err(Unreadable);
                }
            }
        }
    }
}

impl Fault {
    fn log(&self, sequence: u64) {
        let error_kind = match self {
            Self::Io(kind) => kind.to_string(),
            Self::NotThere => "no such record is there".to_owned(),
        };
        tracing::error!(sequence, error_kind, "a record of the journal cannot be read back");
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error.kind())
    }
}
