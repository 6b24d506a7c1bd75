//! What is asked of the database, prepared once for each connection.

use tokio_postgres::{Client, Error, Statement};

/// Every statement of the operations.
pub(super) struct Statements {
    pub(super) work: Statement,
    pub(super) stand: Statement,
    pub(super) note: Statement,
    pub(super) take_ticket: Statement,
    pub(super) ticket: Statement,
    pub(super) open_call: Statement,
    pub(super) lock_call: Statement,
    pub(super) reopen_call: Statement,
    pub(super) forgotten: Statement,
    pub(super) see: Statement,
    pub(super) move_mark: Statement,
    pub(super) look: Statement,
    pub(super) running: Statement,
    pub(super) hold: Statement,
    pub(super) end_call: Statement,
    pub(super) restore_call: Statement,
    pub(super) remove_call: Statement,
    pub(super) unspend_revoked: Statement,
    pub(super) unspend: Statement,
    pub(super) revoke: Statement,
    pub(super) forget_tickets: Statement,
    pub(super) forget_calls: Statement,
}

impl Statements {
    pub(super) async fn prepare(client: &Client) -> Result<Self, Error> {
        Ok(Self {
            work: client.prepare(WORK).await?,
            stand: client.prepare(STAND).await?,
            note: client.prepare(NOTE).await?,
            take_ticket: client.prepare(TAKE_TICKET).await?,
            ticket: client.prepare(TICKET).await?,
            open_call: client.prepare(OPEN_CALL).await?,
            lock_call: client.prepare(LOCK_CALL).await?,
            reopen_call: client.prepare(REOPEN_CALL).await?,
            forgotten: client.prepare(FORGOTTEN).await?,
            see: client.prepare(SEE).await?,
            move_mark: client.prepare(MOVE_MARK).await?,
            look: client.prepare(LOOK).await?,
            running: client.prepare(RUNNING).await?,
            hold: client.prepare(HOLD).await?,
            end_call: client.prepare(END_CALL).await?,
            restore_call: client.prepare(RESTORE_CALL).await?,
            remove_call: client.prepare(REMOVE_CALL).await?,
            unspend_revoked: client.prepare(UNSPEND_REVOKED).await?,
            unspend: client.prepare(UNSPEND).await?,
            revoke: client.prepare(REVOKE).await?,
            forget_tickets: client.prepare(FORGET_TICKETS).await?,
            forget_calls: client.prepare(FORGET_CALLS).await?,
        })
    }
}

/// Advisory locks on the epoch of an owner. The class of the one that a
/// transaction shares while it opens calls for it; a successor takes it alone.
pub(super) const WORKING: i32 = 0x7467_7700;
/// The class of the one that its process holds for as long as it is connected.
pub(super) const ALIVE: i32 = 0x7467_6100;

const WORK: &str = "SELECT pg_advisory_xact_lock_shared($1, $2)";

/// The time, and what it is judged by. Nothing where another ledger is here by
/// now or this one lacks something, or where a successor has taken over.
const STAND: &str = "
    SELECT toolgate.now_us(), c.mark_us, c.seen_us
      FROM toolgate.ledger l, toolgate.clock c
     WHERE l.id = $1 AND l.lacks_us IS NULL
       AND EXISTS (SELECT FROM toolgate.owners
                    WHERE epoch = $2 AND token = $3 AND fenced_by IS NULL)";

/// Counts a commit, in the row of the connection.
const NOTE: &str = "
    INSERT INTO toolgate.work AS w (epoch, slot, number, shown_us) VALUES ($1, $2, $3, $4)
    ON CONFLICT (epoch, slot) DO UPDATE
       SET number = $3, shown_us = greatest(w.shown_us, $4)";

/// The claim on a ticket: whoever inserts it has spent it.
const TAKE_TICKET: &str = "
    INSERT INTO toolgate.tickets (id, forget_at, revoked, spent_by)
    VALUES ($1, $2, false, $3) ON CONFLICT (id) DO NOTHING";

/// What is known of a ticket, and of those that are forgotten, at one moment.
const TICKET: &str = "
    SELECT l.forgotten, t.revoked, t.spent_by
      FROM toolgate.ledger l LEFT JOIN toolgate.tickets t ON t.id = $1";

/// The claim on a call: whoever inserts its record has opened it.
const OPEN_CALL: &str = "
    INSERT INTO toolgate.calls
           (key, reservation_id, running, owner, witness, confirmation_id, record)
    VALUES ($1, $2, true, $3, $3, $4, $5) ON CONFLICT (key) DO NOTHING";

const LOCK_CALL: &str = "SELECT record FROM toolgate.calls WHERE key = $1 FOR UPDATE";

/// In the place of an ended record that is locked.
const REOPEN_CALL: &str = "
    UPDATE toolgate.calls
       SET reservation_id = $2, running = true, owner = $3, witness = $3,
           confirmation_id = $4, forget_at = NULL, record = $5
     WHERE key = $1";

const FORGOTTEN: &str = "SELECT forgotten, toolgate.now_us() FROM toolgate.ledger";

/// Shows a time that is a second later, or more, than the last one. Passed over
/// while somebody else does: the next will. No transaction waits for another here.
const SEE: &str = "
    UPDATE toolgate.clock c SET seen_us = greatest(c.seen_us, $1::bigint),
           mark_us = greatest(c.mark_us, $2::bigint)
      FROM (SELECT one FROM toolgate.clock
             WHERE coalesce(seen_us < $1::bigint - 1000000, true)
                OR $2::bigint IS NOT NULL AND coalesce(mark_us < $2::bigint - 1000000, true)
               FOR UPDATE SKIP LOCKED) free
     WHERE c.one = free.one";

/// The same, waiting for it.
const MOVE_MARK: &str = "
    UPDATE toolgate.clock
       SET seen_us = greatest(seen_us, $1), mark_us = greatest(mark_us, $2)";

const LOOK: &str = "SELECT record FROM toolgate.calls WHERE key = $1";

/// The calls of an owner, and whether a journal has witnessed them: it is that of
/// the start that reserved them, and as new, or the owner's own.
const RUNNING: &str = "
    SELECT c.key, c.record,
           EXISTS (SELECT FROM toolgate.owners o
                    WHERE o.epoch = c.witness AND o.journal_id = $2
                      AND (o.epoch <= $3 OR o.epoch = $1))
      FROM toolgate.calls c WHERE c.owner = $1 AND c.running";

/// The record of a reservation, locked, if it is this owner's.
const HOLD: &str = "
    SELECT record FROM toolgate.calls
     WHERE key = $1 AND reservation_id = $2 AND owner = $3 FOR UPDATE";

const END_CALL: &str = "
    UPDATE toolgate.calls SET running = false, forget_at = $2, record = $3 WHERE key = $1";

/// Gives a reservation back: what was before stands again.
const RESTORE_CALL: &str = "
    UPDATE toolgate.calls
       SET reservation_id = $4, running = false, confirmation_id = $5, forget_at = $6, record = $7
     WHERE key = $1 AND reservation_id = $2 AND owner = $3 AND running";

const REMOVE_CALL: &str = "
    DELETE FROM toolgate.calls
     WHERE key = $1 AND reservation_id = $2 AND owner = $3 AND running";

const UNSPEND_REVOKED: &str = "
    UPDATE toolgate.tickets SET spent_by = NULL WHERE spent_by = $1 AND id = $2 AND revoked";

const UNSPEND: &str = "
    DELETE FROM toolgate.tickets WHERE spent_by = $1 AND id = $2 AND NOT revoked";

const REVOKE: &str = "
    INSERT INTO toolgate.tickets (id, forget_at, revoked) VALUES ($1, $2, true)
    ON CONFLICT (id) DO UPDATE SET revoked = true
    RETURNING spent_by IS NOT NULL";

/// At most so many, and what is forgotten by now, in one step.
const FORGET_TICKETS: &str = "
    WITH past AS (
        SELECT id FROM toolgate.tickets WHERE forget_at <= $1
         ORDER BY forget_at LIMIT $2 FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM toolgate.tickets t USING past WHERE t.id = past.id RETURNING t.forget_at
    ), counted AS (
        SELECT count(*) AS count, max(forget_at) AS newest FROM gone
    )
    UPDATE toolgate.ledger l SET forgotten = greatest(l.forgotten, counted.newest)
      FROM counted WHERE counted.count > 0
    RETURNING counted.count";

const FORGET_CALLS: &str = "
    WITH past AS (
        SELECT key FROM toolgate.calls WHERE NOT running AND forget_at <= $1
         ORDER BY forget_at LIMIT $2 FOR UPDATE SKIP LOCKED
    )
    DELETE FROM toolgate.calls c USING past WHERE c.key = past.key";
