//! A disk that fills up, segments that grow old, and checkpoints that fail.

use std::fs;

use super::*;

fn measured(bench: &Bench) {
    let seen = bench.faults.count(Operation::Measure);
    bench.faults.wait_for(|script| {
        script.done.iter().filter(|done| **done == Operation::Measure).count() > seen
    });
}

#[tokio::test]
async fn below_its_bound_no_new_work_is_taken_and_what_is_owed_is_written() {
    let mut bench = Bench::new();
    bench.pace.tending.every = Duration::from_millis(1);
    let least = bench.options(bench.directory.path()).min_free_bytes;
    let journal = bench.open();
    assert!(journal.is_ready());
    let short = usize::try_from(least).unwrap() - 1;
    bench.faults.always(Operation::Measure, Fault::Short(short));
    measured(&bench);
    measured(&bench);
    assert!(!journal.is_ready());
    assert_eq!(journal.room().free_bytes, Some(least - 1));
    // Of a call that runs already.
    assert_eq!(append(&journal, "owed", Durability::Synced).await, Ok(1));
    assert_eq!((journal.owed(), journal.stats().failures), (0, 0));
    // A little more than the bound does not open it yet.
    bench.faults.always(Operation::Measure, Fault::Short(short + 2));
    measured(&bench);
    measured(&bench);
    assert!(!journal.is_ready());
    bench.faults.always(Operation::Measure, Fault::Short(2 * short));
    measured(&bench);
    measured(&bench);
    assert!(journal.is_ready());
    assert_eq!(bench.close_and_find(journal).0, ["owed"]);
}

#[tokio::test]
async fn a_disk_that_cannot_be_measured_takes_no_new_work() {
    let mut bench = Bench::new();
    bench.pace.tending.every = Duration::from_millis(1);
    bench.faults.always(Operation::Measure, Fault::Fail(io::ErrorKind::Other));
    let journal = bench.open();
    assert!(!journal.is_ready(), "from its start on");
    assert_eq!((journal.room().free_bytes, journal.room().is_low), (None, true));
}

#[tokio::test]
async fn a_segment_is_closed_when_it_is_old_and_not_while_it_is_empty() {
    let mut bench = Bench::new();
    bench.pace.tending.every = Duration::from_millis(1);
    bench.segment_age = Duration::ZERO;
    let journal = bench.open();
    append(&journal, "a", Durability::Written).await.unwrap();
    bench.faults.wait_for(|script| script.done.contains(&Operation::Checkpoint));
    append(&journal, "b", Durability::Written).await.unwrap();
    bench.faults.wait_for(|script| {
        script.done.iter().filter(|done| **done == Operation::Checkpoint).count() == 2
    });
    measured(&bench);
    measured(&bench);
    assert_eq!(bench.segments(), [1, 2], "nothing to write, no file");
    assert_eq!(bench.faults.count(Operation::Checkpoint), 2, "nor a checkpoint");
    assert_eq!(bench.close_and_find(journal), (vec!["a".to_owned(), "b".to_owned()], 0));
}

#[tokio::test]
async fn a_segment_s_age_counts_from_its_first_event_over_restarts() {
    let mut bench = Bench::new();
    let journal = bench.open();
    append(&journal, "a", Durability::Written).await.unwrap();
    drop(journal);
    bench.segment_age = Duration::from_hours(2);
    bench.pace.tending.every = Duration::from_millis(1);
    for (hours, segments) in [(1, &[1][..]), (3, &[1, 3])] {
        let faults = bench.faults.clone();
        let now =
            samples::started("a").time.saturating_add(jiff::SignedDuration::from_hours(hours));
        let options = JournalOptions { now: now.unwrap(), ..bench.options(bench.directory.path()) };
        let disk = |directory| Box::new(FaultyDisk(directory, faults)) as Box<dyn Disk>;
        let journal = JournalFiles::open_on(options, disk, bench.pace).unwrap().0;
        measured(&bench);
        measured(&bench);
        append(&journal, "b", Durability::Synced).await.unwrap();
        assert_eq!(bench.segments(), segments, "after {hours} hours");
    }
}

#[tokio::test]
async fn checkpoints_are_written_in_their_time_and_cost_no_append_when_they_fail() {
    let mut bench = Bench::new();
    bench.pace.tending.checkpoint_records = 2;
    let journal = bench.open();
    bench.faults.next(Operation::Checkpoint, Fault::Fail(io::ErrorKind::StorageFull));
    for id in ["a", "b", "c", "d", "e"] {
        append(&journal, id, Durability::Written).await.unwrap();
    }
    bench.faults.wait_for(|script| script.done.contains(&Operation::Checkpoint));
    assert!(journal.is_ready());
    assert_eq!(journal.stats().failures, 0);
    let checkpoints = || {
        let entries = fs::read_dir(bench.directory.path().join("checkpoints")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(checkpoints(), ["00000000000000000004.json"]);
    // As a process that is killed now leaves it: the rest is read.
    let copy = TempDir::new().unwrap();
    for part in ["segments", "checkpoints"] {
        fs::create_dir(copy.path().join(part)).unwrap();
        for entry in fs::read_dir(bench.directory.path().join(part)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), copy.path().join(part).join(entry.file_name())).unwrap();
        }
    }
    let manifest = "journal.json";
    fs::copy(bench.directory.path().join(manifest), copy.path().join(manifest)).unwrap();
    let (_, found) = JournalFiles::open(bench.options(copy.path())).unwrap();
    let bytes =
        fs::metadata(copy.path().join("segments/00000000000000000001.jsonl")).unwrap().len();
    assert_eq!((found.records, found.open.len()), (5, 5));
    assert!(0 < found.read_bytes && found.read_bytes < bytes / 4, "{}", found.read_bytes);
    // At the end the newest takes the place of the one before.
    drop(journal);
    assert_eq!(checkpoints(), ["00000000000000000005.json"]);
}

#[tokio::test]
async fn a_full_segment_leaves_a_checkpoint_that_stays() {
    let mut bench = Bench::new();
    bench.segment_bytes = 2_000;
    bench.pace.tending.checkpoint_records = 32;
    let journal = bench.open();
    // Three records are a full segment.
    for id in ["a", "b", "c", "d", "e", "f", "g"] {
        append(&journal, id, Durability::Written).await.unwrap();
    }
    bench.faults.wait_for(|script| {
        script.done.iter().filter(|done| **done == Operation::Checkpoint).count() == 2
    });
    journal.close(PATIENCE).unwrap();
    let entries = fs::read_dir(bench.directory.path().join("checkpoints")).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, [3, 6, 7].map(|sequence| format!("{sequence:020}.json")));
}

#[tokio::test]
async fn a_checkpoint_tells_of_synced_records_alone() {
    let mut bench = Bench::new();
    bench.pace.tending.checkpoint_records = 1;
    let journal = bench.open();
    append(&journal, "a", Durability::Written).await.unwrap();
    bench.faults.wait_for(|script| script.done.contains(&Operation::Checkpoint));
    bench.faults.next(Operation::Sync, Fault::Fail(io::ErrorKind::Other));
    bench.faults.next(Operation::Create, Fault::Hang);
    assert_eq!(append(&journal, "b", Durability::Written).await, Err(JournalFault::Failed));
    bench.faults.wait_until_it_hangs();
    let done = bench.faults.count(Operation::Checkpoint);
    assert_eq!(done, 1, "none after the sync that failed");
    bench.faults.release();
    bench.faults.wait_for(|script| {
        script.done.iter().filter(|done| **done == Operation::Checkpoint).count() == 2
    });
    // It was repeated in a segment of its own.
    assert_eq!(bench.segments(), [1, 2]);
    assert_eq!(bench.close_and_find(journal).0, ["a", "b"]);
}
