//! Audit pairs: opened, made durable, and closed exactly once.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use jiff::Timestamp;
use tokio::time::{Instant, timeout};

use super::in_force::InForce;
use super::steps::{Observer, Step};
use super::{AuditState, Gate, RecordedEvent};
use crate::domain::admission::Refusal;
use crate::domain::audit::{Digest, Entry, Event, EventKind, PayloadSummary, Scope, Stamp};
use crate::domain::reason::{Effect, Reason};
use crate::ports::{Clock, Durability, Journal, JournalFault};
use crate::telemetry::metrics::{JournalFailure, Metrics, ToolMetrics};

/// A longer wait for journal or ledger is a failure of it.
pub(super) const DURABLE_WAIT: Duration = Duration::from_secs(2);

/// The pairs of one batch: all its events in order, and the pair that is open now.
pub(super) struct Pairs {
    pub(super) scope: Scope,
    journal: Arc<dyn Journal>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    tool_metrics: Arc<ToolMetrics>,
    read_durability: Durability,
    events: Vec<RecordedEvent>,
    observer: Observer,
    open: Option<Open>,
}

/// A pair between its two events.
struct Open {
    started: Arc<Event>,
    since: Instant,
    durability: Durability,
    /// Why the started event is not durable, if it is not.
    fault: Option<JournalFault>,
}

/// How an attempt or refusal ended, as its completed event tells it.
#[derive(Debug, Clone)]
pub(super) struct Ending {
    pub(super) reason: Reason,
    pub(super) effect: Effect,
    pub(super) result: Option<(PayloadSummary, Digest)>,
}

impl Ending {
    pub(super) const fn without_result(reason: Reason, effect: Effect) -> Self {
        Self { reason, effect, result: None }
    }
}

impl Pairs {
    pub(super) fn new(gate: &Gate, in_force: &InForce, scope: Scope, observer: Observer) -> Self {
        Self {
            scope,
            journal: Arc::clone(&gate.ports.journal),
            clock: Arc::clone(&gate.ports.clock),
            metrics: gate.metrics.clone(),
            tool_metrics: Arc::clone(&in_force.tool_metrics),
            read_durability: gate.read_durability,
            events: Vec::new(),
            observer,
            open: None,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Records of calls go to the disk; plain reads and refusals as configured.
    pub(super) fn durability(&self, is_recorded: bool) -> Durability {
        if is_recorded { Durability::Synced } else { self.read_durability }
    }

    /// Records a refusal: both events at once. The refusal stands whatever the journal does.
    pub(super) async fn refuse(&mut self, refusal: &Refusal) -> AuditState {
        let since = Instant::now();
        let started = self.scope.started(&refusal.subject, refusal.attempt, self.now());
        let started = Arc::new(started);
        let ending = Ending::without_result(refusal.reason, refusal.effect());
        let completed = self.complete(&started, since, &ending);
        let pair = [Arc::clone(&started), Arc::clone(&completed)];
        let appended = self.append(&pair, self.read_durability).await;
        let state = if appended.is_ok() { AuditState::Recorded } else { AuditState::StartedFailed };
        let mut stamps = appended.unwrap_or_default().into_iter();
        self.keep(started, stamps.next());
        self.keep(completed, stamps.next());
        state
    }

    /// Opens the pair of an attempt and makes its started event durable.
    ///
    /// # Errors
    ///
    /// Where it cannot be made durable no handler may run; the reason says why.
    /// The pair is open all the same, and is closed as any other.
    pub(super) async fn open(
        &mut self,
        started: Arc<Event>,
        durability: Durability,
    ) -> Result<Stamp, Reason> {
        debug_assert!(self.open.is_none(), "one pair is open at a time");
        let since = Instant::now();
        self.open = Some(Open { started: Arc::clone(&started), since, durability, fault: None });
        let appended = self.append(&[Arc::clone(&started)], durability).await;
        let stamp =
            appended.and_then(|stamps| stamps.into_iter().next().ok_or(JournalFault::Failed));
        self.keep(started, stamp.clone().ok());
        stamp.map_err(|fault| {
            if let Some(open) = &mut self.open {
                open.fault = Some(fault);
            }
            match fault {
                JournalFault::Rejected(_) => Reason::AuditConstructionFailed,
                JournalFault::Failed | JournalFault::Full => Reason::AuditStartedFailed,
            }
        })
    }

    /// Closes the open pair. The ending stands whatever the journal does.
    pub(super) async fn close(&mut self, ending: &Ending) -> AuditState {
        let Some(open) = self.open.take() else {
            return AuditState::Recorded;
        };
        let completed = self.complete(&open.started, open.since, ending);
        if let Some(fault) = open.fault {
            if fault == JournalFault::Failed {
                // The journal still owes the started event, so it is handed the
                // completed one as well. Nobody waits for it: no handler ran.
                let entry = vec![Arc::clone(&completed).into()];
                drop(self.journal.append(entry, open.durability).now_or_never());
            }
            self.keep(completed, None);
            return AuditState::StartedFailed;
        }
        let appended = self.append(&[Arc::clone(&completed)], open.durability).await;
        let stamp = appended.ok().and_then(|stamps| stamps.into_iter().next());
        let state =
            if stamp.is_some() { AuditState::Recorded } else { AuditState::CompletedFailed };
        self.keep(completed, stamp);
        state
    }

    /// The attempt whose pair is open: only so between its started and completed event.
    pub(super) fn open_attempt(&self) -> Option<u32> {
        self.open.as_ref().map(|open| open.started.attempt)
    }

    /// All events, in order.
    pub(super) fn into_events(self) -> Vec<RecordedEvent> {
        self.events
    }

    /// Builds a completed event and counts it: every pair is closed here, and only here.
    fn complete(&self, started: &Event, since: Instant, ending: &Ending) -> Arc<Event> {
        let (result_summary, result_digest) = ending.result.unzip();
        let kind = EventKind::Completed {
            reason: ending.reason,
            duration_us: u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX),
            result_summary,
            result_digest,
            effect: ending.effect,
        };
        let completed = Arc::new(started.completed(self.now(), kind));
        self.tool_metrics.completed(&completed);
        if ending.reason.is_of_a_confirmation() {
            self.metrics.confirmation(ending.reason.code());
        }
        completed
    }

    async fn append(
        &self,
        events: &[Arc<Event>],
        durability: Durability,
    ) -> Result<Vec<Stamp>, JournalFault> {
        let entries = events.iter().cloned().map(Entry::Call).collect();
        append(&*self.journal, &self.metrics, entries, durability).await
    }

    fn keep(&mut self, event: Arc<Event>, stamp: Option<Stamp>) {
        let recorded = RecordedEvent { event, stamp };
        self.observer.tell(|| Step::Event(recorded.clone()));
        self.events.push(recorded);
    }
}

/// Appends within [`DURABLE_WAIT`], and counts how it went.
pub(super) async fn append(
    journal: &dyn Journal,
    metrics: &Metrics,
    entries: Vec<Entry>,
    durability: Durability,
) -> Result<Vec<Stamp>, JournalFault> {
    let since = Instant::now();
    match timeout(DURABLE_WAIT, journal.append(entries, durability)).await {
        Ok(Ok(stamps)) => {
            let head = stamps.last().map_or(0, |stamp| stamp.sequence);
            metrics.journal_appended(since.elapsed(), head);
            Ok(stamps)
        }
        Ok(Err(fault)) => {
            metrics.journal_failed(fault.into());
            Err(fault)
        }
        Err(_) => {
            metrics.journal_failed(JournalFailure::Late);
            Err(JournalFault::Failed)
        }
    }
}
