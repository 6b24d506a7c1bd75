//! The ledger of several gates: a PostgreSQL database.
//!
//! Every operation is a transaction on a connection of a bounded pool, goes on
//! where nobody waits for it any more, and ends within two seconds. The unique
//! keys of tickets and calls decide who is first (`session.rs`, `reserve.rs`);
//! time is the database's. Running calls belong to a start of a gate, and only a
//! successor that shows that it is dead takes them over (`owner.rs`, `keeper.rs`).

mod connect;
mod error;
mod keeper;
mod migrate;
mod owed;
mod owner;
mod reserve;
mod session;
mod statements;
mod store;

use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use deadpool::managed::Timeouts;
use jiff::Timestamp;
use tokio::sync::{Notify, Semaphore, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use connect::{PostgresOptions, PostgresTls};
pub use error::{ConnectFault, PostgresError};
pub use store::{Migrated, PostgresStore, script};

use self::connect::{Connector, Manager, Pool};
use self::error::Fault;
use self::owed::{Debt, Owed, abandoned};
use self::owner::{Identity, Owner};
use self::reserve::Loser;
use self::session::Session;
use crate::adapters::ledger::stored::forget_at;
use crate::domain::generation::Generation;
use crate::domain::reason::Reason;
use crate::domain::record::{CallKey, Claim, Record, TicketUse, Turned};
use crate::domain::watermark::{ClockState, Reading, Watermark};
use crate::ports::{
    Ledger, LedgerFault, Reservation, ReserveFault, Revocation, Revoked, Settlement,
};

/// Operations that may wait for a connection or have one.
const QUEUE: usize = 4_096;
/// An operation takes no longer, whatever the network does.
const OPERATION_TIME: Duration = Duration::from_millis(1_800);
/// Records and tickets that are forgotten in one transaction.
const FORGET_BATCH: usize = 512;
/// How long closing may take.
const CLOSE_WAIT: Duration = Duration::from_secs(3);

/// A ledger on PostgreSQL, as one start of a gate uses it.
pub struct PostgresLedger {
    shared: Arc<Shared>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

/// How the owner stands with the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Connected, its lock held or being waited for.
    Alive,
    /// The way to the database is broken.
    Away,
    /// A successor has taken over, or the database is another one. For good.
    Fenced,
}

struct Shared {
    connector: Arc<Connector>,
    pool: Pool,
    owner: Owner,
    id: Identity,
    journal_id: Uuid,
    /// The last start that the journal knew of when this one began.
    journal_knows: AtomicI32,
    beats: Arc<AtomicI64>,
    clock: Mutex<Watermark>,
    skew: Duration,
    takeover_after: Duration,
    places: Semaphore,
    owed: Owed,
    standing: watch::Sender<Standing>,
    /// The keeper should look now.
    look: Notify,
    stop: CancellationToken,
}

/// Reservations on their way to who asked for them. Dropped before they arrive
/// they are given back: nobody would ever settle them.
struct Granted {
    reservations: Vec<Reservation>,
    shared: Arc<Shared>,
}

impl PostgresLedger {
    fn new(
        connector: Arc<Connector>,
        options: &PostgresOptions,
        owner: Owner,
        journal_id: Uuid,
        mark: Option<Timestamp>,
    ) -> Result<Self, PostgresError> {
        let beats = Arc::new(AtomicI64::new(0));
        let id = Identity::new(owner.ledger_id);
        let manager = Manager {
            connector: Arc::clone(&connector),
            owner,
            id: id.clone(),
            beats: Arc::clone(&beats),
        };
        let timeouts = Timeouts {
            wait: Some(OPERATION_TIME),
            create: Some(options.connect_timeout.saturating_mul(2)),
            recycle: Some(OPERATION_TIME),
        };
        let pool = Pool::builder(manager)
            .max_size(options.connections)
            .timeouts(timeouts)
            .runtime(deadpool::Runtime::Tokio1)
            .build()
            .map_err(|_| PostgresError::Connect(ConnectFault::Late))?;
        let shared = Arc::new(Shared {
            connector,
            pool,
            owner,
            id,
            journal_id,
            journal_knows: AtomicI32::new(0),
            beats,
            clock: Mutex::new(Watermark::new(mark, options.skew)),
            skew: options.skew,
            takeover_after: options.takeover_after,
            places: Semaphore::new(QUEUE),
            owed: Owed::default(),
            standing: watch::Sender::new(Standing::Alive),
            look: Notify::new(),
            stop: CancellationToken::new(),
        });
        let keeper = tokio::spawn(keeper::keep(Arc::clone(&shared)));
        Ok(Self { shared, keeper: Mutex::new(Some(keeper)) })
    }

    /// The epoch of this start.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        u64::try_from(self.shared.owner.epoch).unwrap_or_default()
    }

    /// Returns once this start changes nothing any more: a successor has taken
    /// over, or the database was restored. Only a restart helps.
    pub async fn fenced(&self) {
        let mut standing = self.shared.standing.subscribe();
        // The sender lives as long as this does.
        let _ = standing.wait_for(|standing| *standing == Standing::Fenced).await;
    }

    /// The running calls that this start has inherited, and whether the journal is
    /// their witness, which was beside an earlier start.
    ///
    /// # Errors
    ///
    /// See [`LedgerFault`].
    pub async fn inherited(
        &self,
        beside: Option<&Generation>,
    ) -> Result<Vec<(CallKey, Record, bool)>, LedgerFault> {
        let known = beside.and_then(|beside| i32::try_from(beside.number).ok()).unwrap_or(0);
        self.shared.journal_knows.store(known, Ordering::SeqCst);
        self.own_running().await
    }

    async fn own_running(&self) -> Result<Vec<(CallKey, Record, bool)>, LedgerFault> {
        self.run(move |shared| async move {
            let known = shared.journal_knows.load(Ordering::SeqCst);
            shared.session().await?.running(shared.journal_id, known).await
        })
        .await
    }

    /// Pays what is owed and says goodbye, within a bounded time.
    pub async fn close(&self) {
        self.shared.stop.cancel();
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeper) = keeper
            && timeout(CLOSE_WAIT, keeper).await.is_err()
        {
            tracing::warn!("the database was left before everything that is owed was written");
        }
        self.shared.pool.close();
    }

    /// Runs an operation in a task of its own, which ends in time whoever waits.
    async fn run<T, F>(
        &self,
        operation: impl FnOnce(Arc<Shared>) -> F + Send,
    ) -> Result<T, LedgerFault>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Fault>> + Send + 'static,
    {
        self.shared
            .spawn(operation(Arc::clone(&self.shared)))?
            .await
            .map_err(|_| LedgerFault::Failed)?
    }
}

impl Shared {
    /// Starts an operation. Its outcome is told to whoever still listens.
    fn spawn<T: Send + 'static>(
        self: &Arc<Self>,
        operation: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<T, LedgerFault>>, LedgerFault> {
        if *self.standing.borrow() == Standing::Fenced {
            return Err(LedgerFault::Failed);
        }
        if self.places.available_permits() == 0 {
            return Err(LedgerFault::Full);
        }
        let (answer, answered) = oneshot::channel();
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let Ok(_place) = shared.places.acquire().await else { return };
            let outcome = match timeout(OPERATION_TIME, operation).await {
                Ok(outcome) => outcome,
                Err(_) => Err(Fault::Late),
            };
            // Dropped where nobody listens, which gives reservations back.
            drop(answer.send(outcome.map_err(|fault| shared.failed(&fault))));
        });
        Ok(answered)
    }

    /// What a fault means to who asked, once it was told to who must mend it.
    fn failed(&self, fault: &Fault) -> LedgerFault {
        if matches!(fault, Fault::Fenced) {
            self.fence();
        } else {
            tracing::error!(%fault, "the database failed");
            self.look.notify_one();
        }
        LedgerFault::Failed
    }

    fn fence(&self) {
        let was = self.standing.send_replace(Standing::Fenced);
        if was != Standing::Fenced {
            tracing::error!("another gate has taken over, or the database was restored");
        }
    }

    async fn session(&self) -> Result<Session, Fault> {
        Ok(Session::new(self.pool.get().await?, self.id.of(self.owner)))
    }

    /// Judges the database's clock by what the database knows and by this
    /// process's monotonic one.
    fn judge(&self, stand: session::Stand, at: Reading) -> (ClockState, Option<Timestamp>) {
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        clock.follow(stand.mark);
        let state = clock.observe(Reading { now: stand.now, ..at });
        (state, clock.mark())
    }

    /// Reserves, in one transaction. What is not acknowledged is not forgotten.
    async fn reserve(
        self: Arc<Self>,
        claims: Vec<Claim>,
        at: Reading,
    ) -> Result<Result<Granted, Loser>, Fault> {
        let mut session = self.session().await?;
        let stand = session.begin_work().await?;
        let (state, mark) = self.judge(stand, at);
        if state == ClockState::Behind {
            session.roll_back().await?;
            return Ok(Err((0, Turned::for_reason(Reason::ClockUntrusted))));
        }
        let reservations = match session.grant(&claims, stand.now, self.skew).await? {
            Ok(reservations) => reservations,
            Err(loser) => {
                session.roll_back().await?;
                return Ok(Err(loser));
            }
        };
        session.see(stand.now.max(at.now), mark, false).await?;
        let all = reservations.iter().map(|it| (it.id, it.key, abandoned(it, stand.now)));
        let unknown = Owing::new(&self, Debt::Abandon(all.collect()));
        session.commit().await?;
        unknown.paid();
        Ok(Ok(Granted { reservations, shared: self }))
    }

    /// Settles in one transaction.
    async fn settle(
        &self,
        reservation_id: Uuid,
        key: CallKey,
        settlement: &Settlement,
    ) -> Result<Result<(), LedgerFault>, Fault> {
        let mut session = self.session().await?;
        session.begin().await?;
        let settled = session.settle(reservation_id, key, settlement).await?;
        session.commit().await?;
        Ok(settled)
    }

    async fn release(&self, reservations: &[Reservation]) -> Result<(), Fault> {
        let mut session = self.session().await?;
        session.begin().await?;
        session.release(reservations).await?;
        session.commit().await
    }

    fn owe(&self, debt: Debt) {
        if !self.owed.push(debt) {
            tracing::error!("more is owed to the database than is kept; the next start settles it");
        }
        self.look.notify_one();
    }
}

/// Owes something until it is known to be done: also where its wait is cut off.
struct Owing<'a> {
    shared: &'a Shared,
    debt: Option<Debt>,
}

impl<'a> Owing<'a> {
    const fn new(shared: &'a Shared, debt: Debt) -> Self {
        Self { shared, debt: Some(debt) }
    }

    fn paid(mut self) {
        self.debt = None;
    }
}

impl Drop for Owing<'_> {
    fn drop(&mut self) {
        if let Some(debt) = self.debt.take() {
            self.shared.owe(debt);
        }
    }
}

#[async_trait]
impl Ledger for PostgresLedger {
    fn id(&self) -> Arc<str> {
        self.shared.id.get().to_string().into()
    }

    async fn look(&self, key: CallKey) -> Result<Option<Record>, LedgerFault> {
        self.run(move |shared| async move { shared.session().await?.look(key).await }).await
    }

    async fn ticket(
        &self,
        confirmation_id: Uuid,
        expires_at: Timestamp,
    ) -> Result<TicketUse, LedgerFault> {
        let forget_at = forget_at(expires_at, self.shared.skew);
        self.run(move |shared| async move {
            shared.session().await?.ticket(confirmation_id, forget_at).await
        })
        .await
    }

    async fn reserve(
        &self,
        claims: Vec<Claim>,
        at: Reading,
    ) -> Result<Vec<Reservation>, ReserveFault> {
        let granted = self.run(move |shared| shared.reserve(claims, at)).await?;
        match granted {
            Ok(granted) => Ok(granted.arrive()),
            Err((index, turned)) => Err(ReserveFault::Turned { index, turned }),
        }
    }

    async fn release(&self, reservations: Vec<Reservation>) -> Result<(), LedgerFault> {
        self.run(move |shared| async move {
            let owing = Owing::new(&shared, Debt::Release(reservations.clone()));
            shared.release(&reservations).await?;
            owing.paid();
            Ok(())
        })
        .await
    }

    async fn settle(
        &self,
        reservation_id: Uuid,
        key: CallKey,
        settlement: Settlement,
    ) -> Result<(), LedgerFault> {
        let settle = move |shared: Arc<Shared>| async move {
            let debt = Debt::Settle(reservation_id, key, settlement.clone());
            let owing = Owing::new(&shared, debt);
            let settled = shared.settle(reservation_id, key, &settlement).await?;
            owing.paid();
            Ok(settled)
        };
        self.run(settle).await?
    }

    async fn revoke(&self, revocation: Revocation) -> Result<Revoked, LedgerFault> {
        self.run(move |shared| async move {
            shared.session().await?.revoke(revocation, shared.skew).await
        })
        .await
    }

    async fn running(&self) -> Result<Vec<(CallKey, Record)>, LedgerFault> {
        let running = self.own_running().await?;
        Ok(running.into_iter().map(|(key, record, _)| (key, record)).collect())
    }

    async fn take_over(&self) -> Result<Vec<(CallKey, Record)>, LedgerFault> {
        self.run(|shared| async move { shared.take_over().await }).await
    }

    async fn observe(&self, at: Reading) -> Result<ClockState, LedgerFault> {
        self.run(move |shared| async move {
            let session = shared.session().await?;
            let stand = session.stand().await?;
            let (state, mark) = shared.judge(stand, at);
            session.see(stand.now.max(at.now), mark.filter(|_| mark != stand.mark), true).await?;
            Ok(state)
        })
        .await
    }

    async fn accept_clock(&self, at: Reading) -> Result<(), LedgerFault> {
        self.run(move |shared| async move {
            let now = store::accept_clock(shared.session().await?.client()).await?;
            let mut clock = shared.clock.lock().unwrap_or_else(PoisonError::into_inner);
            clock.accept(Reading { now, ..at });
            Ok(())
        })
        .await
    }

    async fn forget_expired(&self) -> Result<usize, LedgerFault> {
        self.run(|shared| async move { shared.session().await?.forget(FORGET_BATCH).await }).await
    }

    async fn new_identity(&self, now: Timestamp) -> Result<Arc<str>, LedgerFault> {
        let renew = move |shared: Arc<Shared>| async move {
            let mut session = shared.session().await?;
            let own = Some(shared.owner.epoch);
            let id = store::renew(session.client_mut(), now, own).await?;
            shared.id.set(id);
            Ok(id.to_string().into())
        };
        self.run(renew).await
    }

    fn is_ready(&self) -> bool {
        *self.shared.standing.borrow() == Standing::Alive
    }
}

impl Drop for PostgresLedger {
    fn drop(&mut self) {
        self.shared.stop.cancel();
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
            self.shared.owe(Debt::Release(reservations));
        }
    }
}
