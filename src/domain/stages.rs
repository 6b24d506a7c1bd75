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
use super::audit::{Digest, Stamp, Subject, TraceId};
use super::canonical::canonical;
use super::contract::{Contract, ToolEffect};
use super::json::{Value, to_json};
use super::proposal::Context;
use super::reason::Reason;

/// A call of a registered and visible tool whose arguments are exactly what will
/// be hashed, shown, signed and sent.
#[derive(Debug)]
pub struct Admitted {
    contract: Arc<Contract>,
    subject: Subject,
    attempt: u32,
    arguments: Value,
}

/// An admitted call that needs no ticket, or has shown one.
#[derive(Debug)]
pub struct Authorised {
    admitted: Admitted,
}

/// An authorised call whose reservation stands: it may be attempted.
#[derive(Debug)]
pub struct Reserved {
    call: Admitted,
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

    fn refuse(&self, reason: Reason) -> Box<Refusal> {
        Box::new(Refusal {
            subject: self.subject.clone(),
            attempt: self.attempt,
            reason,
            detail: Detail::None,
        })
    }
}

impl Authorised {
    /// Lets through what needs no ticket and no record, and brings none. There
    /// is no ledger yet that could keep either, so what needs one is refused.
    ///
    /// # Errors
    ///
    /// `LEDGER_FAILED` for a contract that needs the ledger,
    /// `CONFIRMATION_UNEXPECTED` for a ticket that nobody asked for.
    pub fn new(admitted: Admitted, ticket: Option<&str>) -> Result<Self, Box<Refusal>> {
        if admitted.contract.needs_record() {
            return Err(admitted.refuse(Reason::LedgerFailed));
        }
        if ticket.is_some() {
            return Err(admitted.refuse(Reason::ConfirmationUnexpected));
        }
        Ok(Self { admitted })
    }
}

impl Reserved {
    /// Reserves a call with this much time left of the batch.
    ///
    /// # Errors
    ///
    /// `DEADLINE_TOO_SHORT` where an attempt would not have `min_attempt`.
    pub fn new(
        authorised: Authorised,
        context: &Context,
        remaining: Duration,
        min_attempt: Duration,
    ) -> Result<Self, Box<Refusal>> {
        let call = authorised.admitted;
        if window(call.contract.limits.attempt_timeout, remaining, min_attempt).is_none() {
            return Err(call.refuse(Reason::DeadlineTooShort));
        }
        let arguments_json = to_json(&call.arguments);
        let idempotency_key = idempotency_key(context, &call.subject.tool_call_id).to_string();
        Ok(Self { call, arguments_json, idempotency_key })
    }

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
    pub fn first_attempt(&self) -> u32 {
        self.call.attempt
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
fn idempotency_key(context: &Context, tool_call_id: &str) -> Digest {
    let parts = [&*context.tenant_id, &*context.conversation_id, tool_call_id];
    let parts =
        Value::Array(parts.into_iter().map(|part| Value::String(part.to_owned())).collect());
    Digest(Sha256::digest(canonical(&parts)).into())
}
