//! What is stored, and the indexes that must agree with it.

use jiff::Timestamp;
use redb::{
    Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, Table, TableDefinition,
    WriteTransaction,
};
use uuid::Uuid;

use super::error::StoreFault;
use crate::adapters::ledger::format;
use crate::adapters::ledger::stored::{StoredTicket as Ticket, ceiling};
use crate::domain::audit::Digest;
use crate::domain::generation::Renewed;
use crate::domain::record::{CallKey, Record};

/// A record as JSON, by its key.
const RECORDS: TableDefinition<&[u8; 32], &[u8]> = TableDefinition::new("records");
/// The keys of the records that have not ended.
const RUNNING: TableDefinition<&[u8; 32], ()> = TableDefinition::new("running");
/// The keys of those that have, by the second from which on they may be forgotten.
const RECORDS_BY_TIME: TableDefinition<(i64, &[u8; 32]), ()> =
    TableDefinition::new("records_by_time");
/// Spent and revoked tickets: (may be forgotten from this second on, whether
/// revoked, the reservation that spent it).
const TICKETS: TableDefinition<u128, (i64, bool, Option<u128>)> = TableDefinition::new("tickets");
/// Their ids, by that second.
const TICKETS_BY_TIME: TableDefinition<(i64, u128), ()> = TableDefinition::new("tickets_by_time");
/// [`MARK`], [`SEEN`] and [`FORGOTTEN`].
const CLOCK: TableDefinition<&str, i64> = TableDefinition::new("clock");
/// [`NUMBER`] and [`RENEWED`].
const GENERATION: TableDefinition<&str, u64> = TableDefinition::new("generation");

/// The high-water mark, in microseconds.
const MARK: &str = "mark";
/// The latest time that was shown, believed or not, in microseconds.
const SEEN: &str = "seen";
/// Tickets that may be forgotten from this second on have been.
const FORGOTTEN: &str = "forgotten";
/// How often a gate has started on the ledger.
const NUMBER: &str = "number";
/// [`NUMBER`] as it was when the ledger last got a new identity.
const RENEWED: &str = "renewed";

/// All tables of one write transaction.
pub(super) struct Tables<'t> {
    records: Table<'t, &'static [u8; 32], &'static [u8]>,
    running: Table<'t, &'static [u8; 32], ()>,
    records_by_time: Table<'t, (i64, &'static [u8; 32]), ()>,
    tickets: Table<'t, u128, (i64, bool, Option<u128>)>,
    tickets_by_time: Table<'t, (i64, u128), ()>,
    clock: Table<'t, &'static str, i64>,
    generation: Table<'t, &'static str, u64>,
}

impl<'t> Tables<'t> {
    /// Opens all tables, and makes those that are missing.
    pub(super) fn open(transaction: &'t WriteTransaction) -> Result<Self, StoreFault> {
        Ok(Self {
            records: transaction.open_table(RECORDS)?,
            running: transaction.open_table(RUNNING)?,
            records_by_time: transaction.open_table(RECORDS_BY_TIME)?,
            tickets: transaction.open_table(TICKETS)?,
            tickets_by_time: transaction.open_table(TICKETS_BY_TIME)?,
            clock: transaction.open_table(CLOCK)?,
            generation: transaction.open_table(GENERATION)?,
        })
    }

    pub(super) fn record(&self, key: CallKey) -> Result<Option<Record>, StoreFault> {
        record_in(&self.records, key)
    }

    /// Stores a record in the place of the one that its key has.
    pub(super) fn put_record(&mut self, key: CallKey, record: &Record) -> Result<(), StoreFault> {
        self.unindex_record(key)?;
        self.records.insert(&key.0.0, &*format::write(record)?)?;
        match record.kept_until() {
            None => self.running.insert(&key.0.0, ())?,
            Some(until) => self.records_by_time.insert((ceiling(until), &key.0.0), ())?,
        };
        Ok(())
    }

    pub(super) fn remove_record(&mut self, key: CallKey) -> Result<(), StoreFault> {
        self.unindex_record(key)?;
        self.records.remove(&key.0.0)?;
        Ok(())
    }

    fn unindex_record(&mut self, key: CallKey) -> Result<(), StoreFault> {
        match self.record(key)?.map(|record| record.kept_until()) {
            None => {}
            Some(None) => drop(self.running.remove(&key.0.0)?),
            Some(Some(until)) => {
                self.records_by_time.remove((ceiling(until), &key.0.0))?;
            }
        }
        Ok(())
    }

    pub(super) fn ticket(&self, id: Uuid) -> Result<Option<Ticket>, StoreFault> {
        ticket_in(&self.tickets, id)
    }

    /// Stores a ticket. Its time never changes.
    pub(super) fn put_ticket(&mut self, id: Uuid, ticket: Ticket) -> Result<(), StoreFault> {
        let spent_by = ticket.spent_by.map(|id| id.as_u128());
        self.tickets.insert(id.as_u128(), (ticket.forget_at, ticket.revoked, spent_by))?;
        self.tickets_by_time.insert((ticket.forget_at, id.as_u128()), ())?;
        Ok(())
    }

    pub(super) fn remove_ticket(&mut self, id: Uuid, ticket: Ticket) -> Result<(), StoreFault> {
        self.tickets.remove(id.as_u128())?;
        self.tickets_by_time.remove((ticket.forget_at, id.as_u128()))?;
        Ok(())
    }

    pub(super) fn set_mark(&mut self, mark: Timestamp) -> Result<(), StoreFault> {
        self.clock.insert(MARK, mark.as_microsecond())?;
        Ok(())
    }

    /// Keeps the latest time that was shown.
    pub(super) fn see(&mut self, now: Timestamp) -> Result<(), StoreFault> {
        let seen = self.clock.get(SEEN)?.map_or(i64::MIN, |seen| seen.value());
        if now.as_microsecond() > seen {
            self.clock.insert(SEEN, now.as_microsecond())?;
        }
        Ok(())
    }

    /// The latest time that was shown.
    pub(super) fn seen(&self) -> Result<Option<Timestamp>, StoreFault> {
        time_in(&self.clock, SEEN)
    }

    /// Counts a start.
    pub(super) fn set_generation(&mut self, number: u64) -> Result<(), StoreFault> {
        self.generation.insert(NUMBER, number)?;
        Ok(())
    }

    /// Remembers that the ledger has got a new identity since its last start.
    pub(super) fn set_renewed(&mut self) -> Result<(), StoreFault> {
        let number = self.generation.get(NUMBER)?.map_or(0, |number| number.value());
        self.generation.insert(RENEWED, number)?;
        Ok(())
    }

    /// Tickets that may be forgotten up to this second have been.
    pub(super) fn forgotten(&self) -> Result<i64, StoreFault> {
        forgotten_in(&self.clock)
    }

    /// Removes at most `most` ended records and tickets whose time is over at `now`.
    pub(super) fn forget(&mut self, now: Timestamp, most: usize) -> Result<usize, StoreFault> {
        let tickets = self.forget_tickets(now.as_second(), most)?;
        let records = self.forget_records(now.as_second(), most - tickets)?;
        Ok(tickets + records)
    }

    fn forget_tickets(&mut self, now: i64, most: usize) -> Result<usize, StoreFault> {
        let mut past = Vec::new();
        for row in self.tickets_by_time.range(..=(now, u128::MAX))?.take(most) {
            past.push(row?.0.value());
        }
        for &(time, id) in &past {
            self.tickets_by_time.remove((time, id))?;
            self.tickets.remove(id)?;
        }
        if let Some(&(newest, _)) = past.last()
            && newest > self.forgotten()?
        {
            self.clock.insert(FORGOTTEN, newest)?;
        }
        Ok(past.len())
    }

    fn forget_records(&mut self, now: i64, most: usize) -> Result<usize, StoreFault> {
        let mut past = Vec::new();
        for row in self.records_by_time.range(..=(now, &[0xff; 32]))?.take(most) {
            let (key, _) = row?;
            let (time, key) = key.value();
            past.push((time, *key));
        }
        for (time, key) in &past {
            self.records_by_time.remove((*time, key))?;
            self.records.remove(key)?;
        }
        Ok(past.len())
    }
}

/// What a store holds when it is opened.
pub(super) struct Prepared {
    /// Whether it was ever used.
    pub(super) used: bool,
    /// The high-water mark.
    pub(super) mark: Option<Timestamp>,
    /// The latest time that was shown.
    pub(super) seen: Option<Timestamp>,
    /// How often a gate has started on it.
    pub(super) generation: u64,
    /// Whether it has got a new identity since.
    pub(super) renewed: Renewed,
}

/// Makes the tables where they are missing, and says what they hold.
pub(super) fn prepare(database: &Database) -> Result<Prepared, StoreFault> {
    let transaction = database.begin_write()?;
    let tables = Tables::open(&transaction)?;
    let mark = time_in(&tables.clock, MARK)?;
    let seen = tables.seen()?;
    let used = mark.is_some() || !tables.records.is_empty()? || !tables.tickets.is_empty()?;
    let generation = tables.generation.get(NUMBER)?.map_or(0, |number| number.value());
    let renewed = tables.generation.get(RENEWED)?.map(|number| number.value());
    // A start that died may have counted and gone no further.
    let is_since = renewed.is_some_and(|at| generation <= at.saturating_add(1));
    let renewed = if is_since { Renewed::SinceLastStart } else { Renewed::Not };
    drop(tables);
    transaction.commit()?;
    Ok(Prepared { used, mark, seen, generation, renewed })
}

/// The record of a key, as committed last.
pub(super) fn read_record(database: &Database, key: CallKey) -> Result<Option<Record>, StoreFault> {
    record_in(&database.begin_read()?.open_table(RECORDS)?, key)
}

/// A ticket and the second up to which tickets are forgotten, as committed last.
pub(super) fn read_ticket(
    database: &Database,
    id: Uuid,
) -> Result<(Option<Ticket>, i64), StoreFault> {
    let transaction = database.begin_read()?;
    let ticket = ticket_in(&transaction.open_table(TICKETS)?, id)?;
    Ok((ticket, forgotten_in(&transaction.open_table(CLOCK)?)?))
}

/// The records that have not ended, as committed last.
pub(super) fn read_running(database: &Database) -> Result<Vec<(CallKey, Record)>, StoreFault> {
    let transaction = database.begin_read()?;
    let records = transaction.open_table(RECORDS)?;
    let mut running = Vec::new();
    for row in transaction.open_table(RUNNING)?.iter()? {
        let key = CallKey(Digest(*row?.0.value()));
        let record = record_in(&records, key)?.ok_or(StoreFault::Content("running"))?;
        running.push((key, record));
    }
    Ok(running)
}

fn record_in(
    records: &impl ReadableTable<&'static [u8; 32], &'static [u8]>,
    key: CallKey,
) -> Result<Option<Record>, StoreFault> {
    match records.get(&key.0.0)? {
        None => Ok(None),
        Some(bytes) => Ok(Some(format::read(bytes.value())?)),
    }
}

fn ticket_in(
    tickets: &impl ReadableTable<u128, (i64, bool, Option<u128>)>,
    id: Uuid,
) -> Result<Option<Ticket>, StoreFault> {
    Ok(tickets.get(id.as_u128())?.map(|row| {
        let (forget_at, revoked, spent_by) = row.value();
        Ticket { forget_at, revoked, spent_by: spent_by.map(Uuid::from_u128) }
    }))
}

fn time_in(
    clock: &impl ReadableTable<&'static str, i64>,
    name: &'static str,
) -> Result<Option<Timestamp>, StoreFault> {
    let time = clock.get(name)?.map(|time| Timestamp::from_microsecond(time.value()));
    time.transpose().map_err(|_| StoreFault::Content(name))
}

fn forgotten_in(clock: &impl ReadableTable<&'static str, i64>) -> Result<i64, StoreFault> {
    Ok(clock.get(FORGOTTEN)?.map_or(i64::MIN, |second| second.value()))
}
