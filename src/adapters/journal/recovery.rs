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

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek as _, SeekFrom};
use std::path::PathBuf;

use super::disk::{Segment, SegmentFile, open_at_end};
use super::error::OpenError;
use super::kept::Kept;
use super::stop::Stop;
use crate::domain::audit::{Chain, ChainFault, Entry, Head, MAX_RECORD_BYTES, OpenPairs};

/// Where reading begins: everything before is known already.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) chain: Chain,
    pub(super) pairs: OpenPairs,
    /// The segments up to here. The last one is read on behind its bytes.
    pub(super) kept: Vec<Kept>,
}

/// A journal that has verified.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) chain: Chain,
    pub(super) pairs: OpenPairs,
    pub(super) cuts: Vec<Cut>,
    /// Every segment, in order.
    pub(super) kept: Vec<Kept>,
    /// The last segment.
    pub(super) last: Option<Segment>,
    /// Bytes that were read.
    pub(super) read_bytes: u64,
    /// Those of the witnesses that hold: a record of the journal is theirs.
    pub(super) met: Vec<Head>,
    /// The first whole line of a leftover that no gate can have left.
    pub(super) foreign: Option<Foreign>,
}

/// A line behind the records of a segment that does not go on from them.
#[derive(Debug)]
pub(super) struct Foreign {
    /// Up to the record before it.
    pub(super) chain: Chain,
    pub(super) path: PathBuf,
    /// From 1 in its file, if that was read from its beginning.
    pub(super) line: u64,
}

/// The end of a segment that is no part of the journal.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) path: PathBuf,
    keep: u64,
    pub(super) bytes: u64,
}

/// Verifies the segments, in order, from the start on, and says which of the
/// witnesses are heads of the journal. Changes nothing; its memory is that of one
/// line, the open pairs, and what is known of each segment.
pub(super) fn replay(
    segments: &[Segment],
    start: Start,
    witnesses: &[Head],
    stop: &Stop,
) -> Result<Replay, OpenError> {
    let mut replay = Replay::new(start);
    replay.run(segments, witnesses, stop, &mut |_, _| {})?;
    Ok(replay)
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
    pub(super) fn new(start: Start) -> Self {
        let Start { chain, pairs, kept } = start;
        Self {
            chain,
            pairs,
            cuts: Vec::new(),
            kept,
            last: None,
            read_bytes: 0,
            met: Vec::new(),
            foreign: None,
        }
    }

    /// See [`replay`]. Shows every entry. Where it fails, the chain stands before
    /// the record at fault.
    pub(super) fn run(
        &mut self,
        segments: &[Segment],
        witnesses: &[Head],
        stop: &Stop,
        seen: &mut dyn FnMut(u64, &Entry),
    ) -> Result<(), OpenError> {
        self.meet(witnesses);
        let begin = self.kept.last().map_or(0, |last| last.first);
        let segments: Vec<_> =
            segments.iter().filter(|segment| segment.first_sequence >= begin).collect();
        // The furthest record seen, counting leftovers.
        let mut reached = 0;
        for (number, segment) in segments.iter().enumerate() {
            let next = segments.get(number + 1).map(|next| next.first_sequence);
            reached = reached.max(self.read_segment(segment, next, (witnesses, stop), seen)?);
        }
        let head = self.chain.head().sequence;
        match segments.last() {
            Some(segment) if head < reached => {
                Err(OpenError::Missing { path: segment.path.clone(), sequence: head + 1 })
            }
            _ => Ok(()),
        }
    }

    /// Reads one segment up to where the next one starts, and says which record
    /// its leftover reaches.
    fn read_segment(
        &mut self,
        segment: &Segment,
        next: Option<u64>,
        (witnesses, stop): (&[Head], &Stop),
        seen: &mut dyn FnMut(u64, &Entry),
    ) -> Result<u64, OpenError> {
        let path = &segment.path;
        if self.kept.last().is_none_or(|last| last.first != segment.first_sequence) {
            if segment.first_sequence != self.next_sequence() {
                return Err(self.missing(segment));
            }
            self.kept.push(Kept::after(self.chain.head()));
        }
        let from = self.kept.last().map_or(0, |last| last.bytes);
        let mut lines = Lines::open(segment, from)?;
        while Some(self.next_sequence()) != next {
            stop.check()?;
            let verified = match lines.next()? {
                Line::End if next.is_some() => return Err(self.missing(segment)),
                Line::End => break,
                Line::Torn if next.is_none() => break,
                Line::Whole(line) => self.chain.verify(line),
                Line::Torn => Err(ChainFault::Broken),
            };
            match verified {
                Ok(entry) => {
                    lines.keep();
                    self.pairs.observe(self.chain.head(), &entry);
                    if let Some(kept) = self.kept.last_mut() {
                        kept.bytes = lines.kept;
                        kept.span.add(&entry, self.chain.signer());
                    }
                    self.meet(witnesses);
                    seen(self.chain.head().sequence, &entry);
                }
                Err(fault) => return Err(self.broken(path.clone(), lines.number, fault)),
            }
        }
        let (keep, bytes) = (lines.kept, lines.len.saturating_sub(lines.kept));
        if bytes > 0 {
            self.cuts.push(Cut { path: path.clone(), keep, bytes });
        }
        self.last = Some(segment.clone());
        self.read_bytes += lines.read - from;
        match next {
            Some(_) => self.leftover_reaches(lines),
            None => Ok(self.chain.head().sequence),
        }
    }

    /// What is no record ends it: a failed sync may have lost what was there.
    fn leftover_reaches(&mut self, mut lines: Lines) -> Result<u64, OpenError> {
        let mut chain = self.chain.clone();
        while let Line::Whole(line) = lines.next()? {
            if chain.verify(line).is_err() {
                let (path, line) = (lines.path.clone(), lines.number);
                let foreign = Foreign { chain: chain.clone(), path, line };
                self.foreign.get_or_insert(foreign);
                break;
            }
        }
        Ok(chain.head().sequence)
    }

    fn meet(&mut self, witnesses: &[Head]) {
        let head = self.chain.head();
        self.met.extend(witnesses.iter().find(|witness| **witness == head));
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

/// The lines of a file from some place on, none of which makes it hold more than a record's bound.
pub(super) struct Lines {
    reader: BufReader<File>,
    path: PathBuf,
    buffer: Vec<u8>,
    /// Bytes of the file.
    len: u64,
    /// Bytes read.
    read: u64,
    /// Bytes of the lines that belong to the journal.
    kept: u64,
    /// The number of the line read last, from 1 at the place where it was opened.
    pub(super) number: u64,
}

pub(super) enum Line<'a> {
    /// Without its line end; of a line longer than any record, its beginning.
    Whole(&'a [u8]),
    /// The file ends before the line does.
    Torn,
    /// There is no further line.
    End,
}

impl Lines {
    pub(super) fn open(segment: &Segment, from: u64) -> Result<Self, OpenError> {
        let path = segment.path.clone();
        let opened = File::open(&path).and_then(|mut file| {
            if from > 0 {
                file.seek(SeekFrom::Start(from))?;
            }
            Ok((file.metadata()?.len(), file))
        });
        let (len, file) = opened.map_err(OpenError::io("opening the segment", &path))?;
        let reader = BufReader::with_capacity(64 * 1024, file);
        Ok(Self { reader, path, buffer: Vec::new(), len, read: from, kept: from, number: 0 })
    }

    pub(super) fn next(&mut self) -> Result<Line<'_>, OpenError> {
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
