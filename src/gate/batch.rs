//! One batch, from protocol to the last event.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::in_force::InForce;
use super::pair::{Ending, Pairs};
use super::steps::{Observer, Step};
use super::{AuditState, BatchReport, CallEnd, CallResult, ExecuteRequest, Gate};
use crate::domain::admission::{self, Refusal};
use crate::domain::attempts::StepBudget;
use crate::domain::audit::{Event, is_call_id};
use crate::domain::policy::PolicySnapshot;
use crate::domain::proposal::{BatchMode, Context, Proposal};
use crate::domain::reason::{Effect, Reason};
use crate::domain::record::{Claim, Reservation};
use crate::domain::stages::{Authorised, Reserved, TraceContext};
use crate::failpoint::failpoint;
use crate::ports::ReserveFault;

/// A running batch. Owns everything it needs: the request's future may be dropped at any time.
pub(super) struct Batch {
    pub(super) gate: Arc<Gate>,
    /// What was in force when the request came: nothing of the batch asks for it again.
    pub(super) in_force: Arc<InForce>,
    pub(super) context: Arc<Context>,
    pub(super) trace: Option<TraceContext>,
    mode: BatchMode,
    proposals: Vec<Proposal>,
    /// The sooner of the caller's deadline and the batch total.
    ends_at: Instant,
    pub(super) gone: CancellationToken,
    pub(super) steps: StepBudget,
    pub(super) pairs: Pairs,
    results: Vec<Option<CallEnd>>,
    observer: Observer,
    /// The calls whose results were told.
    told: Vec<bool>,
    /// The call in hand.
    current: usize,
    /// Reserved, and not started: given back at the end.
    held: Vec<Reservation>,
    /// Reserved and started: owed a settlement.
    pub(super) running: Option<Running>,
}

/// What is owed to the ledger for the call in hand.
pub(super) struct Running {
    pub(super) reservation: Reservation,
    pub(super) effect: Effect,
    /// What a fault inside the gate would leave behind.
    pub(super) is_read: bool,
}

/// A call that may start.
pub(super) enum Ready {
    /// It is reserved, or needs no record.
    Reserved(Box<Reserved>),
    /// Its reservation and its first started event become durable together.
    Claiming(Box<Authorised>),
}

impl Batch {
    pub(super) fn new(
        gate: Arc<Gate>,
        in_force: Arc<InForce>,
        request: ExecuteRequest,
        gone: CancellationToken,
        observer: Observer,
    ) -> Self {
        let limits = *in_force.policy().limits();
        let total = Instant::now() + limits.batch_total;
        let scope = in_force.scope(Arc::clone(&request.context), request.trace.as_ref());
        let pairs = Pairs::new(&gate, &in_force, scope, observer.clone());
        Self {
            context: request.context,
            trace: request.trace,
            mode: request.mode,
            ends_at: request.deadline.map_or(total, |deadline| deadline.min(total)),
            steps: StepBudget::new(limits.max_steps),
            results: vec![None; request.proposals.len()],
            observer,
            told: vec![false; request.proposals.len()],
            proposals: request.proposals,
            gate,
            in_force,
            gone,
            pairs,
            current: 0,
            held: Vec::new(),
            running: None,
        }
    }

    /// The one exit: whatever happens inside, a panic included, the open pair is
    /// closed, the ledger gets what it is owed, and every proposal has its answer.
    pub(super) async fn run(mut self) -> BatchReport {
        let outcome = AssertUnwindSafe(self.decide_and_run()).catch_unwind().await;
        if outcome.is_err() {
            self.close_after_panic().await;
        }
        if let Some(recorder) = &self.gate.recorder {
            failpoint!("release-not-begun", if !self.held.is_empty());
            recorder.release(std::mem::take(&mut self.held)).await;
        }
        failpoint!("ended-not-answered");
        for index in 0..self.results.len() {
            self.tell(index);
        }
        let results = self.proposals.into_iter().zip(self.results);
        BatchReport {
            results: results
                .map(|(proposal, end)| call_result(&proposal.tool_call_id, end))
                .collect(),
            events: self.pairs.into_events(),
            policy_digest: self.in_force.policy().digest(),
        }
    }

    async fn decide_and_run(&mut self) {
        if let Err(refused) =
            admission::check_batch(&self.pairs.scope, self.policy(), &self.proposals)
        {
            self.refuse(refused.index, refused.refusal).await;
            return;
        }
        match self.mode {
            BatchMode::StopOnFailure if self.proposals.len() > 1 => self.all_or_nothing().await,
            BatchMode::StopOnFailure | BatchMode::Continue => self.one_by_one().await,
        }
    }

    /// Every call is admitted and reserved before any starts, so that a refused
    /// call means no effect at all.
    async fn all_or_nothing(&mut self) {
        let mut authorised = Vec::with_capacity(self.proposals.len());
        for index in 0..self.proposals.len() {
            match self.authorise(index).await {
                Ok(call) => authorised.push(call),
                Err(refusal) => return self.refuse(index, *refusal).await,
            }
        }
        let reserved = match self.reserve_all(authorised).await {
            Ok(reserved) => reserved,
            Err((index, refusal)) => return self.refuse(index, *refusal).await,
        };
        let mut after = reserved.len();
        for (index, call) in reserved.into_iter().enumerate() {
            after -= 1;
            if self.gone.is_cancelled() {
                return;
            }
            self.run_call(index, Ready::Reserved(Box::new(call)), after).await;
            self.tell(index);
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
            match self.authorise(index).await.and_then(|call| self.ready(call)) {
                // The caller may have gone while the ledger was looked into.
                Ok(_) if self.gone.is_cancelled() => return,
                Ok(call) => self.run_call(index, call, self.proposals.len() - index - 1).await,
                Err(refusal) => self.refuse(index, *refusal).await,
            }
            self.tell(index);
        }
    }

    /// Everything that is decided before a reservation.
    async fn authorise(&mut self, index: usize) -> Result<Authorised, Box<Refusal>> {
        self.current = index;
        let call =
            self.gate.authorise(&self.in_force, &self.pairs.scope, &self.proposals[index]).await?;
        call.check_time(self.remaining(), self.policy().limits().min_attempt)?;
        Ok(call)
    }

    fn ready(&self, call: Authorised) -> Result<Ready, Box<Refusal>> {
        if call.claim().is_some() {
            return Ok(Ready::Claiming(Box::new(call)));
        }
        call.reserved(&self.context, None).map(|call| Ready::Reserved(Box::new(call)))
    }

    /// One transaction for the whole batch: it spends every ticket and opens
    /// every record, or changes nothing.
    async fn reserve_all(
        &mut self,
        calls: Vec<Authorised>,
    ) -> Result<Vec<Reserved>, (usize, Box<Refusal>)> {
        let min_attempt = self.policy().limits().min_attempt;
        for (index, call) in calls.iter().enumerate() {
            call.check_time(self.remaining(), min_attempt).map_err(|refusal| (index, refusal))?;
        }
        let claiming: Vec<usize> =
            (0..calls.len()).filter(|index| calls[*index].claim().is_some()).collect();
        let claims: Vec<Claim> = calls.iter().filter_map(|call| call.claim().cloned()).collect();
        let mut reservations = match (&self.gate.recorder, claims.is_empty()) {
            (_, true) => Vec::new(),
            (None, false) => return Err(lost(&calls, &claiming, 0, None)),
            (Some(recorder), false) => {
                failpoint!("admitted-not-reserved");
                let reserved = recorder.reserve(claims, self.gate.reading()).await;
                reserved.map_err(|fault| match fault {
                    ReserveFault::Turned { index, turned } => {
                        lost(&calls, &claiming, index, Some(turned))
                    }
                    ReserveFault::Ledger(_) => lost(&calls, &claiming, 0, None),
                })?
            }
        };
        self.held.clone_from(&reservations);
        reservations.reverse();
        let mut reserved = Vec::with_capacity(calls.len());
        for (index, call) in calls.into_iter().enumerate() {
            self.current = index;
            let reservation = call.claim().is_some().then(|| reservations.pop()).flatten();
            let call = call.reserved(&self.context, reservation);
            reserved.push(call.map_err(|refusal| (index, refusal))?);
        }
        Ok(reserved)
    }

    /// From here on somebody gives it back, whatever happens.
    pub(super) fn hold(&mut self, reservation: Reservation) {
        self.held.push(reservation);
    }

    /// Gives back what is not started after all.
    pub(super) async fn give_up(&mut self, reservation: &Reservation) {
        if let Some(recorder) = &self.gate.recorder {
            recorder.release(vec![reservation.clone()]).await;
        }
        self.held.retain(|held| held.id != reservation.id);
    }

    /// From here on the call is owed a settlement rather than a release.
    pub(super) fn start_running(&mut self, reservation: &Reservation, is_read: bool) {
        self.held.retain(|held| held.id != reservation.id);
        self.running = Some(Running {
            effect: reservation.effect_before(),
            reservation: reservation.clone(),
            is_read,
        });
    }

    pub(super) async fn refuse(&mut self, index: usize, refusal: Refusal) {
        let audit = self.pairs.refuse(&refusal).await;
        self.end(index, CallEnd::refused(&refusal, audit));
    }

    /// The call's result for now: a later attempt may have another.
    pub(super) fn end(&mut self, index: usize, end: CallEnd) {
        self.results[index] = Some(end);
    }

    /// The call's result is final.
    fn tell(&mut self, index: usize) {
        if !std::mem::replace(&mut self.told[index], true) {
            let (id, end) = (&self.proposals[index].tool_call_id, &self.results[index]);
            self.observer.tell(|| Step::Result(index, Box::new(call_result(id, end.clone()))));
        }
    }

    /// What was started may have had its effect; what was not is given back.
    async fn close_after_panic(&mut self) {
        let attempt = self.pairs.open_attempt();
        let running = self.running.take();
        let is_read = running.as_ref().is_none_or(|running| running.is_read);
        let effect = if is_read { Effect::None } else { Effect::Unknown };
        let ending = Ending::without_result(Reason::Internal, effect);
        let audit = if attempt.is_some() {
            self.pairs.close(&ending).await
        } else if running.is_some() {
            // Its pair has its own end already, or could not be given one.
            AuditState::CompletedFailed
        } else {
            let refusal = self.internal_refusal();
            self.pairs.refuse(&refusal).await
        };
        let mut end = CallEnd::ended(&ending, audit, attempt);
        if let Some(running) = running {
            end.effect = running.effect.and(effect);
            let last_attempt = attempt.unwrap_or(running.reservation.first_attempt);
            self.settle(&running.reservation, Reason::Internal, end.effect, None, last_attempt)
                .await;
        }
        self.results[self.current] = Some(end);
    }

    fn internal_refusal(&self) -> Refusal {
        let proposal = &self.proposals[self.current];
        let contract = self.policy().contract(&proposal.name).map(AsRef::as_ref);
        let id = proposal.tool_call_id.as_str();
        let id = if is_call_id(id) { id } else { Event::INVALID_CALL_ID };
        Refusal {
            subject: self.pairs.scope.subject(id.into(), &proposal.name, contract),
            attempt: 1,
            reason: Reason::Internal,
            detail: admission::Detail::None,
        }
    }

    fn succeeded(&self, index: usize) -> bool {
        self.results[index].as_ref().is_some_and(|end| end.reason == Reason::Ok)
    }

    /// The policy that decides the whole batch.
    pub(super) fn policy(&self) -> &PolicySnapshot {
        self.in_force.policy()
    }

    pub(super) fn remaining(&self) -> Duration {
        self.ends_at.saturating_duration_since(Instant::now())
    }

    pub(super) fn set_current(&mut self, index: usize) {
        self.current = index;
    }
}

fn call_result(tool_call_id: &str, end: Option<CallEnd>) -> CallResult {
    let id = is_call_id(tool_call_id).then(|| tool_call_id.to_owned());
    CallResult { tool_call_id: id, end }
}

/// The refusal of the claim that lost, by the index of its call.
fn lost(
    calls: &[Authorised],
    claiming: &[usize],
    claim: usize,
    turned: Option<crate::domain::record::Turned>,
) -> (usize, Box<Refusal>) {
    let index = claiming.get(claim).copied().unwrap_or_default();
    let turned = turned.unwrap_or(crate::domain::record::Turned::for_reason(Reason::LedgerFailed));
    (index, calls[index].turn(turned))
}
