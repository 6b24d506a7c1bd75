//! The journal on a real disk: what verifies, what is found, what survives.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod checkpoints;
mod earlier;
mod verify;

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use jiff::Timestamp;
use tempfile::TempDir;
use toolgate::adapters::journal::{JournalFiles, JournalOptions, OpenError, Recovered};
use toolgate::domain::audit::{Digest, Entry, Event, EventKind, JournalKey, PayloadSummary};
use toolgate::domain::proposal::Context;
use toolgate::domain::reason::{Effect, Reason};
use toolgate::domain::recovery::close_pair;
use toolgate::ports::{Durability, Journal};

fn started(tool_call_id: &str) -> Event {
    Event {
        kind: EventKind::Started,
        time: Timestamp::constant(1_800_000_000, 123_456_000),
        context: Arc::new(Context {
            request_id: "req-1".into(),
            user_id: "user-1".into(),
            tenant_id: "tenant-1".into(),
            conversation_id: "conversation-1".into(),
        }),
        tool_call_id: tool_call_id.into(),
        tool: "search".into(),
        suggested_tool_hash: Digest([1; 32]),
        attempt: 1,
        arguments_summary: PayloadSummary::default(),
        arguments_digest: Digest([2; 32]),
        policy_digest: Digest([3; 32]),
        audit_key_id: "k1".into(),
        confirmation: None,
        trace_id: None,
    }
}

fn completed(tool_call_id: &str) -> Event {
    let kind = EventKind::Completed {
        reason: Reason::HandlerFailed,
        duration_us: 1_500,
        result_summary: None,
        result_digest: None,
        effect: Effect::None,
    };
    let started = started(tool_call_id);
    started.completed(started.time, kind)
}

fn options(directory: &Path) -> JournalOptions {
    let now = Timestamp::constant(1_800_000_000, 0);
    JournalOptions::new(directory.to_path_buf(), JournalKey::new(&[7; 32]), now)
}

fn open(directory: &Path) -> Result<Recovered, OpenError> {
    JournalFiles::open(options(directory)).map(|(_, recovered)| recovered)
}

async fn append(journal: &JournalFiles, events: Vec<Event>) {
    let events = events.into_iter().map(|event| Entry::Call(Arc::new(event))).collect();
    journal.append(events, Durability::Written).await.unwrap();
}

/// A journal as a killed gate leaves it: a directory with one segment for every inner list of ids.
async fn journal_of(segments: &[&[&str]]) -> TempDir {
    let directory = TempDir::new().unwrap();
    for ids in segments {
        let small = JournalOptions { segment_bytes: 1, ..options(directory.path()) };
        let (journal, _) = JournalFiles::open(small).unwrap();
        append(&journal, ids.iter().map(|id| started(id)).collect()).await;
    }
    forget_checkpoints(directory.path());
    directory
}

/// Has the next start read everything.
fn forget_checkpoints(directory: &Path) {
    for entry in fs::read_dir(directory.join("checkpoints")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
}

fn segment(directory: &Path, first_sequence: u64) -> PathBuf {
    directory.join(format!("segments/{first_sequence:020}.jsonl"))
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap().lines().map(String::from).collect()
}

fn write_lines(path: &Path, lines: &[String]) {
    fs::write(path, [lines, &[String::new()]].concat().join("\n")).unwrap();
}

fn ids(recovered: &Recovered) -> Vec<&str> {
    recovered.open.iter().map(|event| &*event.tool_call_id).collect()
}

#[tokio::test]
async fn a_journal_opened_again_goes_on_where_it_stopped() {
    let directory = TempDir::new().unwrap();
    let (journal, recovered) = JournalFiles::open(options(directory.path())).unwrap();
    let id = Arc::clone(journal.id());
    assert_eq!((recovered.records, recovered.cut_bytes, recovered.head.sequence), (0, 0, 0));
    append(&journal, vec![started("a"), started("b"), completed("a")]).await;
    let head = journal.head();
    drop(journal);

    let (journal, recovered) = JournalFiles::open(options(directory.path())).unwrap();
    assert_eq!(journal.id(), &id);
    assert_eq!((recovered.records, recovered.head), (3, head));
    assert_eq!(recovered.open, [Arc::new(started("b"))]);
    let now = Timestamp::constant(1_800_000_100, 0);
    let closed = recovered.open.iter().map(|started| close_pair(started, None, now)).collect();
    append(&journal, closed).await;
    drop(journal);

    let recovered = open(directory.path()).unwrap();
    assert_eq!((recovered.records, recovered.open.len()), (4, 0));
    let written = lines(&segment(directory.path(), 1));
    assert!(written[3].contains(r#""outcome":"error","reason":"PROCESS_LOST","duration_ms":0,"#));
}

#[tokio::test]
async fn every_edited_byte_of_a_record_is_found_where_it_stands() {
    let directory = journal_of(&[&["a", "b", "c"]]).await;
    let path = segment(directory.path(), 1);
    let whole = fs::read(&path).unwrap();
    let ends: Vec<usize> =
        whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect();
    // Not the last line, which is cut off instead: see below.
    for at in 0..ends[1] {
        let mut edited = whole.clone();
        edited[at] ^= 1;
        fs::write(&path, &edited).unwrap();
        let line = if at <= ends[0] { 1 } else { 2 };
        match open(directory.path()) {
            Err(OpenError::Record { path: named, line: found, sequence, .. }) => {
                assert_eq!((named, found, sequence), (path.clone(), line, line), "byte {at}");
            }
            other => panic!("byte {at}: {other:?}"),
        }
        assert_eq!(fs::read(&path).unwrap(), edited, "nothing is changed by refusing");
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(ids(&open(directory.path()).unwrap()), ["a", "b", "c"]);
}

#[tokio::test]
async fn records_removed_moved_or_repeated_are_found() {
    let directory = journal_of(&[&["a", "b", "c", "d"]]).await;
    let path = segment(directory.path(), 1);
    let whole = lines(&path);
    let pick = |order: &[usize]| order.iter().map(|at| whole[*at].clone()).collect::<Vec<_>>();
    // The lines that are left, where it shows, and the sequence that stands there.
    let cases: [(&[usize], u64, u64); 6] = [
        (&[1, 2, 3], 1, 2),
        (&[0, 2, 3], 2, 3),
        (&[0, 2, 1, 3], 2, 3),
        (&[1, 0, 2, 3], 1, 2),
        (&[0, 0, 1, 2, 3], 2, 1),
        (&[0, 1, 2, 0, 3], 4, 1),
    ];
    for (order, line, found) in cases {
        write_lines(&path, &pick(order));
        let error = open(directory.path()).unwrap_err();
        let expected = format!(
            "{}: line {line}, where sequence {line} belongs: the record of sequence {found} stands \
             here: records were removed, repeated or moved. Keep the directory as evidence: restore \
             the segments from a copy, or move the journal's directory aside to start a new journal",
            path.display()
        );
        assert_eq!(error.to_string(), expected, "{order:?}");
    }
}

#[tokio::test]
async fn an_edited_record_is_refused_in_these_words() {
    let directory = journal_of(&[&["a", "b"]]).await;
    let path = segment(directory.path(), 1);
    let mut edited = lines(&path);
    edited[0] = edited[0].replace("\"user-1\"", "\"user-2\"");
    write_lines(&path, &edited);
    let expected = format!(
        "{}: line 1, where sequence 1 belongs: the record does not verify: it was edited or \
         inserted, a record before it was removed, or the audit secret is not the one it was \
         written with. Keep the directory as evidence: restore the segments from a copy, or move \
         the journal's directory aside to start a new journal",
        path.display()
    );
    assert_eq!(open(directory.path()).unwrap_err().to_string(), expected);
}

#[tokio::test]
async fn another_secret_or_identity_verifies_nothing() {
    let directory = journal_of(&[&["a", "b"]]).await;
    let other =
        JournalOptions { keys: JournalKey::new(&[8; 32]).into(), ..options(directory.path()) };
    assert!(matches!(JournalFiles::open(other), Err(OpenError::Record { sequence: 1, .. })));
    let manifest = directory.path().join("journal.json");
    let text = fs::read_to_string(&manifest).unwrap();
    let (before, after) = text.split_at(text.find("journal_id").unwrap() + 13);
    let digit = if after.starts_with('0') { '1' } else { '0' };
    fs::write(&manifest, format!("{before}{digit}{}", &after[1..])).unwrap();
    assert!(matches!(open(directory.path()), Err(OpenError::Record { sequence: 1, .. })));
}

#[tokio::test]
async fn segments_removed_shortened_or_planted_are_found() {
    type Attack = fn(&Path);
    // Where it shows: the segment, and the first sequence missing.
    let attacks: [(&str, u64, u64, Attack); 5] = [
        ("a middle one removed", 1, 3, |root| fs::remove_file(segment(root, 3)).unwrap()),
        ("the first shortened", 1, 2, |root| {
            write_lines(&segment(root, 1), &lines(&segment(root, 1))[..1]);
        }),
        ("one renamed", 1, 3, |root| fs::rename(segment(root, 3), segment(root, 4)).unwrap()),
        ("an empty one planted to hide what follows it", 6, 6, |root| {
            fs::write(segment(root, 6), "").unwrap();
        }),
        ("a part of one planted to hide the rest", 6, 7, |root| {
            let part = &lines(&segment(root, 5))[1..2];
            write_lines(&segment(root, 6), part);
        }),
    ];
    for (name, file, missing, attack) in attacks {
        let directory = journal_of(&[&["a", "b"], &["c", "d"], &["e", "f", "g"]]).await;
        assert_eq!(open(directory.path()).unwrap().records, 7);
        attack(directory.path());
        match open(directory.path()) {
            Err(OpenError::Missing { path, sequence }) => {
                let place = (path, sequence);
                assert_eq!(place, (segment(directory.path(), file), missing), "{name}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_journal_that_begins_later_needs_its_anchor() {
    let directory = journal_of(&[&["a", "b"], &["c", "d"]]).await;
    fs::remove_file(segment(directory.path(), 1)).unwrap();
    let error = open(directory.path()).unwrap_err();
    let anchor = directory.path().join("anchor.json");
    assert!(
        matches!(&error, OpenError::Unanchored { path, first: 3 } if *path == anchor),
        "{error:?}"
    );
    let expected = format!(
        "{}: the file is missing, though the first segment begins with record 3: either it was \
         removed, or the segments before that were. Keep the directory as evidence",
        anchor.display()
    );
    assert!(error.to_string().starts_with(&expected), "{error}");
}

/// The system's error stands in the text, and is no second cause of it.
#[tokio::test]
async fn a_directory_in_the_place_of_a_segment_is_told_once() {
    let directory = journal_of(&[&["a", "b"], &["c"]]).await;
    let path = segment(directory.path(), 3);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    forget_checkpoints(directory.path());
    let error = open(directory.path()).unwrap_err();
    let told = toolgate::cli::Failure::from(error).to_string();
    let expected = format!("{}: reading the segment failed: ", path.display());
    assert!(told.starts_with(&expected), "{told}");
    assert!(told.contains("(os error 21). Keep the directory as evidence: "), "{told}");
    assert_eq!(told.matches("os error").count(), 1, "{told}");
}

#[tokio::test]
async fn a_line_torn_within_the_journal_is_found() {
    let directory = journal_of(&[&["a", "b"], &["c"]]).await;
    let path = segment(directory.path(), 1);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 5]).unwrap();
    assert!(matches!(open(directory.path()), Err(OpenError::Record { line: 2, sequence: 2, .. })));
}

#[tokio::test]
async fn a_last_record_torn_at_any_byte_is_cut_and_the_journal_goes_on() {
    let directory = journal_of(&[&["a", "b", "c"]]).await;
    let path = segment(directory.path(), 1);
    let whole = fs::read(&path).unwrap();
    let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    for torn in last..whole.len() {
        fs::write(&path, &whole[..torn]).unwrap();
        let (journal, recovered) = JournalFiles::open(options(directory.path())).unwrap();
        assert_eq!((recovered.records, recovered.cut_bytes), (2, (torn - last) as u64));
        if torn % 16 == 0 {
            append(&journal, vec![started("d")]).await;
            drop(journal);
            let recovered = open(directory.path()).unwrap();
            assert_eq!((ids(&recovered), recovered.cut_bytes), (vec!["a", "b", "d"], 0));
        }
        forget_checkpoints(directory.path());
    }
}

#[tokio::test]
async fn a_whole_last_line_that_does_not_verify_is_never_cut() {
    let directory = journal_of(&[&["a", "b"]]).await;
    let path = segment(directory.path(), 1);
    let whole = fs::read(&path).unwrap();
    let mut edited = whole.clone();
    let last = edited.len() - 10;
    edited[last] ^= 1;
    let added = |tail: &[u8]| [whole.as_slice(), tail].concat();
    let again = &whole[whole[..whole.len() - 1].iter().rposition(|b| *b == b'\n').unwrap() + 1..];
    let attacks = [
        (2, edited),
        (3, added(b"\n")),
        (3, added(b"{}\n")),
        (3, added(again)),
        // Longer than any record: no crash leaves that.
        (3, added(&vec![0; 70_000])),
        (3, added(&[b'x'; 8_192])),
    ];
    for (wanted, attack) in attacks {
        fs::write(&path, &attack).unwrap();
        match open(directory.path()) {
            Err(OpenError::Record { sequence, .. }) => assert_eq!(sequence, wanted),
            other => panic!("{other:?}"),
        }
        assert_eq!(fs::read(&path).unwrap(), attack, "the evidence stays as it is");
    }
}

#[tokio::test]
async fn a_journal_under_another_secret_is_not_emptied() {
    let directory = journal_of(&[&["a"]]).await;
    let other =
        JournalOptions { keys: JournalKey::new(&[8; 32]).into(), ..options(directory.path()) };
    assert!(matches!(JournalFiles::open(other), Err(OpenError::Record { sequence: 1, .. })));
    assert_eq!(open(directory.path()).unwrap().records, 1);
}

#[tokio::test]
async fn a_second_gate_is_told_that_the_journal_is_taken() {
    let directory = TempDir::new().unwrap();
    let first = JournalFiles::open(options(directory.path())).unwrap();
    let expected = format!(
        "{}: another gate has this journal open. Stop it, or give this one a directory of its own",
        directory.path().display()
    );
    assert_eq!(open(directory.path()).unwrap_err().to_string(), expected);
    drop(first);
    assert!(open(directory.path()).is_ok());
}

#[tokio::test]
async fn a_manifest_of_another_form_is_refused() {
    let directory = journal_of(&[&["a"]]).await;
    let path = directory.path().join("journal.json");
    fs::write(&path, r#"{"format":2,"journal_id":"x","shards":4}"#).unwrap();
    let error = open(directory.path()).unwrap_err();
    assert!(matches!(error, OpenError::Format { found: 2, .. }));
    assert!(error.to_string().contains("/format is 2, and this version reads 1"));
    let id = "3f1c1d6e-0000-4000-8000-000000000000";
    let wrong = [
        String::new(),
        "[]".into(),
        r#"{"format":"1"}"#.into(),
        format!(r#"{{"format":1,"journal_id":"{id}"}}"#),
        format!(r#"{{"format":1,"journal_id":"{id}","created":"x","more":1}}"#),
        r#"{"format":1,"journal_id":"../x","created":"x"}"#.into(),
    ];
    for text in wrong {
        fs::write(&path, &text).unwrap();
        assert!(matches!(open(directory.path()), Err(OpenError::Manifest { .. })), "{text}");
    }
    fs::remove_file(&path).unwrap();
    let error = open(directory.path()).unwrap_err();
    assert!(error.to_string().contains("the file is missing, though there are segments"));
}

#[tokio::test]
async fn files_are_the_owners_alone() {
    let parent = TempDir::new().unwrap();
    fs::set_permissions(parent.path(), Permissions::from_mode(0o755)).unwrap();
    let directory = parent.path().join("data/journal");
    let (journal, _) = JournalFiles::open(options(&directory)).unwrap();
    append(&journal, vec![started("a")]).await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for folder in [directory.clone(), directory.join("segments")] {
        assert_eq!(mode(&folder), 0o700, "{}", folder.display());
    }
    for file in [directory.join("lock"), directory.join("journal.json"), segment(&directory, 1)] {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let parent = TempDir::new().unwrap();
    let file = parent.path().join("file");
    fs::write(&file, "").unwrap();
    let error = open(&file.join("journal")).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }));
    assert!(error.to_string().starts_with(&format!("{}: making", file.join("journal").display())));
}

const CHILD_DIRECTORY: &str = "TOOLGATE_JOURNAL_CHILD";

/// The process that the next test kills; alone it does nothing.
#[tokio::test]
async fn child_that_appends_until_it_is_killed() {
    let Some(directory) = std::env::var_os(CHILD_DIRECTORY) else { return };
    let small = JournalOptions { segment_bytes: 20_000, ..options(Path::new(&directory)) };
    let (journal, _) = JournalFiles::open(small).unwrap();
    for number in 0..1_000_000 {
        append(&journal, vec![started(&format!("n{number}"))]).await;
        println!("acknowledged {number}");
    }
}

#[test]
fn what_was_acknowledged_survives_a_killed_process() {
    for enough in [1, 70, 300] {
        let directory = TempDir::new().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "journal::child_that_appends_until_it_is_killed", "--nocapture"])
            .env(CHILD_DIRECTORY, directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut acknowledged = Vec::new();
        let mut note = |line: String| {
            acknowledged.extend(line.strip_prefix("acknowledged ").map(|n| format!("n{n}")));
            acknowledged.len()
        };
        while note(output.next().unwrap().unwrap()) < enough {}
        child.kill().unwrap();
        // What it still said before it died counts; a torn last line does not.
        for line in output.map_while(Result::ok) {
            note(line);
        }
        child.wait().unwrap();
        let recovered = open(directory.path()).unwrap();
        let found = ids(&recovered);
        assert!(found.len() >= acknowledged.len() - 1);
        assert!(acknowledged.iter().zip(&found).all(|(told, found)| found.starts_with(&**told)));
        let expected: Vec<String> = (0..found.len()).map(|number| format!("n{number}")).collect();
        assert_eq!(found, expected);
    }
}
