//! The files of a journal, behind traits so that tests can make them fail.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::adapters::manifest::sync_directory;

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

    fn unpublished(&self) -> PathBuf {
        self.segments().join("new.tmp")
    }

    pub(super) fn segment(&self, first_sequence: u64) -> PathBuf {
        self.segments().join(format!("{first_sequence:020}.jsonl"))
    }

    /// Makes the directories, mode 0700, where they are missing.
    pub(super) fn make(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(self.segments())?;
        sync_directory(&self.root)
    }

    /// Removes a segment whose making was interrupted.
    pub(super) fn remove_unpublished(&self) -> io::Result<()> {
        match fs::remove_file(self.unpublished()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// The segments in the order of their sequences. Files of other names are
    /// nobody's records and are left alone.
    pub(super) fn list_segments(&self) -> io::Result<Vec<Segment>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.segments())? {
            let path = entry?.path();
            if let Some(first_sequence) = first_sequence_of(&path) {
                found.push(Segment { first_sequence, path });
            }
        }
        found.sort_by_key(|segment| segment.first_sequence);
        Ok(found)
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

fn first_sequence_of(path: &Path) -> Option<u64> {
    let digits = path.file_name()?.to_str()?.strip_suffix(".jsonl")?;
    let plain = digits.len() == 20 && digits.bytes().all(|digit| digit.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}
