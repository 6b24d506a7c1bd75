//! The task that keeps a start of a gate alive in the database: it holds the lock
//! that says so on a connection of its own, gives signs of life, and pays what is
//! owed. It finds a database that was put back, and a successor.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{sleep, timeout};

use super::OPERATION_TIME;
use super::error::Fault;
use super::owed::Debt;
use super::owner::{fence, silent};
use super::session::Session;
use super::shared::{Shared, Standing};
use super::statements::WORKING;
use crate::domain::record::{CallKey, Record};
use crate::ports::LedgerFault;

/// The first pause between attempts to get back. The later ones are no longer than
/// those between signs of life, so that all are back before anybody takes over.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The pauses between signs of life.
const LEAST_BEAT: Duration = Duration::from_millis(100);
const MOST_BEAT: Duration = Duration::from_secs(5);

/// Keeps until it is told to stop, or a successor has taken over.
pub(super) async fn keep(shared: Arc<Shared>) {
    let most_pause = interval(shared.takeover_after);
    let (mut pause, mut told) = (FIRST_PAUSE, String::new());
    loop {
        let fault = match live(&shared, &mut pause).await {
            Ok(()) => return,
            Err(fault @ Fault::WentBack) => {
                shared.end(&fault);
                return condemn(&shared).await;
            }
            Err(fault @ Fault::Fenced) => return shared.end(&fault),
            Err(fault) => fault.to_string(),
        };
        if shared.stand(Standing::Away) != Standing::Away || fault != told {
            tracing::error!(fault, "the ledger's database is out of reach");
            told = fault;
        }
        tokio::select! {
            () = shared.stop.cancelled() => return,
            () = sleep(pause) => pause = (pause * 2).min(most_pause),
        }
    }
}

/// Tells the other gates, which cannot know, until the database has it.
async fn condemn(shared: &Shared) {
    loop {
        let told = async {
            let connection = Box::pin(shared.connector.connect_to_ledger()).await?;
            shared.id.of(shared.owner).condemn(&connection.client).await
        };
        match told.await {
            Ok(()) => return,
            Err(fault) => {
                tracing::error!(%fault, "the database failed");
            }
        }
        tokio::select! {
            () = shared.stop.cancelled() => return,
            () = sleep(FIRST_PAUSE) => {}
        }
    }
}

/// One connection's life. Returns without a fault when told to stop.
async fn live(shared: &Arc<Shared>, pause: &mut Duration) -> Result<(), Fault> {
    let connection = Box::pin(shared.connector.connect_to_ledger()).await?;
    let client = &connection.client;
    let owner = || shared.id.of(shared.owner);
    in_time(owner().check(client, shared.beats.load(Ordering::SeqCst))).await?;
    in_time(shared.work.check(client, shared.owner.epoch)).await?;
    let mut holds = false;
    loop {
        // A session of before that the server has not yet given up has it until then.
        if !holds {
            holds = in_time(owner().hold(client)).await?;
        }
        let beats = in_time(owner().beat(client, shared.beats.load(Ordering::SeqCst))).await?;
        shared.beats.store(beats, Ordering::SeqCst);
        shared.pay().await?;
        match shared.stand(Standing::Alive) {
            Standing::Away => tracing::info!("the ledger's database is back"),
            Standing::Alive => {}
            // An operation has found it.
            Standing::Fenced => return Err(Fault::Fenced),
            Standing::WentBack => return Err(Fault::WentBack),
        }
        *pause = FIRST_PAUSE;
        tokio::select! {
            () = shared.stop.cancelled() => {
                shared.pay().await?;
                return in_time(owner().end(client)).await;
            }
            () = shared.look.notified() => {}
            () = sleep(interval(shared.takeover_after)) => {}
        }
    }
}

/// Several signs of life before anybody takes over.
fn interval(takeover_after: Duration) -> Duration {
    (takeover_after / 6).clamp(LEAST_BEAT, MOST_BEAT)
}

async fn in_time<T>(asked: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    timeout(OPERATION_TIME, asked).await.unwrap_or(Err(Fault::Late))
}

impl Shared {
    /// Pays what is owed, the oldest first.
    async fn pay(&self) -> Result<(), Fault> {
        while let Some(debt) = self.owed.first() {
            let paid = in_time(self.pay_one(debt)).await;
            match paid {
                Err(Fault::Content(field)) => {
                    tracing::error!(field, "something stored cannot be read, and was left");
                }
                Err(fault) => return Err(fault),
                Ok(()) => {}
            }
            self.owed.pay();
        }
        Ok(())
    }

    async fn pay_one(&self, debt: Debt) -> Result<(), Fault> {
        let mut session = self.session().await?;
        match debt {
            Debt::Settle(reservation_id, key, settlement) => {
                let settled = session.settle_one(reservation_id, key, &settlement).await?;
                if settled == Err(LedgerFault::NotHeld) {
                    tracing::warn!("a call was ended otherwise before it could be settled");
                }
                Ok(())
            }
            Debt::Release(reservations) => session.release_all(&reservations).await,
            Debt::Abandon(all) => {
                session.begin(Timestamp::UNIX_EPOCH).await?;
                // Whether it was committed is decided once nothing is on its way any more.
                let alone = "SELECT pg_advisory_xact_lock($1, $2)";
                session.client().execute(alone, &[&WORKING, &self.owner.epoch]).await?;
                for (reservation_id, key, settlement) in &all {
                    // Not held: it was never committed.
                    let _ = session.settle(*reservation_id, *key, settlement).await?;
                }
                session.commit().await
            }
        }
    }

    /// Takes over from silent owners whose sessions are gone, and tells what is
    /// this owner's without a witness.
    pub(super) async fn take_over(
        &self,
        mut session: Session,
    ) -> Result<Vec<(CallKey, Record)>, Fault> {
        let (own, after) = (session.owner, self.takeover_after);
        for dead in silent(session.client(), own.epoch, after).await? {
            if fence(session.client_mut(), dead, own, after).await? {
                tracing::warn!(epoch = dead, "took over from a gate that has died");
            }
        }
        let known = self.journal_knows.load(Ordering::SeqCst);
        let running = session.running(self.journal_id, known).await?;
        let is_left = |(_, record, has_witness): &(CallKey, Record, bool)| {
            !has_witness && !self.owed.settles(record.reservation_id)
        };
        Ok(running.into_iter().filter(is_left).map(|(key, record, _)| (key, record)).collect())
    }
}
