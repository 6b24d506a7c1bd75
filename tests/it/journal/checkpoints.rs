//! Starts that need not read what a checkpoint knows.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::SignedDuration;
use tempfile::TempDir;
use toolgate::adapters::journal::{JournalFiles, JournalOptions, OpenError, Recovered, Stop};
use toolgate::domain::audit::{CallName, Event, JournalKey, JournalKeys};

use super::{append, completed, forget_checkpoints, ids, lines, open, options, segment, started};
use super::{journal_of, write_lines};

/// The checkpoints there are, oldest first.
fn checkpoints(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.join("checkpoints")).unwrap();
    let mut found: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    found.sort_unstable();
    found
}

fn bytes_of(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory.join("segments")).unwrap();
    entries.map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

/// What all ways to read a journal must agree on.
fn essence(found: &Recovered) -> impl PartialEq + std::fmt::Debug {
    let open: Vec<Event> = found.open.iter().map(|event| (**event).clone()).collect();
    (found.head, found.records, found.cut_bytes, open, found.newest_recorded)
}

#[tokio::test]
async fn a_start_after_a_clean_stop_reads_nothing_again() {
    let directory = journal_of(&[&["a", "b"], &["c"]]).await;
    let whole = open(directory.path()).unwrap();
    assert_eq!(whole.read_bytes, bytes_of(directory.path()));
    // The opening itself has left a checkpoint at its end.
    let again = open(directory.path()).unwrap();
    assert_eq!(again.read_bytes, 0);
    assert_eq!(essence(&again), essence(&whole));
}

#[tokio::test]
async fn a_start_reads_what_came_after_the_checkpoint_and_no_more() {
    let directory = journal_of(&[&["a", "b"], &["c"]]).await;
    drop(open(directory.path()).unwrap());
    let kept: Vec<_> = checkpoints(directory.path())
        .into_iter()
        .map(|path| (fs::read(&path).unwrap(), path))
        .collect();
    let before = bytes_of(directory.path());
    let (journal, _) = JournalFiles::open(options(directory.path())).unwrap();
    append(&journal, vec![completed("a"), started("d"), completed("c")]).await;
    drop(journal);
    // As if it had been killed before it wrote another.
    forget_checkpoints(directory.path());
    let whole = open(directory.path()).unwrap();
    assert_eq!(whole.read_bytes, bytes_of(directory.path()));
    forget_checkpoints(directory.path());
    for (text, path) in &kept {
        fs::write(path, text).unwrap();
    }
    let found = open(directory.path()).unwrap();
    assert_eq!(found.read_bytes, bytes_of(directory.path()) - before);
    assert_eq!(essence(&found), essence(&whole));
    assert_eq!(ids(&found), ["b", "d"]);
}

#[tokio::test]
async fn a_checkpoint_that_is_cut_or_edited_anywhere_is_passed_over() {
    let directory = journal_of(&[&["a", "b"], &["c"]]).await;
    let whole = open(directory.path()).unwrap();
    let path = checkpoints(directory.path()).pop().unwrap();
    let text = fs::read(&path).unwrap();
    let cut = (0..text.len()).step_by(41).map(|at| text[..at].to_vec());
    let edited = (0..text.len()).step_by(17).map(|at| {
        let mut edited = text.clone();
        edited[at] ^= 1;
        edited
    });
    for broken in cut.chain(edited) {
        fs::write(&path, broken).unwrap();
        let found = open(directory.path()).unwrap();
        assert_eq!(found.read_bytes, bytes_of(directory.path()));
        assert_eq!(essence(&found), essence(&whole));
    }
}

#[tokio::test]
async fn a_checkpoint_of_another_journal_or_key_is_passed_over() {
    let (one, other) = (journal_of(&[&["a"]]).await, journal_of(&[&["a"]]).await);
    drop(open(one.path()).unwrap());
    let path = checkpoints(one.path()).pop().unwrap();
    fs::copy(&path, other.path().join("checkpoints").join(path.file_name().unwrap())).unwrap();
    assert_eq!(open(other.path()).unwrap().read_bytes, bytes_of(other.path()));

    // One whose key is gone from the list. The records are the old key's, so it needs both.
    let keys = JournalKeys::new(JournalKey::new(&[8; 32]), [JournalKey::new(&[7; 32])]);
    let both = JournalOptions { keys, ..options(one.path()) };
    assert_eq!(JournalFiles::open(both).unwrap().1.read_bytes, 0);
    let new = JournalOptions { keys: JournalKey::new(&[8; 32]).into(), ..options(one.path()) };
    assert!(matches!(JournalFiles::open(new), Err(OpenError::Record { sequence: 1, .. })));
}

#[tokio::test]
async fn records_that_a_checkpoint_has_seen_cannot_go_unnoticed() {
    let cut: fn(&Path) = |root| write_lines(&segment(root, 3), &lines(&segment(root, 3))[..1]);
    let gone: fn(&Path) = |root| fs::remove_file(segment(root, 3)).unwrap();
    for (attack, head) in [(cut, 3), (gone, 2)] {
        let directory = journal_of(&[&["a", "b"], &["c", "d"]]).await;
        drop(open(directory.path()).unwrap());
        attack(directory.path());
        let error = open(directory.path()).unwrap_err();
        let path = checkpoints(directory.path()).pop().unwrap();
        let expected = format!(
            "{}: it was written once record 4 was on the disk, and the journal ends with {head}: \
             the records behind that were removed.",
            path.display()
        );
        assert!(error.to_string().starts_with(&expected), "{error}");
        // The way out that it names.
        fs::remove_file(path).unwrap();
        assert_eq!(open(directory.path()).unwrap().records, head);
    }
}

#[tokio::test]
async fn what_a_file_s_length_shows_is_found_before_the_checkpoint_too() {
    let directory = journal_of(&[&["a", "b"], &["c"]]).await;
    drop(open(directory.path()).unwrap());
    let path = segment(directory.path(), 1);
    let removed = lines(&path)[1..].to_vec();
    write_lines(&path, &removed);
    match open(directory.path()) {
        Err(OpenError::Record { path: found, line: 1, sequence: 1, .. }) => assert_eq!(found, path),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_fault_after_the_checkpoint_is_named_by_its_line_in_the_file() {
    let directory = journal_of(&[&["a", "b"]]).await;
    drop(open(directory.path()).unwrap());
    let kept = checkpoints(directory.path()).pop().unwrap();
    let text = fs::read(&kept).unwrap();
    let (journal, _) = JournalFiles::open(options(directory.path())).unwrap();
    append(&journal, vec![started("c"), started("d")]).await;
    drop(journal);
    forget_checkpoints(directory.path());
    fs::write(&kept, text).unwrap();
    let path = segment(directory.path(), 1);
    let mut edited = lines(&path);
    edited[2] = edited[2].replace("user-1", "user-2");
    write_lines(&path, &edited);
    assert!(matches!(open(directory.path()), Err(OpenError::Record { line: 3, sequence: 3, .. })));
}

/// Appends pairs a second apart, a segment each, and keeps every checkpoint.
async fn pairs_in_time(directory: &Path, pairs: i64) {
    let small = JournalOptions { segment_bytes: 1, ..options(directory) };
    let (journal, _) = JournalFiles::open(small).unwrap();
    drop(journal);
    for second in 0..pairs {
        let small = JournalOptions { segment_bytes: 1, ..options(directory) };
        let (journal, _) = JournalFiles::open(small).unwrap();
        let id = format!("call-{second}");
        let at = |event: Event| {
            let time = event.time.saturating_add(SignedDuration::from_secs(second)).unwrap();
            Event { time, ..event }
        };
        append(&journal, vec![at(started(&id)), at(completed(&id))]).await;
    }
}

#[tokio::test]
async fn a_watched_call_is_found_however_long_before_the_checkpoint_it_ended() {
    let directory = TempDir::new().unwrap();
    pairs_in_time(directory.path(), 12).await;
    let all = bytes_of(directory.path());
    let mut read = Vec::new();
    for second in 0..12 {
        let event = started(&format!("call-{second}"));
        let time = event.time.saturating_add(SignedDuration::from_secs(second)).unwrap();
        let watching = |watched_from| JournalOptions {
            watched: HashSet::from([CallName::of(&event)]),
            watched_from,
            ..options(directory.path())
        };
        let (_, found) = JournalFiles::open(watching(Some(time))).unwrap();
        let ended: Vec<_> = found.ended.iter().map(|event| &*event.tool_call_id).collect();
        assert_eq!(ended, [&*event.tool_call_id]);
        read.push(found.read_bytes);
        let (_, found) = JournalFiles::open(watching(None)).unwrap();
        assert_eq!((found.ended.len(), found.read_bytes), (1, all));
    }
    // Eight checkpoints are kept, so the older ones cost a full reading.
    let expected: Vec<_> =
        (0..12).map(|second| if second < 5 { all } else { all / 12 * (12 - second) }).collect();
    assert!(read.iter().zip(&expected).all(|(read, most)| read.abs_diff(*most) < 60), "{read:?}");
    let nothing_watched = open(directory.path()).unwrap();
    assert_eq!(nothing_watched.read_bytes, 0);
}

#[tokio::test]
async fn a_clock_that_went_back_hides_no_watched_call() {
    let directory = TempDir::new().unwrap();
    pairs_in_time(directory.path(), 3).await;
    let (journal, _) = JournalFiles::open(options(directory.path())).unwrap();
    let a_day_before = |event: Event| {
        let time = event.time.saturating_sub(SignedDuration::from_hours(24)).unwrap();
        Event { time, ..event }
    };
    append(&journal, vec![a_day_before(started("x")), a_day_before(completed("x"))]).await;
    drop(journal);
    let event = a_day_before(started("x"));
    let watching = JournalOptions {
        watched: HashSet::from([CallName::of(&event)]),
        watched_from: Some(event.time),
        ..options(directory.path())
    };
    let (_, found) = JournalFiles::open(watching).unwrap();
    assert_eq!(found.ended, [Arc::new(a_day_before(completed("x")))]);
}

#[tokio::test]
async fn an_opening_that_is_stopped_ends_before_its_next_record() {
    let directory = journal_of(&[&["a"]]).await;
    let stop = Stop::default();
    stop.stop();
    let stopped = JournalOptions { stop, ..options(directory.path()) };
    assert!(matches!(JournalFiles::open(stopped), Err(OpenError::Stopped)));
    assert_eq!(open(directory.path()).unwrap().records, 1);
}

/// A million records of about 900 bytes: how long each start takes is printed,
/// how much it reads is held.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes a gigabyte; run it alone, in a release build, to measure"]
async fn a_million_records() {
    const CALLS: usize = 500_000;
    let directory = TempDir::new().unwrap();
    let (journal, _) = JournalFiles::open(options(directory.path())).unwrap();
    for call in (0..CALLS).collect::<Vec<_>>().chunks(512) {
        let ids: Vec<_> = call.iter().map(|call| format!("call-{call}")).collect();
        append(&journal, ids.iter().map(|id| started(id)).collect()).await;
        append(&journal, ids.iter().map(|id| completed(id)).collect()).await;
    }
    // What it would leave if it were killed now, and how it stops.
    let (running, text) = checkpoints(directory.path())
        .pop()
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .unwrap();
    drop(journal);
    let time = |what: &str| {
        let begun = std::time::Instant::now();
        let found = open(directory.path()).unwrap();
        println!("{what}: {:?}, {} bytes read", begun.elapsed(), found.read_bytes);
        found
    };
    let fast = time("with a checkpoint at the end");
    forget_checkpoints(directory.path());
    fs::write(running, text).unwrap();
    let killed = time("killed");
    forget_checkpoints(directory.path());
    let slow = time("without");
    assert_eq!((fast.records, fast.read_bytes), (2 * CALLS as u64, 0));
    assert!(0 < killed.read_bytes && killed.read_bytes < 16 << 20);
    assert_eq!(slow.read_bytes, bytes_of(directory.path()));
    assert_eq!(essence(&fast), essence(&slow));
}
