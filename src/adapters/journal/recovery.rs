//! Reading a journal back, verifying every record, when a gate starts.
//!
//! A segment holds the records from its name's sequence up to the one before the
//! next segment's. What stands in it beyond that is a leftover: after a failed
//! write or sync the writer repeats everything that is not known to be durable in
//! a new segment, publishes that whole, and only then cuts the old one
//! (`segments.rs`). So a leftover may be dropped exactly if the journal reaches as
//! far without it, which is checked. The last segment may end in a line without its
//! end, as a crash leaves it. Nothing else is forgiven: a whole line that does not
//! verify was written by somebody else. Nothing is cut before everything has verified.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;

use super::disk::{Segment, SegmentFile, open_at_end};
use super::error::OpenError;
use crate::domain::audit::{CallName, Chain, ChainFault, MAX_RECORD_BYTES, OpenPairs};

/// A journal that has verified.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) chain: Chain,
    pub(super) pairs: OpenPairs,
    pub(super) cuts: Vec<Cut>,
    /// The first sequence of each segment, in order.
    pub(super) published: Vec<u64>,
    /// The last segment and its length after the cuts.
    pub(super) last: Option<(Segment, u64)>,
}

/// The end of a segment that is no part of the journal.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cut {
    path: PathBuf,
    keep: u64,
    pub(super) bytes: u64,
}

/// Verifies the segments, in order. Changes nothing; its memory is that of one
/// line and the open pairs.
pub(super) fn replay(
    segments: Vec<Segment>,
    chain: Chain,
    watched: HashSet<CallName>,
) -> Result<Replay, OpenError> {
    let pairs = OpenPairs::watching(watched);
    let published = segments.iter().map(|segment| segment.first_sequence).collect();
    let mut replay = Replay { chain, pairs, cuts: Vec::new(), published, last: None };
    // The furthest record seen, counting leftovers.
    let mut reached = 0;
    for (number, segment) in segments.iter().enumerate() {
        let next = segments.get(number + 1).map(|next| next.first_sequence);
        reached = reached.max(replay.read_segment(segment, next)?);
    }
    let head = replay.chain.head().sequence;
    match segments.into_iter().next_back() {
        Some(segment) if head < reached => {
            Err(OpenError::Missing { path: segment.path, sequence: head + 1 })
        }
        _ => Ok(replay),
    }
}

impl Cut {
    /// Makes the cut.
    pub(super) fn make(&self) -> Result<(), OpenError> {
        open_at_end(&self.path)
            .and_then(|mut file| file.cut(self.keep))
            .map_err(OpenError::io("cutting the torn end off", &self.path))
    }
}

impl Replay {
    /// Reads one segment up to where the next one starts, and says which record
    /// its leftover reaches.
    fn read_segment(&mut self, segment: &Segment, next: Option<u64>) -> Result<u64, OpenError> {
        let path = &segment.path;
        if segment.first_sequence != self.next_sequence() {
            return Err(self.missing(segment));
        }
        let mut lines = Lines::open(segment)?;
        while Some(self.next_sequence()) != next {
            let verified = match lines.next()? {
                Line::End if next.is_some() => return Err(self.missing(segment)),
                Line::End => break,
                Line::Torn if next.is_none() => break,
                Line::Whole(line) => self.chain.verify(line),
                Line::Torn => Err(ChainFault::Broken),
            };
            match verified {
                Ok(entry) => self.pairs.observe(entry),
                Err(fault) => return Err(self.broken(path.clone(), lines.number, fault)),
            }
            lines.keep();
        }
        let (keep, bytes) = (lines.kept, lines.len - lines.kept);
        if bytes > 0 {
            self.cuts.push(Cut { path: path.clone(), keep, bytes });
        }
        self.last = Some((segment.clone(), keep));
        match next {
            Some(_) => leftover_reaches(self.chain.clone(), lines),
            None => Ok(self.chain.head().sequence),
        }
    }

    fn next_sequence(&self) -> u64 {
        self.chain.head().sequence + 1
    }

    fn missing(&self, segment: &Segment) -> OpenError {
        OpenError::Missing { path: segment.path.clone(), sequence: self.next_sequence() }
    }

    fn broken(&self, path: PathBuf, line: u64, fault: ChainFault) -> OpenError {
        OpenError::Record { path, line, sequence: self.next_sequence(), fault }
    }
}

fn leftover_reaches(mut chain: Chain, mut lines: Lines) -> Result<u64, OpenError> {
    while let Line::Whole(line) = lines.next()? {
        if chain.verify(line).is_err() {
            break;
        }
    }
    Ok(chain.head().sequence)
}

/// The lines of a file, none of which makes it hold more than a record's bound.
struct Lines {
    reader: BufReader<File>,
    path: PathBuf,
    buffer: Vec<u8>,
    /// Bytes of the file.
    len: u64,
    /// Bytes read.
    read: u64,
    /// Bytes of the lines that belong to the journal.
    kept: u64,
    /// The number of the line read last, from 1.
    number: u64,
}

enum Line<'a> {
    /// Without its line end; of a line longer than any record, its beginning.
    Whole(&'a [u8]),
    /// The file ends before the line does.
    Torn,
    /// There is no further line.
    End,
}

impl Lines {
    fn open(segment: &Segment) -> Result<Self, OpenError> {
        let path = segment.path.clone();
        let opened = File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (len, file) = opened.map_err(OpenError::io("opening the segment", &path))?;
        let reader = BufReader::with_capacity(64 * 1024, file);
        Ok(Self { reader, path, buffer: Vec::new(), len, read: 0, kept: 0, number: 0 })
    }

    fn next(&mut self) -> Result<Line<'_>, OpenError> {
        self.buffer.clear();
        self.number += 1;
        self.read += self.read_line().map_err(OpenError::io("reading the segment", &self.path))?;
        Ok(match self.buffer.split_last() {
            None => Line::End,
            Some((b'\n', line)) => Line::Whole(line),
            Some(_) if self.buffer.len() < MAX_RECORD_BYTES => Line::Torn,
            Some(_) => Line::Whole(&self.buffer),
        })
    }

    /// Reads a line, of which the buffer takes no more than its bound, and returns its length.
    fn read_line(&mut self) -> io::Result<u64> {
        let bound = MAX_RECORD_BYTES as u64;
        let length = (&mut self.reader).take(bound).read_until(b'\n', &mut self.buffer)? as u64;
        let rest = if length == bound && !self.buffer.ends_with(b"\n") {
            self.reader.skip_until(b'\n')? as u64
        } else {
            0
        };
        Ok(length + rest)
    }

    fn keep(&mut self) {
        self.kept = self.read;
    }
}
