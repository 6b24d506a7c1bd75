//! The embedded ledger's own: its files, one process, a killed process.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use async_trait::async_trait;
use tempfile::TempDir;
use toolgate::adapters::ledger::{EmbeddedLedger, EmbeddedOptions, OpenError};
use toolgate::domain::reason::{Effect, Reason};
use toolgate::domain::record::{State, TicketUse};
use toolgate::domain::watermark::{ClockState, Reading};
use toolgate::ports::Ledger;
use uuid::Uuid;

use super::Place;
use super::calls::{START, at, claim, reserve, settlement, ticket, time};

/// A directory of its own.
pub struct Directory(TempDir);

impl Directory {
    pub fn new() -> Self {
        Self(TempDir::new().unwrap())
    }
}

#[async_trait]
impl Place for Directory {
    async fn open(&self) -> Arc<dyn Ledger> {
        Arc::new(open(self.0.path()).unwrap())
    }
}

fn open(directory: &Path) -> Result<EmbeddedLedger, OpenError> {
    EmbeddedLedger::open(&EmbeddedOptions::new(directory.join("ledger"), START))
}

#[test]
fn nobody_else_can_read_the_files() {
    let directory = TempDir::new().unwrap();
    let _ledger = open(directory.path()).unwrap();
    let root = directory.path().join("ledger");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&root), 0o700);
    let mut names = Vec::new();
    for entry in fs::read_dir(&root).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(mode(&entry.path()), 0o600, "{:?}", entry.path());
        names.push(entry.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(names, ["ledger.json", "ledger.redb", "lock"]);
}

/// A virtual machine that was stopped for an hour: its mark stands still, and yet
/// its journal, which is an hour ahead now, is not that of a newer ledger.
#[tokio::test]
async fn a_time_that_was_not_believed_was_seen() {
    let directory = TempDir::new().unwrap();
    let ledger = open(directory.path()).unwrap();
    assert_eq!(ledger.found().seen, None);
    assert_eq!(ledger.observe(at(0)).await, Ok(ClockState::Trusted));
    let resumed = Reading { now: time(3_600), ..at(1) };
    assert_eq!(ledger.observe(resumed).await, Ok(ClockState::Stepped));
    drop(ledger);
    let ledger = open(directory.path()).unwrap();
    assert_eq!(ledger.found().seen, Some(time(3_600)));
    // The mark is where it was: a clock that is set back may still be right.
    assert_eq!(ledger.observe(at(10)).await, Ok(ClockState::Trusted));
    // Nor does believing a clock make an old ledger a current one.
    ledger.accept_clock(at(5_000)).await.unwrap();
    drop(ledger);
    assert_eq!(open(directory.path()).unwrap().found().seen, Some(time(3_600)));
}

#[test]
fn a_second_opener_is_refused() {
    let directory = TempDir::new().unwrap();
    let ledger = open(directory.path()).unwrap();
    assert!(matches!(open(directory.path()), Err(OpenError::Locked { .. })));
    drop(ledger);
    open(directory.path()).unwrap();
}

#[test]
fn an_unknown_format_is_refused() {
    let directory = TempDir::new().unwrap();
    drop(open(directory.path()).unwrap());
    let manifest = directory.path().join("ledger/ledger.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("\"format\":1", "\"format\":2")).unwrap();
    let error = open(directory.path()).unwrap_err();
    assert!(matches!(error, OpenError::Format { found: 2, .. }), "{error}");
    for broken in ["", "{}", "{\"format\":1}", &text.replace('-', "!")] {
        fs::write(&manifest, broken).unwrap();
        let error = open(directory.path()).unwrap_err();
        assert!(matches!(error, OpenError::Manifest { .. }), "{broken}: {error}");
    }
}

/// Without its store a ledger has forgotten what its tickets were spent on.
#[tokio::test]
async fn a_missing_half_is_refused() {
    let directory = TempDir::new().unwrap();
    let ledger = open(directory.path()).unwrap();
    ledger.observe(at(0)).await.unwrap();
    drop(ledger);
    let root = directory.path().join("ledger");
    for name in ["ledger.redb", "ledger.json"] {
        fs::rename(root.join(name), directory.path().join(name)).unwrap();
        let error = open(directory.path()).unwrap_err();
        assert!(matches!(error, OpenError::Manifest { .. }), "{name}: {error}");
        fs::rename(directory.path().join(name), root.join(name)).unwrap();
    }
    open(directory.path()).unwrap();
}

/// A crash between making the store and making the manifest must not need an operator.
#[test]
fn a_store_that_was_never_used_is_taken_over() {
    let directory = TempDir::new().unwrap();
    drop(open(directory.path()).unwrap());
    fs::remove_file(directory.path().join("ledger/ledger.json")).unwrap();
    open(directory.path()).unwrap();
}

#[tokio::test]
async fn a_damaged_store_is_refused() {
    let directory = TempDir::new().unwrap();
    let ledger: Arc<dyn Ledger> = Arc::new(open(directory.path()).unwrap());
    let claims = (0..200).map(|number| claim(&format!("call-{number}"), ticket(number))).collect();
    ledger.reserve(claims, at(0)).await.unwrap();
    drop(ledger);
    let path = directory.path().join("ledger/ledger.redb");
    let sound = fs::read(&path).unwrap();
    let places: Vec<_> =
        sound.windows(12).enumerate().filter(|(_, bytes)| bytes == b"create_draft").collect();
    assert!(places.len() >= 200);
    for (offset, _) in places.into_iter().step_by(97) {
        let mut damaged = sound.clone();
        damaged[offset] ^= 1;
        fs::write(&path, damaged).unwrap();
        match open(directory.path()) {
            Err(OpenError::Store { .. }) => {}
            // The page is of an older transaction, and no part of the ledger any more.
            Ok(ledger) => assert_eq!(ledger.running().await.unwrap().len(), 200),
            Err(other) => panic!("{other}"),
        }
    }
    fs::write(&path, &sound[..sound.len() / 2]).unwrap();
    assert!(matches!(open(directory.path()), Err(OpenError::Store { .. })));
}

const CHILD_DIRECTORY: &str = "TOOLGATE_LEDGER_CHILD";

/// The process that the next test kills; alone it does nothing. Four tasks
/// reserve, and settle every other call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_reserves_until_it_is_killed() {
    let Some(directory) = std::env::var_os(CHILD_DIRECTORY) else { return };
    let ledger: Arc<dyn Ledger> = Arc::new(open(Path::new(&directory)).unwrap());
    let tasks: Vec<_> = (0..4)
        .map(|task| {
            let ledger = Arc::clone(&ledger);
            tokio::spawn(async move {
                for number in (task..1_000_000).step_by(4) {
                    let claim = claim(&format!("call-{number}"), ticket(number));
                    let held = reserve(&ledger, claim, 0).await.unwrap();
                    println!("reserved {number}");
                    if number % 8 < 4 {
                        let end = settlement(Reason::Ok, Effect::Applied, 1);
                        ledger.settle(held.id, held.key, end).await.unwrap();
                        println!("settled {number}");
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn what_was_answered_survives_a_killed_process() {
    for enough in [1, 40, 200] {
        let directory = TempDir::new().unwrap();
        let answered = kill_after(directory.path(), enough);
        assert!(answered.len() >= enough);
        let ledger = open(directory.path()).unwrap();
        for line in answered {
            let (what, number) = line.split_once(' ').unwrap();
            let number = number.parse().unwrap();
            let claim = claim(&format!("call-{number}"), ticket(number));
            let record = ledger.look(claim.key).await.unwrap().unwrap();
            if what == "settled" {
                assert!(matches!(record.state, State::Ended(_)), "{line}");
            }
            let known = ledger.ticket(Uuid::from_u128(number), time(300)).await;
            assert_eq!(known, Ok(TicketUse::Spent), "{line}");
        }
        for (_, record) in ledger.running().await.unwrap() {
            assert_eq!(record.state, State::Running);
        }
    }
}

/// What the child said before it died, whole lines only.
fn kill_after(directory: &Path, enough: usize) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ledger::embedded::child_that_reserves_until_it_is_killed"])
        .arg("--nocapture")
        .env(CHILD_DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut answered = Vec::new();
    let mut line = String::new();
    let mut killed = false;
    while output.read_line(&mut line).unwrap() > 0 {
        let said = std::mem::take(&mut line);
        if said.ends_with('\n') && (said.starts_with("reserved ") || said.starts_with("settled ")) {
            answered.push(said.trim_end().to_owned());
        }
        if answered.len() >= enough && !killed {
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
    answered
}
