//! Ledgers for gates that tests put together: one in memory, whose every
//! operation may be scripted, and the terms that both are used with.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::time::sleep;
use toolgate::domain::authorisation::Confirmations;
use toolgate::domain::record::{CallKey, Claim, Record, State, TicketShown, TicketUse, decide};
use toolgate::domain::ticket::{ConfirmationKey, ConfirmationKeys};
use toolgate::domain::watermark::{ClockState, Reading};
use toolgate::gate::Recorder;
use toolgate::ports::{
    Ledger, LedgerFault, Reservation, ReserveFault, Revocation, Revoked, Settlement,
};
use uuid::Uuid;

/// An operation of the ledger that a script is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    Look,
    Ticket,
    Reserve,
    Release,
    Settle,
    Revoke,
}

/// What the ledger does with one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerAct {
    Take,
    /// Does it after this long.
    TakeAfter(Duration),
    /// Does nothing of it.
    Fail,
    /// Does nothing of it, and never answers.
    Hang,
    /// Meets a fault of its own.
    Panic,
}

/// A ledger in memory that follows the same table of decisions. Operations
/// without an act left are taken. The clock is always believed.
#[derive(Default)]
pub struct MemoryLedger {
    stored: Mutex<Stored>,
    acts: Mutex<HashMap<Operation, VecDeque<LedgerAct>>>,
    is_down: std::sync::atomic::AtomicBool,
}

#[derive(Default, Clone)]
struct Stored {
    records: HashMap<CallKey, Record>,
    spent: HashSet<Uuid>,
    revoked: HashSet<Uuid>,
}

/// A recorder with one key, tickets of 300 s and a skew of 30 s.
pub fn recorder(ledger: Arc<dyn Ledger>) -> Recorder {
    let key = ConfirmationKey::new("confirm-1".into(), &[7; 32], &[8; 32]).unwrap();
    let confirmations = Confirmations {
        keys: ConfirmationKeys::new(vec![key]).unwrap(),
        ticket_ttl: Duration::from_mins(5),
        skew: Duration::from_secs(30),
    };
    Recorder { confirmations: Arc::new(confirmations), ledger }
}

impl MemoryLedger {
    /// From now on operations follow these acts, each in its order.
    pub fn script(&self, acts: impl IntoIterator<Item = (Operation, Vec<LedgerAct>)>) {
        let acts = acts.into_iter().map(|(operation, acts)| (operation, acts.into()));
        *self.acts.lock().unwrap() = acts.collect();
    }

    pub fn break_down(&self) {
        self.is_down.store(true, std::sync::atomic::Ordering::SeqCst);
    }

    /// Every record that there is.
    pub fn records(&self) -> Vec<Record> {
        self.stored.lock().unwrap().records.values().cloned().collect()
    }

    /// How many tickets are spent.
    pub fn spent(&self) -> usize {
        self.stored.lock().unwrap().spent.len()
    }

    async fn act(&self, operation: Operation) -> Result<(), LedgerFault> {
        let act = self.acts.lock().unwrap().get_mut(&operation).and_then(VecDeque::pop_front);
        match act.unwrap_or(LedgerAct::Take) {
            LedgerAct::Take => Ok(()),
            LedgerAct::TakeAfter(time) => {
                sleep(time).await;
                Ok(())
            }
            LedgerAct::Fail => Err(LedgerFault::Failed),
            LedgerAct::Hang => future::pending().await,
            LedgerAct::Panic => panic!("as the script says"),
        }
    }
}

impl Stored {
    fn ticket(&self, id: Uuid) -> TicketUse {
        if self.revoked.contains(&id) {
            TicketUse::Revoked
        } else if self.spent.contains(&id) {
            TicketUse::Spent
        } else {
            TicketUse::Unused
        }
    }

    fn reserve(&mut self, claim: &Claim, now: Timestamp) -> Result<Reservation, ReserveFault> {
        let ticket = match claim.ticket {
            TicketShown::Verified { confirmation_id, .. } => self.ticket(confirmation_id),
            _ => TicketUse::Unused,
        };
        let opening = decide(self.records.get(&claim.key), claim, ticket, now)
            .map_err(|turned| ReserveFault::Turned { index: 0, turned })?;
        self.spent.extend(claim.ticket.confirmation_id());
        let id = Uuid::new_v4();
        let record = claim.open(opening, self.records.get(&claim.key), id, now);
        let before = self.records.insert(claim.key, record).map(Box::new);
        Ok(Reservation { id, key: claim.key, first_attempt: opening.first_attempt, before })
    }

    fn release(&mut self, reservation: Reservation) {
        let Some(record) = self.records.get(&reservation.key) else { return };
        if record.reservation_id != reservation.id || record.state != State::Running {
            return;
        }
        if let Some(confirmation_id) = record.confirmation_id {
            self.spent.remove(&confirmation_id);
        }
        match reservation.before {
            Some(before) => self.records.insert(reservation.key, *before),
            None => self.records.remove(&reservation.key),
        };
    }
}

#[async_trait]
impl Ledger for MemoryLedger {
    fn id(&self) -> Arc<str> {
        "0b9a2f64-3c1d-4c5e-9a77-2d4f6e8b1c30".into()
    }

    async fn look(&self, key: CallKey) -> Result<Option<Record>, LedgerFault> {
        self.act(Operation::Look).await?;
        Ok(self.stored.lock().unwrap().records.get(&key).cloned())
    }

    async fn ticket(
        &self,
        confirmation_id: Uuid,
        _expires_at: Timestamp,
    ) -> Result<TicketUse, LedgerFault> {
        self.act(Operation::Ticket).await?;
        Ok(self.stored.lock().unwrap().ticket(confirmation_id))
    }

    async fn reserve(
        &self,
        claims: Vec<Claim>,
        at: Reading,
    ) -> Result<Vec<Reservation>, ReserveFault> {
        self.act(Operation::Reserve).await?;
        let mut stored = self.stored.lock().unwrap();
        let mut changed = stored.clone();
        let mut reservations = Vec::with_capacity(claims.len());
        for (index, claim) in claims.iter().enumerate() {
            match changed.reserve(claim, at.now) {
                Ok(reservation) => reservations.push(reservation),
                Err(ReserveFault::Turned { turned, .. }) => {
                    return Err(ReserveFault::Turned { index, turned });
                }
                Err(fault) => return Err(fault),
            }
        }
        *stored = changed;
        Ok(reservations)
    }

    async fn release(&self, reservations: Vec<Reservation>) -> Result<(), LedgerFault> {
        self.act(Operation::Release).await?;
        let mut stored = self.stored.lock().unwrap();
        for reservation in reservations {
            stored.release(reservation);
        }
        Ok(())
    }

    async fn settle(
        &self,
        reservation_id: Uuid,
        key: CallKey,
        settlement: Settlement,
    ) -> Result<(), LedgerFault> {
        self.act(Operation::Settle).await?;
        let mut stored = self.stored.lock().unwrap();
        let held = stored.records.get_mut(&key).filter(|record| {
            record.reservation_id == reservation_id && record.state == State::Running
        });
        let record = held.ok_or(LedgerFault::NotHeld)?;
        record.state = State::Ended(settlement.ended);
        record.last_attempt = settlement.last_attempt;
        Ok(())
    }

    async fn revoke(&self, revocation: Revocation) -> Result<Revoked, LedgerFault> {
        self.act(Operation::Revoke).await?;
        let mut stored = self.stored.lock().unwrap();
        stored.revoked.insert(revocation.confirmation_id);
        let is_spent = stored.spent.contains(&revocation.confirmation_id);
        Ok(if is_spent { Revoked::Spent } else { Revoked::InTime })
    }

    async fn running(&self) -> Result<Vec<(CallKey, Record)>, LedgerFault> {
        let stored = self.stored.lock().unwrap();
        let running = stored.records.iter().filter(|(_, record)| record.state == State::Running);
        Ok(running.map(|(key, record)| (*key, record.clone())).collect())
    }

    async fn observe(&self, _at: Reading) -> Result<ClockState, LedgerFault> {
        Ok(ClockState::Trusted)
    }

    async fn accept_clock(&self, _at: Reading) -> Result<(), LedgerFault> {
        Ok(())
    }

    async fn forget_expired(&self) -> Result<usize, LedgerFault> {
        Ok(0)
    }

    async fn new_identity(&self, _now: Timestamp) -> Result<Arc<str>, LedgerFault> {
        Err(LedgerFault::Failed)
    }

    fn is_ready(&self) -> bool {
        !self.is_down.load(std::sync::atomic::Ordering::SeqCst)
    }
}
