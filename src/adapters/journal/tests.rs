//! The writer over a disk that fails as told.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod faulty_disk;
mod reading;
mod room;
mod tending;

use std::io;
use std::path::Path;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tempfile::TempDir;

use self::faulty_disk::{Fault, Faults, FaultyDisk, Operation, PATIENCE};
use super::*;
use crate::domain::audit::samples;

struct Bench {
    directory: TempDir,
    faults: Faults,
    segment_bytes: u64,
    segment_age: Duration,
    queue_events: usize,
    pace: Pace,
}

impl Bench {
    fn new() -> Self {
        Self {
            directory: TempDir::new().unwrap(),
            faults: Faults::default(),
            segment_bytes: 1 << 30,
            segment_age: Duration::from_hours(24),
            queue_events: 100,
            pace: Pace {
                unsynced_bytes: 1 << 30,
                unsynced_time: Duration::from_hours(1),
                back_off: BackOff { first: Duration::ZERO, most: Duration::ZERO },
                tending: TendingPace {
                    every: Duration::from_hours(1),
                    bytes: 1 << 30,
                    checkpoint_records: 1 << 30,
                },
            },
        }
    }

    fn options(&self, directory: &Path) -> JournalOptions {
        JournalOptions {
            segment_bytes: self.segment_bytes,
            segment_age: self.segment_age,
            queue_events: self.queue_events,
            ..JournalOptions::new(
                directory.to_path_buf(),
                crate::domain::audit::JournalKey::new(&[7; 32]),
                Timestamp::UNIX_EPOCH,
            )
        }
    }

    fn open(&self) -> JournalFiles {
        let faults = self.faults.clone();
        let options = self.options(self.directory.path());
        let disk = |directory| Box::new(FaultyDisk(directory, faults)) as Box<dyn Disk>;
        JournalFiles::open_on(options, disk, self.pace).unwrap().0
    }

    /// What a gate finds that starts on this directory: the ids of the started
    /// events, and how much was cut.
    fn found_in(&self, directory: &Path) -> (Vec<String>, u64) {
        let (_journal, found) = JournalFiles::open(self.options(directory)).unwrap();
        let ids = found.open.iter().map(|event| event.tool_call_id.to_string()).collect();
        (ids, found.cut_bytes)
    }

    fn close_and_find(&self, journal: JournalFiles) -> (Vec<String>, u64) {
        journal.close(PATIENCE).unwrap();
        drop(journal);
        self.found_in(self.directory.path())
    }

    fn segments(&self) -> Vec<u64> {
        let directory = Directory::new(self.directory.path().to_path_buf());
        directory.list_segments().unwrap().iter().map(|found| found.first_sequence).collect()
    }
}

fn event(id: &str) -> Entry {
    samples::entry(samples::started(id))
}

async fn append(
    journal: &JournalFiles,
    id: &str,
    durability: Durability,
) -> Result<u64, JournalFault> {
    let stamps = journal.append(vec![event(id)], durability).await?;
    assert_eq!(stamps.len(), 1);
    Ok(stamps[0].sequence)
}

#[tokio::test]
async fn a_failed_append_is_written_before_anything_later() {
    let faults = [
        (Operation::Write, Fault::Fail(io::ErrorKind::Other)),
        (Operation::Write, Fault::Fail(io::ErrorKind::StorageFull)),
        (Operation::Write, Fault::Short(10)),
        (Operation::Write, Fault::Short(500)),
        (Operation::Sync, Fault::Fail(io::ErrorKind::Other)),
    ];
    for (operation, fault) in faults {
        let bench = Bench::new();
        let journal = bench.open();
        assert_eq!(append(&journal, "synced", Durability::Synced).await, Ok(1));
        assert_eq!(append(&journal, "written", Durability::Written).await, Ok(2));
        bench.faults.next(operation, fault);
        bench.faults.next(Operation::Create, Fault::Hang);
        let failed = append(&journal, "failed", Durability::Synced).await;
        assert_eq!(failed, Err(JournalFault::Failed), "{fault:?}");
        assert!(!journal.is_ready());
        assert_eq!(journal.owed(), 1);
        assert_eq!(journal.head().sequence, 2);
        bench.faults.release();
        assert_eq!(append(&journal, "later", Durability::Written).await, Ok(4));
        assert!(journal.is_ready());
        assert_eq!((journal.owed(), journal.stats().failures), (0, 1));
        let found = bench.close_and_find(journal);
        assert_eq!(found, (["synced", "written", "failed", "later"].map(String::from).to_vec(), 0));
        // What was not synced when the file failed is repeated in a new one.
        assert_eq!(bench.segments(), [1, 2], "{operation:?} {fault:?}");
    }
}

#[tokio::test]
async fn a_new_segment_is_tried_until_it_stands() {
    let operations =
        [Operation::Create, Operation::Write, Operation::Sync, Operation::Publish, Operation::Cut];
    for operation in operations {
        let bench = Bench::new();
        let journal = bench.open();
        assert_eq!(append(&journal, "a", Durability::Synced).await, Ok(1));
        assert_eq!(append(&journal, "b", Durability::Written).await, Ok(2));
        bench.faults.next(Operation::Write, Fault::Short(10));
        // `Short` leaves a failure for the write after it; these come after that.
        bench.faults.next(operation, Fault::Fail(io::ErrorKind::Other));
        bench.faults.next(operation, Fault::Fail(io::ErrorKind::Other));
        let failed = append(&journal, "c", Durability::Written).await;
        assert_eq!(failed, Err(JournalFault::Failed));
        while !journal.is_ready() {
            tokio::task::yield_now().await;
        }
        assert_eq!(append(&journal, "d", Durability::Written).await, Ok(4));
        journal.close(PATIENCE).unwrap();
        drop(journal);
        let (found, cut) = bench.found_in(bench.directory.path());
        assert_eq!(found, ["a", "b", "c", "d"], "{operation:?}");
        assert_eq!(cut > 0, operation == Operation::Cut);
        assert_eq!(bench.found_in(bench.directory.path()).1, 0);
    }
}

#[tokio::test]
async fn a_process_killed_while_the_journal_mends_itself_loses_nothing_written() {
    for hang in [Operation::Create, Operation::Sync, Operation::Publish, Operation::Cut] {
        let bench = Bench::new();
        let journal = bench.open();
        append(&journal, "a", Durability::Synced).await.unwrap();
        append(&journal, "b", Durability::Written).await.unwrap();
        bench.faults.next(Operation::Write, Fault::Short(10));
        bench.faults.next(hang, Fault::Hang);
        append(&journal, "c", Durability::Written).await.unwrap_err();
        bench.faults.wait_until_it_hangs();
        // What a killed process leaves is what the directory holds now.
        let left = TempDir::new().unwrap();
        copy(bench.directory.path(), left.path());
        let (found, cut) = bench.found_in(left.path());
        let published = hang == Operation::Cut;
        assert_eq!(found, if published { vec!["a", "b", "c"] } else { vec!["a", "b"] }, "{hang:?}");
        assert!(cut > 0);
        assert_eq!(bench.found_in(left.path()), (found, 0));
        bench.faults.release();
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test]
async fn an_append_abandoned_over_a_hung_sync_is_written_and_keeps_the_journal_unready_till_then() {
    let bench = Bench::new();
    let journal = bench.open();
    append(&journal, "a", Durability::Synced).await.unwrap();
    bench.faults.next(Operation::Sync, Fault::Hang);
    assert_eq!(append(&journal, "abandoned", Durability::Synced).now_or_never(), None);
    bench.faults.wait_until_it_hangs();
    assert_eq!(append(&journal, "queued", Durability::Written).now_or_never(), None);
    assert!(!journal.is_ready());
    assert_eq!(journal.owed(), 2);
    bench.faults.release();
    assert_eq!(append(&journal, "later", Durability::Written).await, Ok(4));
    assert!(journal.is_ready());
    let ids = ["a", "abandoned", "queued", "later"].map(String::from).to_vec();
    assert_eq!(bench.close_and_find(journal), (ids, 0));
}

#[tokio::test]
async fn beyond_the_queue_nothing_is_taken() {
    let mut bench = Bench::new();
    bench.queue_events = 2;
    let journal = bench.open();
    bench.faults.next(Operation::Sync, Fault::Hang);
    let first = journal.append(vec![event("a")], Durability::Synced);
    let second = journal.append(vec![event("b")], Durability::Written);
    let (mut first, mut second) = (first, second);
    assert!(first.as_mut().now_or_never().is_none());
    assert!(second.as_mut().now_or_never().is_none());
    assert_eq!(
        append(&journal, "c", Durability::Written).now_or_never(),
        Some(Err(JournalFault::Full))
    );
    bench.faults.release();
    assert!(first.await.is_ok() && second.await.is_ok());
    let many = vec![event("d"), event("e"), event("f")];
    assert_eq!(journal.append(many, Durability::Written).await, Err(JournalFault::Full));
    assert_eq!(append(&journal, "g", Durability::Written).await, Ok(3));
    assert_eq!(bench.close_and_find(journal).0, ["a", "b", "g"]);
}

#[tokio::test]
async fn an_event_outside_its_closed_set_takes_nothing_along() {
    let bench = Bench::new();
    let journal = bench.open();
    let mut bad = samples::started("b");
    bad.attempt = 0;
    let answer = journal.append(vec![event("a"), samples::entry(bad)], Durability::Written).await;
    assert!(matches!(answer, Err(JournalFault::Rejected(fault)) if fault.field == "attempt"));
    assert_eq!(append(&journal, "c", Durability::Written).await, Ok(1));
    assert!(journal.is_ready());
    assert_eq!(bench.close_and_find(journal).0, ["c"]);
}

#[tokio::test]
async fn what_has_queued_up_is_one_group_with_one_write_and_one_sync() {
    let bench = Bench::new();
    let journal = bench.open();
    append(&journal, "a", Durability::Synced).await.unwrap();
    bench.faults.next(Operation::Sync, Fault::Hang);
    let mut hung = Box::pin(append(&journal, "b", Durability::Synced));
    assert_eq!(hung.as_mut().now_or_never(), None);
    bench.faults.wait_until_it_hangs();
    let names: Vec<String> = (0..64).map(|number| format!("c{number}")).collect();
    let durability = |number| if number == 40 { Durability::Synced } else { Durability::Written };
    let appends =
        names.iter().enumerate().map(|(number, id)| append(&journal, id, durability(number)));
    let mut appends = Box::pin(join_all(appends));
    assert_eq!(appends.as_mut().now_or_never(), None);
    let before = (bench.faults.count(Operation::Write), bench.faults.count(Operation::Sync));
    bench.faults.release();
    assert_eq!(hung.await, Ok(2));
    assert_eq!(appends.await, (3..67).map(Ok).collect::<Vec<_>>());
    let after = (bench.faults.count(Operation::Write), bench.faults.count(Operation::Sync));
    // The hung sync itself is one, then the group's.
    assert_eq!((after.0 - before.0, after.1 - before.1), (1, 2));
    assert_eq!(journal.stats().commits, 3);
    assert_eq!(journal.stats().records, 66);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn appenders_at_once_keep_each_ones_order() {
    let mut bench = Bench::new();
    bench.segment_bytes = 64 * 1024;
    bench.queue_events = 1_000;
    let journal = Arc::new(bench.open());
    let appenders = (0..64).map(|appender| {
        let journal = Arc::clone(&journal);
        tokio::spawn(async move {
            let mut last = 0;
            for round in 0..10 {
                let durability =
                    if round % 3 == 0 { Durability::Synced } else { Durability::Written };
                let events = (0..2).map(|n| event(&format!("{appender}-{round}-{n}"))).collect();
                let stamps = journal.append(events, durability).await.unwrap();
                assert!(stamps[0].sequence > last);
                assert_eq!(stamps[1].sequence, stamps[0].sequence + 1);
                last = stamps[1].sequence;
            }
        })
    });
    for ended in join_all(appenders).await {
        ended.unwrap();
    }
    assert_eq!(journal.head().sequence, 1_280);
    let (found, cut) = bench.close_and_find(Arc::into_inner(journal).unwrap());
    assert_eq!((found.len(), cut), (1_280, 0));
    assert!(bench.segments().len() > 1);
    for appender in 0..64 {
        let prefix = format!("{appender}-");
        let own: Vec<&String> = found.iter().filter(|id| id.starts_with(&prefix)).collect();
        let expected: Vec<String> =
            (0..20).map(|n| format!("{prefix}{}-{}", n / 2, n % 2)).collect();
        assert_eq!(own, expected.iter().collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn written_is_synced_only_in_time_or_by_amount() {
    let mut bench = Bench::new();
    let journal = bench.open();
    for id in ["a", "b", "c"] {
        append(&journal, id, Durability::Written).await.unwrap();
    }
    // The one with which the first segment began.
    assert_eq!(bench.faults.count(Operation::Sync), 1);
    drop(journal);
    assert_eq!(bench.faults.count(Operation::Sync), 2, "closing syncs");

    bench.pace.unsynced_bytes = 1_000;
    let journal = bench.open();
    append(&journal, "d", Durability::Written).await.unwrap();
    assert_eq!(bench.faults.count(Operation::Sync), 2);
    append(&journal, "e", Durability::Written).await.unwrap();
    assert_eq!(bench.faults.count(Operation::Sync), 3, "two records are over a thousand bytes");
    drop(journal);

    bench.pace.unsynced_time = Duration::from_millis(1);
    let journal = bench.open();
    append(&journal, "f", Durability::Written).await.unwrap();
    bench.faults.wait_for(|script| {
        script.done.iter().filter(|done| **done == Operation::Sync).count() == 4
    });
}

#[tokio::test]
async fn a_full_segment_is_followed_by_a_new_one() {
    let mut bench = Bench::new();
    bench.segment_bytes = 1_000;
    let journal = bench.open();
    for id in ["a", "b", "c", "d", "e"] {
        append(&journal, id, Durability::Written).await.unwrap();
    }
    assert_eq!(
        bench.close_and_find(journal),
        (["a", "b", "c", "d", "e"].map(String::from).to_vec(), 0)
    );
    assert_eq!(bench.segments(), [1, 3, 5]);
}

#[tokio::test]
async fn closing_writes_what_is_owed_and_takes_nothing_more() {
    let bench = Bench::new();
    let journal = bench.open();
    append(&journal, "a", Durability::Synced).await.unwrap();
    bench.faults.next(Operation::Write, Fault::Hang);
    assert!(append(&journal, "b", Durability::Written).now_or_never().is_none());
    assert!(append(&journal, "c", Durability::Written).now_or_never().is_none());
    assert_eq!(journal.close(Duration::ZERO), Err(Unwritten { events: 2 }));
    assert_eq!(
        append(&journal, "d", Durability::Written).now_or_never(),
        Some(Err(JournalFault::Full))
    );
    let again = JournalFiles::open(bench.options(bench.directory.path()));
    assert!(matches!(again, Err(OpenError::Locked { .. })), "the writer still writes");
    bench.faults.release();
    assert_eq!(journal.close(PATIENCE), Ok(()));
    assert!(!journal.is_ready());
    assert_eq!(bench.close_and_find(journal).0, ["a", "b", "c"]);
}

#[tokio::test]
async fn closing_over_a_broken_disk_says_what_is_lost() {
    let bench = Bench::new();
    let journal = bench.open();
    append(&journal, "a", Durability::Synced).await.unwrap();
    bench.faults.next(Operation::Write, Fault::Fail(io::ErrorKind::Other));
    for _ in 0..2 {
        bench.faults.next(Operation::Create, Fault::Hang);
    }
    append(&journal, "b", Durability::Written).await.unwrap_err();
    bench.faults.wait_until_it_hangs();
    bench.faults.next(Operation::Publish, Fault::Fail(io::ErrorKind::Other));
    bench.faults.next(Operation::Publish, Fault::Fail(io::ErrorKind::Other));
    journal.queue.close();
    bench.faults.release();
    assert_eq!(journal.close(PATIENCE), Err(Unwritten { events: 1 }));
}

#[tokio::test]
async fn a_writer_that_panics_fails_every_waiter() {
    let bench = Bench::new();
    let journal = bench.open();
    append(&journal, "a", Durability::Synced).await.unwrap();
    bench.faults.next(Operation::Write, Fault::Panic);
    assert_eq!(append(&journal, "b", Durability::Written).await, Err(JournalFault::Failed));
    assert_eq!(journal.close(PATIENCE), Err(Unwritten { events: 1 }));
    assert!(!journal.is_ready());
}

#[test]
fn the_pause_doubles_up_to_its_bound() {
    let pauses: Vec<u128> = [1, 2, 3, 6, 7, 1_000, u32::MAX]
        .into_iter()
        .map(|failures| PACE.back_off.pause(failures).as_millis())
        .collect();
    assert_eq!(pauses, [100, 200, 400, 3_200, 5_000, 5_000, 5_000]);
}
