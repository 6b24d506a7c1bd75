//! The one queue between the callers and the writer thread.
//!
//! The lock is held for a few instructions and never over an await. The writer
//! is woken only when it waits, and then takes all that has come meanwhile.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::domain::audit::{Entry, Stamp};
use crate::ports::{Durability, JournalFault};

/// What an append is answered with.
pub(super) type Answer = Result<Vec<Stamp>, JournalFault>;

/// Appends on their way to the disk, and how far they have come.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    limit: usize,
    /// Whether the last commit succeeded and the writer lives.
    works: AtomicBool,
    /// The newest ticket that is written, as durable as it was asked for.
    settled: AtomicU64,
    /// The newest ticket that nobody waits for any more.
    abandoned: AtomicU64,
}

#[derive(Debug)]
struct State {
    requests: VecDeque<Request>,
    /// Events handed over and not yet written.
    owed: usize,
    /// The newest ticket given out.
    ticket: u64,
    writer_waits: bool,
    closed: bool,
}

/// One append.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) ticket: u64,
    pub(super) events: Vec<Entry>,
    pub(super) durability: Durability,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// The caller's end of an append. Dropped without an answer it leaves the
/// journal not ready until the append's events are written.
#[derive(Debug)]
pub(super) struct Waiting<'a> {
    queue: &'a Queue,
    ticket: u64,
    answer: oneshot::Receiver<Answer>,
    answered: bool,
}

/// What the writer waits for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Until {
    /// For a request, at most this long.
    Work(Duration),
    /// For this long, whatever comes, unless the queue is closed.
    BackOff(Duration),
}

/// Why the writer goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    /// There are requests, or the wait is over.
    Go,
    /// The queue is closed, and what was taken now is its last.
    Closed,
}

impl Queue {
    /// A queue for at most this many events.
    pub(super) fn new(limit: usize) -> Self {
        let state = State {
            requests: VecDeque::new(),
            owed: 0,
            ticket: 0,
            writer_waits: false,
            closed: false,
        };
        Self {
            state: Mutex::new(state),
            wake: Condvar::new(),
            limit,
            works: AtomicBool::new(true),
            settled: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
        }
    }

    /// Takes an append over. From here on its events are owed.
    ///
    /// # Errors
    ///
    /// [`JournalFault::Full`] beyond the limit and after [`Queue::close`].
    pub(super) fn push(
        &self,
        events: Vec<Entry>,
        durability: Durability,
    ) -> Result<Waiting<'_>, JournalFault> {
        let (answer, receiver) = oneshot::channel();
        let mut state = self.lock();
        if state.closed || events.len() > self.limit - state.owed {
            return Err(JournalFault::Full);
        }
        state.owed += events.len();
        state.ticket += 1;
        let ticket = state.ticket;
        state.requests.push_back(Request { ticket, events, durability, answer });
        let wake = std::mem::take(&mut state.writer_waits);
        drop(state);
        if wake {
            self.wake.notify_one();
        }
        Ok(Waiting { queue: self, ticket, answer: receiver, answered: false })
    }

    /// Waits, then moves requests of at most about `most` events into `group`.
    pub(super) fn take(&self, group: &mut Vec<Request>, most: usize, until: Until) -> Woken {
        let mut state = match until {
            Until::Work(limit) => self.wait_for_work(limit),
            Until::BackOff(pause) => self.wait_out(pause),
        };
        let mut events = 0;
        while events < most
            && let Some(request) = state.requests.pop_front()
        {
            events += request.events.len();
            group.push(request);
        }
        if state.closed && state.requests.is_empty() { Woken::Closed } else { Woken::Go }
    }

    /// Notes that all up to this ticket, with this many events, is written.
    pub(super) fn settle(&self, ticket: u64, events: usize) {
        self.lock().owed -= events;
        self.settled.fetch_max(ticket, Ordering::Release);
        self.works.store(true, Ordering::Release);
    }

    /// Notes that writing failed, or that the writer is gone.
    pub(super) fn set_broken(&self) {
        self.works.store(false, Ordering::Release);
    }

    /// Whether the last commit succeeded and no abandoned append is owed.
    pub(super) fn is_ready(&self) -> bool {
        self.works.load(Ordering::Acquire)
            && self.abandoned.load(Ordering::Acquire) <= self.settled.load(Ordering::Acquire)
    }

    /// Events handed over and not yet written.
    pub(super) fn owed(&self) -> usize {
        self.lock().owed
    }

    /// Takes nothing more and ends the writer's waits.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_one();
    }

    /// Drops what the writer will not come for, so that its waiters are answered.
    pub(super) fn clear(&self) {
        self.lock().requests.clear();
    }

    fn wait_for_work(&self, limit: Duration) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let deadline = Instant::now() + limit;
        while state.requests.is_empty() && !state.closed {
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                break;
            }
            state.writer_waits = true;
            state = self.wait(state, left);
        }
        state.writer_waits = false;
        state
    }

    fn wait_out(&self, pause: Duration) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let deadline = Instant::now() + pause;
        while !state.closed {
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                break;
            }
            state = self.wait(state, left);
        }
        state
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        self.wake.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Every statement under the lock leaves the state whole, so that a panic
    /// elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting<'_> {
    /// Waits for the writer's answer. A writer that is gone has failed.
    pub(super) async fn answer(mut self) -> Answer {
        let answer = (&mut self.answer).await.unwrap_or(Err(JournalFault::Failed));
        self.answered = true;
        answer
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.queue.abandoned.fetch_max(self.ticket, Ordering::Release);
        }
    }
}
