//! The reservation of a batch: all of it, or nothing.

use std::time::Duration;

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
    /// What is known of its ticket.
    ticket: TicketUse,
    /// Whether its record was inserted, for there was none.
    opened: bool,
    /// The record that is there, locked.
    before: Option<Record>,
}

/// The claim that lost, and what it is answered.
pub(super) type Loser = (usize, Turned);

impl Session {
    /// Spends the tickets and opens the records of all claims, in a transaction
    /// that was begun, or finds the first that loses.
    ///
    /// Everything that is claimed is claimed in the order of its key, so that two
    /// batches never wait for each other.
    pub(super) async fn grant(
        &self,
        claims: &[Claim],
        now: Timestamp,
        skew: Duration,
    ) -> Result<Result<Vec<Reservation>, Loser>, Fault> {
        let mut all: Vec<Wanted<'_>> = claims.iter().map(Wanted::new).collect();
        let mut by_ticket: Vec<usize> = (0..all.len()).collect();
        by_ticket.sort_by_key(|index| claims[*index].ticket.confirmation_id());
        for index in by_ticket {
            self.take_ticket(&mut all[index], skew).await?;
        }
        let mut by_key: Vec<usize> = (0..all.len()).collect();
        by_key.sort_by_key(|index| claims[*index].key.0.0);
        for index in &by_key {
            self.open(&mut all[*index], now).await?;
        }
        for index in by_key {
            if !all[index].opened {
                self.lock(&mut all[index], now).await?;
            }
        }
        self.forgotten(&mut all, skew).await?;
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

    async fn take_ticket(&self, wanted: &mut Wanted<'_>, skew: Duration) -> Result<(), Fault> {
        let TicketShown::Verified { confirmation_id, expires_at } = wanted.claim.ticket else {
            return Ok(());
        };
        let forget_at = forget_at(expires_at, skew);
        let params: [&(dyn ToSql + Sync); 3] =
            [&confirmation_id, &forget_at, &wanted.reservation_id];
        for _ in 0..TRIES {
            if self.client().execute(&self.statements().take_ticket, &params).await? == 1 {
                return Ok(());
            }
            wanted.ticket = self.ticket(confirmation_id, forget_at).await?;
            if wanted.ticket != TicketUse::Unused {
                return Ok(());
            }
            // It was given back between the two.
        }
        Err(Fault::Late)
    }

    /// Inserts the record as the first of its key. Whether that was right is
    /// decided later, in the order of the batch.
    async fn open(&self, wanted: &mut Wanted<'_>, now: Timestamp) -> Result<(), Fault> {
        let claim = wanted.claim;
        let opening = Opening { first_attempt: claim.started.attempt };
        let record = claim.open(opening, None, wanted.reservation_id, now);
        let text = text(&record)?;
        let params: [&(dyn ToSql + Sync); 5] = [
            &&claim.key.0.0[..],
            &wanted.reservation_id,
            &self.owner.epoch,
            &record.confirmation_id,
            &text,
        ];
        wanted.opened = self.client().execute(&self.statements().open_call, &params).await? == 1;
        Ok(())
    }

    /// Locks the record that is there, or opens it after all if it is gone.
    async fn lock(&self, wanted: &mut Wanted<'_>, now: Timestamp) -> Result<(), Fault> {
        for _ in 0..TRIES {
            let key: &[u8] = &wanted.claim.key.0.0;
            let row = self.client().query_opt(&self.statements().lock_call, &[&key]).await?;
            if let Some(row) = row {
                let record = format::read(row.try_get::<_, &str>(0)?.as_bytes())?;
                wanted.before = Some(record);
                return Ok(());
            }
            self.open(wanted, now).await?;
            if wanted.opened {
                return Ok(());
            }
        }
        Err(Fault::Late)
    }

    /// Judges the tickets that were taken for unused by what is forgotten: only
    /// now does nobody forget any of them any more.
    async fn forgotten(&self, all: &mut [Wanted<'_>], skew: Duration) -> Result<(), Fault> {
        let row = self.client().query_one(&self.statements().forgotten, &[]).await?;
        let forgotten = row.try_get::<_, Option<i64>>(0)?.unwrap_or(i64::MIN);
        for wanted in all {
            if let TicketShown::Verified { expires_at, .. } = wanted.claim.ticket
                && wanted.ticket == TicketUse::Unused
                && forget_at(expires_at, skew) <= forgotten
            {
                wanted.ticket = TicketUse::Forgotten;
            }
        }
        Ok(())
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
    fn new(claim: &'a Claim) -> Self {
        Self {
            claim,
            reservation_id: Uuid::new_v4(),
            ticket: TicketUse::Unused,
            opened: false,
            before: None,
        }
    }
}
