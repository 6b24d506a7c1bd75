//! What the tasks of one start share, and how an operation is run.

use std::sync::atomic::{AtomicI32, AtomicI64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Notify, Semaphore, oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::OPERATION_TIME;
use super::connect::{Connector, Pool};
use super::error::Fault;
use super::owed::{Debt, Owed, abandoned};
use super::owner::{Identity, Owner};
use super::reserve::Loser;
use super::session::{Session, Stand};
use super::work::Work;
use crate::domain::reason::Reason;
use crate::domain::record::{Claim, Reservation, Turned};
use crate::domain::watermark::{ClockState, Reading, Watermark};
use crate::ports::LedgerFault;

/// How the owner stands with the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Connected, its lock held or being waited for.
    Alive,
    /// The way to the database is broken.
    Away,
    /// A successor has taken over. For good.
    Fenced,
    /// The database lacks what it has acknowledged. For good.
    WentBack,
}

pub(super) struct Shared {
    pub(super) connector: Arc<Connector>,
    pub(super) pool: Pool,
    pub(super) owner: Owner,
    pub(super) id: Identity,
    pub(super) journal_id: Uuid,
    /// The last start that the journal knew of when this one began.
    pub(super) journal_knows: AtomicI32,
    pub(super) beats: Arc<AtomicI64>,
    pub(super) work: Arc<Work>,
    pub(super) clock: Mutex<Watermark>,
    pub(super) skew: Duration,
    pub(super) takeover_after: Duration,
    pub(super) places: Arc<Semaphore>,
    pub(super) owed: Owed,
    pub(super) standing: watch::Sender<Standing>,
    /// The keeper should look now.
    pub(super) look: Notify,
    pub(super) stop: CancellationToken,
}

/// Reservations on their way to who asked for them. Dropped before they arrive
/// they are given back: nobody would ever settle them.
pub(super) struct Granted {
    reservations: Vec<Reservation>,
    shared: Arc<Shared>,
}

/// Owes something until it is known to be done: also where its wait is cut off.
struct Owing {
    shared: Arc<Shared>,
    debt: Option<Debt>,
}

impl Shared {
    /// Runs an operation in a task of its own, which ends in time. It is not begun
    /// where nobody waits for it any more.
    pub(super) async fn run<T, F>(
        self: &Arc<Self>,
        operation: impl FnOnce(Arc<Self>, Session) -> F + Send + 'static,
    ) -> Result<T, LedgerFault>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Fault>> + Send + 'static,
    {
        self.start(None, operation)?.await.map_err(|_| LedgerFault::Failed)?
    }

    /// The same of one that is owed, and done whoever waits, now or later.
    pub(super) async fn run_owed<T, F>(
        self: &Arc<Self>,
        debt: Debt,
        operation: impl FnOnce(Arc<Self>, Session) -> F + Send + 'static,
    ) -> Result<T, LedgerFault>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Fault>> + Send + 'static,
    {
        let owing = Owing::new(Arc::clone(self), debt);
        self.start(Some(owing), operation)?.await.map_err(|_| LedgerFault::Failed)?
    }

    fn start<T, F>(
        self: &Arc<Self>,
        owing: Option<Owing>,
        operation: impl FnOnce(Arc<Self>, Session) -> F + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<T, LedgerFault>>, LedgerFault>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Fault>> + Send + 'static,
    {
        if self.standing.borrow().is_final() {
            return Err(LedgerFault::Failed);
        }
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| LedgerFault::Full)?;
        let (mut answer, answered) = oneshot::channel();
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let _place = place;
            let session = tokio::select! {
                biased;
                () = answer.closed(), if owing.is_none() => return,
                session = shared.session() => session,
            };
            let outcome = match session {
                Ok(session) => timeout(OPERATION_TIME, operation(Arc::clone(&shared), session))
                    .await
                    .unwrap_or(Err(Fault::Late)),
                Err(fault) => Err(fault),
            };
            if outcome.is_ok()
                && let Some(owing) = owing
            {
                owing.paid();
            }
            // Dropped where nobody listens, which gives reservations back.
            drop(answer.send(outcome.map_err(|fault| shared.failed(&fault))));
        });
        Ok(answered)
    }

    /// What a fault means to who asked, once it was told to who must mend it.
    fn failed(&self, fault: &Fault) -> LedgerFault {
        if matches!(fault, Fault::Fenced | Fault::WentBack) {
            self.end(fault);
        } else {
            tracing::error!(%fault, "the database failed");
            self.look.notify_one();
        }
        LedgerFault::Failed
    }

    /// How it stands from now on, unless that is final; and how it stood.
    pub(super) fn stand(&self, standing: Standing) -> Standing {
        let mut before = standing;
        self.standing.send_if_modified(|was| {
            before = *was;
            let changes = !was.is_final() && *was != standing;
            if changes {
                *was = standing;
            }
            changes
        });
        before
    }

    /// Nothing more is done: the first reason stands.
    pub(super) fn end(&self, fault: &Fault) {
        let standing = match fault {
            Fault::WentBack => Standing::WentBack,
            _ => Standing::Fenced,
        };
        let is_first = !self.stand(standing).is_final();
        self.look.notify_one();
        match (is_first, standing) {
            (false, _) => {}
            (true, Standing::WentBack) => {
                tracing::error!("the ledger's database lacks what it has acknowledged");
            }
            (true, _) => tracing::error!("another gate has taken over"),
        }
    }

    pub(super) async fn session(&self) -> Result<Session, Fault> {
        Ok(Session::new(self.pool.get().await?, self.id.of(self.owner)))
    }

    /// Judges the database's clock by what the database knows and by this
    /// process's monotonic one.
    pub(super) fn judge(&self, stand: Stand, at: Reading) -> (ClockState, Option<Timestamp>) {
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        clock.follow(stand.mark);
        let state = clock.observe(Reading { now: stand.now, ..at });
        (state, clock.mark())
    }

    /// Takes the database's clock for right.
    pub(super) fn accept(&self, reading: Reading) {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner).accept(reading);
    }

    /// Reserves, in one transaction. What is not acknowledged is not forgotten.
    pub(super) async fn reserve(
        self: Arc<Self>,
        mut session: Session,
        claims: Vec<Claim>,
        at: Reading,
    ) -> Result<Result<Granted, Loser>, Fault> {
        let stand = session.begin_work(at.now).await?;
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
        let moved = mark.filter(|_| mark != stand.mark);
        session.see(stand.now.max(at.now), moved, false).await?;
        let all = reservations.iter().map(|it| (it.id, it.key, abandoned(it, stand.now)));
        let unknown = Owing::new(Arc::clone(&self), Debt::Abandon(all.collect()));
        session.commit().await?;
        unknown.paid();
        Ok(Ok(Granted { reservations, shared: self }))
    }

    fn owe(&self, debt: Debt) {
        if !self.owed.push(debt) {
            tracing::error!("more is owed to the database than is kept; the next start settles it");
        }
        self.look.notify_one();
    }
}

impl Standing {
    pub(super) const fn is_final(self) -> bool {
        matches!(self, Self::Fenced | Self::WentBack)
    }
}

impl Owing {
    const fn new(shared: Arc<Shared>, debt: Debt) -> Self {
        Self { shared, debt: Some(debt) }
    }

    fn paid(mut self) {
        self.debt = None;
    }
}

impl Drop for Owing {
    fn drop(&mut self) {
        if let Some(debt) = self.debt.take() {
            self.shared.owe(debt);
        }
    }
}

impl Granted {
    pub(super) fn arrive(mut self) -> Vec<Reservation> {
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
