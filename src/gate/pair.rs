//! Audit pairs: opened, made durable, and closed exactly once.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::{Instant, timeout};

use super::{AuditState, Gate, RecordedEvent};
use crate::domain::audit::Digest;
use crate::domain::audit::{Event, EventKind, PayloadSummary, Scope, Stamp, Subject};
use crate::domain::reason::{Effect, Reason};
use crate::ports::{Clock, Durability, Journal, JournalFault};
use crate::telemetry::metrics::{JournalFailure, Metrics, ToolMetrics};

/// A longer wait for the journal is a failure of it.
pub(super) const DURABLE_WAIT: Duration = Duration::from_secs(2);

/// The pairs of one batch: all its events in order, and the pair that is open now.
pub(super) struct Pairs {
    pub(super) scope: Scope,
    journal: Arc<dyn Journal>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    tool_metrics: Arc<ToolMetrics>,
    durability: Durability,
    events: Vec<RecordedEvent>,
    open: Option<Open>,
}

/// A pair whose started event is durable.
struct Open {
    started: Arc<Event>,
    since: Instant,
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
    pub(super) fn new(gate: &Gate, scope: Scope) -> Self {
        Self {
            scope,
            journal: Arc::clone(&gate.ports.journal),
            clock: Arc::clone(&gate.ports.clock),
            metrics: gate.metrics.clone(),
            tool_metrics: Arc::clone(&gate.tool_metrics),
            durability: gate.read_durability,
            events: Vec::new(),
            open: None,
        }
    }

    /// Records a refusal: both events at once. The refusal stands whatever the journal does.
    pub(super) async fn refuse(
        &mut self,
        subject: &Subject,
        attempt: u32,
        reason: Reason,
    ) -> AuditState {
        let since = Instant::now();
        let started = Arc::new(self.scope.started(subject, attempt, self.clock.now()));
        let ending = Ending::without_result(reason, Effect::None);
        let completed = self.complete(&started, since, &ending);
        let appended = self.append(&[Arc::clone(&started), Arc::clone(&completed)]).await;
        let state = if appended.is_ok() { AuditState::Recorded } else { AuditState::StartedFailed };
        let mut stamps = appended.unwrap_or_default().into_iter();
        self.keep(started, stamps.next());
        self.keep(completed, stamps.next());
        state
    }

    /// Makes the started event of an attempt durable and leaves its pair open.
    ///
    /// # Errors
    ///
    /// Where it cannot be made durable no handler may run; the pair is closed
    /// and the reason says why.
    pub(super) async fn open(&mut self, subject: &Subject, attempt: u32) -> Result<Stamp, Reason> {
        debug_assert!(self.open.is_none(), "one pair is open at a time");
        let since = Instant::now();
        let started = Arc::new(self.scope.started(subject, attempt, self.clock.now()));
        let fault = match self.append(&[Arc::clone(&started)]).await {
            Ok(stamps) => match stamps.into_iter().next() {
                Some(stamp) => {
                    self.keep(Arc::clone(&started), Some(stamp.clone()));
                    self.open = Some(Open { started, since });
                    return Ok(stamp);
                }
                None => JournalFault::Failed,
            },
            Err(fault) => fault,
        };
        let reason = match fault {
            JournalFault::Rejected(_) => Reason::AuditConstructionFailed,
            JournalFault::Failed | JournalFault::Full => Reason::AuditStartedFailed,
        };
        let ending = Ending::without_result(reason, Effect::None);
        let completed = self.complete(&started, since, &ending);
        if fault == JournalFault::Failed {
            // The journal still owes the started event, so it is handed the
            // completed one as well. Nobody waits for it: no handler ran.
            drop(self.journal.append(vec![Arc::clone(&completed)], self.durability).now_or_never());
        }
        self.keep(started, None);
        self.keep(completed, None);
        Err(reason)
    }

    /// Closes the open pair. The ending stands whatever the journal does.
    pub(super) async fn close(&mut self, ending: &Ending) -> AuditState {
        let Some(open) = self.open.take() else {
            return AuditState::Recorded;
        };
        let completed = self.complete(&open.started, open.since, ending);
        let stamp = self
            .append(&[Arc::clone(&completed)])
            .await
            .ok()
            .and_then(|stamps| stamps.into_iter().next());
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
        let completed = Arc::new(started.completed(self.clock.now(), kind));
        self.tool_metrics.completed(&completed);
        completed
    }

    async fn append(&self, events: &[Arc<Event>]) -> Result<Vec<Stamp>, JournalFault> {
        let since = Instant::now();
        match timeout(DURABLE_WAIT, self.journal.append(events.to_vec(), self.durability)).await {
            Ok(Ok(stamps)) => {
                let head = stamps.last().map_or(0, |stamp| stamp.sequence);
                self.metrics.journal_appended(since.elapsed(), head);
                Ok(stamps)
            }
            Ok(Err(fault)) => {
                self.metrics.journal_failed(fault.into());
                Err(fault)
            }
            Err(_) => {
                self.metrics.journal_failed(JournalFailure::Late);
                Err(JournalFault::Failed)
            }
        }
    }

    fn keep(&mut self, event: Arc<Event>, stamp: Option<Stamp>) {
        self.events.push(RecordedEvent { event, stamp });
    }
}
