//! The thread that writes: what has queued up is one group, written with one
//! call, synced at most once, and answered together.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};
use std::{io, thread};

use tokio::sync::watch;

use super::JournalStats;
use super::keyring::Keyring;
use super::queue::{Answer, Queue, Request, Until, Woken};
use super::reader::Readable;
use super::segments::Segments;
use super::tending::{Tended, Tending};
use crate::adapters::lock::Lock;
use crate::domain::audit::{Chain, OpenPairs, Stamp};
use crate::ports::{Durability, JournalFault};

/// Events in a group; an append is never split.
const GROUP_EVENTS: usize = 1_024;

/// How long the writer waits after failures before it tries again.
#[derive(Debug, Clone, Copy)]
pub(super) struct BackOff {
    /// After the first.
    pub(super) first: Duration,
    /// At most, doubling from there.
    pub(super) most: Duration,
}

/// What the thread owns, and what it shares.
pub(super) struct Writer {
    queue: Arc<Queue>,
    keyring: Arc<Keyring>,
    chain: Chain,
    /// The pairs that are open, counting what is signed and not yet written.
    pairs: OpenPairs,
    segments: Segments,
    tending: Tending,
    stats: Arc<Mutex<JournalStats>>,
    readable: watch::Sender<Readable>,
    back_off: BackOff,
    /// Failures since the last success.
    failures: u32,
    /// Events signed and not yet written, and the newest ticket among them.
    pending: (usize, u64),
    group: Vec<Request>,
    signed: Vec<(tokio::sync::oneshot::Sender<Answer>, Vec<Stamp>)>,
}

/// Tells whoever waits that the thread has ended, also by a panic.
/// The fields are dropped in this order: who hears of the end finds the lock free.
struct Ended {
    queue: Arc<Queue>,
    _lock: Lock,
    _end: mpsc::Sender<()>,
}

impl Writer {
    pub(super) fn new(
        queue: Arc<Queue>,
        keyring: Arc<Keyring>,
        (chain, pairs): (Chain, OpenPairs),
        (segments, tending): (Segments, Tending),
        stats: Arc<Mutex<JournalStats>>,
        readable: watch::Sender<Readable>,
        back_off: BackOff,
    ) -> Self {
        Self {
            queue,
            keyring,
            chain,
            pairs,
            segments,
            tending,
            stats,
            readable,
            back_off,
            failures: 0,
            pending: (0, 0),
            group: Vec::new(),
            signed: Vec::new(),
        }
    }

    /// Starts the thread, which holds the lock until its end. The receiver hears of that.
    pub(super) fn spawn(self, lock: Lock) -> io::Result<mpsc::Receiver<()>> {
        let (sender, receiver) = mpsc::channel();
        thread::Builder::new().name("journal".into()).spawn(move || {
            let _ended = Ended { queue: Arc::clone(&self.queue), _lock: lock, _end: sender };
            let mut writer = self;
            writer.run();
        })?;
        Ok(receiver)
    }

    fn run(&mut self) {
        loop {
            let tending_in = self.tending.due_in();
            let until = match self.failures {
                0 => Until::Work(
                    self.segments
                        .sync_due_in()
                        .map_or(tending_in, |sync_in| sync_in.min(tending_in)),
                ),
                failures => Until::BackOff(self.back_off.pause(failures)),
            };
            let woken = self.queue.take(&mut self.group, GROUP_EVENTS, until);
            let is_asked = |request: &Request| request.durability == Durability::Synced;
            let sync = self.group.iter().any(is_asked);
            self.sign_group();
            let is_due = self.tending.is_due(self.chain.head(), self.segments.total_bytes());
            let sync = sync || is_due || self.failures > 0 || woken == Woken::Closed;
            if self.pending.0 > 0 || self.failures > 0 || self.leaves_unsynced(sync) {
                self.commit(sync);
            }
            let is_due = is_due || self.tending.is_due_between(&self.segments);
            self.tend(is_due, woken);
            if woken == Woken::Closed {
                return;
            }
        }
    }

    /// Whether lines that were written before are to be synced now.
    fn leaves_unsynced(&self, sync: bool) -> bool {
        self.segments.all_synced().is_none() && (sync || self.segments.is_sync_due())
    }

    fn tend(&mut self, is_due: bool, woken: Woken) {
        let Self { chain, pairs, segments, keyring, readable, .. } = self;
        let mut tended = Tended { chain, pairs, segments, keyring, readable };
        match (self.failures, woken) {
            (0, Woken::Closed) => self.tending.finish(&mut tended),
            (0, Woken::Go) if is_due => self.tending.tend(&mut tended),
            (_, Woken::Go) if is_due => self.tending.measure(tended.segments),
            _ => {}
        }
    }

    fn sign_group(&mut self) {
        if let Some(keys) = self.keyring.take() {
            self.chain.use_keys(keys);
        }
        for request in self.group.drain(..) {
            let mut stamps = Vec::with_capacity(request.events.len());
            for event in &request.events {
                stamps.push(self.segments.sign(&mut self.chain, event));
                self.pairs.observe(self.chain.head(), event);
            }
            self.pending = (self.pending.0 + request.events.len(), request.ticket);
            self.signed.push((request.answer, stamps));
        }
    }

    /// Writes what is signed and answers the group. Whoever waited no longer has no receiver.
    fn commit(&mut self, sync: bool) {
        let begun = Instant::now();
        let result = self.segments.commit(self.chain.head(), sync);
        let took = begun.elapsed();
        match result {
            Ok(()) => {
                self.note_success(took);
                for (answer, stamps) in self.signed.drain(..) {
                    let _ = answer.send(Ok(stamps));
                }
            }
            Err(error) => {
                self.note_failure(&error);
                for (answer, _) in self.signed.drain(..) {
                    let _ = answer.send(Err(JournalFault::Failed));
                }
            }
        }
    }

    fn note_success(&mut self, took: Duration) {
        let (events, ticket) = std::mem::take(&mut self.pending);
        {
            let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
            stats.head = self.chain.head();
            stats.records += events as u64;
            stats.commits += 1;
            stats.commit_time += took;
            stats.syncs = self.segments.syncs();
        }
        self.queue.settle(ticket, events);
        // Readers wake only for what has become durable.
        let readable = self.segments.readable();
        self.readable.send_if_modified(|known| {
            let moved = *known != readable;
            *known = readable;
            moved
        });
        if self.failures > 0 {
            tracing::info!(attempts = self.failures, "the journal works again");
        }
        self.failures = 0;
    }

    fn note_failure(&mut self, error: &io::Error) {
        self.queue.set_broken();
        self.failures = self.failures.saturating_add(1);
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).failures += 1;
        if self.failures == 1 {
            tracing::error!(error_kind = %error, "the journal cannot be written; it is tried again");
        }
    }
}

impl BackOff {
    pub(super) fn pause(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(16);
        self.first.saturating_mul(1 << doublings).min(self.most)
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.queue.set_broken();
        self.queue.close();
        self.queue.clear();
    }
}
