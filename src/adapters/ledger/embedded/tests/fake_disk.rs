//! A disk in memory that knows what a loss of power would leave, and can hang
//! or fail.

use std::io;
use std::ops::Bound;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use redb::{BackendError, StorageBackend};

/// What was written, and how much of it would survive.
#[derive(Debug, Clone, Default)]
pub(super) struct FakeDisk(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    written: Vec<u8>,
    durable: Vec<u8>,
    /// Changes since the last sync.
    pending: Vec<Change>,
    syncs: usize,
    /// What the disk could hold if the power failed during a sync.
    torn: Vec<Vec<u8>>,
    keeps_torn: bool,
    fails: bool,
    hangs: bool,
    /// Syncs that hang now.
    hanging: usize,
}

#[derive(Debug, Clone)]
enum Change {
    Write(usize, Vec<u8>),
    SetLen(usize),
}

/// How long a test waits for what should happen at once, before it fails.
const PATIENCE: Duration = Duration::from_secs(30);

impl FakeDisk {
    /// A disk that holds this.
    pub(super) fn holding(bytes: Vec<u8>) -> Self {
        let disk = Self::default();
        disk.lock().written.clone_from(&bytes);
        disk.lock().durable = bytes;
        disk
    }

    /// What a loss of power would leave now.
    pub(super) fn durable(&self) -> Vec<u8> {
        self.lock().durable.clone()
    }

    /// How often it was synced.
    pub(super) fn syncs(&self) -> usize {
        self.lock().syncs
    }

    /// From now on keeps, for every sync, disks on which only some of the
    /// changes since the last one have arrived.
    pub(super) fn keep_torn(&self) {
        self.lock().keeps_torn = true;
    }

    /// Those, taken away.
    pub(super) fn take_torn(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.lock().torn)
    }

    /// Lets every sync fail.
    pub(super) fn fail(&self) {
        self.lock().fails = true;
    }

    /// Lets syncs hang until [`FakeDisk::go_on`].
    pub(super) fn hang(&self) {
        self.lock().hangs = true;
    }

    /// Waits until one does.
    pub(super) fn wait_until_it_hangs(&self) {
        let state = self.lock();
        let (state, waited) =
            self.0.changed.wait_timeout_while(state, PATIENCE, |state| state.hanging == 0).unwrap();
        drop(state);
        assert!(!waited.timed_out(), "nothing was synced");
    }

    /// Ends the hanging.
    pub(super) fn go_on(&self) {
        self.lock().hangs = false;
        self.0.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }
}

impl State {
    /// The durable bytes with those changes whose number has a bit of `mask`.
    fn torn(&self, mask: usize) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        for (number, change) in self.pending.iter().enumerate() {
            match change {
                // A file's length arrives with its first byte.
                Change::SetLen(len) => bytes.resize(*len, 0),
                Change::Write(offset, data) if mask >> (number % 7) & 1 == 1 => {
                    bytes[*offset..*offset + data.len()].copy_from_slice(data);
                }
                Change::Write(..) => {}
            }
        }
        bytes
    }
}

impl StorageBackend for FakeDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().written.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        let state = self.lock();
        let end = offset + out.len();
        out.copy_from_slice(state.written.get(offset..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).unwrap();
        let mut state = self.lock();
        state.written.resize(len, 0);
        state.pending.push(Change::SetLen(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.lock();
        state.hanging += 1;
        self.0.changed.notify_all();
        let mut state = self.0.changed.wait_while(state, |state| state.hangs).unwrap();
        state.hanging -= 1;
        if state.fails {
            return Err(io::Error::from(io::ErrorKind::Other));
        }
        if state.keeps_torn {
            for mask in [0, 0b101_0101, 0b010_1010, 0b000_1111, 0b111_0000, 0b111_1111] {
                let torn = state.torn(mask);
                state.torn.push(torn);
            }
        }
        state.syncs += 1;
        state.pending.clear();
        state.durable = state.written.clone();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        let mut state = self.lock();
        state.written[offset..offset + data.len()].copy_from_slice(data);
        state.pending.push(Change::Write(offset, data.to_vec()));
        Ok(())
    }

    fn try_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }
}
