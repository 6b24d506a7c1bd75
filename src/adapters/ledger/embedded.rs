//! The ledger of a single gate: one file under one directory.
//!
//! One thread writes (`writer.rs`), a group of operations in one transaction;
//! nothing is answered before its transaction is on the disk. Reads see the
//! last transaction that is.
//!
//! ```text
//! lock           held while a process has it open
//! ledger.json    format and identity
//! ledger.redb    everything else
//! ```

mod error;
mod manifest;
mod session;
mod tables;
#[cfg(test)]
mod tests;
mod writer;

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use redb::backends::FileBackend;
use redb::{Database, StorageBackend};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use uuid::Uuid;

pub use error::{OpenError, StoreFault};

use self::session::Loser;
use self::writer::Queue;
use crate::adapters::ledger::stored::{forget_at, ticket_use};
use crate::adapters::lock::{Lock, LockFault};
use crate::domain::generation::{Generation, LedgerFound};
use crate::domain::record::{CallKey, Claim, Record, TicketUse};
use crate::domain::watermark::{ClockState, Reading, Watermark};
use crate::failpoint::failpoint;
use crate::ports::{
    Ledger, LedgerFault, Reservation, ReserveFault, Revocation, Revoked, Settlement,
};

/// How an embedded ledger is opened.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    /// Its directory, made with mode 0700 where it is missing.
    pub directory: PathBuf,
    /// How far clocks may be apart.
    pub skew: Duration,
    /// The most operations that may wait.
    pub queue: usize,
    /// The present time, for a ledger that is new.
    pub now: Timestamp,
}

/// A ledger in a file. Dropping it finishes what is queued, in at most five seconds.
#[derive(Debug)]
pub struct EmbeddedLedger {
    id: Mutex<Arc<str>>,
    mark_at_open: Option<Timestamp>,
    found: LedgerFound,
    store: Arc<Store>,
    manifest: PathBuf,
    skew: Duration,
    queue: Arc<Queue>,
    reads: Arc<Semaphore>,
    ended: Mutex<mpsc::Receiver<()>>,
}

/// The open file. The lock is given back after it is closed.
#[derive(Debug)]
struct Store {
    database: Database,
    _lock: Lock,
}

/// Reservations on their way to who asked for them. Dropped before they arrive
/// they are given back: nobody would ever settle them.
struct Granted {
    reservations: Vec<Reservation>,
    queue: Arc<Queue>,
}

impl EmbeddedOptions {
    /// A skew of 30 s and a queue of 4,096 operations.
    #[must_use]
    pub const fn new(directory: PathBuf, now: Timestamp) -> Self {
        Self { directory, skew: Duration::from_secs(30), queue: 4_096, now }
    }
}

impl EmbeddedLedger {
    /// Locks and verifies a ledger, or starts a new one, and starts its writer.
    ///
    /// Blocks the thread while it reads the whole file. The caller settles the
    /// calls that are [`Ledger::running`] before it serves.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]. A file that does not verify is never passed over.
    pub fn open(options: &EmbeddedOptions) -> Result<Self, OpenError> {
        Self::open_on(options, |file| file)
    }

    fn open_on<B: StorageBackend>(
        options: &EmbeddedOptions,
        backend: impl FnOnce(FileBackend) -> B,
    ) -> Result<Self, OpenError> {
        let directory = &*options.directory;
        make(directory)?;
        let lock = take_lock(directory)?;
        let manifest = directory.join("ledger.json");
        let path = directory.join("ledger.redb");
        let known = manifest::read(&manifest)?;
        let fault = |fault| OpenError::Manifest { path: manifest.clone(), fault };
        if known.is_some() && !path.exists() {
            return Err(fault("the file ledger.redb beside it is missing"));
        }
        let database = open_database(&path, backend)?;
        let prepared = tables::prepare(&database).map_err(OpenError::store(&path))?;
        let tables::Prepared { used, mark, seen, generation, renewed } = prepared;
        let id = match known {
            Some(id) => id,
            None if used => return Err(fault("the file is missing, though ledger.redb is in use")),
            None => manifest::write_new(&manifest, options.now)
                .map_err(OpenError::io("creating the file", &manifest))?,
        };
        let store = Arc::new(Store { database, _lock: lock });
        let clock = Watermark::new(mark, options.skew);
        let (queue, ended) = writer::spawn(Arc::clone(&store), clock, options.skew, options.queue)
            .map_err(OpenError::io("starting the writer", directory))?;
        let skew = options.skew;
        let generation = Generation { ledger_id: Arc::clone(&id), number: generation };
        Ok(Self {
            id: Mutex::new(id),
            mark_at_open: mark,
            found: LedgerFound { generation, is_shared: false, renewed, seen },
            store,
            manifest,
            skew,
            queue,
            reads: Arc::new(Semaphore::new(READS)),
            ended: Mutex::new(ended),
        })
    }

    /// The high-water mark that an earlier process has left.
    #[must_use]
    pub const fn mark_at_open(&self) -> Option<Timestamp> {
        self.mark_at_open
    }

    /// What earlier processes have left, to be held against the journal.
    #[must_use]
    pub const fn found(&self) -> &LedgerFound {
        &self.found
    }

    /// Counts this start, durably. The journal is told after it.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be written.
    pub async fn start_generation(&self) -> Result<Generation, LedgerFault> {
        let number = self.found.generation.number.saturating_add(1);
        self.queue.submit(move |session| session.tables.set_generation(number)).await?;
        Ok(Generation { number, ..self.found.generation.clone() })
    }

    /// Reads what was committed last, on a thread that may block. One that hangs
    /// keeps its permit when nobody waits for it any more.
    async fn read<T: Send + 'static>(
        &self,
        what: impl FnOnce(&Database) -> Result<T, StoreFault> + Send + 'static,
    ) -> Result<T, LedgerFault> {
        if !self.queue.works() {
            return Err(LedgerFault::Failed);
        }
        let store = Arc::clone(&self.store);
        let permit =
            Arc::clone(&self.reads).acquire_owned().await.map_err(|_| LedgerFault::Failed)?;
        let read = move || {
            let _permit = permit;
            what(&store.database)
        };
        match spawn_blocking(read).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(fault)) => {
                tracing::error!(%fault, "reading the ledger failed");
                Err(LedgerFault::Failed)
            }
            Err(_) => Err(LedgerFault::Failed),
        }
    }
}

#[async_trait]
impl Ledger for EmbeddedLedger {
    fn id(&self) -> Arc<str> {
        Arc::clone(&self.id.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn look(&self, key: CallKey) -> Result<Option<Record>, LedgerFault> {
        self.read(move |database| tables::read_record(database, key)).await
    }

    async fn ticket(
        &self,
        confirmation_id: Uuid,
        expires_at: Timestamp,
    ) -> Result<TicketUse, LedgerFault> {
        let (stored, forgotten) =
            self.read(move |database| tables::read_ticket(database, confirmation_id)).await?;
        Ok(ticket_use(stored, forgotten, forget_at(expires_at, self.skew)))
    }

    async fn reserve(
        &self,
        claims: Vec<Claim>,
        at: Reading,
    ) -> Result<Vec<Reservation>, ReserveFault> {
        failpoint!(hold "started-not-reserved", if true);
        let queue = Arc::clone(&self.queue);
        let granted: Result<Granted, Loser> = self
            .queue
            .submit(move |session| {
                let granted = session.reserve(&claims, at)?;
                Ok(granted.map(|reservations| Granted { reservations, queue }))
            })
            .await?;
        failpoint!("reserved-not-started");
        match granted {
            Ok(granted) => Ok(granted.arrive()),
            Err((index, turned)) => Err(ReserveFault::Turned { index, turned }),
        }
    }

    async fn release(&self, reservations: Vec<Reservation>) -> Result<(), LedgerFault> {
        let released = self.queue.submit(move |session| session.release(reservations)).await;
        failpoint!("released-not-answered");
        released
    }

    async fn settle(
        &self,
        reservation_id: Uuid,
        key: CallKey,
        settlement: Settlement,
    ) -> Result<(), LedgerFault> {
        failpoint!(hold "completed-not-settled", if true);
        let settle = move |session: &mut session::Session<'_, '_>| {
            session.settle(reservation_id, key, settlement)
        };
        let settled = self.queue.submit(settle).await?;
        failpoint!("settled-not-completed");
        settled
    }

    async fn revoke(&self, revocation: Revocation) -> Result<Revoked, LedgerFault> {
        self.queue.submit(move |session| session.revoke(revocation)).await
    }

    async fn running(&self) -> Result<Vec<(CallKey, Record)>, LedgerFault> {
        self.read(tables::read_running).await
    }

    async fn observe(&self, at: Reading) -> Result<ClockState, LedgerFault> {
        self.queue.submit(move |session| session.observe(at)).await
    }

    async fn accept_clock(&self, at: Reading) -> Result<(), LedgerFault> {
        self.queue.submit(move |session| session.accept_clock(at)).await
    }

    async fn forget_expired(&self) -> Result<usize, LedgerFault> {
        self.queue.submit(|session| session.forget_expired(FORGET_BATCH)).await
    }

    async fn new_identity(&self, now: Timestamp) -> Result<Arc<str>, LedgerFault> {
        // First: with the new id alone it would be another ledger to the journal.
        let renew = move |session: &mut session::Session<'_, '_>| {
            session.advance_clock(now)?;
            session.tables.set_renewed()
        };
        self.queue.submit(renew).await?;
        let manifest = self.manifest.clone();
        let written = spawn_blocking(move || manifest::write_new(&manifest, now)).await;
        let id = written.map_err(|_| LedgerFault::Failed)?.map_err(|error| {
            tracing::error!(fault = %error, "writing ledger.json failed");
            LedgerFault::Failed
        })?;
        *self.id.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&id);
        Ok(id)
    }

    fn is_ready(&self) -> bool {
        self.queue.works()
    }
}

impl Drop for EmbeddedLedger {
    fn drop(&mut self) {
        self.queue.stop();
        // Nothing is ever sent: the end of the thread is the message.
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(CLOSE_WAIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::error!("the ledger was left before all it had was written");
        }
    }
}

impl Granted {
    fn arrive(mut self) -> Vec<Reservation> {
        std::mem::take(&mut self.reservations)
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        let reservations = std::mem::take(&mut self.reservations);
        if !reservations.is_empty() {
            self.queue.post(move |session| session.release(reservations));
        }
    }
}

/// Reads at once: a disk that hangs takes no more threads than these.
const READS: usize = 64;
/// Records and tickets that are forgotten in one transaction.
const FORGET_BATCH: usize = 512;
const CLOSE_WAIT: Duration = Duration::from_secs(5);
/// Pages that are kept in memory, whatever the size of the file.
const CACHE_BYTES: usize = 16 * 1024 * 1024;

fn make(directory: &Path) -> Result<(), OpenError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(OpenError::io("making the directory", directory))
}

fn take_lock(directory: &Path) -> Result<Lock, OpenError> {
    let path = directory.join("lock");
    Lock::take(&path).map_err(|fault| match fault {
        LockFault::Held => OpenError::Locked { directory: directory.to_path_buf() },
        LockFault::Io(error) => OpenError::io("taking the lock file", &path)(error),
    })
}

/// Opens the store, verified to the last page, or makes an empty one.
fn open_database<B: StorageBackend>(
    path: &Path,
    backend: impl FnOnce(FileBackend) -> B,
) -> Result<Database, OpenError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .and_then(|file| sync_parent(path).map(|()| file))
        .map_err(OpenError::io("opening the file", path))?;
    let file = FileBackend::new(file).map_err(OpenError::store(path))?;
    Database::builder()
        .set_cache_size(CACHE_BYTES)
        .set_check_integrity_on_open(true)
        .create_with_backend(backend(file))
        .map_err(OpenError::store(path))
}

/// Makes the file's name durable.
fn sync_parent(path: &Path) -> std::io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}
