//! Journals that earlier versions wrote.

use std::fs;
use std::path::Path;

use jiff::Timestamp;
use tempfile::TempDir;
use toolgate::adapters::journal::{JournalFiles, JournalOptions};
use toolgate::domain::audit::{JournalKey, JournalKeys};

use super::{append, completed, ids, started};

/// The journal of this version, in a directory of its own.
fn copy_of(version: &str) -> TempDir {
    let directory = TempDir::new().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/journals").join(version);
    fs::create_dir(directory.path().join("segments")).unwrap();
    fs::copy(from.join("journal.json"), directory.path().join("journal.json")).unwrap();
    for entry in fs::read_dir(from.join("segments")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), directory.path().join("segments").join(entry.file_name())).unwrap();
    }
    directory
}

#[tokio::test]
async fn a_journal_of_0_1_0_verifies_and_goes_on() {
    let directory = copy_of("0.1.0");
    let keys = JournalKeys::new(JournalKey::new(&[8; 32]), [JournalKey::new(&[7; 32])]);
    let now = Timestamp::constant(1_800_000_100, 0);
    let options = || JournalOptions::new(directory.path().to_owned(), keys.clone(), now);
    let (journal, found) = JournalFiles::open(options()).unwrap();
    assert_eq!(&**journal.id(), "88da0e1d-c649-4079-91b3-96fa9e0d2678");
    assert_eq!((found.records, found.cut_bytes), (8, 0));
    assert_eq!(
        found.head.mac.to_string(),
        "b0c82f3f5c29054dab017e70c8b9ec18859ff3c5b33d54112feae418d079a73a"
    );
    assert_eq!(found.beside.as_ref().map(|ledger| ledger.number), Some(3));
    assert_eq!(found.newest_recorded, Some(Timestamp::constant(1_800_000_050, 0)));
    assert_eq!(ids(&found), ["left-open"]);
    append(&journal, vec![completed("left-open"), started("later")]).await;
    drop(journal);

    let (_journal, found) = JournalFiles::open(options()).unwrap();
    assert_eq!((found.records, ids(&found)), (10, vec!["later"]));
}

#[test]
fn a_journal_of_0_1_0_needs_both_its_keys() {
    let directory = copy_of("0.1.0");
    for key in [7, 8] {
        let now = Timestamp::constant(1_800_000_100, 0);
        let options =
            JournalOptions::new(directory.path().to_owned(), JournalKey::new(&[key; 32]), now);
        JournalFiles::open(options).unwrap_err();
    }
}
