//! What the operations of a ledger do within one transaction.

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::error::StoreFault;
use super::tables::Tables;
use crate::adapters::ledger::stored::{StoredTicket as Ticket, forget_at, ticket_use};
use crate::domain::reason::Reason;
use crate::domain::record::{CallKey, Claim, State, TicketShown, TicketUse, Turned, decide};
use crate::domain::watermark::{ClockState, Reading, Watermark};
use crate::failpoint::failpoint;
use crate::ports::{LedgerFault, Reservation, Revocation, Revoked, Settlement};

/// One transaction and what it is judged by. Every operation either does all of
/// what it says or, where it refuses, nothing; a [`StoreFault`] spoils the
/// whole transaction.
pub(super) struct Session<'t, 's> {
    pub(super) tables: Tables<'t>,
    pub(super) clock: &'s mut Watermark,
    /// How far clocks may be apart.
    pub(super) skew: Duration,
}

/// The claim that lost, and what it is answered.
pub(super) type Loser = (usize, Turned);

impl Session<'_, '_> {
    /// Grants all claims or none.
    pub(super) fn reserve(
        &mut self,
        claims: &[Claim],
        at: Reading,
    ) -> Result<Result<Vec<Reservation>, Loser>, StoreFault> {
        if self.observe(at)? == ClockState::Behind {
            return Ok(Err((0, Turned::for_reason(Reason::ClockUntrusted))));
        }
        let mut granted = Vec::with_capacity(claims.len());
        for (index, claim) in claims.iter().enumerate() {
            match self.grant(claim, at.now)? {
                Ok(reservation) => granted.push(reservation),
                Err(turned) => {
                    self.release(granted)?;
                    return Ok(Err((index, turned)));
                }
            }
        }
        Ok(Ok(granted))
    }

    /// Gives back what is still held, the last first.
    pub(super) fn release(&mut self, reservations: Vec<Reservation>) -> Result<(), StoreFault> {
        for reservation in reservations.into_iter().rev() {
            let Some(record) = self.tables.record(reservation.key)? else { continue };
            if record.reservation_id != reservation.id || record.state != State::Running {
                continue;
            }
            match &reservation.before {
                None => self.tables.remove_record(reservation.key)?,
                Some(before) => self.tables.put_record(reservation.key, before)?,
            }
            if let Some(id) = record.confirmation_id {
                self.unspend(id, reservation.id)?;
            }
            failpoint!("releasing-not-committed");
        }
        Ok(())
    }

    /// Ends the call of a reservation.
    pub(super) fn settle(
        &mut self,
        reservation_id: Uuid,
        key: CallKey,
        settlement: Settlement,
    ) -> Result<Result<(), LedgerFault>, StoreFault> {
        let record = self.tables.record(key)?;
        let Some(mut record) = record.filter(|record| record.reservation_id == reservation_id)
        else {
            return Ok(Err(LedgerFault::NotHeld));
        };
        let ended_at = settlement.ended.at;
        let ended = State::Ended(settlement.ended);
        if record.state == State::Running {
            self.tables.see(ended_at)?;
            record.state = ended;
            record.last_attempt = settlement.last_attempt;
            self.tables.put_record(key, &record)?;
            failpoint!("settling-not-committed");
            return Ok(Ok(()));
        }
        let same = record.state == ended && record.last_attempt == settlement.last_attempt;
        Ok(if same { Ok(()) } else { Err(LedgerFault::NotHeld) })
    }

    /// Revokes a ticket, spent or not.
    pub(super) fn revoke(&mut self, revocation: Revocation) -> Result<Revoked, StoreFault> {
        let id = revocation.confirmation_id;
        let latest = self.tables.seen()?.max(self.clock.mark()).max(Some(revocation.revoked_at));
        let expires_at = latest
            .and_then(|latest| latest.checked_add(revocation.lifetime).ok())
            .unwrap_or(Timestamp::MAX);
        let ticket = self.tables.ticket(id)?.unwrap_or(Ticket {
            forget_at: forget_at(expires_at, self.skew),
            revoked: false,
            spent_by: None,
        });
        if !ticket.revoked {
            self.tables.put_ticket(id, Ticket { revoked: true, ..ticket })?;
        }
        Ok(if ticket.spent_by.is_some() { Revoked::Spent } else { Revoked::InTime })
    }

    /// Judges the clock and keeps the mark.
    pub(super) fn observe(&mut self, at: Reading) -> Result<ClockState, StoreFault> {
        let before = self.clock.mark();
        let state = self.clock.observe(at);
        self.tables.see(at.now)?;
        if self.clock.mark() != before {
            self.keep_mark()?;
        }
        Ok(state)
    }

    /// Believes the clock.
    pub(super) fn accept_clock(&mut self, at: Reading) -> Result<(), StoreFault> {
        // Not shown as seen: a ledger too old for its journal stays that.
        self.clock.accept(at);
        self.keep_mark()
    }

    /// Moves the mark on.
    pub(super) fn advance_clock(&mut self, now: Timestamp) -> Result<(), StoreFault> {
        self.clock.advance(now);
        self.tables.see(now)?;
        self.keep_mark()
    }

    /// Forgets at most `most` records and tickets.
    pub(super) fn forget_expired(&mut self, most: usize) -> Result<usize, StoreFault> {
        self.clock.mark().map_or(Ok(0), |mark| self.tables.forget(mark, most))
    }

    fn grant(
        &mut self,
        claim: &Claim,
        now: Timestamp,
    ) -> Result<Result<Reservation, Turned>, StoreFault> {
        let before = self.tables.record(claim.key)?;
        let known = self.ticket_use(claim.ticket)?;
        let opening = match decide(before.as_ref(), claim, known, now) {
            Ok(opening) => opening,
            Err(turned) => return Ok(Err(turned)),
        };
        let id = Uuid::new_v4();
        if let TicketShown::Verified { confirmation_id, expires_at } = claim.ticket {
            let forget_at = forget_at(expires_at, self.skew);
            let ticket = Ticket { forget_at, revoked: false, spent_by: Some(id) };
            self.tables.put_ticket(confirmation_id, ticket)?;
        }
        self.tables.put_record(claim.key, &claim.open(opening, before.as_ref(), id, now))?;
        failpoint!("reserving-not-committed");
        Ok(Ok(Reservation {
            id,
            key: claim.key,
            first_attempt: opening.first_attempt,
            before: before.map(Box::new),
        }))
    }

    fn unspend(&mut self, id: Uuid, reservation_id: Uuid) -> Result<(), StoreFault> {
        match self.tables.ticket(id)? {
            Some(ticket) if ticket.spent_by != Some(reservation_id) => Ok(()),
            Some(ticket) if ticket.revoked => {
                self.tables.put_ticket(id, Ticket { spent_by: None, ..ticket })
            }
            Some(ticket) => self.tables.remove_ticket(id, ticket),
            None => Ok(()),
        }
    }

    fn ticket_use(&self, shown: TicketShown) -> Result<TicketUse, StoreFault> {
        let TicketShown::Verified { confirmation_id, expires_at } = shown else {
            return Ok(TicketUse::Unused);
        };
        let ticket = self.tables.ticket(confirmation_id)?;
        Ok(ticket_use(ticket, self.tables.forgotten()?, forget_at(expires_at, self.skew)))
    }

    fn keep_mark(&mut self) -> Result<(), StoreFault> {
        self.clock.mark().map_or(Ok(()), |mark| self.tables.set_mark(mark))
    }
}
