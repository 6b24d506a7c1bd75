//! Readers beside a writer whose disk fails as told.

use super::*;
use crate::ports::{Step, Unreadable};

/// Three records of a sample fill it.
const SEGMENT_BYTES: u64 = 2_000;

/// The sequences up to this one, each of which must be the record of its place.
async fn read_to(reader: &mut dyn AuditReader, last: u64) -> Vec<u64> {
    let mut read = Vec::new();
    while read.last().is_none_or(|newest| *newest < last) {
        match reader.next().await.unwrap() {
            Step::Records(records) => {
                assert!(!records.is_empty());
                for (entry, stamp) in records {
                    let Entry::Call(event) = entry else { panic!("{entry:?}") };
                    assert_eq!(*event.tool_call_id, format!("call-{}", stamp.sequence));
                    read.push(stamp.sequence);
                }
            }
            gap @ Step::Gap { .. } => panic!("{gap:?}"),
        }
    }
    read
}

/// Appends the records of these places.
async fn write(journal: &JournalFiles, places: impl Iterator<Item = u64>, durability: Durability) {
    for place in places {
        assert_eq!(append(journal, &format!("call-{place}"), durability).await, Ok(place));
    }
}

#[tokio::test]
async fn reading_resumes_at_any_record() {
    let bench = Bench { segment_bytes: SEGMENT_BYTES, ..Bench::new() };
    let journal = bench.open();
    write(&journal, 1..=100, Durability::Synced).await;
    assert!(bench.segments().len() > 20, "{:?}", bench.segments());
    for from in 0..=100 {
        let read = read_to(&mut *journal.read_from(from), 100).await;
        assert_eq!(read, (from.max(1)..=100).collect::<Vec<_>>());
    }
    journal.close(PATIENCE).unwrap();
    drop(journal);
    let journal = bench.open();
    assert_eq!(journal.readers.head(), 100);
    assert_eq!(read_to(&mut *journal.read_from(99), 100).await, [99, 100]);
}

#[tokio::test]
async fn a_step_is_bounded_in_one_large_segment() {
    let bench = Bench::new();
    let journal = bench.open();
    let entries = |places: std::ops::RangeInclusive<u64>| {
        places.map(|place| event(&format!("call-{place}"))).collect::<Vec<_>>()
    };
    for first in (1..=401).step_by(50) {
        journal.append(entries(first..=first + 49), Durability::Synced).await.unwrap();
    }
    for from in [1, 2, 64, 65, 200, 449, 450] {
        let read = read_to(&mut *journal.read_from(from), 450).await;
        assert_eq!(read, (from..=450).collect::<Vec<_>>());
    }
    let Step::Records(records) = journal.read_from(1).next().await.unwrap() else { panic!() };
    assert_eq!(records.len(), 64);
}

#[tokio::test]
async fn a_record_that_could_vanish_is_not_readable() {
    let bench = Bench::new();
    let journal = bench.open();
    let mut early = journal.read_from(0);
    assert!(early.next().now_or_never().is_none(), "the journal is empty");
    write(&journal, 1..=2, Durability::Synced).await;
    assert_eq!(read_to(&mut *early, 2).await, [1, 2]);
    write(&journal, 3..=3, Durability::Written).await;
    assert_eq!((journal.head().sequence, AuditLog::head(&journal)), (3, 2));
    for from in [3, 4, u64::MAX] {
        assert!(journal.read_from(from).next().now_or_never().is_none(), "{from}");
    }
    write(&journal, 4..=4, Durability::Synced).await;
    assert_eq!(read_to(&mut *early, 4).await, [3, 4]);
}

#[tokio::test]
async fn what_is_repeated_in_a_new_segment_is_read_once() {
    for keeps_leftover in [false, true] {
        let bench = Bench::new();
        let journal = bench.open();
        write(&journal, 1..=2, Durability::Synced).await;
        write(&journal, 3..=3, Durability::Written).await;
        let mut reader = journal.read_from(1);
        assert_eq!(read_to(&mut *reader, 2).await, [1, 2]);
        // The old segment goes on with 3 and 4, of which nobody knows whether they last.
        bench.faults.next(Operation::Sync, Fault::Fail(io::ErrorKind::Other));
        bench.faults.next(Operation::Create, Fault::Hang);
        if keeps_leftover {
            bench.faults.next(Operation::Cut, Fault::Fail(io::ErrorKind::Other));
        }
        let failed = append(&journal, "call-4", Durability::Synced).await;
        assert_eq!(failed, Err(JournalFault::Failed));
        for from in [3, 4] {
            assert!(journal.read_from(from).next().now_or_never().is_none(), "{from}");
        }
        bench.faults.release();
        write(&journal, 5..=6, Durability::Synced).await;
        assert_eq!(bench.segments(), [1, 3]);
        assert_eq!(read_to(&mut *reader, 6).await, [3, 4, 5, 6]);
        for from in 1..=6 {
            let read = read_to(&mut *journal.read_from(from), 6).await;
            assert_eq!(read, (from..=6).collect::<Vec<_>>(), "{keeps_leftover}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_meet_every_record_once_while_the_disk_fails() {
    let bench = Bench { segment_bytes: 4 * SEGMENT_BYTES, ..Bench::new() };
    let journal = Arc::new(bench.open());
    let readers: Vec<_> = (0..20)
        .map(|number| {
            let (journal, from) = (Arc::clone(&journal), number * 17 % 200);
            tokio::spawn(async move {
                let read = read_to(&mut *journal.read_from(from), 401).await;
                assert_eq!(read, (from.max(1)..=401).collect::<Vec<_>>());
            })
        })
        .collect();
    let faults = [Operation::Sync, Operation::Write, Operation::Create, Operation::Publish];
    for place in 1..=400 {
        let durability = if place % 4 == 0 { Durability::Synced } else { Durability::Written };
        if place % 13 == 0 {
            let operation = faults[usize::try_from(place).unwrap() / 13 % faults.len()];
            bench.faults.next(operation, Fault::Fail(io::ErrorKind::Other));
        }
        // Failed or not, it is owed and keeps its place.
        let _ = append(&journal, &format!("call-{place}"), durability).await;
    }
    journal.append(vec![event("call-401")], Durability::Synced).await.unwrap();
    for reader in readers {
        reader.await.unwrap();
    }
    assert!(journal.stats().failures > 10, "{:?}", journal.stats());
}

#[tokio::test]
async fn what_is_no_longer_kept_is_a_gap() {
    let bench = Bench { segment_bytes: SEGMENT_BYTES, ..Bench::new() };
    let journal = bench.open();
    write(&journal, 1..=20, Durability::Synced).await;
    let segments = bench.segments();
    let (removed, kept) = segments.split_at(3);
    let directory = Directory::new(bench.directory.path().to_path_buf());
    for segment in removed {
        std::fs::remove_file(directory.segment(*segment)).unwrap();
    }
    let known = reader::Readable { head: 20, segments: kept.into() };
    let (_writer, readable) = watch::channel(known);
    let readers = Readers::new(Arc::clone(&journal.journal_id), directory, readable);
    for from in 1..kept[0] {
        let mut reader = readers.read_from(from);
        let gap = Step::Gap { first: from, last: kept[0] - 1 };
        assert_eq!(reader.next().await, Ok(gap));
        assert_eq!(read_to(&mut reader, 20).await, (kept[0]..=20).collect::<Vec<_>>());
    }
    // Whoever asks for the oldest misses nothing.
    let read = read_to(&mut readers.read_from(0), 20).await;
    assert_eq!(read, (kept[0]..=20).collect::<Vec<_>>());
    // A segment that should be there is no gap.
    assert_eq!(journal.read_from(1).next().await, Err(Unreadable));
}

#[tokio::test]
async fn a_line_that_is_no_record_of_its_place_is_not_given_out() {
    let bench = Bench::new();
    let journal = bench.open();
    write(&journal, 1..=3, Durability::Synced).await;
    let file = Directory::new(bench.directory.path().to_path_buf()).segment(1);
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<_> = text.split_inclusive('\n').collect();
    let second = [
        ("another place", lines[2].to_owned()),
        ("another journal", lines[1].replacen("\"journal_id\":\"", "\"journal_id\":\"0", 1)),
        ("a field more", lines[1].replacen('{', "{\"note\":\"x\",", 1)),
        ("a value of no form", lines[1].replacen("call-2", "call 2", 1)),
        ("cut", lines[1].split_at(100).0.to_owned()),
        ("a line without end", "x".repeat(100_000)),
    ];
    for (what, second) in second {
        std::fs::write(&file, format!("{}{second}", lines[0])).unwrap();
        let mut reader = journal.read_from(2);
        assert_eq!(reader.next().await, Err(Unreadable), "{what}");
        // It stays where it is: what is mended is read.
        std::fs::write(&file, &text).unwrap();
        assert_eq!(read_to(&mut *reader, 3).await, [2, 3], "{what}");
    }
}

#[tokio::test]
async fn a_closed_journal_ends_its_readers() {
    let bench = Bench::new();
    let journal = bench.open();
    write(&journal, 1..=1, Durability::Written).await;
    let mut reader = journal.read_from(1);
    let mut ahead = journal.read_from(2);
    journal.close(PATIENCE).unwrap();
    assert_eq!(read_to(&mut *reader, 1).await, [1], "closing has synced it");
    assert_eq!(ahead.next().await, Err(Unreadable));
}
