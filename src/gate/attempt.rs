//! The attempts of one call, from its reservation to its settlement.

use std::sync::Arc;

use tokio::time::sleep;

use super::batch::{Batch, Ready};
use super::held::settlement;
use super::pair::Ending;
use super::{AuditState, CallEnd};
use crate::domain::attempts;
use crate::domain::audit::{Digest, Stamp, summarise};
use crate::domain::contract::Contract;
use crate::domain::json::Value;
use crate::domain::reason::{Effect, Reason};
use crate::domain::record::Reservation;
use crate::domain::result::{ResultFault, judge};
use crate::domain::stages::{Authorised, Reserved};
use crate::failpoint::failpoint;
use crate::ports::{ReserveFault, UpstreamFault};

/// How one attempt ended, and what the caller may see of it.
struct AttemptEnd {
    ending: Ending,
    result_json: Option<String>,
    /// Whether a handler was called.
    made: bool,
}

impl Batch {
    /// The attempts of one call: the next only after a time-out of the gate's own.
    pub(super) async fn run_call(&mut self, index: usize, ready: Ready, calls_after: usize) {
        self.set_current(index);
        let min_attempt = self.policy().limits().min_attempt;
        let (call, mut opened) = match ready {
            Ready::Claiming(call) => match self.claim_and_open(*call).await {
                Ok((call, stamp)) => (call, Some(stamp)),
                Err(end) => {
                    self.end(index, end);
                    return;
                }
            },
            Ready::Reserved(call) => {
                if call.window(self.remaining(), min_attempt).is_none() {
                    return self.refuse(index, *call.refuse(Reason::DeadlineTooShort)).await;
                }
                if let Some(reservation) = call.reservation() {
                    self.start_running(reservation, call.is_read());
                }
                (*call, None)
            }
        };
        let mut attempt = call.first_attempt();
        let last = attempt + call.contract().limits.max_attempts - 1;
        // A reopened call may have had its effect before.
        let mut effect = call.reservation().map_or(Effect::None, Reservation::effect_before);
        loop {
            self.steps.spend();
            let end = self.attempt(&call, attempt, opened.take()).await;
            effect = effect.and(end.ending.effect);
            if let Some(running) = &mut self.running {
                running.effect = effect;
            }
            let may_retry = attempts::retries_on(end.ending.reason, call.contract())
                && attempt < last
                && self.may_start_again(&call, calls_after);
            let made = if end.made { attempt } else { attempt - 1 };
            let audit = if may_retry {
                self.pairs.close(&end.ending).await
            } else {
                // Numbered as its started event, which the journal may still write.
                self.close_and_settle(&end.ending, effect, attempt).await
            };
            // Nothing is made again whose completed event failed; and closing and
            // pausing take time.
            let may_retry_now = may_retry && audit == AuditState::Recorded;
            if may_retry_now {
                self.pause(end.ending.reason, attempt + 1 - call.first_attempt()).await;
            }
            let again = may_retry_now && self.may_start_again(&call, calls_after);
            if may_retry && !again {
                self.settle_running(&end.ending, effect, attempt).await;
            }
            let made = (made >= call.first_attempt()).then_some(made);
            self.end(index, call_end(&call, end, audit, effect, made));
            if !again {
                return;
            }
            failpoint!("between-attempts");
            attempt += 1;
        }
    }

    async fn pause(&self, reason: Reason, retries: u32) {
        let pause = attempts::pause(reason, retries);
        if !pause.is_zero() {
            tokio::select! {
                () = self.gone.cancelled() => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Whether the batch has a step and the time for one more attempt, and somebody to make it for.
    fn may_start_again(&self, call: &Reserved, calls_after: usize) -> bool {
        self.steps.allows_retry(calls_after)
            && call.window(self.remaining(), self.policy().limits().min_attempt).is_some()
            && !self.gone.is_cancelled()
    }

    /// Makes the reservation and the first started event durable at the same
    /// time; the handler waits for both.
    async fn claim_and_open(&mut self, call: Authorised) -> Result<(Reserved, Stamp), CallEnd> {
        let (Some(claim), Some(recorder)) = (call.claim().cloned(), self.gate.recorder.clone())
        else {
            let refusal =
                call.turn(crate::domain::record::Turned::for_reason(Reason::LedgerFailed));
            let audit = self.pairs.refuse(&refusal).await;
            return Err(CallEnd::refused(&refusal, audit));
        };
        let started = Arc::clone(&claim.started);
        let durability = self.pairs.durability(true);
        failpoint!("admitted-not-reserved");
        let reserve = recorder.reserve(vec![claim], self.gate.reading());
        let (opened, reserved) =
            tokio::join!(self.pairs.open(Arc::clone(&started), durability), reserve);
        // A refusal keeps its own reason, whatever became of the event.
        let turned = match reserved {
            Ok(reservations) => match <[Reservation; 1]>::try_from(reservations) {
                Ok([reservation]) if reservation.first_attempt == started.attempt => {
                    self.hold(reservation.clone());
                    return self.opened(call, reservation, opened).await;
                }
                Ok([moved]) => {
                    // Somebody ran and ended the call since the look.
                    recorder.release(vec![moved]).await;
                    crate::domain::record::Turned::for_reason(Reason::CallInProgress)
                }
                Err(other) => {
                    recorder.release(other).await;
                    crate::domain::record::Turned::for_reason(Reason::Internal)
                }
            },
            Err(ReserveFault::Turned { turned, .. }) => turned,
            Err(ReserveFault::Ledger(_)) => {
                crate::domain::record::Turned::for_reason(Reason::LedgerFailed)
            }
        };
        let refusal = call.turn(turned);
        let ending = Ending::without_result(refusal.reason, refusal.effect());
        let audit = self.pairs.close(&ending).await;
        Err(CallEnd::refused(&refusal, audit))
    }

    /// A reservation whose started event is durable runs. One whose is not ends
    /// here: no handler was called, and its ticket stays spent. One that took the
    /// time of an attempt is given back.
    async fn opened(
        &mut self,
        call: Authorised,
        reservation: Reservation,
        opened: Result<Stamp, Reason>,
    ) -> Result<(Reserved, Stamp), CallEnd> {
        let (first_attempt, effect) = (reservation.first_attempt, reservation.effect_before());
        let is_read = call.claim().is_some_and(|claim| claim.reads);
        let call = call.reserved(&self.context, Some(reservation.clone()));
        let reason = match (call, opened) {
            (Ok(call), Ok(stamp)) => {
                let min_attempt = self.policy().limits().min_attempt;
                if call.window(self.remaining(), min_attempt).is_none() {
                    return Err(self.give_back(&call, reservation).await);
                }
                self.start_running(&reservation, is_read);
                return Ok((call, stamp));
            }
            (_, Err(reason)) => reason,
            (Err(refusal), Ok(_)) => refusal.reason,
        };
        // No handler was called, and its ticket stays spent.
        self.start_running(&reservation, is_read);
        let ending = Ending::without_result(reason, Effect::None);
        let audit = self.pairs.close(&ending).await;
        self.settle_running(&ending, effect, first_attempt).await;
        Err(CallEnd { effect, ..CallEnd::ended(&ending, audit, None) })
    }

    async fn give_back(&mut self, call: &Reserved, reservation: Reservation) -> CallEnd {
        let refusal = call.refuse(Reason::DeadlineTooShort);
        let ending = Ending::without_result(refusal.reason, refusal.effect());
        let audit = self.pairs.close(&ending).await;
        self.give_up(&reservation).await;
        CallEnd::refused(&refusal, audit)
    }

    /// One attempt: started event durable → handler. The caller closes the pair.
    async fn attempt(
        &mut self,
        call: &Reserved,
        attempt: u32,
        opened: Option<Stamp>,
    ) -> AttemptEnd {
        let started = if let Some(stamp) = opened {
            Ok(stamp)
        } else {
            let now = self.pairs.now();
            let started = self.pairs.scope.started(call.subject(), attempt, now);
            let durability = self.pairs.durability(call.reservation().is_some());
            self.pairs.open(Arc::new(started), durability).await
        };
        failpoint!("started-not-called");
        match started {
            Ok(stamp) => self.deliver(call, attempt, &stamp).await,
            Err(reason) => AttemptEnd {
                ending: Ending::without_result(reason, Effect::None),
                result_json: None,
                made: false,
            },
        }
    }

    /// The handler's answer, the attempt's deadline or the caller's going away, whichever comes first.
    async fn deliver(&self, call: &Reserved, attempt: u32, started: &Stamp) -> AttemptEnd {
        let contract = call.contract();
        let window = attempts::cut(contract.limits.attempt_timeout, self.remaining());
        let delivery =
            call.deliver(&self.context, attempt, window.timeout, self.trace.as_ref(), started);
        let ended = |reason, effect| AttemptEnd {
            ending: Ending::without_result(reason, effect),
            result_json: None,
            made: true,
        };
        // In this order: an answer that arrives with its deadline is late. A
        // running write is not cut off by a caller that goes away.
        let answer = tokio::select! {
            biased;
            () = self.gone.cancelled(), if call.is_read() => {
                return ended(Reason::Cancelled, Effect::None);
            }
            () = sleep(window.timeout) => {
                return ended(window.on_timeout, effect_of(contract, Effect::Unknown));
            }
            answer = self.in_force.terms.upstream.invoke(&delivery) => answer,
        };
        failpoint!("called-not-completed");
        match answer {
            Ok(text) => match judge(contract, &text) {
                Ok(value) => self.success(contract, &value, text),
                Err(fault) => {
                    tell_result_fault(call, &fault);
                    ended(Reason::ResultInvalid, effect_of(contract, Effect::Applied))
                }
            },
            Err(fault) => {
                self.gate.metrics.upstream_failed(&contract.upstream, fault);
                tell_upstream_fault(call, fault);
                ended(reason_of(fault), effect_of(contract, effect_of_fault(fault)))
            }
        }
    }

    fn success(&self, contract: &Contract, value: &Value, text: String) -> AttemptEnd {
        let summary = summarise(value, &contract.redact);
        let digest = self.pairs.scope.key.digest(value, &contract.redact);
        let effect = effect_of(contract, Effect::Applied);
        let ending = Ending { reason: Reason::Ok, effect, result: Some((summary, digest)) };
        AttemptEnd { ending, result_json: Some(text), made: true }
    }

    /// Closes the last pair of a call and settles its record at the same time:
    /// either alone is enough for the next start to know how it ended.
    async fn close_and_settle(
        &mut self,
        ending: &Ending,
        effect: Effect,
        attempt: u32,
    ) -> AuditState {
        let Some(running) = &self.running else {
            return self.pairs.close(ending).await;
        };
        let Reservation { id, key, .. } = running.reservation;
        let gate = Arc::clone(&self.gate);
        let at = self.pairs.now();
        let digest = ending.result.map(|(_, digest)| digest);
        let settle = async {
            if let Some(recorder) = &gate.recorder {
                recorder
                    .settle(id, key, settlement(ending.reason, effect, at, digest, attempt))
                    .await;
            }
        };
        let audit = tokio::join!(self.pairs.close(ending), settle).0;
        // Not before both are done: a fault on the way must know what has run.
        self.running = None;
        audit
    }

    async fn settle_running(&mut self, ending: &Ending, effect: Effect, attempt: u32) {
        let Some(running) = &self.running else { return };
        let digest = ending.result.map(|(_, digest)| digest);
        self.settle(&running.reservation, ending.reason, effect, digest, attempt).await;
        self.running = None;
    }

    pub(super) async fn settle(
        &self,
        reservation: &Reservation,
        reason: Reason,
        effect: Effect,
        digest: Option<Digest>,
        attempt: u32,
    ) {
        if let Some(recorder) = &self.gate.recorder {
            let settled = settlement(reason, effect, self.pairs.now(), digest, attempt);
            recorder.settle(reservation.id, reservation.key, settled).await;
        }
    }
}

fn call_end(
    call: &Reserved,
    end: AttemptEnd,
    audit: AuditState,
    effect: Effect,
    made: Option<u32>,
) -> CallEnd {
    let may_repeat =
        call.is_read() || effect == Effect::None || call.contract().handler_deduplicates;
    let retryable = end.ending.reason.row().retryable && may_repeat;
    CallEnd {
        effect,
        retryable,
        // What is not on record is not shown.
        result_json: end.result_json.filter(|_| audit == AuditState::Recorded),
        ..CallEnd::ended(&end.ending, audit, made)
    }
}

/// Reads change nothing.
fn effect_of(contract: &Contract, of_a_write: Effect) -> Effect {
    match contract.effect {
        crate::domain::contract::ToolEffect::Read => Effect::None,
        crate::domain::contract::ToolEffect::Write => of_a_write,
    }
}

/// What a write that ended like this has changed.
const fn effect_of_fault(fault: UpstreamFault) -> Effect {
    match fault {
        UpstreamFault::Unavailable { sent: false } => Effect::None,
        UpstreamFault::Malformed { ok: true } => Effect::Applied,
        UpstreamFault::Unavailable { sent: true }
        | UpstreamFault::Malformed { ok: false }
        | UpstreamFault::Status { .. } => Effect::Unknown,
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
        UpstreamFault::Unavailable { .. } | UpstreamFault::Malformed { .. } => None,
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
        UpstreamFault::Malformed { .. } => Reason::ResultInvalid,
    }
}
