//! Retention, room and checkpoints, beside a writer that goes on.

use std::collections::HashSet;
use std::fs;

use jiff::SignedDuration;

use super::*;
use crate::domain::audit::JournalKey;
use crate::ports::{AuditLog as _, Step};

/// When the events of the samples were.
const THEN: Timestamp = Timestamp::constant(1_800_000_000, 123_456_000);

/// A bench whose segments hold a record each, and whose writer tends them at once.
fn bench() -> Bench {
    let mut bench = Bench::new();
    bench.segment_bytes = 1;
    bench.pace.tending.every = Duration::from_millis(1);
    bench
}

fn opened_at(bench: &Bench, now: Timestamp) -> JournalFiles {
    let faults = bench.faults.clone();
    let options = JournalOptions { now, ..bench.options(bench.directory.path()) };
    let disk = |directory| Box::new(FaultyDisk(directory, faults)) as Box<dyn Disk>;
    JournalFiles::open_on(options, disk, bench.pace).unwrap().0
}

/// Appends whole pairs, a segment for each.
async fn pairs(journal: &JournalFiles, ids: &[&str]) {
    for id in ids {
        let pair = [samples::started(id), samples::completed(id)].map(samples::entry);
        journal.append(pair.to_vec(), Durability::Synced).await.unwrap();
    }
}

/// Waits until the writer has done what shows like this.
fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "it never came that {what}");
        std::thread::yield_now();
    }
}

/// Waits until the writer has looked after the journal once more, whole.
fn tended(bench: &Bench) {
    let seen = bench.faults.count(Operation::Measure);
    bench.faults.wait_for(|script| {
        script.done.iter().filter(|done| **done == Operation::Measure).count() > seen + 1
    });
}

fn bytes(most: u64) -> Retention {
    Retention { bytes: Some(most), age: None }
}

fn age(age: Duration) -> Retention {
    Retention { age: Some(age), bytes: None }
}

#[tokio::test]
async fn nothing_goes_before_retention_is_started_nor_the_last_segment_ever() {
    let bench = bench();
    let journal = bench.open();
    pairs(&journal, &["a", "b", "c"]).await;
    tended(&bench);
    assert_eq!(bench.segments(), [1, 3, 5]);
    journal.start_retention(bytes(0));
    until("all but one are gone", || bench.segments() == [5]);
    tended(&bench);
    assert_eq!(bench.segments(), [5]);
    assert_eq!(journal.room().deleted_segments, 2);
    pairs(&journal, &["d"]).await;
    until("the next is gone", || bench.segments() == [7]);
    drop(journal);
    let (_journal, found) = JournalFiles::open(bench.options(bench.directory.path())).unwrap();
    assert_eq!((found.records, found.deleted_until), (8, Some(THEN)));
}

#[tokio::test]
async fn what_is_left_verifies_from_its_first_record() {
    let bench = bench();
    let journal = bench.open();
    journal.start_retention(bytes(2_000));
    pairs(&journal, &["a", "b", "c", "d"]).await;
    until("some are gone", || bench.segments() == [7]);
    drop(journal);
    for path in fs::read_dir(bench.directory.path().join("checkpoints")).unwrap() {
        fs::remove_file(path.unwrap().path()).unwrap();
    }
    let open = || JournalFiles::open(bench.options(bench.directory.path()));
    let (journal, found) = open().unwrap();
    assert_eq!((found.records, found.head.sequence), (8, 8));
    assert!(found.read_bytes > 0);
    pairs(&journal, &["e"]).await;
    drop(journal);
    assert_eq!(open().unwrap().1.records, 10);
}

#[tokio::test]
async fn an_anchor_that_is_edited_removed_or_of_another_key_is_refused() {
    let bench = bench();
    let journal = bench.open();
    journal.start_retention(bytes(0));
    pairs(&journal, &["a", "b"]).await;
    until("one is gone", || bench.segments() == [3]);
    drop(journal);
    let path = bench.directory.path().join("anchor.json");
    let text = fs::read(&path).unwrap();
    let open = || JournalFiles::open(bench.options(bench.directory.path()));
    for at in 0..text.len() {
        let mut edited = text.clone();
        edited[at] ^= 1;
        fs::write(&path, edited).unwrap();
        assert!(
            matches!(open(), Err(OpenError::Manifest { path: found, .. }) if found == path),
            "byte {at}"
        );
    }
    fs::remove_file(&path).unwrap();
    assert!(
        matches!(open(), Err(OpenError::Unanchored { path: found, first: 3 }) if found == path)
    );
    fs::write(&path, &text).unwrap();
    // With the anchor, and without the file that it tells of.
    let first = Directory::new(bench.directory.path().to_owned()).segment(3);
    let kept = fs::read(&first).unwrap();
    fs::remove_file(&first).unwrap();
    assert!(matches!(
        open(),
        Err(OpenError::FirstGone { path: found, anchor, sequence: 3 })
            if found == first && anchor == path
    ));
    fs::write(&first, kept).unwrap();
    let other = JournalOptions {
        keys: JournalKey::new(&[8; 32]).into(),
        ..bench.options(bench.directory.path())
    };
    assert!(matches!(JournalFiles::open(other), Err(OpenError::Manifest { .. })));
    open().unwrap();
}

#[tokio::test]
async fn a_hold_keeps_what_its_reader_has_not_taken() {
    let bench = bench();
    let journal = bench.open();
    let slow = journal.hold("slow", 0);
    let fast = journal.hold("fast", 4);
    journal.start_retention(bytes(0));
    pairs(&journal, &["a", "b", "c", "d"]).await;
    until("it waits", || journal.room().held_by.as_deref() == Some("slow"));
    tended(&bench);
    assert_eq!(bench.segments(), [1, 3, 5, 7]);
    // A segment goes once its last record is taken, and not before.
    slow.take(1);
    tended(&bench);
    assert_eq!(bench.segments(), [1, 3, 5, 7]);
    slow.take(2);
    until("one is gone", || bench.segments() == [3, 5, 7]);
    slow.take(8);
    until("it waits for the other", || journal.room().held_by.as_deref() == Some("fast"));
    until("what both have taken is gone", || bench.segments() == [5, 7]);
    tended(&bench);
    assert_eq!(bench.segments(), [5, 7]);
    drop(fast);
    until("the rest is gone", || bench.segments() == [7]);
    until("it waits for nobody", || journal.room().held_by.is_none());
}

#[tokio::test]
async fn a_segment_with_an_open_pair_stays() {
    let bench = bench();
    let journal = bench.open();
    journal.start_retention(bytes(0));
    pairs(&journal, &["a"]).await;
    append(&journal, "open", Durability::Synced).await.unwrap();
    pairs(&journal, &["b", "c"]).await;
    until("what is before it is gone", || bench.segments()[0] == 3);
    tended(&bench);
    assert_eq!(bench.segments(), [3, 4, 6]);
    let completed = samples::entry(samples::completed("open"));
    journal.append(vec![completed], Durability::Synced).await.unwrap();
    until("it is gone too", || bench.segments() == [8]);
}

#[tokio::test]
async fn age_is_that_of_a_segment_s_newest_event() {
    let bench = bench();
    let hour = SignedDuration::from_hours(1);
    let journal = opened_at(&bench, THEN.saturating_add(hour).unwrap());
    journal.start_retention(age(Duration::from_mins(61)));
    pairs(&journal, &["a", "b"]).await;
    tended(&bench);
    assert_eq!(bench.segments(), [1, 3]);
    drop(journal);
    let journal = opened_at(&bench, THEN.saturating_add(2 * hour).unwrap());
    journal.start_retention(age(Duration::from_mins(61)));
    until("the older is gone", || bench.segments() == [3]);
}

#[tokio::test]
async fn a_reader_meets_a_gap_and_then_what_is_kept() {
    let bench = bench();
    let journal = bench.open();
    pairs(&journal, &["a", "b", "c"]).await;
    let mut reader = journal.read_from(1);
    let Ok(Step::Records(first)) = reader.next().await else { panic!("no records") };
    assert_eq!(first.len(), 2);
    journal.start_retention(bytes(0));
    until("two are gone", || bench.segments() == [5]);
    assert_eq!(reader.next().await, Ok(Step::Gap { first: 3, last: 4 }));
    let Ok(Step::Records(kept)) = reader.next().await else { panic!("no records") };
    assert_eq!(kept.iter().map(|(_, stamp)| stamp.sequence).collect::<Vec<_>>(), [5, 6]);
    // From the oldest kept on there is no gap.
    let Ok(Step::Records(kept)) = journal.read_from(0).next().await else { panic!("no records") };
    assert_eq!(kept[0].1.sequence, 5);
}

#[tokio::test]
async fn no_file_goes_before_the_anchor_is_written() {
    let bench = bench();
    let journal = bench.open();
    pairs(&journal, &["a", "b"]).await;
    for _ in 0..3 {
        bench.faults.next(Operation::Anchor, Fault::Fail(io::ErrorKind::Other));
    }
    bench.faults.next(Operation::Delete, Fault::Fail(io::ErrorKind::PermissionDenied));
    bench.faults.next(Operation::Delete, Fault::Hang);
    journal.start_retention(bytes(0));
    bench.faults.wait_until_it_hangs();
    assert_eq!(bench.faults.count(Operation::Anchor), 1, "after three that failed");
    assert_eq!(bench.segments(), [1, 3], "nothing was deleted yet");
    assert_eq!(journal.read_from(1).next().await, Ok(Step::Gap { first: 1, last: 2 }));
    // A process that dies here leaves the file, and the next start goes on without it.
    let copy = TempDir::new().unwrap();
    copy_all(bench.directory.path(), copy.path());
    let (journal_of_copy, found) = JournalFiles::open(bench.options(copy.path())).unwrap();
    assert_eq!(found.records, 4);
    assert_eq!(journal_of_copy.read_from(0).next().await.map(first_sequence), Ok(3));
    bench.faults.release();
    until("it is gone", || bench.segments() == [3]);
}

fn first_sequence(step: Step) -> u64 {
    match step {
        Step::Records(records) => records[0].1.sequence,
        Step::Gap { first, .. } => panic!("a gap from {first}"),
    }
}

fn copy_all(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            fs::create_dir(&target).unwrap();
            copy_all(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test]
async fn a_key_whose_records_are_all_deleted_may_go() {
    let bench = bench();
    let journal = bench.open();
    pairs(&journal, &["a"]).await;
    let new = JournalKeys::from(JournalKey::new(&[8; 32]));
    let both = JournalKeys::new(JournalKey::new(&[8; 32]), [JournalKey::new(&[7; 32])]);
    journal.change_keys(both).unwrap();
    pairs(&journal, &["b", "c"]).await;
    assert_eq!(journal.check_keys(&new), Err(SignerMissing));
    journal.start_retention(bytes(0));
    until("the old key's are gone", || bench.segments() == [5]);
    until("it may go", || journal.check_keys(&new) == Ok(()));
    journal.change_keys(new.clone()).unwrap();
    drop(journal);
    let options = JournalOptions { keys: new, ..bench.options(bench.directory.path()) };
    assert_eq!(JournalFiles::open(options).unwrap().1.records, 6);
}

#[tokio::test]
async fn what_a_ledger_must_know_of_outlives_its_records() {
    let bench = bench();
    let journal = bench.open();
    let mut applied = samples::completed("a");
    if let crate::domain::audit::EventKind::Completed { effect, .. } = &mut applied.kind {
        *effect = crate::domain::reason::Effect::Applied;
    }
    let pair = [samples::started("a"), applied].map(samples::entry).to_vec();
    journal.append(pair, Durability::Synced).await.unwrap();
    pairs(&journal, &["b"]).await;
    journal.start_retention(bytes(0));
    until("it is gone", || bench.segments() == [3]);
    drop(journal);
    for forget in [false, true] {
        if forget {
            fs::remove_dir_all(bench.directory.path().join("checkpoints")).unwrap();
        }
        let options = JournalOptions {
            watched: HashSet::from([CallName::of(&samples::started("a"))]),
            watched_from: Some(THEN),
            ..bench.options(bench.directory.path())
        };
        let (_, found) = JournalFiles::open(options).unwrap();
        assert_eq!((found.newest_recorded, found.ended.len()), (Some(THEN), 0));
        assert!(!found.has_all_of(&samples::started("a")), "nobody can say that it never ran");
        let mut later = samples::started("z");
        later.time = THEN.saturating_add(SignedDuration::from_secs(1)).unwrap();
        assert!(found.has_all_of(&later));
    }
}
