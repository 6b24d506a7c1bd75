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
mod shared;
mod statements;
mod store;
mod work;

use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use deadpool::managed::Timeouts;
use jiff::Timestamp;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use connect::{PostgresOptions, PostgresTls};
pub use error::{ConnectFault, PostgresError};
pub use store::{Migrated, PostgresStore, script};

use self::connect::{Connector, Manager, Pool};
use self::owed::{Debt, Owed};
use self::owner::{Identity, Owner};
use self::session::Session;
use self::shared::{Shared, Standing};
use self::work::Work;
use crate::adapters::ledger::stored::forget_at;
use crate::domain::generation::Generation;
use crate::domain::record::{CallKey, Claim, Record, TicketUse};
use crate::domain::watermark::{ClockState, Reading, Watermark};
use crate::ports::{
    Ledger, LedgerFault, Reservation, ReserveFault, Revocation, Revoked, Settlement,
};

/// Operations that may wait for a connection or have one.
const QUEUE: usize = 4_096;
/// One that is owed waits no longer for a connection; the others end with who asks.
const WAIT_TIME: Duration = Duration::from_secs(10);
/// With a connection an operation takes no longer, whatever the network does.
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

/// Why a start is of no more use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// A successor has taken over what it was running. A restart goes on.
    TakenOver,
    /// The database was restored, or failed over to a standby that lacks what it
    /// has acknowledged: spent tickets may be good again.
    WentBack,
}

/// Makes the pool's connections before calls wait for them: each costs a login.
async fn warm(shared: Arc<Shared>, connections: usize) {
    let all = (0..connections).map(|_| shared.session());
    tokio::select! {
        () = shared.stop.cancelled() => {}
        // What fails now is told by who needs it.
        _ = futures_util::future::join_all(all) => {}
    }
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
        let work = Arc::new(Work::default());
        let id = Identity::new(owner.ledger_id);
        let manager = Manager {
            connector: Arc::clone(&connector),
            owner,
            id: id.clone(),
            beats: Arc::clone(&beats),
            work: Arc::clone(&work),
        };
        let timeouts = Timeouts {
            wait: Some(WAIT_TIME),
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
            work,
            clock: Mutex::new(Watermark::new(mark, options.skew)),
            skew: options.skew,
            takeover_after: options.takeover_after,
            places: Arc::new(Semaphore::new(QUEUE)),
            owed: Owed::default(),
            standing: watch::Sender::new(Standing::Alive),
            look: Notify::new(),
            stop: CancellationToken::new(),
        });
        tokio::spawn(warm(Arc::clone(&shared), options.connections));
        let keeper = tokio::spawn(keeper::keep(Arc::clone(&shared)));
        Ok(Self { shared, keeper: Mutex::new(Some(keeper)) })
    }

    /// The epoch of this start.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        u64::try_from(self.shared.owner.epoch).unwrap_or_default()
    }

    /// Returns once this start changes nothing any more, and says why.
    pub async fn lost(&self) -> Lost {
        let mut standing = self.shared.standing.subscribe();
        // The sender lives as long as this does.
        match standing.wait_for(|standing| standing.is_final()).await.as_deref() {
            Ok(Standing::WentBack) => Lost::WentBack,
            _ => Lost::TakenOver,
        }
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
        self.shared
            .run(|shared, session| async move {
                let known = shared.journal_knows.load(Ordering::SeqCst);
                session.running(shared.journal_id, known).await
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
}

#[async_trait]
impl Ledger for PostgresLedger {
    fn id(&self) -> Arc<str> {
        self.shared.id.get().to_string().into()
    }

    async fn look(&self, key: CallKey) -> Result<Option<Record>, LedgerFault> {
        self.shared.run(move |_, session| async move { session.look(key).await }).await
    }

    async fn ticket(
        &self,
        confirmation_id: Uuid,
        expires_at: Timestamp,
    ) -> Result<TicketUse, LedgerFault> {
        let forget_at = forget_at(expires_at, self.shared.skew);
        let ask = move |_, session: Session| async move {
            session.ticket(confirmation_id, forget_at).await
        };
        self.shared.run(ask).await
    }

    async fn reserve(
        &self,
        claims: Vec<Claim>,
        at: Reading,
    ) -> Result<Vec<Reservation>, ReserveFault> {
        let reserve = move |shared: Arc<Shared>, session| shared.reserve(session, claims, at);
        match self.shared.run(reserve).await? {
            Ok(granted) => Ok(granted.arrive()),
            Err((index, turned)) => Err(ReserveFault::Turned { index, turned }),
        }
    }

    async fn release(&self, reservations: Vec<Reservation>) -> Result<(), LedgerFault> {
        let debt = Debt::Release(reservations.clone());
        let release =
            move |_, mut session: Session| async move { session.release_all(&reservations).await };
        self.shared.run_owed(debt, release).await
    }

    async fn settle(
        &self,
        reservation_id: Uuid,
        key: CallKey,
        settlement: Settlement,
    ) -> Result<(), LedgerFault> {
        let debt = Debt::Settle(reservation_id, key, settlement.clone());
        let settle = move |_, mut session: Session| async move {
            session.settle_one(reservation_id, key, &settlement).await
        };
        self.shared.run_owed(debt, settle).await?
    }

    async fn revoke(&self, revocation: Revocation) -> Result<Revoked, LedgerFault> {
        let skew = self.shared.skew;
        let revoke =
            move |_, mut session: Session| async move { session.revoke(revocation, skew).await };
        self.shared.run(revoke).await
    }

    async fn running(&self) -> Result<Vec<(CallKey, Record)>, LedgerFault> {
        let running = self.own_running().await?;
        Ok(running.into_iter().map(|(key, record, _)| (key, record)).collect())
    }

    async fn take_over(&self) -> Result<Vec<(CallKey, Record)>, LedgerFault> {
        self.shared.run(|shared, session| async move { shared.take_over(session).await }).await
    }

    async fn observe(&self, at: Reading) -> Result<ClockState, LedgerFault> {
        let observe = move |shared: Arc<Shared>, session: Session| async move {
            let stand = session.stand().await?;
            let (state, mark) = shared.judge(stand, at);
            session.see(stand.now.max(at.now), mark.filter(|_| mark != stand.mark), true).await?;
            Ok(state)
        };
        self.shared.run(observe).await
    }

    async fn accept_clock(&self, at: Reading) -> Result<(), LedgerFault> {
        let accept = move |shared: Arc<Shared>, session: Session| async move {
            let now = store::accept_clock(session.client()).await?;
            shared.accept(Reading { now, ..at });
            Ok(())
        };
        self.shared.run(accept).await
    }

    async fn forget_expired(&self) -> Result<usize, LedgerFault> {
        self.shared.run(|_, session| async move { session.forget(FORGET_BATCH).await }).await
    }

    async fn new_identity(&self, now: Timestamp) -> Result<Arc<str>, LedgerFault> {
        let renew = move |shared: Arc<Shared>, mut session: Session| async move {
            let own = Some(session.owner.epoch);
            let id = store::renew(session.client_mut(), now, own).await?;
            shared.id.set(id);
            Ok(id.to_string().into())
        };
        self.shared.run(renew).await
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
