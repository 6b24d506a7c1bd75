//! What a start makes of the calls that a killed process left behind.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::StartError;
use crate::adapters::journal::{JournalFiles, JournalOptions, Recovered};
use crate::domain::audit::{CallName, Entry, Event};
use crate::domain::record::{CallKey, Record};
use crate::domain::recovery;
use crate::failpoint::failpoint;
use crate::ports::{Clock, Durability, Journal as _, Ledger, Settlement};
use crate::telemetry::metrics::ToolMetrics;

/// Lost pairs that one append closes. There may be more of them than the smallest
/// `limits.journal_queue_events` takes at once.
const CLOSED_AT_ONCE: usize = 32;

/// How far the journal's clock may be ahead of what the ledger was shown: it is
/// shown the time every 10 s, and a disk takes its own.
const UNSEEN: SignedDuration = SignedDuration::from_secs(30);

/// The calls that were reserved and not settled.
pub(super) type Unsettled = Vec<(CallKey, Record)>;

/// The latest time that a ledger was shown. Not its high-water mark: that stands
/// still behind a clock that has stepped ahead, while calls go on.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastSeen(pub(super) Option<Timestamp>);

/// Opens the journal, closes the pairs that were left open and settles the calls
/// that were left running: first the journal, which is what settling reads.
pub(super) async fn open_and_recover(
    options: JournalOptions,
    ledger: Option<&dyn Ledger>,
    last_seen: Option<LastSeen>,
    clock: &dyn Clock,
    tool_metrics: &ToolMetrics,
) -> Result<JournalFiles, StartError> {
    let unsettled = match ledger {
        Some(ledger) => ledger.running().await.map_err(|_| StartError::LedgerRecovery)?,
        None => Unsettled::new(),
    };
    failpoint!("journal-not-opened");
    let watched: HashSet<CallName> =
        unsettled.iter().map(|(_, record)| CallName::of(&record.started)).collect();
    let (journal, recovered) =
        JournalFiles::open(JournalOptions { watched, ..options }).map_err(StartError::Journal)?;
    if recovered.cut_bytes > 0 {
        tracing::warn!(bytes = recovered.cut_bytes, "a torn tail of the journal was cut");
    }
    if last_seen.is_some_and(|seen| seen.is_older_than(recovered.newest_recorded)) {
        return Err(StartError::LedgerOld);
    }
    failpoint!("pairs-not-closed", if !recovered.open.is_empty());
    close_pairs(&journal, &recovered, ledger, clock, tool_metrics).await?;
    failpoint!("pairs-closed-not-settled", if !unsettled.is_empty());
    if let Some(ledger) = ledger {
        settle(ledger, unsettled, &recovered, clock).await?;
    }
    Ok(journal)
}

impl LastSeen {
    /// A ledger that was restored from an older copy has forgotten what was
    /// spent since: the journal has the end of a call that it was never shown the time of.
    fn is_older_than(self, newest_recorded: Option<Timestamp>) -> bool {
        match (self.0, newest_recorded) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(seen), Some(newest)) => newest.duration_since(seen) > UNSEEN,
        }
    }
}

async fn close_pairs(
    journal: &JournalFiles,
    recovered: &Recovered,
    ledger: Option<&dyn Ledger>,
    clock: &dyn Clock,
    tool_metrics: &ToolMetrics,
) -> Result<(), StartError> {
    if recovered.open.is_empty() {
        return Ok(());
    }
    let mut closed = Vec::with_capacity(recovered.open.len());
    for started in &recovered.open {
        let record = record_of(started, ledger).await?;
        let event = recovery::close_pair(started, record.as_ref(), clock.now());
        closed.push(Arc::new(event));
    }
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

async fn record_of(
    started: &Event,
    ledger: Option<&dyn Ledger>,
) -> Result<Option<Record>, StartError> {
    let Some(ledger) = ledger else { return Ok(None) };
    let key = CallKey::new(&started.context, &started.tool_call_id);
    ledger.look(key).await.map_err(|_| StartError::LedgerRecovery)
}

async fn settle(
    ledger: &dyn Ledger,
    unsettled: Unsettled,
    recovered: &Recovered,
    clock: &dyn Clock,
) -> Result<(), StartError> {
    let count = unsettled.len();
    for (key, record) in unsettled {
        let (ended, last_attempt) = if recovered.created <= record.reserved_at {
            recovery::settle(&record, &recovered.open, &recovered.ended, clock.now())
        } else {
            recovery::settle_unwitnessed(&record, clock.now())
        };
        let settlement = Settlement { ended, last_attempt };
        ledger
            .settle(record.reservation_id, key, settlement)
            .await
            .map_err(|_| StartError::LedgerRecovery)?;
        failpoint!("some-calls-settled");
    }
    if count > 0 {
        tracing::warn!(count, "settled the calls that a killed process left running");
    }
    Ok(())
}
