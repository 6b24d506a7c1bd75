//! What a start makes of the calls that a killed process left behind.

use std::collections::HashSet;
use std::sync::Arc;

use super::StartError;
use super::ledger::{Started, Unsettled, Unstarted};
use super::open_journal::open_journal;
use crate::adapters::journal::{JournalFiles, JournalOptions, Recovered};
use crate::domain::audit::{CallName, Entry, Event};
use crate::domain::contract::ToolEffect;
use crate::domain::generation::{self, JournalFound, LedgerOld};
use crate::domain::policy::PolicySnapshot;
use crate::domain::record::{CallKey, Record};
use crate::domain::recovery;
use crate::failpoint::failpoint;
use crate::ports::{Clock, Durability, Journal as _, Ledger, Settlement};
use crate::telemetry::metrics::ToolMetrics;

/// Lost pairs that one append closes. There may be more of them than the smallest
/// `limits.journal_queue_events` takes at once.
const CLOSED_AT_ONCE: usize = 32;

/// Opens the journal, starts on the ledger, closes the pairs that were left open
/// and settles the calls that were left running: first the journal, which is what
/// settling reads.
pub(super) async fn open_and_recover(
    options: JournalOptions,
    ledger: Option<Unstarted>,
    policy: &PolicySnapshot,
    clock: &dyn Clock,
    tool_metrics: &ToolMetrics,
) -> Result<(JournalFiles, Option<Started>), StartError> {
    let running = match &ledger {
        Some(ledger) => ledger.running().await?,
        None => Vec::new(),
    };
    failpoint!("journal-not-opened");
    let watched: HashSet<CallName> =
        running.iter().map(|(_, record)| CallName::of(&record.started)).collect();
    let watched_from = running.iter().map(|(_, record)| record.started.time).min();
    let options = JournalOptions { watched: watched.clone(), watched_from, ..options };
    let (journal, recovered) = open_journal(options).await?;
    if recovered.cut_bytes > 0 {
        tracing::warn!(bytes = recovered.cut_bytes, "a torn tail of the journal was cut");
    }
    let Some(ledger) = ledger else {
        failpoint!("pairs-not-closed", if !recovered.open.is_empty());
        let close = |started| recovery::close_pair(started, None, clock.now());
        let closed = recovered.open.iter().map(|started| close(started)).collect();
        append_closed(&journal, closed, tool_metrics).await?;
        return Ok((journal, None));
    };
    let found = JournalFound {
        beside: recovered.beside.clone(),
        newest_recorded: recovered.newest_recorded,
    };
    let ledger_found = ledger.found(journal.id(), recovered.beside.as_ref()).await?;
    let witnesses = generation::compare(&ledger_found, &found);
    let witnesses = witnesses.map_err(|LedgerOld| StartError::LedgerOld)?;
    let is_shared = ledger_found.is_shared;
    let (ledger, unsettled) = ledger.start(journal.id(), recovered.beside.as_ref()).await?;
    let port = ledger.port();
    failpoint!("pairs-not-closed", if !recovered.open.is_empty());
    let closed = if witnesses.ledger_is_whole {
        closed_by(&*port, &recovered.open, clock).await?
    } else {
        // What was not here cannot say what it knew.
        closed_unaccounted(&recovered.open, policy, clock)
    };
    append_closed(&journal, closed, tool_metrics).await?;
    failpoint!("pairs-closed-not-settled", if !unsettled.is_empty());
    if !unsettled.is_empty() {
        let count = unsettled.len();
        tracing::warn!(count, "settling the calls that a killed process left running");
    }
    for Unsettled { key, record, is_of_this_journal } in unsettled {
        let was_watched = watched.contains(&CallName::of(&record.started));
        let is_witnessed =
            if is_shared { is_of_this_journal && was_watched } else { witnesses.journal_is_whole };
        let witness = is_witnessed.then_some(&recovered);
        if is_shared && !is_witnessed && !recovery::is_closed(&record, &recovered.ended) {
            // Its pair is still to be closed, here: the gate does once it serves.
            continue;
        }
        settle(&*port, key, &record, witness, clock).await?;
        failpoint!("some-calls-settled");
    }
    failpoint!("settled-not-counted");
    let generation = ledger.count().await?;
    failpoint!("counted-not-told");
    journal.set_beside(&generation).map_err(StartError::Journal)?;
    Ok((journal, Some(ledger)))
}

async fn closed_by(
    ledger: &dyn Ledger,
    open: &[Arc<Event>],
    clock: &dyn Clock,
) -> Result<Vec<Event>, StartError> {
    let mut closed = Vec::with_capacity(open.len());
    for started in open {
        let key = CallKey::new(&started.context, &started.tool_call_id);
        let record = ledger.look(key).await.map_err(|_| StartError::LedgerRecovery)?;
        closed.push(recovery::close_pair(started, record.as_ref(), clock.now()));
    }
    Ok(closed)
}

fn closed_unaccounted(
    open: &[Arc<Event>],
    policy: &PolicySnapshot,
    clock: &dyn Clock,
) -> Vec<Event> {
    // Another policy may have called a read what was a write then.
    let is_read = |started: &Event| {
        started.policy_digest == policy.digest()
            && policy.contract(&started.tool).is_some_and(|tool| tool.effect == ToolEffect::Read)
    };
    open.iter()
        .map(|started| recovery::close_unaccounted(started, is_read(started), clock.now()))
        .collect()
}

async fn append_closed(
    journal: &JournalFiles,
    closed: Vec<Event>,
    tool_metrics: &ToolMetrics,
) -> Result<(), StartError> {
    if closed.is_empty() {
        return Ok(());
    }
    let closed: Vec<Arc<Event>> = closed.into_iter().map(Arc::new).collect();
    tracing::warn!(count = closed.len(), "closing the pairs that a killed process left open");
    for some in closed.chunks(CLOSED_AT_ONCE) {
        let entries = some.iter().cloned().map(Entry::Call).collect();
        journal.append(entries, Durability::Synced).await.map_err(|_| StartError::Recovery)?;
        failpoint!("some-pairs-closed");
    }
    for event in &closed {
        tool_metrics.completed(event);
    }
    Ok(())
}

async fn settle(
    ledger: &dyn Ledger,
    key: CallKey,
    record: &Record,
    witness: Option<&Recovered>,
    clock: &dyn Clock,
) -> Result<(), StartError> {
    let witness = witness.filter(|journal| journal.has_all_of(&record.started));
    let (ended, last_attempt) = match witness {
        Some(journal) => recovery::settle(record, &journal.open, &journal.ended, clock.now()),
        None => recovery::settle_unwitnessed(record, clock.now()),
    };
    let settlement = Settlement { ended, last_attempt };
    let settled = ledger.settle(record.reservation_id, key, settlement).await;
    settled.map_err(|_| StartError::LedgerRecovery)
}
