//! One batch, from protocol to the last event.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::pair::{Ending, Pairs};
use super::{AuditState, BatchReport, CallEnd, CallResult, ExecuteRequest, Gate, authorise};
use crate::domain::admission::{self, Refusal};
use crate::domain::attempts::{self, StepBudget};
use crate::domain::audit::{Event, Stamp, is_call_id, summarise};
use crate::domain::json::Value;
use crate::domain::policy::PolicySnapshot;
use crate::domain::proposal::{BatchMode, Context, Proposal};
use crate::domain::reason::{Effect, Reason};
use crate::domain::result::{ResultFault, judge};
use crate::domain::stages::{Authorised, Reserved, TraceContext};
use crate::ports::UpstreamFault;

/// A running batch. Owns everything it needs: the request's future may be dropped at any time.
pub(super) struct Batch {
    gate: Arc<Gate>,
    policy: Arc<PolicySnapshot>,
    context: Arc<Context>,
    trace: Option<TraceContext>,
    mode: BatchMode,
    proposals: Vec<Proposal>,
    /// The sooner of the caller's deadline and the batch total.
    ends_at: Instant,
    gone: CancellationToken,
    steps: StepBudget,
    pairs: Pairs,
    results: Vec<Option<CallEnd>>,
    /// The call in hand.
    current: usize,
}

/// How one attempt ended, and what the caller may see of it.
struct AttemptEnd {
    ending: Ending,
    result_json: Option<String>,
}

impl Batch {
    pub(super) fn new(gate: Arc<Gate>, request: ExecuteRequest, gone: CancellationToken) -> Self {
        let policy = Arc::clone(&gate.policy);
        let total = Instant::now() + policy.limits().batch_total;
        let scope = gate.scope(Arc::clone(&request.context), request.trace.as_ref());
        let pairs = Pairs::new(&gate, scope);
        Self {
            context: request.context,
            trace: request.trace,
            mode: request.mode,
            ends_at: request.deadline.map_or(total, |deadline| deadline.min(total)),
            steps: StepBudget::new(policy.limits().max_steps),
            results: vec![None; request.proposals.len()],
            proposals: request.proposals,
            gate,
            policy,
            gone,
            pairs,
            current: 0,
        }
    }

    /// The one exit: whatever happens inside, a panic included, the open pair is
    /// closed and every proposal has its answer.
    pub(super) async fn run(mut self) -> BatchReport {
        let outcome = AssertUnwindSafe(self.decide_and_run()).catch_unwind().await;
        if outcome.is_err() {
            self.close_after_panic().await;
        }
        let results = self.proposals.into_iter().zip(self.results);
        BatchReport {
            results: results
                .map(|(proposal, end)| CallResult {
                    tool_call_id: Some(proposal.tool_call_id).filter(|id| is_call_id(id)),
                    end,
                })
                .collect(),
            events: self.pairs.into_events(),
            policy_digest: self.policy.digest(),
        }
    }

    async fn decide_and_run(&mut self) {
        if let Err(refused) =
            admission::check_batch(&self.pairs.scope, &self.policy, &self.proposals)
        {
            self.refuse(refused.index, refused.refusal).await;
            return;
        }
        match self.mode {
            BatchMode::StopOnFailure => self.all_or_nothing().await,
            BatchMode::Continue => self.one_by_one().await,
        }
    }

    /// Every call is admitted and reserved before any starts, so that a refused
    /// call means no effect at all.
    async fn all_or_nothing(&mut self) {
        let mut authorised = Vec::with_capacity(self.proposals.len());
        for index in 0..self.proposals.len() {
            match self.authorise(index) {
                Ok(call) => authorised.push(call),
                Err(refusal) => return self.refuse(index, *refusal).await,
            }
        }
        let mut reserved = Vec::with_capacity(authorised.len());
        for (index, call) in authorised.into_iter().enumerate() {
            match self.reserve(call) {
                Ok(call) => reserved.push(call),
                Err(refusal) => return self.refuse(index, *refusal).await,
            }
        }
        let mut after = reserved.len();
        for (index, call) in reserved.into_iter().enumerate() {
            after -= 1;
            if self.gone.is_cancelled() {
                return;
            }
            self.run_call(index, &call, after).await;
            if !self.succeeded(index) {
                return;
            }
        }
    }

    async fn one_by_one(&mut self) {
        for index in 0..self.proposals.len() {
            if self.gone.is_cancelled() {
                return;
            }
            match self.authorise(index).and_then(|call| self.reserve(call)) {
                Ok(call) => self.run_call(index, &call, self.proposals.len() - index - 1).await,
                Err(refusal) => self.refuse(index, *refusal).await,
            }
        }
    }

    fn authorise(&mut self, index: usize) -> Result<Authorised, Box<Refusal>> {
        self.current = index;
        authorise(&self.pairs.scope, &self.policy, &self.proposals[index])
    }

    fn reserve(&self, call: Authorised) -> Result<Reserved, Box<Refusal>> {
        Reserved::new(call, &self.context, self.remaining(), self.policy.limits().min_attempt)
    }

    /// The attempts of one call: the next only after a time-out of the gate's own.
    async fn run_call(&mut self, index: usize, call: &Reserved, calls_after: usize) {
        self.current = index;
        let min_attempt = self.policy.limits().min_attempt;
        if call.window(self.remaining(), min_attempt).is_none() {
            return self.refuse(index, *call.refuse(Reason::DeadlineTooShort)).await;
        }
        let mut attempt = call.first_attempt();
        let last = attempt + call.contract().limits.max_attempts - 1;
        loop {
            self.steps.spend();
            let mut end = self.attempt(call, attempt).await;
            // A retry that could not start leaves the attempt before it as the last one made.
            end.attempt = end.attempt.or((attempt > call.first_attempt()).then(|| attempt - 1));
            let again = attempts::retries_on(end.reason, call.contract())
                && end.audit == AuditState::Recorded
                && attempt < last
                && self.steps.allows_retry(calls_after)
                && call.window(self.remaining(), min_attempt).is_some()
                && !self.gone.is_cancelled();
            self.results[index] = Some(end);
            if !again {
                return;
            }
            attempt += 1;
        }
    }

    /// One attempt: started event durable → handler → completed event.
    async fn attempt(&mut self, call: &Reserved, attempt: u32) -> CallEnd {
        let started = match self.pairs.open(call.subject(), attempt).await {
            Ok(stamp) => stamp,
            Err(reason) => {
                let ending = Ending::without_result(reason, Effect::None);
                return call_end(&ending, AuditState::StartedFailed, None, None);
            }
        };
        let AttemptEnd { ending, result_json } = self.deliver(call, attempt, &started).await;
        let audit = self.pairs.close(&ending).await;
        // What is not on record is not shown.
        let result_json = result_json.filter(|_| audit == AuditState::Recorded);
        call_end(&ending, audit, result_json, Some(attempt))
    }

    /// The handler's answer, the attempt's deadline or the caller's going away, whichever comes first.
    async fn deliver(&self, call: &Reserved, attempt: u32, started: &Stamp) -> AttemptEnd {
        let window = attempts::cut(call.contract().limits.attempt_timeout, self.remaining());
        let delivery =
            call.deliver(&self.context, attempt, window.timeout, self.trace.as_ref(), started);
        let failed = |reason| AttemptEnd {
            ending: Ending::without_result(reason, Effect::None),
            result_json: None,
        };
        // In this order: an answer that arrives with its deadline is late.
        let answer = tokio::select! {
            biased;
            () = self.gone.cancelled(), if call.is_read() => return failed(Reason::Cancelled),
            () = sleep(window.timeout) => return failed(window.on_timeout),
            answer = self.gate.ports.upstream.invoke(&delivery) => answer,
        };
        match answer {
            Ok(text) => match judge(call.contract(), &text) {
                Ok(value) => self.success(call, &value, text),
                Err(fault) => {
                    tell_result_fault(call, &fault);
                    failed(Reason::ResultInvalid)
                }
            },
            Err(fault) => {
                self.gate.metrics.upstream_failed(&call.contract().upstream, fault);
                tell_upstream_fault(call, fault);
                failed(reason_of(fault))
            }
        }
    }

    fn success(&self, call: &Reserved, value: &Value, text: String) -> AttemptEnd {
        let redact = &call.contract().redact;
        let summary = summarise(value, redact);
        let digest = self.pairs.scope.key.digest(value, redact);
        let ending =
            Ending { reason: Reason::Ok, effect: Effect::None, result: Some((summary, digest)) };
        AttemptEnd { ending, result_json: Some(text) }
    }

    async fn refuse(&mut self, index: usize, refusal: Refusal) {
        let audit = self.pairs.refuse(&refusal.subject, refusal.attempt, refusal.reason).await;
        self.results[index] = Some(CallEnd {
            reason: refusal.reason,
            message: refusal.message(),
            faults: refusal.faults().to_vec(),
            result_json: None,
            effect: Effect::None,
            audit,
            attempt: None,
        });
    }

    async fn close_after_panic(&mut self) {
        let ending = Ending::without_result(Reason::Internal, Effect::None);
        let attempt = self.pairs.open_attempt();
        let audit = if attempt.is_some() {
            self.pairs.close(&ending).await
        } else {
            let proposal = &self.proposals[self.current];
            let contract = self.policy.contract(&proposal.name);
            let id = proposal.tool_call_id.as_str();
            let id = if is_call_id(id) { id } else { Event::INVALID_CALL_ID };
            let subject =
                self.pairs.scope.subject(id.into(), &proposal.name, contract.map(AsRef::as_ref));
            self.pairs.refuse(&subject, 1, Reason::Internal).await
        };
        self.results[self.current] = Some(call_end(&ending, audit, None, attempt));
    }

    fn succeeded(&self, index: usize) -> bool {
        self.results[index].as_ref().is_some_and(|end| end.reason == Reason::Ok)
    }

    fn remaining(&self) -> Duration {
        self.ends_at.saturating_duration_since(Instant::now())
    }
}

fn call_end(
    ending: &Ending,
    audit: AuditState,
    result_json: Option<String>,
    attempt: Option<u32>,
) -> CallEnd {
    CallEnd {
        reason: ending.reason,
        message: ending.reason.row().message.into(),
        faults: Vec::new(),
        result_json,
        effect: ending.effect,
        audit,
        attempt,
    }
}

/// For whoever has to mend the handler or the contract: the place and the rule, never the result.
fn tell_result_fault(call: &Reserved, fault: &ResultFault) {
    tracing::warn!(
        tool = &*call.contract().name,
        tool_call_id = &*call.subject().tool_call_id,
        pointer = fault.pointer(),
        fault = fault.rule(),
        "a handler's result breaks its contract and was withheld",
    );
}

/// The name of the handler's status code, which is all of it that the gate keeps.
fn tell_upstream_fault(call: &Reserved, fault: UpstreamFault) {
    let code = match fault {
        UpstreamFault::Status { code } => Some(code),
        UpstreamFault::Unavailable { .. } | UpstreamFault::Malformed => None,
    };
    tracing::warn!(
        tool = &*call.contract().name,
        tool_call_id = &*call.subject().tool_call_id,
        upstream = &*call.contract().upstream,
        reason = reason_of(fault).code(),
        code,
        "a handler failed",
    );
}

const fn reason_of(fault: UpstreamFault) -> Reason {
    match fault {
        UpstreamFault::Status { .. } => Reason::HandlerFailed,
        UpstreamFault::Unavailable { .. } => Reason::UpstreamUnavailable,
        UpstreamFault::Malformed => Reason::ResultInvalid,
    }
}
