//! What an auditor finds who has the keys, and perhaps a head that was kept.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;
use toolgate::adapters::journal::{Act, JournalFiles, Unverified, Verification, Verified};
use toolgate::domain::audit::{Digest, Head, JournalKey};

use super::{forget_checkpoints, journal_of, options, segment};

/// A journal of nine records in three segments, without a checkpoint.
struct Sound {
    directory: TempDir,
    head: Head,
    /// The whole of each segment.
    files: Vec<(PathBuf, Vec<u8>)>,
}

/// One change of one file.
#[derive(Debug, Clone)]
enum Change {
    Flip { at: usize, bit: u8 },
    Delete { line: usize },
    Swap { lines: (usize, usize) },
    Truncate { at: usize },
    Duplicate { line: usize },
}

impl Sound {
    async fn new() -> Self {
        let directory = journal_of(&[&["a", "b", "c"], &["d", "e", "f"], &["g", "h", "i"]]).await;
        let verified = verify(directory.path(), &[]).unwrap();
        assert_eq!((verified.first, verified.head.sequence, verified.segments), (1, 9, 3));
        let files = [1, 4, 7].map(|first| segment(directory.path(), first));
        let files = files.map(|path| (path.clone(), fs::read(&path).unwrap())).to_vec();
        Self { directory, head: verified.head, files }
    }

    /// What is found after this change of a file, which is undone again.
    fn after(&self, file: usize, change: &Change) -> Result<Verified, Unverified> {
        let (path, whole) = &self.files[file];
        fs::write(path, change.of(whole)).unwrap();
        let found = verify(self.directory.path(), &[self.head]);
        fs::write(path, whole).unwrap();
        found
    }
}

impl Change {
    fn of(&self, whole: &[u8]) -> Vec<u8> {
        let mut lines: Vec<Vec<u8>> =
            whole.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        match *self {
            Self::Flip { at, bit } => {
                let mut flipped = whole.to_vec();
                flipped[at] ^= 1 << bit;
                return flipped;
            }
            Self::Truncate { at } => return whole[..at].to_vec(),
            Self::Delete { line } => drop(lines.remove(line)),
            Self::Swap { lines: (one, other) } => lines.swap(one, other),
            Self::Duplicate { line } => lines.insert(line, lines[line].clone()),
        }
        lines.concat()
    }

    /// The line of the file, from 0, whose record is the first that is not where it was.
    fn first_line(&self, whole: &[u8]) -> usize {
        let line_of = |at: usize| whole[..at].split(|byte| *byte == b'\n').count() - 1;
        match *self {
            Self::Flip { at, .. } | Self::Truncate { at } => line_of(at),
            Self::Delete { line } => line,
            Self::Swap { lines: (one, other) } => one.min(other),
            Self::Duplicate { line } => line + 1,
        }
    }
}

fn verify(directory: &Path, heads: &[Head]) -> Result<Verified, Unverified> {
    let keys = JournalKey::new(&[7; 32]).into();
    let directory = directory.to_path_buf();
    Verification { directory, keys, heads: heads.to_vec() }.run(&mut |_, _| {})
}

/// The record that is named.
fn named(found: &Result<Verified, Unverified>) -> Option<u64> {
    match found {
        Err(Unverified::Record { sequence, .. } | Unverified::Gone { sequence, .. }) => {
            Some(*sequence)
        }
        Err(Unverified::Cut { head, .. }) => Some(head.sequence + 1),
        _ => None,
    }
}

fn act(found: Result<Verified, Unverified>) -> Act {
    match found {
        Err(Unverified::Record { act, .. }) => act,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn any_one_change_is_found_at_its_record(
        changes in prop::collection::vec((0_usize..3, change()), 64),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let sound = runtime.block_on(Sound::new());
        for (file, (kind, one, other, bit)) in changes {
            let whole = &sound.files[file].1;
            let at = one % whole.len();
            let (line, further) = (one % 3, (one % 3 + 1 + other % 2) % 3);
            let change = match kind {
                0 => Change::Flip { at, bit },
                1 => Change::Delete { line },
                2 => Change::Swap { lines: (line, further) },
                3 => Change::Truncate { at },
                _ => Change::Duplicate { line },
            };
            let expected = (3 * file + change.first_line(whole) + 1) as u64;
            let found = sound.after(file, &change);
            prop_assert_eq!(named(&found), Some(expected), "{} {:?}: {:?}", file, change, found);
        }
        prop_assert!(verify(sound.directory.path(), &[sound.head]).is_ok());
    }
}

fn change() -> impl Strategy<Value = (u8, usize, usize, u8)> {
    (0_u8..5, any::<usize>(), any::<usize>(), 0_u8..8)
}

#[tokio::test]
async fn every_act_has_its_name() {
    let sound = Sound::new().await;
    let whole = &sound.files[1].1;
    let middle = whole.len() / 2;
    let cases = [
        (Change::Flip { at: middle, bit: 0 }, Act::Edited),
        (Change::Delete { line: 0 }, Act::Deleted { last: 4 }),
        (Change::Swap { lines: (0, 1) }, Act::Moved { found: 5 }),
        (Change::Swap { lines: (0, 2) }, Act::Moved { found: 6 }),
        (Change::Duplicate { line: 0 }, Act::Repeated { found: 4 }),
        (Change::Duplicate { line: 2 }, Act::Repeated { found: 6 }),
        (Change::Truncate { at: middle }, Act::Torn),
    ];
    for (change, expected) in cases {
        assert_eq!(act(sound.after(1, &change)), expected, "{change:?}");
    }
    // An edit that changes the record's number is an edit all the same.
    let text = String::from_utf8(whole.clone()).unwrap();
    let (path, _) = &sound.files[1];
    for (from, to) in
        [("\"sequence\":5,", "\"sequence\":8,"), ("\"sequence\":5,", "\"sequence\":2,")]
    {
        fs::write(path, text.replace(from, to)).unwrap();
        assert_eq!(act(verify(sound.directory.path(), &[])), Act::Edited, "{to}");
    }
    // One that was never written.
    let forged = text.lines().nth(1).unwrap().replace("user-1", "user-2");
    let lines: Vec<&str> = text.lines().collect();
    fs::write(path, [lines[0], &forged, lines[1], lines[2], ""].join("\n")).unwrap();
    assert_eq!(act(verify(sound.directory.path(), &[])), Act::Inserted);
}

#[tokio::test]
async fn a_head_that_was_kept_finds_a_cut_tail_and_another_journal() {
    let sound = Sound::new().await;
    let root = sound.directory.path();
    // Without it, records that are missing at the end leave no trace.
    fs::remove_file(segment(root, 7)).unwrap();
    assert_eq!(verify(root, &[]).unwrap().head.sequence, 6);
    match verify(root, &[sound.head]) {
        Err(Unverified::Cut { kept: (kept, None), head }) => {
            assert_eq!((kept, head.sequence), (sound.head, 6));
        }
        other => panic!("{other:?}"),
    }
    let other = Sound::new().await;
    assert!(matches!(
        verify(other.directory.path(), &[sound.head]),
        Err(Unverified::Replaced { kept: (kept, None) }) if kept == sound.head
    ));
    // Any head on the way is one.
    let earlier = verify(root, &[]).unwrap().head;
    assert!(verify(root, &[earlier]).is_ok());
    let forged = Head { mac: Digest([1; 32]), ..earlier };
    assert!(matches!(verify(root, &[forged]), Err(Unverified::Replaced { .. })));
}

#[tokio::test]
async fn a_checkpoint_is_a_head_too() {
    let sound = Sound::new().await;
    let root = sound.directory.path();
    drop(JournalFiles::open(options(root)).unwrap());
    fs::remove_file(segment(root, 7)).unwrap();
    assert!(matches!(
        verify(root, &[]),
        Err(Unverified::Cut { kept: (kept, Some(_)), .. }) if kept == sound.head
    ));
    // One that does not verify is told of, and no more.
    forget_checkpoints(root);
    fs::write(root.join("checkpoints/00000000000000000009.json"), "{}").unwrap();
    let verified = verify(root, &[]).unwrap();
    assert_eq!((verified.head.sequence, verified.broken_checkpoints.len()), (6, 1));
}

#[tokio::test]
async fn verifying_changes_nothing_and_needs_no_lock() {
    let sound = Sound::new().await;
    let root = sound.directory.path();
    let (journal, _) = JournalFiles::open(options(root)).unwrap();
    super::append(&journal, vec![super::started("j")]).await;
    let (path, _) = &sound.files[2];
    let text = [fs::read(path).unwrap().as_slice(), b"{\"event\":\"tool_ca"].concat();
    fs::write(path, &text).unwrap();
    let verified = verify(root, &[sound.head, journal.head()]).unwrap();
    assert_eq!(verified.head, journal.head());
    assert_eq!(verified.beyond, [(path.clone(), 17)]);
    assert_eq!(fs::read(path).unwrap(), text);
}
