//! The files of a journal, behind traits so that tests can make them fail.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::adapters::manifest::{replace, sync_directory};

/// Makes segments.
pub(super) trait Disk: Send {
    /// Opens the last segment to go on at its end. What a killed process left
    /// in the page cache is synced first.
    fn reopen(&mut self, segment: &Segment) -> io::Result<Box<dyn SegmentFile>>;

    /// Makes an empty segment that no recovery sees before it is published.
    fn create(&mut self) -> io::Result<Box<dyn SegmentFile>>;

    /// Gives the segment made last its name, atomically and durably. One that
    /// has the name already is replaced.
    fn publish(&mut self, first_sequence: u64) -> io::Result<()>;

    /// Puts a file beside the segments in the place of the one that is there,
    /// atomically and durably.
    fn save(&mut self, file: Beside, text: &[u8]) -> io::Result<()>;

    /// Deletes a segment; one that is gone already is no fault.
    fn remove_segment(&mut self, first_sequence: u64) -> io::Result<()>;

    /// Deletes the checkpoint of this sequence.
    fn remove_checkpoint(&mut self, sequence: u64) -> io::Result<()>;

    /// The bytes that may still be written.
    fn free_bytes(&mut self) -> io::Result<u64>;
}

/// A file beside the segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beside {
    /// Where the kept records begin.
    Anchor,
    /// What is known of all records up to this one.
    Checkpoint(u64),
}

/// A segment that is written at its end.
pub(super) trait SegmentFile: Write + Send {
    /// Makes what was written durable.
    fn sync(&mut self) -> io::Result<()>;

    /// Removes everything from this offset on, durably.
    fn cut(&mut self, len: u64) -> io::Result<()>;
}

/// A journal's directory:
///
/// ```text
/// lock                                   held while a process writes
/// journal.json                           format and identity
/// anchor.json                            where the records begin, once some were deleted
/// checkpoints/00000000000000000001.json  named by the last sequence it tells of
/// segments/00000000000000000001.jsonl    named by its first sequence
/// segments/new.tmp                       a segment that is being made
/// ```
#[derive(Debug, Clone)]
pub(super) struct Directory {
    root: PathBuf,
}

/// One segment, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) first_sequence: u64,
    pub(super) path: PathBuf,
}

impl Directory {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    pub(super) fn manifest(&self) -> PathBuf {
        self.root.join("journal.json")
    }

    pub(super) fn segments(&self) -> PathBuf {
        self.root.join("segments")
    }

    pub(super) fn anchor(&self) -> PathBuf {
        self.root.join("anchor.json")
    }

    pub(super) fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    pub(super) fn checkpoint(&self, sequence: u64) -> PathBuf {
        self.checkpoints().join(format!("{sequence:020}.json"))
    }

    fn unpublished(&self) -> PathBuf {
        self.segments().join("new.tmp")
    }

    pub(super) fn segment(&self, first_sequence: u64) -> PathBuf {
        self.segments().join(format!("{first_sequence:020}.jsonl"))
    }

    /// Makes the directories, mode 0700, where they are missing.
    pub(super) fn make(&self) -> io::Result<()> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(self.segments())?;
        builder.create(self.checkpoints())?;
        sync_directory(&self.root)
    }

    /// Removes a segment whose making was interrupted.
    pub(super) fn remove_unpublished(&self) -> io::Result<()> {
        remove(&self.unpublished())
    }

    /// The segments in the order of their sequences. Files of other names are
    /// nobody's records and are left alone.
    pub(super) fn list_segments(&self) -> io::Result<Vec<Segment>> {
        let found = list(&self.segments(), ".jsonl")?;
        let segment = |(first_sequence, path)| Segment { first_sequence, path };
        Ok(found.into_iter().map(segment).collect())
    }

    /// The checkpoints in the order of their sequences.
    pub(super) fn list_checkpoints(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        list(&self.checkpoints(), ".json")
    }
}

impl Disk for Directory {
    fn reopen(&mut self, segment: &Segment) -> io::Result<Box<dyn SegmentFile>> {
        let mut file = open_at_end(&segment.path)?;
        file.sync()?;
        Ok(Box::new(file))
    }

    fn create(&mut self) -> io::Result<Box<dyn SegmentFile>> {
        let path = self.unpublished();
        let file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        Ok(Box::new(file))
    }

    fn publish(&mut self, first_sequence: u64) -> io::Result<()> {
        fs::rename(self.unpublished(), self.segment(first_sequence))?;
        sync_directory(&self.segments())
    }

    fn save(&mut self, file: Beside, text: &[u8]) -> io::Result<()> {
        let path = match file {
            Beside::Anchor => self.anchor(),
            Beside::Checkpoint(sequence) => self.checkpoint(sequence),
        };
        replace(&path, text)
    }

    fn remove_segment(&mut self, first_sequence: u64) -> io::Result<()> {
        remove(&self.segment(first_sequence))
    }

    fn remove_checkpoint(&mut self, sequence: u64) -> io::Result<()> {
        remove(&self.checkpoint(sequence))
    }

    fn free_bytes(&mut self) -> io::Result<u64> {
        let found = rustix::fs::statvfs(&self.root)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

impl SegmentFile for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn cut(&mut self, len: u64) -> io::Result<()> {
        self.set_len(len)?;
        self.sync_all()
    }
}

/// Opens a segment to write at its end.
pub(super) fn open_at_end(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).open(path)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The files that are named by a sequence, in the order of those.
fn list(directory: &Path, suffix: &str) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if let Some(sequence) = sequence_of(&path, suffix) {
            found.push((sequence, path));
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn sequence_of(path: &Path, suffix: &str) -> Option<u64> {
    let digits = path.file_name()?.to_str()?.strip_suffix(suffix)?;
    let plain = digits.len() == 20 && digits.bytes().all(|digit| digit.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}
