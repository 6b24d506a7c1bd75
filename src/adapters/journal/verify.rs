//! The whole journal read by somebody who only looks: without its lock, also
//! beside a gate that writes it.

use std::path::PathBuf;
use std::sync::Arc;

use super::anchor::Anchor;
use super::checkpoint::Checkpoint;
use super::diagnosis::{Act, diagnose};
use super::disk::{Directory, Segment};
use super::error::OpenError;
use super::manifest;
use super::recovery::{Foreign, Replay, Start};
use super::stop::Stop;
use crate::domain::audit::{Chain, Entry, Head, JournalKeys, OpenPairs};

/// How often the list of segments is read anew, while retention deletes them.
const READINGS: usize = 8;

/// Which journal is verified, and against what.
#[derive(Debug)]
pub struct Verification {
    /// The journal's directory.
    pub directory: PathBuf,
    /// The keys of its chain.
    pub keys: JournalKeys,
    /// Heads that were kept elsewhere.
    pub heads: Vec<Head>,
}

/// A journal that verifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Its id.
    pub journal_id: Arc<str>,
    /// The first record that is kept.
    pub first: u64,
    /// The newest record.
    pub head: Head,
    /// The segments.
    pub segments: usize,
    /// The bytes of the records.
    pub bytes: u64,
    /// The pairs that are open.
    pub open_pairs: usize,
    /// Bytes that are no part of the journal, by file: a record that is being
    /// written, or what a crash left for the next start to cut.
    pub beyond: Vec<(PathBuf, u64)>,
    /// Checkpoints that do not verify. A start passes them over.
    pub broken_checkpoints: Vec<PathBuf>,
}

/// Why a journal does not verify: what is wrong at the first place that is.
#[derive(Debug)]
pub enum Unverified {
    /// It cannot be read, or a file beside the segments is at fault.
    Unreadable(OpenError),
    /// A record is at fault.
    Record {
        /// The segment.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The record that belongs there.
        sequence: u64,
        /// What was done.
        act: Act,
    },
    /// The file that the kept records begin with, or that says where, is gone.
    Beginning {
        /// Which.
        fault: OpenError,
        /// The first record that is gone.
        sequence: u64,
    },
    /// Records are gone, up to the end of a segment or with it.
    Gone {
        /// The segment that ends too early or is not there.
        path: PathBuf,
        /// The first record that is gone.
        sequence: u64,
    },
    /// The journal ends before a head that was kept.
    Cut {
        /// The head, and the checkpoint that kept it; else it was given.
        kept: (Head, Option<PathBuf>),
        /// The newest record.
        head: Head,
    },
    /// Another record has the sequence of a head that was kept.
    Replaced {
        /// The head, and the checkpoint that kept it; else it was given.
        kept: (Head, Option<PathBuf>),
    },
    /// Retention has deleted the record of a head that was given.
    Deleted {
        /// The head.
        head: Head,
        /// The first record that is kept.
        first: u64,
    },
}

impl Verification {
    /// Reads every record and shows it, in order. Changes nothing, needs no lock.
    ///
    /// # Errors
    ///
    /// The first place that is at fault. What was shown before has verified.
    pub fn run(&self, seen: &mut dyn FnMut(u64, &Entry)) -> Result<Verified, Unverified> {
        let directory = Directory::new(self.directory.clone());
        let mut shown = 0;
        for reading in 1.. {
            // A reading that begins anew shows nothing twice.
            let mut fresh = |sequence, entry: &Entry| {
                if sequence > shown {
                    shown = sequence;
                    seen(sequence, entry);
                }
            };
            match self.read(&directory, &mut fresh) {
                Err(Unverified::Unreadable(OpenError::Io { source, .. }))
                    if source.kind() == std::io::ErrorKind::NotFound && reading < READINGS => {}
                done => return done,
            }
        }
        unreachable!("the last reading returns")
    }

    fn read(
        &self,
        directory: &Directory,
        seen: &mut dyn FnMut(u64, &Entry),
    ) -> Result<Verified, Unverified> {
        let stop = Stop::default();
        let journal_id = manifest::read(directory)?.journal_id();
        // First what was written last: a gate that runs only adds meanwhile.
        let (checkpoints, broken_checkpoints) =
            Checkpoint::read_all(directory, &self.keys, &journal_id);
        let (anchor, mut segments) = self.list(directory, &journal_id)?;
        let first = anchor.map_or(1, |anchor| anchor.last_deleted.sequence + 1);
        segments.retain(|segment| segment.first_sequence >= first);

        let newest = checkpoints.first().map(|newest| newest.head);
        let kept: Vec<(Head, Option<PathBuf>)> = newest
            .filter(|head| head.sequence + 1 >= first)
            .map(|head| (head, Some(directory.checkpoint(head.sequence))))
            .into_iter()
            .chain(self.heads.iter().map(|head| (*head, None)))
            .collect();
        let heads: Vec<Head> = kept.iter().map(|(head, _)| *head).collect();

        let mut replay = Replay::new(self.start(anchor, Arc::clone(&journal_id)));
        Anchor::check(anchor.as_ref(), &segments, directory).map_err(|fault| {
            let sequence = if anchor.is_some() { first } else { 1 };
            Unverified::Beginning { fault, sequence }
        })?;
        match replay.run(&segments, &heads, &stop, seen) {
            Ok(()) => {}
            Err(OpenError::Record { path, line, sequence, .. }) => {
                let act = diagnose(&replay.chain, &segments, &path, line, &stop)?;
                return Err(Unverified::Record { path, line, sequence, act });
            }
            Err(OpenError::Missing { path, sequence }) => {
                return Err(Unverified::Gone { path, sequence });
            }
            Err(other) => return Err(other.into()),
        }
        let head = replay.chain.head();
        if let Some(Foreign { chain, path, line }) = &replay.foreign {
            let act = diagnose(chain, &segments, path, *line, &stop)?;
            let sequence = chain.head().sequence + 1;
            return Err(Unverified::Record { path: path.clone(), line: *line, sequence, act });
        }
        if let Some(kept) = kept.into_iter().find(|(kept, _)| !replay.met.contains(kept)) {
            return Err(match kept {
                (kept, None) if kept.sequence + 1 < first => {
                    Unverified::Deleted { head: kept, first }
                }
                kept if kept.0.sequence > head.sequence => Unverified::Cut { kept, head },
                kept => Unverified::Replaced { kept },
            });
        }
        Ok(Verified {
            journal_id,
            first,
            head,
            segments: replay.kept.len(),
            bytes: replay.kept.iter().map(|kept| kept.bytes).sum(),
            open_pairs: replay.pairs.open().len(),
            beyond: replay.cuts.into_iter().map(|cut| (cut.path, cut.bytes)).collect(),
            broken_checkpoints,
        })
    }

    /// Where the records begin, and what holds them: both of one moment.
    fn list(
        &self,
        directory: &Directory,
        journal_id: &str,
    ) -> Result<(Option<Anchor>, Vec<Segment>), OpenError> {
        let folder = directory.segments();
        let anchor = || Anchor::read(directory, &self.keys, journal_id);
        let mut found = (None, Vec::new());
        for _ in 0..READINGS {
            let before = anchor()?;
            let segments = directory
                .list_segments()
                .map_err(OpenError::io("listing the segments", &folder))?;
            found = (before.map(|(anchor, _)| anchor), segments);
            if anchor()? == before {
                break;
            }
        }
        Ok(found)
    }

    fn start(&self, anchor: Option<Anchor>, journal_id: Arc<str>) -> Start {
        let chain = match anchor {
            None => Chain::new(self.keys.clone(), journal_id),
            Some(anchor) => Chain::resume(self.keys.clone(), journal_id, anchor.last_deleted),
        };
        Start { chain, pairs: OpenPairs::default(), kept: Vec::new() }
    }
}

impl From<OpenError> for Unverified {
    fn from(error: OpenError) -> Self {
        Self::Unreadable(error)
    }
}
