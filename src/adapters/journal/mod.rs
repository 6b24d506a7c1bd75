//! The journal as files of JSON lines under one directory.
//!
//! One thread writes (`writer.rs`); what is on the disk is verified to the last
//! byte before a gate starts (`recovery.rs`). What holds of an acknowledged
//! append:
//!
//! - [`Durability::Synced`]: its records are on the disk.
//! - [`Durability::Written`]: its records survive the process. They are synced
//!   within a second, or 4 MiB, and until then also kept in memory: a failed
//!   sync costs none of them unless the process dies before they are repeated
//!   (`segments.rs`) and the system has dropped them.
//!
//! An append that failed or was abandoned stays in line, and is written before
//! anything later.

mod disk;
mod error;
mod keyring;
mod manifest;
mod queue;
mod reader;
mod recovery;
mod segments;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::watch;

pub use error::OpenError;

use self::disk::{Directory, Disk};
use self::keyring::Keyring;
use self::manifest::Manifest;
use self::queue::Queue;
use self::reader::Readers;
use self::segments::{Limits, Segments};
use self::writer::{BackOff, Writer};
use crate::adapters::lock::{Lock, LockFault};
use crate::domain::audit::{
    CallName, Chain, Entry, Event, Head, JournalKeys, SignerMissing, Stamp,
};
use crate::domain::generation::Generation;
use crate::failpoint::failpoint;
use crate::ports::{AuditLog, AuditReader, Durability, Hold, Holds, Journal, JournalFault};

/// How a journal is opened.
#[derive(Debug, Clone)]
pub struct JournalOptions {
    /// Its directory, made with mode 0700 where it is missing.
    pub directory: PathBuf,
    /// The keys of its chain.
    pub keys: JournalKeys,
    /// A segment of more bytes is followed by a new one.
    pub segment_bytes: u64,
    /// The most events that may be owed, failed ones included.
    pub queue_events: usize,
    /// The present time, for a journal that is new.
    pub now: Timestamp,
    /// Calls whose completed events are wanted.
    pub watched: HashSet<CallName>,
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
    holds: Holds,
}

/// What was found when a journal was opened.
#[derive(Debug)]
pub struct Recovered {
    /// The newest record.
    pub head: Head,
    /// The ledger that was beside it at its last start, if one was.
    pub beside: Option<Generation>,
    /// How many records there are.
    pub records: u64,
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
}

impl JournalOptions {
    /// Segments of 64 MiB and a queue of 8,192 events.
    #[must_use]
    pub fn new(directory: PathBuf, keys: impl Into<JournalKeys>, now: Timestamp) -> Self {
        Self {
            directory,
            keys: keys.into(),
            segment_bytes: 64 * 1024 * 1024,
            queue_events: 8_192,
            now,
            watched: HashSet::new(),
        }
    }
}

impl JournalFiles {
    /// Locks and verifies a journal, or starts a new one, and starts its writer.
    ///
    /// Blocks the thread while it reads everything that was ever written. The
    /// caller closes the pairs that are open before it serves.
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
        let (mut replay, manifest) =
            verify(&directory, options.keys.clone(), options.watched, options.now)?;
        let cut_bytes = replay.cuts.iter().map(|cut| cut.bytes).sum();
        replay.cuts.iter().try_for_each(recovery::Cut::make)?;
        let mut disk = disk(directory.clone());
        let last = match replay.last {
            None => None,
            Some((segment, len)) => {
                let doing = OpenError::io("opening the segment to write", &segment.path);
                Some((disk.reopen(&segment).map_err(doing)?, len))
            }
        };

        let head = replay.chain.head();
        let limits = Limits {
            segment_bytes: options.segment_bytes,
            unsynced_bytes: pace.unsynced_bytes,
            unsynced_time: pace.unsynced_time,
        };
        let segments =
            Segments::new(disk, limits, head.sequence + 1, last, replay.published.into());
        let (readable, readers) = watch::channel(segments.readable());
        let queue = Arc::new(Queue::new(options.queue_events));
        let stats = Arc::new(Mutex::new(JournalStats::at(head)));
        let signers = replay.chain.signers().to_vec();
        let keyring = Arc::new(Keyring::new(manifest.journal_id(), signers, &options.keys));
        let writer = Writer::new(
            Arc::clone(&queue),
            Arc::clone(&keyring),
            replay.chain,
            segments,
            Arc::clone(&stats),
            readable,
            pace.back_off,
        );
        let ended =
            writer.spawn(lock).map_err(OpenError::io("starting the writer", directory.root()))?;
        let recovered = Recovered {
            head,
            beside: manifest.ledger(),
            records: head.sequence,
            cut_bytes,
            ended: replay.pairs.take_ended(),
            newest_recorded: replay.pairs.newest_recorded(),
            open: replay.pairs.into_started(),
        };
        let journal = Self {
            queue,
            stats,
            readers: Readers::new(manifest.journal_id(), directory.clone(), readers),
            journal_id: manifest.journal_id(),
            directory,
            manifest: Mutex::new(manifest),
            keyring,
            ended: Mutex::new(ended),
            holds: Holds::default(),
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
        self.queue.is_ready()
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
        self.holds.hold(name, taken)
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
    keys: JournalKeys,
    watched: HashSet<CallName>,
    now: Timestamp,
) -> Result<(recovery::Replay, Manifest), OpenError> {
    let folder = directory.segments();
    let segments =
        directory.list_segments().map_err(OpenError::io("listing the segments", &folder))?;
    let manifest = manifest::read_or_create(directory, !segments.is_empty(), now)?;
    let replay = recovery::replay(segments, Chain::new(keys, manifest.journal_id()), watched)?;
    directory
        .remove_unpublished()
        .map_err(OpenError::io("removing an unfinished segment", &folder))?;
    Ok((replay, manifest))
}
