//! The reservation of a batch: all of it, or nothing.

use std::time::Duration;

use futures_util::future::{join, try_join_all};
use jiff::Timestamp;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::error::Fault;
use super::session::{Session, text};
use crate::adapters::ledger::format;
use crate::adapters::ledger::stored::forget_at;
use crate::domain::record::{
    Claim, Opening, Record, Reservation, TicketShown, TicketUse, Turned, decide,
};
/// How often a claim on something is repeated that was given back meanwhile.
const TRIES: usize = 3;

/// A claim on its way.
struct Wanted<'a> {
    claim: &'a Claim,
    reservation_id: Uuid,
    /// The ticket that it spends, and when that may be forgotten.
    ticket_id: Option<Uuid>,
    forget_at: i64,
    /// The record that it opens, if there is none.
    record: String,
    /// What is known of its ticket.
    ticket: TicketUse,
    /// The record that is there, locked.
    before: Option<Record>,
}

/// The claim that lost, and what it is answered.
pub(super) type Loser = (usize, Turned);

impl Session {
    /// Spends the tickets and opens the records of all claims, in a transaction
    /// that was begun at `now`, or finds the first that loses.
    ///
    /// Everything that is claimed is claimed in the order of its key, so that two
    /// batches never wait for each other; and all of it is asked for at once.
    pub(super) async fn grant(
        &self,
        claims: &[Claim],
        now: Timestamp,
        skew: Duration,
    ) -> Result<Result<Vec<Reservation>, Loser>, Fault> {
        let all: Result<Vec<_>, _> =
            claims.iter().map(|claim| Wanted::new(claim, now, skew)).collect();
        let mut all = all?;
        let mut by_ticket: Vec<usize> = (0..all.len()).collect();
        by_ticket.retain(|index| all[*index].ticket_id.is_some());
        by_ticket.sort_by_key(|index| all[*index].ticket_id);
        let mut by_key: Vec<usize> = (0..all.len()).collect();
        by_key.sort_by_key(|index| claims[*index].key.0.0);

        let tickets = by_ticket.iter().map(|index| self.take_ticket(&all[*index]));
        let calls = by_key.iter().map(|index| self.open(&all[*index]));
        // Polled, and so sent, in this order.
        let (tickets, calls) = join(try_join_all(tickets), try_join_all(calls)).await;
        let (tickets, calls) = (tickets?, calls?);
        for (index, taken) in by_ticket.into_iter().zip(tickets) {
            if !taken {
                self.find_ticket(&mut all[index]).await?;
            }
        }
        for (index, opened) in by_key.into_iter().zip(calls) {
            if !opened {
                self.lock(&mut all[index]).await?;
            }
        }
        let now = self.forgotten(&mut all).await?;
        let mut granted = Vec::with_capacity(all.len());
        for (index, wanted) in all.into_iter().enumerate() {
            let claim = wanted.claim;
            match decide(wanted.before.as_ref(), claim, wanted.ticket, now) {
                Err(turned) => return Ok(Err((index, turned))),
                Ok(opening) => {
                    if let Some(before) = &wanted.before {
                        let id = wanted.reservation_id;
                        self.reopen(claim, &claim.open(opening, Some(before), id, now)).await?;
                    }
                    granted.push(Reservation {
                        id: wanted.reservation_id,
                        key: claim.key,
                        first_attempt: opening.first_attempt,
                        before: wanted.before.map(Box::new),
                    });
                }
            }
        }
        Ok(Ok(granted))
    }

    /// Whether the ticket was spent by this.
    async fn take_ticket(&self, wanted: &Wanted<'_>) -> Result<bool, Fault> {
        let params: [&(dyn ToSql + Sync); 3] =
            [&wanted.ticket_id, &wanted.forget_at, &wanted.reservation_id];
        Ok(self.client().execute(&self.statements().take_ticket, &params).await? == 1)
    }

    /// What is known of a ticket that somebody else has claimed; or claims it
    /// after all, if that was given back meanwhile.
    async fn find_ticket(&self, wanted: &mut Wanted<'_>) -> Result<(), Fault> {
        let Some(id) = wanted.ticket_id else { return Ok(()) };
        for _ in 0..TRIES {
            wanted.ticket = self.ticket(id, wanted.forget_at).await?;
            if wanted.ticket != TicketUse::Unused || self.take_ticket(wanted).await? {
                return Ok(());
            }
        }
        Err(Fault::Late)
    }

    /// Inserts the record as the first of its key. Whether that was right is
    /// decided later, in the order of the batch.
    async fn open(&self, wanted: &Wanted<'_>) -> Result<bool, Fault> {
        let params: [&(dyn ToSql + Sync); 5] = [
            &&wanted.claim.key.0.0[..],
            &wanted.reservation_id,
            &self.owner.epoch,
            &wanted.ticket_id,
            &wanted.record,
        ];
        Ok(self.client().execute(&self.statements().open_call, &params).await? == 1)
    }

    /// Locks the record that is there, or opens it after all if it is gone.
    async fn lock(&self, wanted: &mut Wanted<'_>) -> Result<(), Fault> {
        for _ in 0..TRIES {
            let key: &[u8] = &wanted.claim.key.0.0;
            let row = self.client().query_opt(&self.statements().lock_call, &[&key]).await?;
            if let Some(row) = row {
                wanted.before = Some(format::read(row.try_get::<_, &str>(0)?.as_bytes())?);
                return Ok(());
            }
            if self.open(wanted).await? {
                return Ok(());
            }
        }
        Err(Fault::Late)
    }

    /// Judges the tickets that were taken for unused by what is forgotten: only
    /// now does nobody forget any of them any more. Gives the time, which is
    /// later than any wait for somebody else.
    async fn forgotten(&self, all: &mut [Wanted<'_>]) -> Result<Timestamp, Fault> {
        let row = self.client().query_one(&self.statements().forgotten, &[]).await?;
        let forgotten = row.try_get::<_, Option<i64>>(0)?.unwrap_or(i64::MIN);
        for wanted in all {
            let is_unused = wanted.ticket_id.is_some() && wanted.ticket == TicketUse::Unused;
            if is_unused && wanted.forget_at <= forgotten {
                wanted.ticket = TicketUse::Forgotten;
            }
        }
        Timestamp::from_microsecond(row.try_get(1)?).map_err(|_| Fault::Content("time"))
    }

    async fn reopen(&self, claim: &Claim, record: &Record) -> Result<(), Fault> {
        let text = text(record)?;
        let params: [&(dyn ToSql + Sync); 5] = [
            &&claim.key.0.0[..],
            &record.reservation_id,
            &self.owner.epoch,
            &record.confirmation_id,
            &text,
        ];
        self.client().execute(&self.statements().reopen_call, &params).await?;
        Ok(())
    }
}

impl<'a> Wanted<'a> {
    fn new(claim: &'a Claim, now: Timestamp, skew: Duration) -> Result<Self, Fault> {
        let reservation_id = Uuid::new_v4();
        let opening = Opening { first_attempt: claim.started.attempt };
        let record = text(&claim.open(opening, None, reservation_id, now))?;
        let forget_at = match claim.ticket {
            TicketShown::Verified { expires_at, .. } => forget_at(expires_at, skew),
            _ => 0,
        };
        Ok(Self {
            claim,
            reservation_id,
            ticket_id: claim.ticket.confirmation_id(),
            forget_at,
            record,
            ticket: TicketUse::Unused,
            before: None,
        })
    }
}
