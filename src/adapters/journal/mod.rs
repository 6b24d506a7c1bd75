//! The journal as files of JSON lines under one directory.
//!
//! One thread writes (`writer.rs`). Before a gate starts, what is on the disk is
//! verified: everything, or what came after the newest checkpoint (`opening.rs`).
//! What holds of an acknowledged append:
//!
//! - [`Durability::Synced`]: its records are on the disk.
//! - [`Durability::Written`]: its records survive the process. They are synced
//!   within a second, or 4 MiB, and until then also kept in memory: a failed
//!   sync costs none of them unless the process dies before they are repeated
//!   (`segments.rs`) and the system has dropped them.
//!
//! An append that failed or was abandoned stays in line, and is written before
//! anything later.

mod anchor;
mod checkpoint;
mod diagnosis;
mod disk;
mod error;
mod kept;
mod keyring;
mod manifest;
mod opening;
mod queue;
mod reader;
mod recovery;
mod retention;
mod room;
mod sealed;
mod segments;
mod stop;
mod tending;
#[cfg(test)]
mod tests;
mod verify;
mod writer;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::watch;

pub use diagnosis::Act;
pub use error::{ManifestCause, OpenError};
pub use retention::Retention;
pub use room::JournalRoom;
pub use stop::Stop;
pub use verify::{Unverified, Verification, Verified};

use self::disk::{Directory, Disk};
use self::kept::span_of;
use self::keyring::Keyring;
use self::manifest::Manifest;
use self::opening::{Opened, Opening};
use self::queue::Queue;
use self::reader::Readers;
use self::retention::Retaining;
use self::room::Room;
use self::segments::{Limits, Segments};
use self::tending::{Tending, TendingPace};
use self::writer::{BackOff, Writer};
use crate::adapters::lock::{Lock, LockFault};
use crate::domain::audit::{CallName, Entry, Event, Head, JournalKeys, SignerMissing, Stamp};
use crate::domain::generation::Generation;
use crate::failpoint::failpoint;
use crate::ports::{AuditLog, AuditReader, Durability, Hold, Journal, JournalFault};

/// How a journal is opened.
#[derive(Debug, Clone)]
pub struct JournalOptions {
    /// Its directory, made with mode 0700 where it is missing.
    pub directory: PathBuf,
    /// The keys of its chain.
    pub keys: JournalKeys,
    /// A segment of more bytes is followed by a new one.
    pub segment_bytes: u64,
    /// One that was begun longer ago too.
    pub segment_age: Duration,
    /// With fewer bytes free on its disk the journal takes no new work.
    pub min_free_bytes: u64,
    /// The most events that may be owed, failed ones included.
    pub queue_events: usize,
    /// The present time, for a journal that is new.
    pub now: Timestamp,
    /// Calls whose completed events are wanted.
    pub watched: HashSet<CallName>,
    /// The earliest started event of those, by its own time. Where it is not
    /// known everything is read for them.
    pub watched_from: Option<Timestamp>,
    /// Ends the opening early.
    pub stop: Stop,
}

/// A journal in files. Dropping it is [`JournalFiles::close`] with five seconds.
#[derive(Debug)]
pub struct JournalFiles {
    queue: Arc<Queue>,
    stats: Arc<Mutex<JournalStats>>,
    journal_id: Arc<str>,
    directory: Directory,
    manifest: Mutex<Manifest>,
    keyring: Arc<Keyring>,
    ended: Mutex<mpsc::Receiver<()>>,
    readers: Readers,
    retaining: Arc<Retaining>,
    room: Arc<Room>,
}

/// What was found when a journal was opened.
#[derive(Debug)]
pub struct Recovered {
    /// The newest record.
    pub head: Head,
    /// The ledger that was beside it at its last start, if one was.
    pub beside: Option<Generation>,
    /// How many records there are, those included that retention has deleted.
    pub records: u64,
    /// The bytes of segments that were read to verify what is not known from a
    /// checkpoint.
    pub read_bytes: u64,
    /// The latest time among events that retention has deleted: of a call that
    /// was started no later the journal need not have all events.
    pub deleted_until: Option<Timestamp>,
    /// Bytes that were cut off: a last line that does not verify, and what a
    /// crash left of the change to a new segment.
    pub cut_bytes: u64,
    /// The started events without a completed one, oldest first.
    pub open: Vec<Arc<Event>>,
    /// The completed events of the watched calls, oldest first.
    pub ended: Vec<Arc<Event>>,
    /// When a call last ended that a ledger must know of.
    pub newest_recorded: Option<Timestamp>,
}

impl Recovered {
    /// Whether an attempt of a call that was started like this and has no event
    /// here was never started: none of its events can have been deleted.
    #[must_use]
    pub fn has_all_of(&self, started: &Event) -> bool {
        self.deleted_until.is_none_or(|until| started.time > until)
    }
}

/// What a journal has done since it was opened. Counters only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalStats {
    /// The newest record that is written.
    pub head: Head,
    /// Records written.
    pub records: u64,
    /// Groups written.
    pub commits: u64,
    /// Time spent on those.
    pub commit_time: Duration,
    /// Groups made durable.
    pub syncs: u64,
    /// Groups whose writing failed, each try counted.
    pub failures: u64,
}

/// A journal that was closed before everything owed could be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unwritten {
    /// How many events are lost with the process, if they are not just slow.
    pub events: usize,
}

/// What nobody needs to turn, but tests.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// How much may be written and not synced.
    unsynced_bytes: usize,
    /// For how long.
    unsynced_time: Duration,
    back_off: BackOff,
    tending: TendingPace,
}

impl JournalOptions {
    /// Segments of 64 MiB or a day, 128 MiB that stay free, and a queue of 8,192 events.
    #[must_use]
    pub fn new(directory: PathBuf, keys: impl Into<JournalKeys>, now: Timestamp) -> Self {
        Self {
            directory,
            keys: keys.into(),
            segment_bytes: 64 * 1024 * 1024,
            segment_age: Duration::from_hours(24),
            min_free_bytes: 128 * 1024 * 1024,
            queue_events: 8_192,
            now,
            watched: HashSet::new(),
            watched_from: None,
            stop: Stop::default(),
        }
    }
}

impl JournalFiles {
    /// Locks and verifies a journal, or starts a new one, and starts its writer.
    ///
    /// Blocks the thread while it reads what came after the newest checkpoint, or
    /// everything where that does not do. The caller closes the pairs that are
    /// open before it serves.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]. Records that do not verify are never passed over.
    pub fn open(options: JournalOptions) -> Result<(Self, Recovered), OpenError> {
        Self::open_on(options, |directory| Box::new(directory), PACE)
    }

    /// The journal's id.
    #[must_use]
    pub const fn id(&self) -> &Arc<str> {
        &self.journal_id
    }

    /// The newest record that is written.
    #[must_use]
    pub fn head(&self) -> Head {
        self.stats().head
    }

    /// What the journal has done so far.
    #[must_use]
    pub fn stats(&self) -> JournalStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether every record would verify at the next start with these keys alone.
    ///
    /// # Errors
    ///
    /// A key is missing that has signed a record, or may have since the start.
    pub fn check_keys(&self, keys: &JournalKeys) -> Result<(), SignerMissing> {
        self.keyring.check(keys)
    }

    /// Signs with other keys, from one of the next records on.
    ///
    /// # Errors
    ///
    /// As for [`JournalFiles::check_keys`]; nothing is changed then.
    pub fn change_keys(&self, keys: JournalKeys) -> Result<(), SignerMissing> {
        self.keyring.change(keys)
    }

    /// Deletes old segments from now on. For after the holds of all readers that
    /// are known have been made.
    pub fn start_retention(&self, retention: Retention) {
        self.retaining.start(retention);
    }

    /// What there is room for, as of the last second.
    #[must_use]
    pub fn room(&self) -> JournalRoom {
        self.room.state()
    }

    /// Whether the last writing succeeded and nothing is owed, whatever room there is.
    #[must_use]
    pub fn works(&self) -> bool {
        self.queue.is_ready()
    }

    /// Events handed over and not yet written.
    #[must_use]
    pub fn owed(&self) -> usize {
        self.queue.owed()
    }

    /// Remembers which ledger is beside the journal from now on. Blocks the thread.
    ///
    /// # Errors
    ///
    /// Where the manifest cannot be written.
    pub fn set_beside(&self, ledger: &Generation) -> Result<(), OpenError> {
        let mut manifest = self.manifest.lock().unwrap_or_else(PoisonError::into_inner);
        *manifest = manifest.beside(ledger, &self.directory.manifest())?;
        Ok(())
    }

    /// Takes nothing more ([`JournalFault::Full`] from now on), writes and syncs
    /// what is owed, and waits for that, at most this long. Blocks the thread.
    ///
    /// # Errors
    ///
    /// What is still owed then.
    pub fn close(&self, wait: Duration) -> Result<(), Unwritten> {
        self.queue.close();
        // Nothing is ever sent: the end of the thread is the message.
        let _ = self.ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(wait);
        match self.queue.owed() {
            0 => Ok(()),
            events => Err(Unwritten { events }),
        }
    }

    fn open_on(
        options: JournalOptions,
        disk: impl FnOnce(Directory) -> Box<dyn Disk>,
        pace: Pace,
    ) -> Result<(Self, Recovered), OpenError> {
        let directory = Directory::new(options.directory);
        directory.make().map_err(OpenError::io("making the directory", directory.root()))?;
        let lock = lock(&directory)?;
        let (opened, manifest) = verify(
            &directory,
            (&options.keys, options.now, &options.stop),
            (options.watched, options.watched_from),
        )?;
        let Opened { replay, anchor, anchored_by, orphans, checkpoints } = opened;
        let cut_bytes = replay.cuts.iter().map(|cut| cut.bytes).sum();
        replay.cuts.iter().try_for_each(recovery::Cut::make)?;
        let mut disk = disk(directory.clone());
        let room = Arc::new(Room::new(options.min_free_bytes));
        room.measured(disk.free_bytes());
        room.keeps(&replay.kept);
        let last = match &replay.last {
            None => None,
            Some(segment) => {
                let doing = OpenError::io("opening the segment to write", &segment.path);
                let oldest = replay.kept.last().and_then(|last| last.span.times);
                let age = oldest.map(|(oldest, _)| options.now.duration_since(oldest));
                let age = age.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default();
                Some((disk.reopen(segment).map_err(doing)?, age))
            }
        };

        let head = replay.chain.head();
        let limits = Limits {
            segment_bytes: options.segment_bytes,
            segment_age: options.segment_age,
            unsynced_bytes: pace.unsynced_bytes,
            unsynced_time: pace.unsynced_time,
        };
        let signers = span_of(&replay.kept).signers.into_iter().chain(anchored_by).collect();
        let keyring = Arc::new(Keyring::new(manifest.journal_id(), signers, &options.keys));
        let (mut pairs, retaining) = (replay.pairs, Arc::new(Retaining::default()));
        let tending = Tending {
            pace: pace.tending,
            room: Arc::clone(&room),
            retaining: Arc::clone(&retaining),
            opened: (options.now, Instant::now()),
            last: (Instant::now(), 0),
            anchor,
            orphans,
            is_stuck: false,
            checked: checkpoints.back().map_or(0, |(newest, _)| *newest),
            checkpoints,
        };
        let ended = pairs.take_ended();
        pairs.stop_watching();
        let (newest_recorded, open) = (pairs.newest_recorded(), pairs.clone().into_started());
        let segments = Segments::new(disk, limits, head, last, replay.kept);
        let (readable, readers) = watch::channel(segments.readable());
        let queue = Arc::new(Queue::new(options.queue_events));
        let stats = Arc::new(Mutex::new(JournalStats::at(head)));
        let writer = Writer::new(
            Arc::clone(&queue),
            Arc::clone(&keyring),
            (replay.chain, pairs),
            (segments, tending),
            Arc::clone(&stats),
            readable,
            pace.back_off,
        );
        let thread =
            writer.spawn(lock).map_err(OpenError::io("starting the writer", directory.root()))?;
        let recovered = Recovered {
            head,
            beside: manifest.ledger(),
            records: head.sequence,
            read_bytes: replay.read_bytes,
            deleted_until: anchor.and_then(|anchor| anchor.newest),
            cut_bytes,
            open,
            ended,
            newest_recorded,
        };
        let journal = Self {
            queue,
            stats,
            readers: Readers::new(manifest.journal_id(), directory.clone(), readers),
            journal_id: manifest.journal_id(),
            directory,
            manifest: Mutex::new(manifest),
            keyring,
            ended: Mutex::new(thread),
            retaining,
            room,
        };
        Ok((journal, recovered))
    }
}

#[async_trait]
impl Journal for JournalFiles {
    async fn append(
        &self,
        entries: Vec<Entry>,
        durability: Durability,
    ) -> Result<Vec<Stamp>, JournalFault> {
        entries.iter().try_for_each(Entry::check).map_err(JournalFault::Rejected)?;
        #[cfg(feature = "failpoints")]
        let (starts, completes) = (is_call(&entries, true), is_call(&entries, false));
        failpoint!(hold "reserved-not-started", if starts);
        failpoint!(hold "settled-not-completed", if completes);
        let stamps = self.queue.push(entries, durability)?.answer().await;
        failpoint!("started-not-reserved", if starts);
        failpoint!("completed-not-settled", if completes);
        stamps
    }

    fn is_ready(&self) -> bool {
        self.works() && !self.room.is_low()
    }
}

impl AuditLog for JournalFiles {
    fn id(&self) -> &Arc<str> {
        &self.journal_id
    }

    fn head(&self) -> u64 {
        self.readers.head()
    }

    fn read_from(&self, sequence: u64) -> Box<dyn AuditReader> {
        Box::new(self.readers.read_from(sequence))
    }

    fn hold(&self, name: &str, taken: u64) -> Hold {
        self.retaining.holds().hold(name, taken)
    }
}

impl Drop for JournalFiles {
    fn drop(&mut self) {
        if let Err(Unwritten { events }) = self.close(CLOSE_WAIT) {
            tracing::error!(events, "the journal was closed before all events were written");
        }
    }
}

impl JournalStats {
    const fn at(head: Head) -> Self {
        Self { head, records: 0, commits: 0, commit_time: Duration::ZERO, syncs: 0, failures: 0 }
    }
}

const PACE: Pace = Pace {
    unsynced_bytes: 4 * 1024 * 1024,
    unsynced_time: Duration::from_secs(1),
    back_off: BackOff { first: Duration::from_millis(100), most: Duration::from_secs(5) },
    tending: TendingPace {
        every: Duration::from_secs(1),
        bytes: 8 * 1024 * 1024,
        checkpoint_records: 16_384,
    },
};
const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// Whether an append is the started or the completed event of an attempt.
#[cfg(feature = "failpoints")]
fn is_call(entries: &[Entry], started: bool) -> bool {
    use crate::domain::audit::EventKind;
    matches!(entries, [Entry::Call(event)] if matches!(event.kind, EventKind::Started) == started)
}

fn lock(directory: &Directory) -> Result<Lock, OpenError> {
    let path = directory.lock();
    Lock::take(&path).map_err(|fault| match fault {
        LockFault::Held => OpenError::Locked { directory: directory.root().to_path_buf() },
        LockFault::Io(error) => OpenError::io("taking the lock file", &path)(error),
    })
}

fn verify(
    directory: &Directory,
    (keys, now, stop): (&JournalKeys, Timestamp, &Stop),
    (watched, watched_from): (HashSet<CallName>, Option<Timestamp>),
) -> Result<(Opened, Manifest), OpenError> {
    let folder = directory.segments();
    let segments =
        directory.list_segments().map_err(OpenError::io("listing the segments", &folder))?;
    let manifest = manifest::read_or_create(directory, !segments.is_empty(), now)?;
    let journal_id = manifest.journal_id();
    let opening = Opening { directory, journal_id, keys, watched, watched_from, stop };
    let opened = opening.read(segments)?;
    directory
        .remove_unpublished()
        .map_err(OpenError::io("removing an unfinished segment", &folder))?;
    Ok((opened, manifest))
}
