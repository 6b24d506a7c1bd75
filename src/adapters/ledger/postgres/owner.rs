//! Who answers for running calls.
//!
//! Every start of a gate is an owner with an epoch of its own, and every running
//! call has one. Nobody is taken over because time has passed: a successor must
//! show that the owner is dead. Either it holds the journal that the owner has
//! written, whose lock nobody can have twice ([`Owner::succeed`]); or the owner's
//! session is gone from the server, and the owner has given no sign of life for a
//! while and not come back ([`fence`]). Whoever is taken over is *fenced*: it
//! changes nothing any more, whether it is dead or was only cut off. A fence waits
//! for what the fenced one has on its way.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::error::Fault;
use super::statements::{ALIVE, WORKING};

/// A start of a gate, as the database knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) epoch: i32,
    /// A database that was restored may give an epoch again, but not with this.
    pub(super) token: Uuid,
    /// The ledger on which it started.
    pub(super) ledger_id: Uuid,
}

/// The ledger's id, which an operator may change.
#[derive(Debug, Clone)]
pub(super) struct Identity(Arc<RwLock<Uuid>>);

impl Identity {
    pub(super) fn new(id: Uuid) -> Self {
        Self(Arc::new(RwLock::new(id)))
    }

    pub(super) fn get(&self) -> Uuid {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, id: Uuid) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = id;
    }

    /// The owner on the ledger as it is called now.
    pub(super) fn of(&self, owner: Owner) -> Owner {
        Owner { ledger_id: self.get(), ..owner }
    }
}

impl Owner {
    /// Starts on a ledger. What the starts before it with the same journal have
    /// left running is this one's from now on, and they are fenced.
    pub(super) async fn succeed(
        client: &mut Client,
        ledger_id: Uuid,
        journal_id: Uuid,
        takeover_after: Duration,
    ) -> Result<Self, Fault> {
        let token = Uuid::new_v4();
        let transaction = client.transaction().await?;
        let epoch: Option<i32> =
            transaction.client().query_opt_scalar(NEXT_EPOCH, &[&ledger_id]).await?;
        let epoch = epoch.ok_or(Fault::Fenced)?;
        let after = microseconds(takeover_after);
        transaction.execute(REGISTER, &[&epoch, &token, &journal_id, &after]).await?;
        transaction.execute(CLEAN, &[]).await?;
        transaction.execute(CLEAN_WORK, &[]).await?;
        for row in transaction.query(BEFORE, &[&journal_id, &epoch]).await? {
            let dead: i32 = row.try_get(0)?;
            transaction.execute(WAIT_FOR_WORK, &[&WORKING, &dead]).await?;
            transaction.execute(FENCE, &[&dead, &epoch]).await?;
            transaction.execute(ADOPT, &[&dead, &epoch]).await?;
        }
        transaction.commit().await?;
        Ok(Self { epoch, token, ledger_id })
    }

    /// Whether the database still knows this owner, at least at this sign of life.
    pub(super) async fn check(&self, client: &Client, beats: i64) -> Result<(), Fault> {
        let row =
            client.query_opt(STANDS, &[&self.ledger_id, &self.epoch, &self.token, &beats]).await?;
        match row {
            Some(_) => Ok(()),
            None => Err(self.why_not(client).await),
        }
    }

    /// Why the database does not know this owner as it should.
    pub(super) async fn why_not(&self, client: &Client) -> Fault {
        match client.query_opt(FENCED, &[&self.epoch, &self.token]).await {
            Ok(Some(_)) => Fault::Fenced,
            Ok(None) => Fault::WentBack,
            Err(error) => error.into(),
        }
    }

    /// Whether the session's lock is taken, which tells others that this process lives.
    pub(super) async fn hold(&self, client: &Client) -> Result<bool, Fault> {
        let held = "SELECT pg_try_advisory_lock($1, $2)";
        Ok(client.query_one_scalar(held, &[&ALIVE, &self.epoch]).await?)
    }

    /// Gives the sign of life after this one, which the database must have, or
    /// have just got.
    pub(super) async fn beat(&self, client: &Client, beats: i64) -> Result<i64, Fault> {
        let next = beats.saturating_add(1);
        let params: [&(dyn ToSql + Sync); 4] = [&self.epoch, &self.token, &beats, &next];
        match client.execute(BEAT, &params).await? {
            0 => Err(self.why_not(client).await),
            _ => Ok(next),
        }
    }

    /// Says to all gates that the ledger lacks what it has acknowledged.
    pub(super) async fn condemn(&self, client: &Client) -> Result<(), Fault> {
        client.execute(CONDEMN, &[&self.ledger_id]).await?;
        Ok(())
    }

    /// Says that nothing of it is left, if that is so.
    pub(super) async fn end(&self, client: &Client) -> Result<(), Fault> {
        client.execute(END, &[&self.epoch, &self.token]).await?;
        Ok(())
    }
}

/// The owners that have given no sign of life for this long.
pub(super) async fn silent(
    client: &Client,
    own: i32,
    for_so_long: Duration,
) -> Result<Vec<i32>, Fault> {
    let rows = client.query(SILENT, &[&own, &microseconds(for_so_long)]).await?;
    rows.iter().map(|row: &Row| Ok(row.try_get(0)?)).collect()
}

/// Takes over what a silent owner has left running, if its session is gone;
/// whether it did.
pub(super) async fn fence(
    client: &mut Client,
    dead: i32,
    successor: Owner,
    for_so_long: Duration,
) -> Result<bool, Fault> {
    let transaction = client.transaction().await?;
    let is_gone = "SELECT pg_try_advisory_xact_lock($1, $2)";
    let client = transaction.client();
    if !client.query_one_scalar::<bool, _>(is_gone, &[&ALIVE, &dead]).await? {
        return Ok(false);
    }
    transaction.execute(WAIT_FOR_WORK, &[&WORKING, &dead]).await?;
    let silence = microseconds(for_so_long);
    let stands: [&(dyn ToSql + Sync); 3] =
        [&successor.ledger_id, &successor.epoch, &successor.token];
    if transaction.query_opt(STANDS_AT_ALL, &stands).await?.is_none() {
        return Err(Fault::Fenced);
    }
    if transaction.execute(FENCE_SILENT, &[&dead, &successor.epoch, &silence]).await? == 0 {
        return Ok(false);
    }
    transaction.execute(ADOPT, &[&dead, &successor.epoch]).await?;
    transaction.commit().await?;
    Ok(true)
}

/// How many other owners are alive: their sessions hold their locks.
pub(super) async fn alive(client: &Client, own: Option<i32>) -> Result<i32, Fault> {
    Ok(client.query_one_scalar(COUNT_ALIVE, &[&ALIVE, &own]).await?)
}

fn microseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// The class of the lock is an oid in `pg_locks`, which has the same 32 bits.
const COUNT_ALIVE: &str = "
    SELECT count(*)::integer FROM toolgate.owners o
     WHERE o.fenced_by IS NULL AND o.ended_us IS NULL AND o.epoch IS DISTINCT FROM $2
       AND EXISTS (SELECT FROM pg_locks l
                    WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
                      AND l.database = (SELECT oid FROM pg_database
                                         WHERE datname = current_database())
                      AND l.classid::bigint = $1::integer::bigint
                      AND l.objid::bigint = o.epoch::bigint)";

const NEXT_EPOCH: &str =
    "UPDATE toolgate.ledger SET epoch = epoch + 1 WHERE id = $1 RETURNING epoch";

const REGISTER: &str = "
    INSERT INTO toolgate.owners (epoch, token, journal_id, takeover_us, started_us, seen_us)
    SELECT $1, $2, $3, $4, now, now FROM toolgate.now_us() now";

/// Owners of long ago that nobody asks for any more: a journal's newest after 400
/// days, the others after 30.
const CLEAN: &str = "
    DELETE FROM toolgate.owners o
     WHERE (fenced_by IS NOT NULL OR ended_us IS NOT NULL)
       AND seen_us < toolgate.now_us() - CASE
               WHEN EXISTS (SELECT FROM toolgate.owners later
                             WHERE later.journal_id = o.journal_id AND later.epoch > o.epoch)
               THEN 2592000000000 ELSE 34560000000000 END
       AND NOT EXISTS (SELECT FROM toolgate.calls c WHERE c.owner = o.epoch AND c.running)";

const CLEAN_WORK: &str = "
    DELETE FROM toolgate.work w
     WHERE NOT EXISTS (SELECT FROM toolgate.owners o WHERE o.epoch = w.epoch)";

/// The starts with a journal that were not taken over yet.
const BEFORE: &str = "
    SELECT epoch FROM toolgate.owners
     WHERE journal_id = $1 AND epoch <> $2 AND fenced_by IS NULL ORDER BY epoch";

/// Everything that an owner has on its way is committed, or never will be.
const WAIT_FOR_WORK: &str = "SELECT pg_advisory_xact_lock($1, $2)";

const FENCE: &str =
    "UPDATE toolgate.owners SET fenced_by = $2 WHERE epoch = $1 AND fenced_by IS NULL";

const FENCE_SILENT: &str = "
    UPDATE toolgate.owners SET fenced_by = $2
     WHERE epoch = $1 AND fenced_by IS NULL AND ended_us IS NULL
       AND seen_us < toolgate.now_us() - greatest($3::bigint, takeover_us)";

/// The witness stays who it was.
const ADOPT: &str = "UPDATE toolgate.calls SET owner = $2 WHERE owner = $1 AND running";

const STANDS: &str = "
    SELECT FROM toolgate.ledger l JOIN toolgate.owners o ON o.epoch = $2
     WHERE l.id = $1 AND l.lacks_us IS NULL
       AND o.token = $3 AND o.fenced_by IS NULL AND o.beats >= $4";

const STANDS_AT_ALL: &str = "
    SELECT FROM toolgate.ledger l JOIN toolgate.owners o ON o.epoch = $2
     WHERE l.id = $1 AND o.token = $3 AND o.fenced_by IS NULL";

const FENCED: &str = "
    SELECT FROM toolgate.owners WHERE epoch = $1 AND token = $2 AND fenced_by IS NOT NULL";

/// One whose answer was lost may have been counted.
const BEAT: &str = "
    UPDATE toolgate.owners SET beats = $4, seen_us = toolgate.now_us()
     WHERE epoch = $1 AND token = $2 AND fenced_by IS NULL AND beats BETWEEN $3 AND $4";

const CONDEMN: &str = "
    UPDATE toolgate.ledger SET lacks_us = toolgate.now_us() WHERE id = $1 AND lacks_us IS NULL";

const END: &str = "
    UPDATE toolgate.owners o SET ended_us = toolgate.now_us()
     WHERE epoch = $1 AND token = $2 AND fenced_by IS NULL
       AND NOT EXISTS (SELECT FROM toolgate.calls c WHERE c.owner = o.epoch AND c.running)";

/// A server that has just started has seen nobody yet.
const SILENT: &str = "
    SELECT epoch FROM toolgate.owners
     WHERE epoch <> $1 AND fenced_by IS NULL AND ended_us IS NULL
       AND seen_us < toolgate.now_us() - greatest($2::bigint, takeover_us)
       AND pg_postmaster_start_time() < clock_timestamp() - ($2::bigint * interval '1 microsecond')
     ORDER BY epoch LIMIT 64";
