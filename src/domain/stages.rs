//! The proofs that a call carries from stage to stage.
//!
//! [`Admitted`] → [`Authorised`] → [`Reserved`] → [`Delivery`]. Each is made only
//! from the one before, so that a skipped stage does not compile, and a handler
//! cannot be called without a reservation and a durable started event.

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::admission::{Detail, Refusal};
use super::attempts::{Window, window};
use super::audit::{Confirmed, Digest, Stamp, Subject, TraceId};
use super::canonical::canonical;
use super::contract::{Contract, ToolEffect};
use super::json::{Value, to_json};
use super::proposal::Context;
use super::reason::Reason;
use super::record::{Claim, Reservation, Turned};

/// A call of a registered and visible tool whose arguments are exactly what will
/// be hashed, shown, signed and sent.
#[derive(Debug)]
pub struct Admitted {
    contract: Arc<Contract>,
    subject: Subject,
    attempt: u32,
    arguments: Value,
}

/// An admitted call that may run as far as anybody can tell before its reservation.
#[derive(Debug)]
pub struct Authorised {
    admitted: Admitted,
    claim: Option<Box<Claim>>,
}

/// An authorised call whose reservation stands: it may be attempted.
#[derive(Debug)]
pub struct Reserved {
    call: Admitted,
    reservation: Option<Reservation>,
    first_attempt: u32,
    arguments_json: String,
    idempotency_key: String,
}

/// One attempt of a reserved call, its started event durable, on its way to the handler.
#[derive(Debug)]
pub struct Delivery<'a> {
    /// The reservation.
    pub call: &'a Reserved,
    /// Whose call it is.
    pub context: &'a Context,
    /// The attempt's number, from 1.
    pub attempt: u32,
    /// How long the handler has.
    pub timeout: Duration,
    /// W3C trace context to pass on.
    pub trace: Option<&'a TraceContext>,
    _started: &'a Stamp,
}

/// W3C trace context of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// The validated `traceparent`.
    pub traceparent: String,
    /// `tracestate`, at most 512 characters.
    pub tracestate: Option<String>,
    /// The trace id within `traceparent`.
    pub trace_id: TraceId,
}

impl Admitted {
    /// For [`super::admission::admit`] alone.
    pub(super) fn new(
        contract: Arc<Contract>,
        subject: Subject,
        attempt: u32,
        arguments: Value,
    ) -> Self {
        Self { contract, subject, attempt, arguments }
    }

    /// The contract of its tool.
    #[must_use]
    pub fn contract(&self) -> &Contract {
        &self.contract
    }

    /// What its events say of it.
    #[must_use]
    pub const fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The number that the proposal gives its first attempt.
    #[must_use]
    pub const fn first_attempt(&self) -> u32 {
        self.attempt
    }

    /// The arguments as validated.
    #[must_use]
    pub const fn arguments(&self) -> &Value {
        &self.arguments
    }

    /// Names the ticket, once its MAC has verified.
    pub(super) fn confirm(&mut self, confirmed: Arc<Confirmed>) {
        self.subject.confirmation = Some(confirmed);
    }

    /// The refusal of this call for a reason.
    #[must_use]
    pub fn refuse(&self, reason: Reason) -> Box<Refusal> {
        self.turn(Turned::for_reason(reason))
    }

    /// The refusal of this call by what the ledger knows of it.
    #[must_use]
    pub fn turn(&self, turned: Turned) -> Box<Refusal> {
        Box::new(Refusal {
            subject: self.subject.clone(),
            attempt: self.attempt,
            reason: turned.reason,
            detail: turned.replay.map_or(Detail::None, Detail::Replay),
        })
    }
}

impl Authorised {
    pub(super) const fn plain(admitted: Admitted) -> Self {
        Self { admitted, claim: None }
    }

    pub(super) const fn claiming(admitted: Admitted, claim: Box<Claim>) -> Self {
        Self { admitted, claim: Some(claim) }
    }

    /// What it asks of the ledger; `None` for a plain read.
    #[must_use]
    pub fn claim(&self) -> Option<&Claim> {
        self.claim.as_deref()
    }

    /// Whether an attempt would have its time, with this much left of the batch.
    ///
    /// # Errors
    ///
    /// `DEADLINE_TOO_SHORT` where it would not have `min_attempt`.
    pub fn check_time(
        &self,
        remaining: Duration,
        min_attempt: Duration,
    ) -> Result<(), Box<Refusal>> {
        match window(self.admitted.contract.limits.attempt_timeout, remaining, min_attempt) {
            Some(_) => Ok(()),
            None => Err(self.admitted.refuse(Reason::DeadlineTooShort)),
        }
    }

    /// The refusal of this call by what the ledger knows of it.
    #[must_use]
    pub fn turn(&self, turned: Turned) -> Box<Refusal> {
        self.admitted.turn(turned)
    }

    /// The call with its reservation, which the ledger gave for its claim. A
    /// plain read needs none.
    ///
    /// # Errors
    ///
    /// `INTERNAL` where the two do not belong together.
    pub fn reserved(
        self,
        context: &Context,
        reservation: Option<Reservation>,
    ) -> Result<Reserved, Box<Refusal>> {
        let claimed = self.claim.as_ref().map(|claim| claim.key);
        if claimed != reservation.as_ref().map(|reservation| reservation.key) {
            return Err(self.admitted.refuse(Reason::Internal));
        }
        let call = self.admitted;
        let first_attempt =
            reservation.as_ref().map_or(call.attempt, |reservation| reservation.first_attempt);
        let arguments_json = to_json(&call.arguments);
        let idempotency_key = idempotency_key(context, &call.subject.tool_call_id).to_string();
        Ok(Reserved { call, reservation, first_attempt, arguments_json, idempotency_key })
    }
}

impl Reserved {
    /// The contract that it runs under.
    #[must_use]
    pub fn contract(&self) -> &Contract {
        &self.call.contract
    }

    /// What its events say of it.
    #[must_use]
    pub fn subject(&self) -> &Subject {
        &self.call.subject
    }

    /// The number of its first attempt.
    #[must_use]
    pub const fn first_attempt(&self) -> u32 {
        self.first_attempt
    }

    /// What the ledger holds for it; `None` for a plain read.
    #[must_use]
    pub const fn reservation(&self) -> Option<&Reservation> {
        self.reservation.as_ref()
    }

    /// The arguments as validated.
    #[must_use]
    pub fn arguments(&self) -> &Value {
        &self.call.arguments
    }

    /// The same as JSON text, serialised by the gate.
    #[must_use]
    pub fn arguments_json(&self) -> &str {
        &self.arguments_json
    }

    /// The same for every attempt of this call, different for every other (section 7).
    #[must_use]
    pub fn idempotency_key(&self) -> &str {
        &self.idempotency_key
    }

    /// When the next attempt must end, with this much time left of the batch.
    #[must_use]
    pub fn window(&self, remaining: Duration, min_attempt: Duration) -> Option<Window> {
        window(self.contract().limits.attempt_timeout, remaining, min_attempt)
    }

    /// Whether the call only reads.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.contract().effect == ToolEffect::Read
    }

    /// The refusal of a reserved call that must not start any more.
    #[must_use]
    pub fn refuse(&self, reason: Reason) -> Box<Refusal> {
        self.call.refuse(reason)
    }

    /// An attempt whose started event the journal has stamped.
    #[must_use]
    pub fn deliver<'a>(
        &'a self,
        context: &'a Context,
        attempt: u32,
        timeout: Duration,
        trace: Option<&'a TraceContext>,
        started: &'a Stamp,
    ) -> Delivery<'a> {
        Delivery { call: self, context, attempt, timeout, trace, _started: started }
    }
}

/// `SHA-256(C([tenant, conversation, tool_call_id]))`.
pub(super) fn idempotency_key(context: &Context, tool_call_id: &str) -> Digest {
    let parts = [&*context.tenant_id, &*context.conversation_id, tool_call_id];
    let parts =
        Value::Array(parts.into_iter().map(|part| Value::String(part.to_owned())).collect());
    Digest(Sha256::digest(canonical(&parts)).into())
}
