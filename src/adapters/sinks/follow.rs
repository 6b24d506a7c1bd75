//! One sink's way through the journal.
//!
//! Read, check, hand over, and only when the receiver has answered write down how
//! far that is; only what is written down may retention delete. A crash between
//! two of these repeats events and loses none. Whatever goes wrong, the place
//! stays where it is and the calls notice nothing.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::back_off::BackOff;
use super::cursor::Cursor;
use super::peer::{Item, NotTaken, Peer, SinkFault, Taken};
use super::state::SinkState;
use crate::failpoint::failpoint;
use crate::ports::{AuditLog, AuditReader, Clock, Hold, Step};

/// Items handed over at once. As the journal reads at most 64 KiB for 64 of
/// them, that is at most 512 KiB of records.
pub(super) const MAX_ITEMS: usize = 512;
/// No more is read where another step of the journal might not fit.
const STEP_ITEMS: usize = 64;
/// How long after a delivery a sink gathers what comes before it makes the next: at
/// thousands of events a second each of them would else be a request of its own.
const GATHERING: Duration = Duration::from_millis(100);
/// How long a sink that gets on leaves its file alone: what a crash may repeat.
const CURSOR_INTERVAL: Duration = Duration::from_secs(1);

/// The end that a drain asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Finish {
    /// The last record that is to be delivered.
    pub(super) target: u64,
    /// Until when that is tried.
    pub(super) until: Instant,
}

/// What follows the journal for one sink.
pub(super) struct Follower {
    pub(super) log: Arc<dyn AuditLog>,
    pub(super) peer: Box<dyn Peer>,
    /// How long the peer may take for one delivery.
    pub(super) timeout: Duration,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) state: Arc<SinkState>,
    pub(super) hold: Arc<Hold>,
    pub(super) finish: watch::Receiver<Option<Finish>>,
    /// What the peer has answered for.
    pub(super) cursor: Cursor,
    /// Where that is written down.
    pub(super) file: PathBuf,
}

/// A follower on its way.
struct Run {
    follower: Follower,
    reader: Box<dyn AuditReader>,
    /// What was read and not answered for.
    waiting: VecDeque<Item>,
    /// The last record that was read.
    read: Cursor,
    /// How many items the peer gets next.
    at_once: usize,
    back_off: BackOff,
    /// Until when what comes is gathered, where there is room for it.
    gather_until: Instant,
    /// When the cursor is to be written; `None`: the file says what it says.
    save_at: Option<Instant>,
}

impl Follower {
    /// Follows the journal until the drain.
    pub(super) async fn run(self) {
        let reader = match self.cursor.sequence {
            0 => self.log.read_from(0),
            taken => self.log.read_from(taken + 1),
        };
        let run = Run {
            reader,
            waiting: VecDeque::new(),
            read: self.cursor.clone(),
            at_once: MAX_ITEMS,
            back_off: BackOff::default(),
            gather_until: Instant::now(),
            save_at: None,
            follower: self,
        };
        run.run().await;
    }
}

impl Run {
    async fn run(mut self) {
        while self.fill().await {
            self.gather().await;
            while !self.waiting.is_empty() {
                let Some(pause) = self.deliver().await else { continue };
                if !self.pause(pause).await {
                    return self.save().await;
                }
            }
        }
        self.save().await;
    }

    /// Reads on, and waits for that; `false` once the end is reached.
    async fn fill(&mut self) -> bool {
        loop {
            let finish = *self.follower.finish.borrow_and_update();
            if finish.is_some_and(|finish| self.read.sequence >= finish.target) {
                return false;
            }
            let never = Instant::now() + Duration::from_hours(24);
            let save_at = self.save_at.unwrap_or(never);
            let until = finish.map_or(never, |finish| finish.until);
            tokio::select! {
                biased;
                step = self.reader.next() => if let Ok(step) = step {
                    self.take(step);
                } else {
                    let pause = self.failed(SinkFault::Journal, None);
                    if !self.pause(pause).await {
                        return false;
                    }
                },
                () = sleep_until(save_at) => self.save().await,
                () = sleep_until(until) => return false,
                told = self.follower.finish.changed() => if told.is_err() {
                    return false;
                },
            }
            if self.settle_unsent() {
                continue;
            }
            if !self.waiting.is_empty() {
                return true;
            }
        }
    }

    /// Takes what is there already, and where there is room for it what comes soon.
    async fn gather(&mut self) {
        self.fill_up().await;
        let has_room = self.waiting.len() + STEP_ITEMS <= MAX_ITEMS;
        if has_room && self.follower.finish.borrow().is_none() {
            tokio::select! {
                () = sleep_until(self.gather_until) => {}
                _ = self.follower.finish.changed() => {}
            }
            self.fill_up().await;
        }
    }

    /// Takes what can be read without waiting, as far as one delivery holds it.
    async fn fill_up(&mut self) {
        while self.waiting.len() + STEP_ITEMS <= MAX_ITEMS
            && self.read.sequence < self.follower.log.head()
        {
            match self.reader.next().await {
                Ok(step) => self.take(step),
                // Met again, and told, when it is the next that is needed.
                Err(_) => return,
            }
        }
    }

    /// Puts in line what a step of the journal holds, each event checked against
    /// its closed set once more.
    fn take(&mut self, step: Step) {
        let state = &self.follower.state;
        match step {
            Step::Gap { first, last } => {
                state.missed(first, last);
                self.waiting.push_back(Item::Gap { first, last });
                self.read = Cursor::behind(self.follower.log.id(), last);
            }
            Step::Records(records) => {
                for (entry, stamp) in records {
                    self.read = Cursor::at(&stamp);
                    match entry.check() {
                        Ok(()) => self.waiting.push_back(Item::Record(entry, stamp)),
                        Err(fault) => state.withheld(fault.field, stamp.sequence),
                    }
                }
            }
        }
    }

    /// Moves on where everything that was read must not be sent.
    fn settle_unsent(&mut self) -> bool {
        let is_all_withheld =
            self.waiting.is_empty() && self.read.sequence > self.follower.cursor.sequence;
        if is_all_withheld {
            self.moved(0);
        }
        is_all_withheld
    }

    /// Hands over what is next in line; how long to wait where it was not taken.
    async fn deliver(&mut self) -> Option<Duration> {
        let count = self.at_once.min(self.waiting.len());
        let items = &self.waiting.make_contiguous()[..count];
        let (first, last) = (items[0].sequence(), items[count - 1].sequence());
        let records = items.iter().filter(|item| matches!(item, Item::Record(..))).count() as u64;
        let mut until = Instant::now() + self.follower.timeout;
        if let Some(finish) = *self.follower.finish.borrow() {
            until = until.min(finish.until);
        }
        let answer = timeout_at(until, self.follower.peer.deliver(items)).await;
        match answer.unwrap_or(Err(NotTaken::Later { fault: SinkFault::TimedOut, wait: None })) {
            Ok(Taken { rejected }) => {
                failpoint!("sink-delivered");
                if rejected > 0 {
                    self.follower.state.rejected(rejected, first, last);
                }
                self.settle(count, records.saturating_sub(rejected));
                self.at_once = self.at_once.saturating_mul(2).min(MAX_ITEMS);
                // Who rejects everything must not empty the journal at full speed.
                if rejected >= count as u64 {
                    return Some(self.back_off.next(None));
                }
                self.back_off.reset();
                self.gather_until = Instant::now() + GATHERING;
                self.save_if_due().await;
                None
            }
            Err(NotTaken::Refused | NotTaken::TooMany(_)) if count > 1 => {
                self.at_once = count / 2;
                None
            }
            Err(NotTaken::Refused) => {
                self.follower.state.rejected(1, first, last);
                self.settle(count, 0);
                self.save_if_due().await;
                Some(self.back_off.next(None))
            }
            Err(NotTaken::TooMany(fault)) => Some(self.failed(fault, None)),
            Err(NotTaken::Later { fault, wait }) => Some(self.failed(fault, wait)),
        }
    }

    fn failed(&mut self, fault: SinkFault, wait: Option<Duration>) -> Duration {
        self.follower.state.failed(fault);
        self.back_off.next(wait)
    }

    /// The peer has answered for the first `count` items, and taken this many records of them.
    fn settle(&mut self, count: usize, delivered: u64) {
        let last = self.waiting.drain(..count).next_back();
        let journal_id = self.follower.log.id();
        // What was read behind the last item was withheld, and is answered for with it.
        self.follower.cursor = match last {
            _ if self.waiting.is_empty() => self.read.clone(),
            Some(Item::Record(_, stamp)) => Cursor::at(&stamp),
            Some(Item::Gap { last, .. }) => Cursor::behind(journal_id, last),
            None => return,
        };
        self.told(delivered);
    }

    /// Everything that was read is answered for.
    fn moved(&mut self, delivered: u64) {
        self.follower.cursor = self.read.clone();
        self.told(delivered);
    }

    fn told(&mut self, delivered: u64) {
        let Follower { state, clock, cursor, .. } = &self.follower;
        state.moved(cursor.sequence, delivered, clock.now());
        self.save_at.get_or_insert_with(|| Instant::now() + CURSOR_INTERVAL);
    }

    async fn save_if_due(&mut self) {
        if self.save_at.is_some_and(|at| at <= Instant::now()) {
            self.save().await;
        }
    }

    /// Writes down how far the sink is, and lets retention go as far.
    async fn save(&mut self) {
        if self.save_at.is_none() {
            return;
        }
        let (cursor, file) = (self.follower.cursor.clone(), self.follower.file.clone());
        let sequence = cursor.sequence;
        let written = tokio::task::spawn_blocking(move || cursor.write(&file)).await;
        let is_saved = matches!(written, Ok(Ok(())));
        self.follower.state.saved(is_saved);
        if is_saved {
            failpoint!("sink-cursor-written");
            self.follower.hold.take(sequence);
            self.save_at = None;
        } else {
            self.save_at = Some(Instant::now() + CURSOR_INTERVAL);
        }
    }

    /// Waits before the next try; `false` where the drain does not leave time for one.
    async fn pause(&mut self, pause: Duration) -> bool {
        let mut at = Instant::now() + pause;
        loop {
            if let Some(finish) = *self.follower.finish.borrow_and_update() {
                // A last try comes at once: a long wait would be all the time there is.
                let soon = Instant::now() + LAST_TRIES;
                at = at.min(soon);
                if at >= finish.until {
                    return false;
                }
            }
            tokio::select! {
                biased;
                told = self.follower.finish.changed() => if told.is_err() {
                    return false;
                },
                () = sleep_until(at) => return true,
                () = sleep_until(self.save_at.unwrap_or(at)), if self.save_at.is_some() => {
                    self.save().await;
                }
            }
        }
    }
}

/// How long a sink waits between two tries at the end.
const LAST_TRIES: Duration = Duration::from_millis(500);
