//! The ledger as the gate uses it: every wait bounded, every reservation accounted for.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::pair::DURABLE_WAIT;
use crate::domain::admission::Refusal;
use crate::domain::audit::{Digest, Scope};
use crate::domain::authorisation::{Confirmations, Judged};
use crate::domain::reason::{Effect, Reason};
use crate::domain::record::{CallKey, Claim, Ended, Record, Reservation, TicketShown, TicketUse};
use crate::domain::refused::Refused;
use crate::domain::stages::Admitted;
use crate::domain::watermark::{ClockState, Reading};
use crate::ports::{Clock, Ledger, LedgerFault, ReserveFault, Revocation, Revoked, Settlement};
use crate::telemetry::metrics::{LedgerOperation, Metrics};

/// What writes and confirmed calls need. Absent in a gate that serves plain reads only.
#[derive(Clone)]
pub struct Recorder {
    /// Keys and terms of tickets.
    pub confirmations: Arc<Confirmations>,
    /// What remembers their use.
    pub ledger: Arc<dyn Ledger>,
}

/// The ledger, with every wait bounded and told to the metrics.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) ledger: Arc<dyn Ledger>,
    metrics: Metrics,
}

/// What a look into the ledger showed.
pub(super) struct Found {
    pub(super) record: Option<Record>,
    pub(super) ticket: TicketUse,
}

impl Held {
    pub(super) fn new(ledger: Arc<dyn Ledger>, metrics: Metrics) -> Self {
        Self { ledger, metrics }
    }

    /// Judges the size and the ticket of a call that needs a record.
    pub(super) fn judge(
        &self,
        admitted: Admitted,
        ticket: Option<&str>,
        scope: &Scope,
        confirmations: &Confirmations,
        now: Timestamp,
    ) -> Result<Judged, Box<Refusal>> {
        let ledger_id = self.ledger.id();
        Judged::recorded(admitted, ticket, scope, confirmations, &ledger_id, now)
    }

    /// What the ledger shows of a judged call. A ledger that fails denies.
    pub(super) async fn find(&self, judged: &Judged) -> Result<Found, Box<Refusal>> {
        let Some(claim) = judged.claim() else {
            return Ok(Found { record: None, ticket: TicketUse::Unused });
        };
        self.look(claim).await.map_err(|_| judged.admitted().refuse(Reason::LedgerFailed))
    }

    /// Revokes a ticket for as long as it could be shown.
    pub(super) async fn revoke(
        &self,
        id: Uuid,
        confirmations: &Confirmations,
        now: Timestamp,
    ) -> Result<Revoked, Refused> {
        let lifetime = confirmations.ticket_ttl + confirmations.skew;
        let revocation = Revocation { confirmation_id: id, revoked_at: now, lifetime };
        let revoked = self.wait(LedgerOperation::Revoke, self.ledger.revoke(revocation)).await;
        let revoked = revoked.map_err(|_| Refused::LedgerUnavailable)?;
        self.metrics.confirmation("revoked");
        Ok(revoked)
    }

    /// What is known of a claim's call and ticket.
    async fn look(&self, claim: &Claim) -> Result<Found, LedgerFault> {
        let look = async {
            // The ticket first: whoever has spent it has opened the record as well,
            // and that, seen after it, says more than that the ticket is spent.
            let ticket = match claim.ticket {
                TicketShown::Verified { confirmation_id, expires_at } => {
                    self.ledger.ticket(confirmation_id, expires_at).await?
                }
                _ => TicketUse::Unused,
            };
            let record = self.ledger.look(claim.key).await?;
            Ok(Found { record, ticket })
        };
        self.wait(LedgerOperation::Look, look).await
    }

    /// The record of a call, for who only wants to know.
    pub(super) async fn record(&self, key: CallKey) -> Result<Option<Record>, Refused> {
        let record = self.wait(LedgerOperation::Look, self.ledger.look(key)).await;
        record.map_err(|_| Refused::LedgerUnavailable)
    }

    /// Reserves all or nothing. One that is given up is given back by the ledger.
    pub(super) async fn reserve(
        &self,
        claims: Vec<Claim>,
        at: Reading,
    ) -> Result<Vec<Reservation>, ReserveFault> {
        let tickets =
            claims.iter().filter(|claim| claim.ticket.confirmation_id().is_some()).count();
        let reserve = async {
            match self.ledger.reserve(claims, at).await {
                Ok(reservations) => Ok(Ok(reservations)),
                Err(ReserveFault::Turned { index, turned }) => Ok(Err((index, turned))),
                Err(ReserveFault::Ledger(fault)) => Err(fault),
            }
        };
        match self.wait(LedgerOperation::Reserve, reserve).await {
            Ok(Ok(reservations)) => {
                (0..tickets).for_each(|_| self.metrics.confirmation("spent"));
                Ok(reservations)
            }
            Ok(Err((index, turned))) => Err(ReserveFault::Turned { index, turned }),
            Err(fault) => Err(ReserveFault::Ledger(fault)),
        }
    }

    /// Shows the ledger both clocks; `None` where it does not answer.
    pub(super) async fn observe(&self, at: Reading) -> Option<ClockState> {
        self.wait(LedgerOperation::Observe, self.ledger.observe(at)).await.ok()
    }

    /// The calls that this gate has taken over from others, and must end.
    pub(super) async fn take_over(&self) -> Vec<(CallKey, Record)> {
        let calls = self.wait(LedgerOperation::TakeOver, self.ledger.take_over()).await;
        calls.unwrap_or_default()
    }

    /// Forgets what is over, a bounded part of it at a time.
    pub(super) async fn forget_expired(&self) {
        let until = Instant::now() + FORGET_TIME;
        while Instant::now() < until {
            match self.wait(LedgerOperation::Forget, self.ledger.forget_expired()).await {
                Ok(forgotten) if forgotten > 0 => {}
                _ => return,
            }
        }
    }

    /// Gives back what was not started. What cannot be given back stays spent.
    pub(super) async fn release(&self, reservations: Vec<Reservation>) {
        if reservations.is_empty() {
            return;
        }
        let count = reservations.len();
        let release = self.ledger.release(reservations);
        if self.wait(LedgerOperation::Release, release).await.is_err() {
            tracing::error!(count, "reservations could not be released; their tickets stay spent");
        }
    }

    /// Ends a call. Where this fails the record stays running until the next
    /// start, which settles it from the journal.
    pub(super) async fn settle(&self, id: Uuid, key: CallKey, settlement: Settlement) {
        let settle = self.ledger.settle(id, key, settlement);
        if self.wait(LedgerOperation::Settle, settle).await.is_err() {
            tracing::error!("a call could not be settled yet");
        }
    }

    /// Waits within [`DURABLE_WAIT`], and counts how it went.
    async fn wait<T>(
        &self,
        operation: LedgerOperation,
        answer: impl Future<Output = Result<T, LedgerFault>>,
    ) -> Result<T, LedgerFault> {
        let since = Instant::now();
        let answer = timeout(DURABLE_WAIT, answer).await.unwrap_or(Err(LedgerFault::Failed));
        match &answer {
            Ok(_) => self.metrics.ledger_answered(operation, since.elapsed()),
            Err(_) => self.metrics.ledger_failed(operation),
        }
        answer
    }
}

/// Both clocks at once.
pub(super) fn reading(clock: &dyn Clock, started: Instant) -> Reading {
    Reading { now: clock.now(), monotonic: started.elapsed() }
}

/// The settlement of a call whose last attempt ended like this.
pub(super) const fn settlement(
    reason: Reason,
    effect: Effect,
    at: Timestamp,
    result_digest: Option<Digest>,
    last_attempt: u32,
) -> Settlement {
    Settlement { ended: Ended { reason, effect, at, result_digest }, last_attempt }
}

/// How often the clock is shown to the ledger.
pub(super) const OBSERVE_INTERVAL: Duration = Duration::from_secs(10);

/// How long it may forget between two of them.
const FORGET_TIME: Duration = Duration::from_secs(5);
