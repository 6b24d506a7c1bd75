//! What the operations of a ledger do, each in a transaction of its own.
//!
//! Nothing is read and then written: a ticket is spent, and a call opened, by the
//! insertion that the unique keys let happen once; what is there already is
//! locked before it is judged. What does not depend on an answer is sent without
//! waiting for it, so that a reservation is three round trips.

use deadpool::managed::Object;
use jiff::Timestamp;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::connect::Manager;
use super::error::Fault;
use super::owner::Owner;
use super::statements::{Statements, WORKING};
use crate::adapters::ledger::format;
use crate::adapters::ledger::stored::{StoredTicket, ceiling, forget_at, ticket_use};
use crate::domain::audit::Digest;
use crate::domain::record::{CallKey, Record, State, TicketUse};
use crate::ports::{LedgerFault, Reservation, Revocation, Revoked, Settlement};

/// A connection with what it needs to be used for an owner. One that is dropped
/// inside a transaction is closed, which takes that back.
pub(super) struct Session {
    object: Option<Object<Manager>>,
    in_transaction: bool,
    /// The commit that this transaction is counted as.
    noted: Option<i64>,
    pub(super) owner: Owner,
}

/// What the database says of time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stand {
    pub(super) now: Timestamp,
    pub(super) mark: Option<Timestamp>,
    pub(super) seen: Option<Timestamp>,
}

impl Session {
    pub(super) const fn new(object: Object<Manager>, owner: Owner) -> Self {
        Self { object: Some(object), in_transaction: false, noted: None, owner }
    }

    fn parts(&self) -> (&tokio_postgres::Client, &Statements) {
        let Some(object) = &self.object else { unreachable!("taken by drop alone") };
        (&object.connection.client, &object.statements)
    }

    pub(super) fn client(&self) -> &tokio_postgres::Client {
        self.parts().0
    }

    pub(super) fn client_mut(&mut self) -> &mut tokio_postgres::Client {
        let Some(object) = &mut self.object else { unreachable!("taken by drop alone") };
        &mut object.connection.client
    }

    pub(super) fn statements(&self) -> &Statements {
        self.parts().1
    }

    /// Begins a transaction in which calls are opened for the owner, and reads the
    /// time. A successor waits for its end.
    pub(super) async fn begin_work(&mut self, shown: Timestamp) -> Result<Stand, Fault> {
        self.in_transaction = true;
        let (slot, commit) = self.count();
        let Owner { epoch, token, ledger_id } = self.owner;
        let (client, statements) = self.parts();
        let shown = shown.as_microsecond();
        let work: [&(dyn ToSql + Sync); 2] = [&WORKING, &epoch];
        let stand: [&(dyn ToSql + Sync); 3] = [&ledger_id, &epoch, &token];
        let note: [&(dyn ToSql + Sync); 4] = [&epoch, &slot, &commit, &shown];
        let ((), _, row, _) = tokio::try_join!(
            client.batch_execute("BEGIN"),
            client.execute(&statements.work, &work),
            client.query_opt(&statements.stand, &stand),
            client.execute(&statements.note, &note),
        )?;
        match row {
            Some(row) => Stand::read(&row),
            None => Err(self.owner.why_not(client).await),
        }
    }

    /// The connection's row, and the number that this transaction has in it.
    fn count(&mut self) -> (i32, i64) {
        let Some(object) = &self.object else { unreachable!("taken by drop alone") };
        let (slot, commit) = (object.slot.number(), object.slot.next());
        self.noted = Some(commit);
        (slot, commit)
    }

    /// Begins a transaction that opens nothing.
    pub(super) async fn begin(&mut self, shown: Timestamp) -> Result<(), Fault> {
        self.in_transaction = true;
        let (slot, commit) = self.count();
        let (client, statements) = self.parts();
        let shown = shown.as_microsecond();
        let note: [&(dyn ToSql + Sync); 4] = [&self.owner.epoch, &slot, &commit, &shown];
        tokio::try_join!(client.batch_execute("BEGIN"), client.execute(&statements.note, &note))?;
        Ok(())
    }

    /// From its call on nobody knows whether what was done is durable, until it answers.
    pub(super) async fn commit(&mut self) -> Result<(), Fault> {
        self.client().batch_execute("COMMIT").await?;
        self.in_transaction = false;
        if let (Some(commit), Some(object)) = (self.noted.take(), &self.object) {
            object.slot.acknowledge(commit);
        }
        Ok(())
    }

    pub(super) async fn roll_back(&mut self) -> Result<(), Fault> {
        self.client().batch_execute("ROLLBACK").await?;
        self.in_transaction = false;
        Ok(())
    }

    /// The time outside a transaction.
    pub(super) async fn stand(&self) -> Result<Stand, Fault> {
        let Owner { epoch, token, ledger_id } = self.owner;
        let (client, statements) = self.parts();
        match client.query_opt(&statements.stand, &[&ledger_id, &epoch, &token]).await? {
            Some(row) => Stand::read(&row),
            None => Err(self.owner.why_not(client).await),
        }
    }

    /// Shows a time, and a mark if it moved.
    pub(super) async fn see(
        &self,
        seen: Timestamp,
        mark: Option<Timestamp>,
        waits: bool,
    ) -> Result<(), Fault> {
        let mark = mark.map(Timestamp::as_microsecond);
        let params: [&(dyn ToSql + Sync); 2] = [&seen.as_microsecond(), &mark];
        let (client, statements) = self.parts();
        let statement = if waits { &statements.move_mark } else { &statements.see };
        client.execute(statement, &params).await?;
        Ok(())
    }

    pub(super) async fn look(&self, key: CallKey) -> Result<Option<Record>, Fault> {
        let (client, statements) = self.parts();
        let row = client.query_opt(&statements.look, &[&&key.0.0[..]]).await?;
        row.map(|row| Ok(format::read(row.try_get::<_, &str>(0)?.as_bytes())?)).transpose()
    }

    /// What is known of a ticket, by what is committed and by this transaction.
    pub(super) async fn ticket(&self, id: Uuid, forget_at: i64) -> Result<TicketUse, Fault> {
        let (client, statements) = self.parts();
        let row = client.query_one(&statements.ticket, &[&id]).await?;
        let forgotten = row.try_get::<_, Option<i64>>(0)?.unwrap_or(i64::MIN);
        let revoked: Option<bool> = row.try_get(1)?;
        let spent_by: Option<Uuid> = row.try_get(2)?;
        let stored = revoked.map(|revoked| StoredTicket { forget_at, revoked, spent_by });
        Ok(ticket_use(stored, forgotten, forget_at))
    }

    /// The calls that the owner answers for; whether this journal has witnessed
    /// them, which is as new as a start.
    pub(super) async fn running(
        &self,
        journal_id: Uuid,
        as_new_as: i32,
    ) -> Result<Vec<(CallKey, Record, bool)>, Fault> {
        let (client, statements) = self.parts();
        let params: [&(dyn ToSql + Sync); 3] = [&self.owner.epoch, &journal_id, &as_new_as];
        let rows = client.query(&statements.running, &params).await?;
        let mut running = Vec::with_capacity(rows.len());
        for row in rows {
            let (key, record) = key_and_record(&row)?;
            running.push((key, record, row.try_get(2)?));
        }
        Ok(running)
    }

    /// Gives reservations back, in a transaction of its own.
    pub(super) async fn release_all(&mut self, all: &[Reservation]) -> Result<(), Fault> {
        self.begin(Timestamp::UNIX_EPOCH).await?;
        self.release(all).await?;
        self.commit().await
    }

    /// Ends a call, in a transaction of its own.
    pub(super) async fn settle_one(
        &mut self,
        reservation_id: Uuid,
        key: CallKey,
        settlement: &Settlement,
    ) -> Result<Result<(), LedgerFault>, Fault> {
        self.begin(settlement.ended.at).await?;
        let settled = self.settle(reservation_id, key, settlement).await?;
        self.commit().await?;
        Ok(settled)
    }

    /// Gives back what is still held.
    async fn release(&self, reservations: &[Reservation]) -> Result<(), Fault> {
        for reservation in reservations.iter().rev() {
            let (key, id) = (&reservation.key.0.0[..], reservation.id);
            let (client, statements) = self.parts();
            let hold: [&(dyn ToSql + Sync); 3] = [&key, &id, &self.owner.epoch];
            let Some(row) = client.query_opt(&statements.hold, &hold).await? else { continue };
            let record = format::read(row.try_get::<_, &str>(0)?.as_bytes())?;
            if record.state != State::Running {
                continue;
            }
            match reservation.before.as_deref() {
                None => client.execute(&statements.remove_call, &hold).await?,
                Some(before) => {
                    let text = text(before)?;
                    let params: [&(dyn ToSql + Sync); 7] = [
                        &key,
                        &id,
                        &self.owner.epoch,
                        &before.reservation_id,
                        &before.confirmation_id,
                        &before.kept_until().map(ceiling),
                        &text,
                    ];
                    client.execute(&statements.restore_call, &params).await?
                }
            };
            if let Some(ticket) = record.confirmation_id {
                let params: [&(dyn ToSql + Sync); 2] = [&id, &ticket];
                client.execute(&statements.unspend_revoked, &params).await?;
                client.execute(&statements.unspend, &params).await?;
            }
        }
        Ok(())
    }

    /// Ends the call of a reservation.
    pub(super) async fn settle(
        &self,
        reservation_id: Uuid,
        key: CallKey,
        settlement: &Settlement,
    ) -> Result<Result<(), LedgerFault>, Fault> {
        let (client, statements) = self.parts();
        let hold: [&(dyn ToSql + Sync); 3] = [&&key.0.0[..], &reservation_id, &self.owner.epoch];
        let Some(row) = client.query_opt(&statements.hold, &hold).await? else {
            return Ok(Err(LedgerFault::NotHeld));
        };
        let mut record = format::read(row.try_get::<_, &str>(0)?.as_bytes())?;
        let ended = State::Ended(settlement.ended.clone());
        if record.state != State::Running {
            let same = record.state == ended && record.last_attempt == settlement.last_attempt;
            return Ok(if same { Ok(()) } else { Err(LedgerFault::NotHeld) });
        }
        record.state = ended;
        record.last_attempt = settlement.last_attempt;
        let (kept_until, text) = (record.kept_until().map(ceiling), text(&record)?);
        let params: [&(dyn ToSql + Sync); 3] = [&&key.0.0[..], &kept_until, &text];
        client.execute(&statements.end_call, &params).await?;
        self.see(settlement.ended.at, None, false).await?;
        Ok(Ok(()))
    }

    /// Revokes a ticket, spent or not.
    pub(super) async fn revoke(
        &mut self,
        revocation: Revocation,
        skew: std::time::Duration,
    ) -> Result<Revoked, Fault> {
        self.begin(revocation.revoked_at).await?;
        let stand = self.stand().await?;
        let latest = stand.seen.max(stand.mark).max(Some(revocation.revoked_at));
        let expires_at = latest
            .and_then(|latest| latest.checked_add(revocation.lifetime).ok())
            .unwrap_or(Timestamp::MAX);
        let forget_at = forget_at(expires_at, skew);
        let (client, statements) = self.parts();
        let params: [&(dyn ToSql + Sync); 2] = [&revocation.confirmation_id, &forget_at];
        let row = client.query_one(&statements.revoke, &params).await?;
        self.commit().await?;
        Ok(if row.try_get(0)? { Revoked::Spent } else { Revoked::InTime })
    }

    /// Forgets at most `most` records and tickets whose time is over by the mark.
    pub(super) async fn forget(&self, most: usize) -> Result<usize, Fault> {
        let Some(mark) = self.stand().await?.mark else { return Ok(0) };
        let (client, statements) = self.parts();
        let limit = |left: usize| i64::try_from(left).unwrap_or(i64::MAX);
        let params: [&(dyn ToSql + Sync); 2] = [&mark.as_second(), &limit(most)];
        let tickets = match client.query_opt(&statements.forget_tickets, &params).await? {
            Some(row) => usize::try_from(row.try_get::<_, i64>(0)?).unwrap_or(most),
            None => 0,
        };
        let left = limit(most.saturating_sub(tickets));
        let params: [&(dyn ToSql + Sync); 2] = [&mark.as_second(), &left];
        let calls = client.execute(&statements.forget_calls, &params).await?;
        Ok(tickets + usize::try_from(calls).unwrap_or(most))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.in_transaction
            && let Some(object) = self.object.take()
        {
            drop(Object::take(object));
        }
    }
}

impl Stand {
    pub(super) fn read(row: &tokio_postgres::Row) -> Result<Self, Fault> {
        let time = |index: usize| -> Result<Option<Timestamp>, Fault> {
            let micros: Option<i64> = row.try_get(index)?;
            let time = micros.map(Timestamp::from_microsecond).transpose();
            time.map_err(|_| Fault::Content("time"))
        };
        let now = time(0)?.ok_or(Fault::Content("time"))?;
        Ok(Self { now, mark: time(1)?, seen: time(2)? })
    }
}

/// The key and the record of a row's first two columns.
pub(super) fn key_and_record(row: &tokio_postgres::Row) -> Result<(CallKey, Record), Fault> {
    let key: &[u8] = row.try_get(0)?;
    let key = key.try_into().map_err(|_| Fault::Content("key"))?;
    Ok((CallKey(Digest(key)), format::read(row.try_get::<_, &str>(1)?.as_bytes())?))
}

/// A record as it is stored.
pub(super) fn text(record: &Record) -> Result<String, Fault> {
    String::from_utf8(format::write(record)?).map_err(|_| Fault::Content("record"))
}
