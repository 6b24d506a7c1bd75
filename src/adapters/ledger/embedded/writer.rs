//! The thread that writes: what has queued up is one transaction, made durable
//! once, and answered after that.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{io, thread};

use redb::Durability;
use tokio::sync::oneshot;

use super::Store;
use super::error::StoreFault;
use super::session::Session;
use super::tables::Tables;
use crate::domain::watermark::Watermark;
use crate::ports::LedgerFault;

/// Operations in one transaction.
const GROUP: usize = 256;

/// An operation: what it does in the transaction, and then tells who waits.
type Job = Box<dyn FnOnce(&mut Session<'_, '_>) -> Result<Answer, StoreFault> + Send>;
/// Called once the transaction is durable, and dropped if it failed.
type Answer = Box<dyn FnOnce() + Send>;

/// The way to the writer.
#[derive(Debug)]
pub(super) struct Queue {
    messages: mpsc::Sender<Message>,
    waiting: AtomicUsize,
    limit: usize,
    works: AtomicBool,
}

enum Message {
    Job(Job),
    Stop,
}

/// What the thread owns, and what it shares.
struct Writer {
    store: Arc<Store>,
    clock: Watermark,
    skew: Duration,
    queue: Arc<Queue>,
    messages: mpsc::Receiver<Message>,
}

/// Tells whoever waits that the thread has ended, also by a panic.
struct Ended {
    queue: Arc<Queue>,
    _end: mpsc::Sender<()>,
}

/// Starts the writer. The receiver hears of its end.
pub(super) fn spawn(
    store: Arc<Store>,
    clock: Watermark,
    skew: Duration,
    limit: usize,
) -> io::Result<(Arc<Queue>, mpsc::Receiver<()>)> {
    let (sender, messages) = mpsc::channel();
    let queue = Arc::new(Queue {
        messages: sender,
        waiting: AtomicUsize::new(0),
        limit,
        works: AtomicBool::new(true),
    });
    let writer = Writer { store, clock, skew, queue: Arc::clone(&queue), messages };
    let (end, ended) = mpsc::channel();
    let guard = Ended { queue: Arc::clone(&queue), _end: end };
    thread::Builder::new().name("ledger".into()).spawn(move || {
        // Moved in whole, so that it is dropped last.
        let _ended = guard;
        writer.run();
    })?;
    Ok((queue, ended))
}

impl Queue {
    /// Does something in a transaction, and returns once that is durable.
    ///
    /// # Errors
    ///
    /// [`LedgerFault::Full`] at the limit; [`LedgerFault::Failed`] if the
    /// transaction was not made durable.
    pub(super) async fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Session<'_, '_>) -> Result<T, StoreFault> + Send + 'static,
    ) -> Result<T, LedgerFault> {
        let (reply, answer) = oneshot::channel();
        let more = |waiting| (waiting < self.limit).then_some(waiting + 1);
        self.waiting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .map_err(|_| LedgerFault::Full)?;
        self.push(Box::new(move |session| {
            let value = work(session)?;
            // Who does not wait any more drops the value.
            Ok(Box::new(move || drop(reply.send(value))))
        }))?;
        answer.await.map_err(|_| LedgerFault::Failed)
    }

    /// Does something that nobody waits for, whatever the limit.
    pub(super) fn post(
        &self,
        work: impl FnOnce(&mut Session<'_, '_>) -> Result<(), StoreFault> + Send + 'static,
    ) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        // A ledger that is broken or closed keeps what it has for the next start.
        let _ = self.push(Box::new(move |session| {
            work(session)?;
            Ok(Box::new(|| ()))
        }));
    }

    pub(super) fn works(&self) -> bool {
        self.works.load(Ordering::Acquire)
    }

    /// Ends the writer after what is queued.
    pub(super) fn stop(&self) {
        // It may have ended already.
        let _ = self.messages.send(Message::Stop);
    }

    fn push(&self, job: Job) -> Result<(), LedgerFault> {
        self.messages.send(Message::Job(job)).map_err(|_| LedgerFault::Failed)
    }
}

impl Writer {
    fn run(mut self) {
        let mut group = Vec::new();
        let mut answers = Vec::new();
        loop {
            let stop = self.take(&mut group);
            if let Err(fault) = self.commit(&mut group, &mut answers) {
                // What is in memory and what is on the disk may differ now: only
                // opening it again brings them together. Who waits hears of the
                // failure when the answers are dropped, after this.
                self.queue.works.store(false, Ordering::Release);
                tracing::error!(%fault, "the ledger failed and stays closed until a restart");
                return;
            }
            answers.drain(..).for_each(|answer| answer());
            if stop {
                return;
            }
        }
    }

    /// Waits for a job, then takes those that have come meanwhile. Says whether to stop.
    fn take(&self, group: &mut Vec<Job>) -> bool {
        let mut next = self.messages.recv().ok();
        loop {
            match next {
                Some(Message::Job(job)) => {
                    self.queue.waiting.fetch_sub(1, Ordering::AcqRel);
                    group.push(job);
                }
                Some(Message::Stop) => return true,
                None => return group.is_empty(),
            }
            if group.len() == GROUP {
                return false;
            }
            next = self.messages.try_recv().ok();
        }
    }

    /// Does the jobs of a group in one durable transaction, or fails.
    fn commit(
        &mut self,
        group: &mut Vec<Job>,
        answers: &mut Vec<Answer>,
    ) -> Result<(), StoreFault> {
        if group.is_empty() {
            return Ok(());
        }
        let mut transaction = self.store.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        let mut session = Session {
            tables: Tables::open(&transaction)?,
            clock: &mut self.clock,
            skew: self.skew,
        };
        for job in group.drain(..) {
            answers.push(job(&mut session)?);
        }
        drop(session);
        transaction.commit()?;
        Ok(())
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.queue.works.store(false, Ordering::Release);
    }
}
