//! The pipeline, top to bottom: the first file to read.
//!
//! ```text
//! authenticate → protocol → admit → authorise → reserve → attempts → close
//! (grpc/)        └────────────── Batch::run ──────────────────────────┘
//! ```
//!
//! [`Gate::execute`] takes what `grpc/` has authenticated and moves it into one
//! tracked task, so that nothing depends on the request's future staying alive:
//! a client that goes away cancels reads and starts nothing more, but every pair
//! is closed and the in-flight limit counts the task until it has ended.
//!
//! The domain decides, the ports act, this file orders.

mod ask;
mod attempt;
mod batch;
mod confirm;
mod held;
mod in_force;
mod pair;
mod steps;
mod successor;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::domain::admission::{self, Refusal};
use crate::domain::audit::{AuditKey, Digest, Event, Scope, Stamp};
use crate::domain::authorisation::{Judged, Preview};
use crate::domain::policy::PolicySnapshot;
use crate::domain::proposal::{BatchMode, Context, Proposal};
use crate::domain::reason::{Effect, Reason};
use crate::domain::record::{Ended, TicketUse};
use crate::domain::refused::Refused;
use crate::domain::schema::SchemaFault;
use crate::domain::stages::{Authorised, TraceContext};
use crate::domain::watermark::{ClockState, Reading};
use crate::ports::{Clock, Durability, Journal, Upstream};
use crate::telemetry::metrics::Metrics;

use batch::Batch;
pub use confirm::{IssueRequest, Revocation};
pub use held::Recorder;
use held::{Held, OBSERVE_INTERVAL};
use in_force::InForce;
pub use in_force::Terms;
use steps::Observer;
pub use steps::{Step, Steps};

/// What stands between proposals and everything with an effect.
pub struct Gate {
    in_force: RwLock<Arc<InForce>>,
    read_durability: Durability,
    ports: Steady,
    metrics: Metrics,
    recorder: Option<Held>,
    clock_state: Mutex<ClockState>,
    started: Instant,
    in_flight: Arc<Semaphore>,
    draining: AtomicBool,
    tasks: TaskTracker,
    /// Cancelled when the drain's grace is over: the same as every caller gone.
    abandon: CancellationToken,
}

/// What the gate acts through.
#[derive(Clone)]
pub struct Ports {
    /// The audit journal.
    pub journal: Arc<dyn Journal>,
    /// The registered handlers.
    pub upstream: Arc<dyn Upstream>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
}

/// The ports that no reload changes.
struct Steady {
    journal: Arc<dyn Journal>,
    clock: Arc<dyn Clock>,
}

/// What the gate is told once, at start.
pub struct GateOptions {
    /// The policy in force at first: see [`Gate::put_in_force`].
    pub policy: Arc<PolicySnapshot>,
    /// The audit key in force at first.
    pub key: AuditKey,
    /// How durable the events of plain reads and refusals must be.
    pub read_durability: Durability,
    /// Requests that may run at once.
    pub in_flight: usize,
    /// What writes and confirmed calls need.
    pub recorder: Option<Recorder>,
}

/// One authenticated Execute.
#[derive(Debug)]
pub struct ExecuteRequest {
    /// From the authenticated caller.
    pub context: Arc<Context>,
    /// How to go on after a failure.
    pub mode: BatchMode,
    /// What the model proposed.
    pub proposals: Vec<Proposal>,
    /// When the caller stops waiting.
    pub deadline: Option<Instant>,
    /// W3C trace context to record and pass on.
    pub trace: Option<TraceContext>,
}

/// What became of a batch.
#[derive(Debug)]
pub struct BatchReport {
    /// One for each proposal, in order.
    pub results: Vec<CallResult>,
    /// The batch's events in order, delivered or not.
    pub events: Vec<RecordedEvent>,
    /// The policy that decided.
    pub policy_digest: Digest,
}

/// An event, and where the journal put it, if it did.
#[derive(Debug, Clone)]
pub struct RecordedEvent {
    /// The event.
    pub event: Arc<Event>,
    /// Its place in the journal.
    pub stamp: Option<Stamp>,
}

/// What Execute would answer, by one policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    /// One for each proposal, in order.
    pub verdicts: Vec<Verdict>,
    /// The policy that decided.
    pub policy_digest: Digest,
}

/// The answer to one proposal.
#[derive(Debug, Clone, PartialEq)]
pub struct CallResult {
    /// The proposal's id; `None` where it was invalid.
    pub tool_call_id: Option<String>,
    /// How it ended; `None` where it was never reached.
    pub end: Option<CallEnd>,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq)]
pub struct CallEnd {
    /// Why.
    pub reason: Reason,
    /// The sentence for the model.
    pub message: std::borrow::Cow<'static, str>,
    /// What the schema found.
    pub faults: Vec<SchemaFault>,
    /// The handler's result, where it may be shown.
    pub result_json: Option<String>,
    /// What it changed.
    pub effect: Effect,
    /// How the recorded call ended, for `CALL_REPLAYED`.
    pub recorded: Option<Ended>,
    /// Whether the same proposal may succeed later.
    pub retryable: bool,
    /// Whether its last pair is durable.
    pub audit: AuditState,
    /// The last attempt's number; `None` where none was made.
    pub attempt: Option<u32>,
}

/// Whether the audit of a result could be made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditState {
    /// Both events are in the journal.
    Recorded,
    /// The started event is not.
    StartedFailed,
    /// The completed event is not; the result is withheld.
    CompletedFailed,
}

/// What Execute would answer to one proposal, and what a person would be asked
/// to confirm where the call needs it.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It would be relayed.
    Admitted(Option<Preview>),
    /// It would be refused.
    Refused(Box<Refusal>, Option<Preview>),
    /// The batch would be refused for another proposal.
    NotReached,
}

impl CallEnd {
    /// The end of a call that no handler saw.
    fn refused(refusal: &Refusal, audit: AuditState) -> Self {
        Self {
            reason: refusal.reason,
            message: refusal.message(),
            faults: refusal.faults().to_vec(),
            result_json: None,
            effect: refusal.effect(),
            recorded: refusal.replay().cloned(),
            retryable: refusal.reason.row().retryable,
            audit,
            attempt: None,
        }
    }

    /// The end of a call that was started, or could not be.
    fn ended(ending: &pair::Ending, audit: AuditState, attempt: Option<u32>) -> Self {
        Self {
            reason: ending.reason,
            message: ending.reason.row().message.into(),
            faults: Vec::new(),
            result_json: None,
            effect: ending.effect,
            recorded: None,
            retryable: ending.reason.row().retryable,
            audit,
            attempt,
        }
    }
}

impl Gate {
    /// Puts the pieces together. Starts nothing.
    #[must_use]
    pub fn new(options: GateOptions, ports: Ports, metrics: Metrics) -> Arc<Self> {
        let Ports { journal, upstream, clock } = ports;
        let GateOptions { policy, key, recorder, .. } = options;
        let (confirmations, recorder) = recorder
            .map(|recorder| {
                let Recorder { confirmations, ledger } = recorder;
                (confirmations, Held::new(ledger, metrics.clone()))
            })
            .unzip();
        let terms = Terms { policy, key, confirmations, upstream };
        Arc::new(Self {
            in_force: RwLock::new(InForce::new(terms, &metrics)),
            read_durability: options.read_durability,
            ports: Steady { journal, clock },
            metrics,
            recorder,
            clock_state: Mutex::new(ClockState::Trusted),
            started: Instant::now(),
            in_flight: Arc::new(Semaphore::new(options.in_flight)),
            draining: AtomicBool::new(false),
            tasks: TaskTracker::new(),
            abandon: CancellationToken::new(),
        })
    }

    /// Decides and runs a batch.
    ///
    /// Dropping the future means that the caller has gone: a running read is
    /// cancelled upstream, nothing else starts, and every open pair is closed.
    ///
    /// # Errors
    ///
    /// A [`Refused`] means that no call was reserved or started.
    pub async fn execute(
        self: &Arc<Self>,
        request: ExecuteRequest,
    ) -> Result<BatchReport, Refused> {
        let (task, _caller) = self.start(self.in_force(), request, Observer::default())?;
        // The batch closes its pairs on panic; this is what is left: the runtime itself going down.
        task.await.map_err(|_| Refused::Internal)
    }

    /// The same, told step by step. Nothing waits for whoever reads them.
    ///
    /// # Errors
    ///
    /// As for [`Gate::execute`]; nothing is told then.
    pub fn execute_stream(self: &Arc<Self>, request: ExecuteRequest) -> Result<Steps, Refused> {
        let calls = request.proposals.len();
        let in_force = self.in_force();
        let (observer, steps) = Observer::of(calls, in_force.policy().limits().max_steps);
        let (_, caller) = self.start(in_force, request, observer)?;
        Ok(Steps::new(steps, calls, caller))
    }

    fn start(
        self: &Arc<Self>,
        in_force: Arc<InForce>,
        request: ExecuteRequest,
        observer: Observer,
    ) -> Result<(JoinHandle<BatchReport>, DropGuard), Refused> {
        if request.proposals.is_empty() {
            return Err(Refused::BatchEmpty);
        }
        // Held before the flag is read: a drain that has set it waits for this token.
        let token = self.tasks.token();
        if self.is_draining() {
            return Err(Refused::Draining);
        }
        let Ok(permit) = Arc::clone(&self.in_flight).try_acquire_owned() else {
            self.metrics.request_shed();
            return Err(Refused::Overloaded);
        };
        if !self.ports.journal.is_ready() {
            return Err(Refused::JournalUnavailable);
        }
        self.check_ledger(&in_force, &request.proposals)?;
        let gone = self.abandon.child_token();
        let batch = Batch::new(Arc::clone(self), in_force, request, gone.clone(), observer);
        let held = (permit, token, self.metrics.request_started());
        let task = self.tasks.spawn(async move {
            let _held = held;
            batch.run().await
        });
        Ok((task, gone.drop_guard()))
    }

    /// Answers what [`Gate::execute`] would, without any effect or event, and
    /// for a call that needs a ticket its preview.
    ///
    /// # Errors
    ///
    /// As for [`Gate::execute`].
    pub async fn check(
        &self,
        context: &Arc<Context>,
        proposals: &[Proposal],
    ) -> Result<Checked, Refused> {
        if proposals.is_empty() {
            return Err(Refused::BatchEmpty);
        }
        if self.is_draining() {
            return Err(Refused::Draining);
        }
        let in_force = self.in_force();
        self.check_ledger(&in_force, proposals)?;
        let scope = in_force.scope(Arc::clone(context), None);
        let policy_digest = scope.policy_digest;
        if let Err(refused) = admission::check_batch(&scope, in_force.policy(), proposals) {
            let mut verdicts = vec![Verdict::NotReached; proposals.len()];
            verdicts[refused.index] = Verdict::Refused(Box::new(refused.refusal), None);
            return Ok(Checked { verdicts, policy_digest });
        }
        let mut verdicts = Vec::with_capacity(proposals.len());
        for proposal in proposals {
            verdicts.push(self.judge_alone(&in_force, &scope, proposal).await);
        }
        Ok(Checked { verdicts, policy_digest })
    }

    /// Shows the ledger the clock and lets it forget what is over, for as long as
    /// it is polled. Returns at once in a gate without a ledger.
    pub async fn keep_ledger(&self) {
        let Some(recorder) = &self.recorder else { return };
        let mut interval = tokio::time::interval(OBSERVE_INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            if let Some(state) = recorder.observe(self.reading()).await {
                self.note_clock(state);
            }
            self.end_taken_over(recorder).await;
            recorder.forget_expired().await;
        }
    }

    /// The ledger's identity, where there is one.
    #[must_use]
    pub fn ledger_id(&self) -> Option<Arc<str>> {
        self.recorder.as_ref().map(|recorder| recorder.ledger.id())
    }

    /// Whether the ledger works, or none is needed.
    #[must_use]
    pub fn is_ledger_ready(&self) -> bool {
        self.recorder.as_ref().is_none_or(|recorder| recorder.ledger.is_ready())
    }

    /// Whether the clock is not behind the ledger's high-water mark.
    #[must_use]
    pub fn is_clock_trusted(&self) -> bool {
        *self.clock_state.lock().unwrap_or_else(PoisonError::into_inner) != ClockState::Behind
    }

    fn note_clock(&self, state: ClockState) {
        let mut known = self.clock_state.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != state {
            *known = state;
            let status = state.as_str();
            tracing::warn!(status, "the clock's standing against the ledger has changed");
        }
    }

    /// Whether new requests are refused for good.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Refuses new requests and waits for the running ones: `grace`, after which
    /// every caller counts as gone and reads are cancelled, then for as long as
    /// the last pairs take to close.
    pub async fn drain(&self, grace: Duration) {
        self.draining.store(true, Ordering::SeqCst);
        self.tasks.close();
        if tokio::time::timeout(grace, self.tasks.wait()).await.is_err() {
            self.abandon.cancel();
            self.tasks.wait().await;
        }
    }

    /// Admission, ticket and record: everything that is decided without an effect.
    async fn authorise(
        &self,
        in_force: &InForce,
        scope: &Scope,
        proposal: &Proposal,
    ) -> Result<Authorised, Box<Refusal>> {
        let admitted = admission::admit(scope, in_force.policy(), proposal)?;
        let ticket = proposal.ticket.as_deref();
        let (recorder, confirmations) = match (&self.recorder, &in_force.terms.confirmations) {
            (Some(recorder), Some(confirmations)) if admitted.contract().needs_record() => {
                (recorder, confirmations)
            }
            _ => {
                let now = self.ports.clock.now();
                return Judged::plain(admitted, ticket)?.authorise(None, TicketUse::Unused, now);
            }
        };
        let untrusted = (!self.is_clock_trusted()).then(|| admitted.refuse(Reason::ClockUntrusted));
        let now = self.ports.clock.now();
        // By a clock that is behind nothing is said of a ticket, and nothing is reserved.
        let by_clock = |refusal: Box<Refusal>| match &untrusted {
            Some(untrusted) if refusal.reason.is_of_a_confirmation() => untrusted.clone(),
            _ => refusal,
        };
        let judged =
            recorder.judge(admitted, ticket, scope, confirmations, now).map_err(by_clock)?;
        let found = recorder.find(&judged).await?;
        let authorised =
            judged.authorise(found.record.as_ref(), found.ticket, now).map_err(by_clock)?;
        untrusted.map_or(Ok(authorised), Err)
    }

    /// A ledger that is down refuses requests in which a named tool may need it.
    fn check_ledger(&self, in_force: &InForce, proposals: &[Proposal]) -> Result<(), Refused> {
        let needs_record = |proposal: &Proposal| {
            in_force
                .policy()
                .contract(&proposal.name)
                .is_some_and(|contract| contract.needs_record())
        };
        let is_ready = || self.recorder.as_ref().is_some_and(|recorder| recorder.ledger.is_ready());
        if proposals.iter().any(needs_record) && !is_ready() {
            return Err(Refused::LedgerUnavailable);
        }
        Ok(())
    }

    fn reading(&self) -> Reading {
        held::reading(&*self.ports.clock, self.started)
    }
}
