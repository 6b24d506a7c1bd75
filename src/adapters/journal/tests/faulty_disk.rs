//! A disk that fails as told.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::super::disk::{Beside, Directory, Disk, Segment, SegmentFile};

/// How long a test waits for what must happen before it gives up.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);

/// What the journal does to its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Create,
    Write,
    Sync,
    Publish,
    Cut,
    Anchor,
    Checkpoint,
    Delete,
    Measure,
}

/// What an operation meets.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    /// Fails.
    Fail(io::ErrorKind),
    /// Writes this many bytes, and fails when asked for the rest.
    Short(usize),
    /// Waits for [`Faults::release`], then succeeds.
    Hang,
    /// Panics.
    Panic,
}

/// What the next operations of a kind meet, in order; then they succeed.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults(Arc<(Mutex<Script>, Condvar)>);

#[derive(Debug, Default)]
pub(super) struct Script {
    faults: VecDeque<(Operation, Fault)>,
    /// What every operation of a kind meets that has no fault of its own.
    always: Vec<(Operation, Fault)>,
    pub(super) done: Vec<Operation>,
    hanging: bool,
    released: bool,
}

impl Faults {
    pub(super) fn next(&self, operation: Operation, fault: Fault) {
        let mut script = self.0.0.lock().unwrap();
        script.released = false;
        script.faults.push_back((operation, fault));
    }

    /// What every operation of a kind meets from now on.
    pub(super) fn always(&self, operation: Operation, fault: Fault) {
        let mut script = self.0.0.lock().unwrap();
        script.always.retain(|(kind, _)| *kind != operation);
        script.always.push((operation, fault));
    }

    /// Lets what hangs go on.
    pub(super) fn release(&self) {
        self.0.0.lock().unwrap().released = true;
        self.0.1.notify_all();
    }

    pub(super) fn wait_until_it_hangs(&self) {
        self.wait_for(|script| script.hanging);
    }

    pub(super) fn count(&self, operation: Operation) -> usize {
        self.0.0.lock().unwrap().done.iter().filter(|done| **done == operation).count()
    }

    pub(super) fn wait_for(&self, condition: impl Fn(&Script) -> bool) {
        let script = self.0.0.lock().unwrap();
        let (_script, timeout) =
            self.0.1.wait_timeout_while(script, PATIENCE, |script| !condition(script)).unwrap();
        assert!(!timeout.timed_out(), "it never happened");
    }

    /// How many bytes a write may write; all, if nothing is wrong.
    fn meet(&self, operation: Operation) -> io::Result<usize> {
        let mut script = self.0.0.lock().unwrap();
        let at = script.faults.iter().position(|(wanted, _)| *wanted == operation);
        let of_its_own = at.and_then(|at| script.faults.remove(at));
        let always = || script.always.iter().find(|(kind, _)| *kind == operation).copied();
        let allowed = match of_its_own.or_else(always).map(|(_, fault)| fault) {
            None => usize::MAX,
            // Of what there is, as little: nothing is written that could fail.
            Some(Fault::Short(bytes)) if operation == Operation::Measure => bytes,
            Some(Fault::Fail(kind)) => return Err(kind.into()),
            Some(Fault::Short(bytes)) => {
                script.faults.push_front((operation, Fault::Fail(io::ErrorKind::StorageFull)));
                bytes
            }
            Some(Fault::Panic) => panic!("as told"),
            Some(Fault::Hang) => {
                script.hanging = true;
                self.0.1.notify_all();
                script = self.0.1.wait_while(script, |script| !script.released).unwrap();
                script.hanging = false;
                usize::MAX
            }
        };
        script.done.push(operation);
        self.0.1.notify_all();
        Ok(allowed)
    }
}

/// A real directory whose operations meet what they are told to.
pub(super) struct FaultyDisk(pub(super) Directory, pub(super) Faults);
struct FaultyFile(Box<dyn SegmentFile>, Faults);

impl Disk for FaultyDisk {
    fn reopen(&mut self, segment: &Segment) -> io::Result<Box<dyn SegmentFile>> {
        Ok(Box::new(FaultyFile(self.0.reopen(segment)?, self.1.clone())))
    }

    fn create(&mut self) -> io::Result<Box<dyn SegmentFile>> {
        self.1.meet(Operation::Create)?;
        Ok(Box::new(FaultyFile(self.0.create()?, self.1.clone())))
    }

    fn publish(&mut self, first_sequence: u64) -> io::Result<()> {
        self.1.meet(Operation::Publish)?;
        self.0.publish(first_sequence)
    }

    fn save(&mut self, file: Beside, text: &[u8]) -> io::Result<()> {
        self.1.meet(match file {
            Beside::Anchor => Operation::Anchor,
            Beside::Checkpoint(_) => Operation::Checkpoint,
        })?;
        self.0.save(file, text)
    }

    fn remove_segment(&mut self, first_sequence: u64) -> io::Result<()> {
        self.1.meet(Operation::Delete)?;
        self.0.remove_segment(first_sequence)
    }

    fn remove_checkpoint(&mut self, sequence: u64) -> io::Result<()> {
        self.0.remove_checkpoint(sequence)
    }

    /// As many as the disk has left, of which a short one has only some.
    fn free_bytes(&mut self) -> io::Result<u64> {
        let most = self.1.meet(Operation::Measure)?;
        Ok(u64::try_from(most).unwrap_or(u64::MAX).min(self.0.free_bytes()?))
    }
}

impl Write for FaultyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let allowed = self.1.meet(Operation::Write)?;
        self.0.write(&bytes[..bytes.len().min(allowed)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl SegmentFile for FaultyFile {
    fn sync(&mut self) -> io::Result<()> {
        self.1.meet(Operation::Sync)?;
        self.0.sync()
    }

    fn cut(&mut self, len: u64) -> io::Result<()> {
        self.1.meet(Operation::Cut)?;
        self.0.cut(len)
    }
}
