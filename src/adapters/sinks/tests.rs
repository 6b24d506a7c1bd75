//! The follower against a journal and a receiver that do what the test says, in stepped time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::collections::VecDeque;
use std::sync::Mutex;

use async_trait::async_trait;
use jiff::Timestamp;
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::peer::{Item, NotTaken, Taken};
use super::*;
use crate::domain::audit::{Digest, Entry, Stamp, samples};
use crate::ports::{AuditReader, Held, Holds, SinkStatus, Unreadable};

const ID: &str = "0190a8f0-0000-4000-8000-000000000000";

/// A journal of steps: the test adds them, readers wait for more.
#[derive(Clone)]
struct Log {
    id: Arc<str>,
    holds: Holds,
    steps: Arc<Mutex<VecDeque<Result<Step, Unreadable>>>>,
    head: Arc<Mutex<u64>>,
    asked_from: Arc<Mutex<Vec<u64>>>,
    more: Arc<Notify>,
}

/// What a receiver was handed, and what it answers: the rule decides.
type Rule = Box<dyn FnMut(&[Item]) -> Result<Taken, NotTaken> + Send>;

struct Receiver {
    rule: Rule,
    /// The sequences of each delivery, taken or not.
    handed: Arc<Mutex<Vec<Vec<u64>>>>,
}

struct Noon;

/// A follower on its way, and what it works on.
struct Scene {
    log: Log,
    handed: Arc<Mutex<Vec<Vec<u64>>>>,
    status: SinkStatuses,
    finish: watch::Sender<Option<Finish>>,
    directory: TempDir,
    task: JoinHandle<()>,
}

impl AuditLog for Log {
    fn id(&self) -> &Arc<str> {
        &self.id
    }

    fn head(&self) -> u64 {
        *self.head.lock().unwrap()
    }

    fn read_from(&self, sequence: u64) -> Box<dyn AuditReader> {
        self.asked_from.lock().unwrap().push(sequence);
        Box::new(self.clone())
    }

    fn hold(&self, name: &str, taken: u64) -> Hold {
        self.holds.hold(name, taken)
    }
}

#[async_trait]
impl AuditReader for Log {
    async fn next(&mut self) -> Result<Step, Unreadable> {
        loop {
            let step = self.steps.lock().unwrap().pop_front();
            match step {
                Some(step) => return step,
                None => self.more.notified().await,
            }
        }
    }
}

#[async_trait]
impl Peer for Receiver {
    async fn deliver(&mut self, items: &[Item]) -> Result<Taken, NotTaken> {
        self.handed.lock().unwrap().push(items.iter().map(Item::sequence).collect());
        (self.rule)(items)
    }
}

impl Clock for Noon {
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }
}

fn record(sequence: u64) -> (Entry, Stamp) {
    let stamp = Stamp { journal_id: ID.into(), sequence, mac: Digest([7; 32]) };
    (samples::entry(samples::started("a")), stamp)
}

impl Log {
    fn new() -> Self {
        Self {
            id: ID.into(),
            holds: Holds::default(),
            steps: Arc::default(),
            head: Arc::default(),
            asked_from: Arc::default(),
            more: Arc::default(),
        }
    }

    fn add(&self, step: Result<Step, Unreadable>) {
        let last = match &step {
            Ok(Step::Records(records)) => records.last().map(|(_, stamp)| stamp.sequence),
            Ok(Step::Gap { last, .. }) => Some(*last),
            Err(_) => None,
        };
        let mut head = self.head.lock().unwrap();
        *head = last.map_or(*head, |last| last.max(*head));
        self.steps.lock().unwrap().push_back(step);
        self.more.notify_one();
    }

    fn add_records(&self, first: u64, last: u64) {
        self.add(Ok(Step::Records((first..=last).map(record).collect())));
    }
}

impl Scene {
    /// Follows from the beginning. The directory of the cursor is there unless the test says so.
    fn start(rule: impl FnMut(&[Item]) -> Result<Taken, NotTaken> + Send + 'static) -> Self {
        let (log, handed) = (Log::new(), Arc::default());
        let directory = tempfile::tempdir().unwrap();
        let state = Arc::new(SinkState::new("one".into(), "otlp", String::new(), 0));
        let kept: Arc<dyn AuditLog> = Arc::new(log.clone());
        let status = tell(vec![Arc::clone(&state)], Arc::downgrade(&kept));
        let (finish, told) = watch::channel(None);
        let follower = Follower {
            log: kept,
            peer: Box::new(Receiver { rule: Box::new(rule), handed: Arc::clone(&handed) }),
            timeout: Duration::from_secs(10),
            clock: Arc::new(Noon),
            state,
            hold: Arc::new(log.hold("one", 0)),
            finish: told,
            cursor: Cursor::start(ID),
            file: directory.path().join("one.json"),
        };
        let task = tokio::spawn(follower.run());
        Self { log, handed, status, finish, directory, task }
    }

    fn status(&self) -> SinkStatus {
        (self.status)().remove(0)
    }

    fn handed(&self) -> Vec<Vec<u64>> {
        self.handed.lock().unwrap().clone()
    }

    fn held(&self) -> u64 {
        self.log.holds.least().map(|Held { taken, .. }| taken).unwrap()
    }

    fn written(&self) -> u64 {
        let file = self.directory.path().join("one.json");
        Cursor::read(&file).unwrap().map_or(0, |cursor| cursor.sequence)
    }

    /// Lets time pass until something holds. The paused clock waits for blocking work.
    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..4_000 {
            if holds(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("it never came that {what}: {:?}", self.status());
    }
}

/// Waits for a follower's end, which must come.
async fn ended(task: JoinHandle<()>) {
    let minute = Duration::from_mins(1);
    tokio::time::timeout(minute, task).await.expect("it ends").unwrap();
}

fn later() -> Result<Taken, NotTaken> {
    Err(NotTaken::Later { fault: SinkFault::Unreachable, wait: None })
}

#[tokio::test(start_paused = true)]
async fn a_cursor_follows_the_answers_and_the_hold_the_cursor() {
    let scene = Scene::start(|_| Ok(Taken::default()));
    assert_eq!((scene.held(), scene.written()), (0, 0));
    scene.log.add_records(1, 3);
    scene.until("it is held no more", |scene| scene.held() == 3).await;
    assert_eq!((scene.written(), scene.status().sequence), (3, 3));
    assert_eq!(scene.handed(), [[1, 2, 3]]);
    scene.log.add_records(4, 4);
    scene.until("it is taken", |scene| scene.status().sequence == 4).await;
    scene.until("it is written", |scene| scene.held() == 4).await;
    assert_eq!(scene.status().delivered, 4);
}

#[tokio::test(start_paused = true)]
async fn a_cursor_that_cannot_be_written_holds_the_journal_and_stops_nothing() {
    let scene = Scene::start(|_| Ok(Taken::default()));
    // Where the file should be, there is a directory.
    let file = scene.directory.path().join("one.json");
    std::fs::create_dir(&file).unwrap();
    scene.log.add_records(1, 3);
    scene.until("it is told", |scene| scene.status().fault == Some("cursor")).await;
    scene.log.add_records(4, 6);
    scene.until("it goes on", |scene| scene.status().sequence == 6).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(scene.held(), 0);
    assert_eq!(scene.status().fault, Some("cursor"));
    std::fs::remove_dir(&file).unwrap();
    scene.until("it is held no more", |scene| scene.held() == 6).await;
    assert_eq!((scene.written(), scene.status().fault), (6, None));
}

#[tokio::test(start_paused = true)]
async fn a_dead_receiver_is_asked_seldom_and_gets_the_same_each_time() {
    let scene = Scene::start(|_| later());
    scene.log.add_records(1, 3);
    scene.log.add_records(4, 6);
    tokio::time::sleep(Duration::from_mins(10)).await;
    let tries = scene.handed().len();
    // Nine waits up to the longest, and then 15 to 30 s each.
    assert!((20..=50).contains(&tries), "{tries}");
    let first = scene.handed().remove(0);
    assert!(scene.handed().iter().all(|handed| *handed == first));
    assert_eq!((scene.held(), scene.status().delivered), (0, 0));
    assert_eq!(scene.status().fault, Some("unreachable"));
    assert!(scene.status().is_behind());
}

#[tokio::test(start_paused = true)]
async fn who_refuses_everything_does_not_empty_the_journal_at_full_speed() {
    let scene = Scene::start(|_| Err(NotTaken::Refused));
    for first in (1..=1_000).step_by(50) {
        scene.log.add_records(first, first + 49);
    }
    tokio::time::sleep(Duration::from_mins(10)).await;
    let rejected = scene.status().rejected;
    assert!((20..=50).contains(&rejected), "{rejected}");
    assert_eq!(scene.status().sequence, rejected);
    let scene = Scene::start(|items| Ok(Taken { rejected: items.len() as u64 }));
    for first in (1..=100_000).step_by(50) {
        scene.log.add_records(first, first + 49);
    }
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!(scene.handed().len() <= 50, "{}", scene.handed().len());
}

#[tokio::test(start_paused = true)]
async fn what_is_outside_its_closed_set_never_leaves_and_is_passed() {
    let scene = Scene::start(|_| Ok(Taken::default()));
    let outside = |sequence| {
        let mut event = samples::started("a");
        event.tool = "a tool with the user's words".into();
        (samples::entry(event), record(sequence).1)
    };
    scene.log.add(Ok(Step::Records(vec![record(1), outside(2), record(3), outside(4)])));
    scene.until("all is passed", |scene| scene.held() == 4).await;
    assert_eq!(scene.handed(), [[1, 3]]);
    assert_eq!((scene.status().delivered, scene.status().rejected), (2, 2));
    // Also where a step holds nothing else.
    scene.log.add(Ok(Step::Records(vec![outside(5)])));
    scene.until("it is passed", |scene| scene.held() == 5).await;
    assert_eq!(scene.handed().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_comes_one_by_one_is_gathered_and_the_first_of_it_is_not_kept_waiting() {
    let scene = Scene::start(|_| Ok(Taken::default()));
    let begun = Instant::now();
    scene.log.add_records(1, 1);
    scene.until("the first is taken", |scene| scene.status().sequence == 1).await;
    assert!(Instant::now() - begun <= Duration::from_millis(100));
    for sequence in 2..=1_000 {
        scene.log.add_records(sequence, sequence);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    scene.until("all is taken", |scene| scene.status().sequence == 1_000).await;
    let deliveries = scene.handed().len();
    assert!((8..=14).contains(&deliveries), "{deliveries}");
    assert_eq!(scene.handed().concat(), (1..=1_000).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_gap_is_handed_over_in_its_place_and_counted() {
    let scene = Scene::start(|_| Ok(Taken::default()));
    scene.log.add_records(1, 1);
    scene.log.add(Ok(Step::Gap { first: 2, last: 9 }));
    scene.log.add_records(10, 10);
    scene.until("all is taken", |scene| scene.held() == 10).await;
    let handed: Vec<u64> = scene.handed().concat();
    assert_eq!(handed, [1, 9, 10]);
    assert_eq!((scene.status().delivered, scene.status().missed), (2, 8));
}

#[tokio::test(start_paused = true)]
async fn a_journal_that_cannot_be_read_is_tried_again() {
    let scene = Scene::start(|_| Ok(Taken::default()));
    scene.log.add(Err(Unreadable));
    scene.until("it is told", |scene| scene.status().fault == Some("journal")).await;
    scene.log.add(Err(Unreadable));
    scene.log.add_records(1, 1);
    scene.until("it goes on", |scene| scene.held() == 1).await;
    assert_eq!(scene.status().fault, None);
    assert!(scene.status().failures.contains(&("journal", 2)));
}

#[tokio::test(start_paused = true)]
async fn at_the_end_what_is_there_is_delivered_and_written() {
    let scene = Scene::start(|_| Ok(Taken::default()));
    scene.log.add_records(1, 3);
    scene.until("it is taken", |scene| scene.status().sequence == 3).await;
    let until = Instant::now() + Duration::from_secs(5);
    scene.finish.send(Some(Finish { target: 5, until })).unwrap();
    scene.log.add_records(4, 5);
    // In well under the second for which a cursor waits.
    ended(scene.task).await;
    assert!(Instant::now() < until);
    assert_eq!(scene.handed.lock().unwrap().concat(), [1, 2, 3, 4, 5]);
    let cursor = Cursor::read(&scene.directory.path().join("one.json")).unwrap().unwrap();
    assert_eq!(cursor.sequence, 5);
}

#[tokio::test(start_paused = true)]
async fn the_end_is_bounded_whatever_the_receiver_does() {
    // One that was given up for half a minute is asked at once, and again.
    let scene = Scene::start(|_| later());
    scene.log.add_records(1, 3);
    tokio::time::sleep(Duration::from_mins(2)).await;
    let before = scene.handed().len();
    let until = Instant::now() + Duration::from_secs(5);
    scene.finish.send(Some(Finish { target: 3, until })).unwrap();
    ended(scene.task).await;
    assert!(Instant::now() <= until);
    let last_tries = scene.handed.lock().unwrap().len() - before;
    assert!((2..=11).contains(&last_tries), "{last_tries}");
    // One that has nothing to do and waits for an event that never becomes readable.
    let scene = Scene::start(|_| Ok(Taken::default()));
    let until = Instant::now() + Duration::from_secs(5);
    scene.finish.send(Some(Finish { target: 3, until })).unwrap();
    ended(scene.task).await;
    assert!(Instant::now() <= until + Duration::from_millis(1));
}

#[tokio::test]
async fn a_sink_goes_on_where_it_was_only_in_the_journal_that_it_was_in() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("one.json");
    let name: Arc<str> = "one".into();
    let log = Log::new();
    let at = |cursor: &Cursor| cursor.sequence;
    assert_eq!(at(&resume(&name, &file, &log).await.unwrap()), 0);
    Cursor::at(&record(3).1).write(&file).unwrap();
    log.add_records(3, 4);
    assert_eq!(at(&resume(&name, &file, &log).await.unwrap()), 3);
    assert_eq!(*log.asked_from.lock().unwrap(), [3]);
    // Another event stands there.
    let other = Stamp { mac: Digest([8; 32]), ..record(3).1 };
    log.add(Ok(Step::Records(vec![(record(3).0, other)])));
    assert_eq!(at(&resume(&name, &file, &log).await.unwrap()), 0);
    // The journal is shorter than the sink has seen.
    Cursor::at(&record(9).1).write(&file).unwrap();
    assert_eq!(at(&resume(&name, &file, &log).await.unwrap()), 0);
    // What is gone, and what cannot be read, says nothing.
    Cursor::at(&record(2).1).write(&file).unwrap();
    for step in [Ok(Step::Gap { first: 2, last: 2 }), Err(Unreadable)] {
        log.add(step);
        assert_eq!(at(&resume(&name, &file, &log).await.unwrap()), 2);
    }
    // Another journal.
    Cursor::behind("another", 2).write(&file).unwrap();
    assert_eq!(at(&resume(&name, &file, &log).await.unwrap()), 0);
    for text in ["", "{}", r#"{"format":2,"journal_id":"a","sequence":1}"#, r#"{"format":1}"#] {
        std::fs::write(&file, text).unwrap();
        let error = resume(&name, &file, &log).await.unwrap_err();
        assert!(error.to_string().contains("one.json"), "{error}");
    }
}
