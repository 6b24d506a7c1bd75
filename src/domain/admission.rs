//! From proposals to admitted calls: protocol, step budget, admission (semantics, section 5).

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use super::audit::{Event, Scope, Subject, is_call_id};
use super::contract::Contract;
use super::json::{self, Integers, JsonFault, Value};
use super::policy::PolicySnapshot;
use super::proposal::Proposal;
use super::reason::{Effect, Reason};
use super::record::Ended;
use super::schema::SchemaFault;
use super::stages::Admitted;

/// The highest attempt number, and so a bound on how often one call is ever delivered.
pub const MAX_ATTEMPT: u32 = 100;

/// A call that no handler will see, with all that its audit pair and its answer need.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// What its pair says of the call.
    pub subject: Subject,
    /// The attempt's number in its pair.
    pub attempt: u32,
    /// Why.
    pub reason: Reason,
    /// What more may be said of it.
    pub detail: Detail,
}

/// What more may be said of a refusal. Holds no value and no name that a model made up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Detail {
    /// Nothing.
    None,
    /// Which rule of strict JSON is broken.
    Json(JsonFault),
    /// What the schema found.
    Schema(Vec<SchemaFault>),
    /// How the recorded call ended, for `CALL_REPLAYED`.
    Replay(Ended),
}

/// A batch that is refused whole, and the call that it is refused for.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchRefusal {
    /// The index of that call.
    pub index: usize,
    /// Its refusal.
    pub refusal: Refusal,
}

impl Refusal {
    /// The sentence for the model.
    #[must_use]
    pub fn message(&self) -> Cow<'static, str> {
        let message = self.reason.row().message;
        match &self.detail {
            Detail::Json(fault) => Cow::Owned(format!("{message} {}", fault.message())),
            Detail::None | Detail::Schema(_) | Detail::Replay(_) => Cow::Borrowed(message),
        }
    }

    /// What the call is known to have changed: nothing, unless the ledger knows of it.
    #[must_use]
    pub const fn effect(&self) -> Effect {
        match (&self.detail, self.reason) {
            (Detail::Replay(ended), _) => ended.effect,
            (_, Reason::CallInProgress) => Effect::Unknown,
            _ => Effect::None,
        }
    }

    /// How the recorded call ended, for `CALL_REPLAYED`.
    #[must_use]
    pub const fn replay(&self) -> Option<&Ended> {
        match &self.detail {
            Detail::Replay(ended) => Some(ended),
            Detail::None | Detail::Json(_) | Detail::Schema(_) => None,
        }
    }

    /// What the schema found.
    #[must_use]
    pub fn faults(&self) -> &[SchemaFault] {
        match &self.detail {
            Detail::Schema(faults) => faults,
            Detail::None | Detail::Json(_) | Detail::Replay(_) => &[],
        }
    }
}

/// Checks the form of the whole batch, then its length: either refuses it whole.
///
/// # Errors
///
/// The first bad call, or the first call over `max_steps`.
pub fn check_batch(
    scope: &Scope,
    policy: &PolicySnapshot,
    batch: &[Proposal],
) -> Result<(), Box<BatchRefusal>> {
    let mut seen = HashSet::with_capacity(batch.len());
    for (index, proposal) in batch.iter().enumerate() {
        let contract = policy.contract(&proposal.name).map(Arc::as_ref);
        let reason = if !has_valid_form(proposal, contract) {
            Reason::ProtocolInvalid
        } else if !seen.insert(proposal.tool_call_id.as_str()) {
            Reason::DuplicateCallId
        } else {
            continue;
        };
        return Err(refuse_batch(scope, index, proposal, contract, reason));
    }
    match batch.get(policy.limits().max_steps) {
        Some(proposal) => {
            let contract = policy.contract(&proposal.name).map(Arc::as_ref);
            let index = policy.limits().max_steps;
            Err(refuse_batch(scope, index, proposal, contract, Reason::StepBudgetExceeded))
        }
        None => Ok(()),
    }
}

/// Admits one call of a batch whose form was checked: name, strict JSON, normalisation, schema.
///
/// The order is that of the costs, and each step needs the one before: a name
/// that is not registered has no limits to parse under, and only what was
/// normalised may be validated, or something else would be sent than was judged.
///
/// # Errors
///
/// The refusal, for its audit pair and its answer.
pub fn admit(
    scope: &Scope,
    policy: &PolicySnapshot,
    proposal: &Proposal,
) -> Result<Admitted, Box<Refusal>> {
    let call_id: Arc<str> = proposal.tool_call_id.as_str().into();
    let attempt = proposal.attempt.unwrap_or(1);
    let refuse = |subject, reason, detail| Box::new(Refusal { subject, attempt, reason, detail });

    let Some(contract) = policy.contract(&proposal.name) else {
        let subject = scope.subject(call_id, &proposal.name, None);
        return Err(refuse(subject, Reason::UnknownTool, Detail::None));
    };
    let parse = || {
        let limit = contract.limits.max_argument_bytes;
        json::parse_object(proposal.arguments_json.as_bytes(), limit, Integers::Safe)
            .map(Value::Object)
    };
    let not_json = |call_id, fault| {
        let subject = scope.subject(call_id, &proposal.name, Some(contract));
        refuse(subject, Reason::ArgumentsNotJson, Detail::Json(fault))
    };
    let arguments = match parse() {
        Ok(parsed) => json::normalise(parsed, contract.trim_strings),
        Err(fault) => return Err(not_json(call_id, fault)),
    };
    if let Err(faults) = contract.arguments_schema.validate(&arguments) {
        // The audit of a call that the schema refuses shows what was proposed.
        // It is parsed again, so that the calls that pass need no second copy.
        let proposed = parse().map_err(|fault| not_json(Arc::clone(&call_id), fault))?;
        let subject = scope.subject_of(call_id, &proposal.name, Some(contract), &proposed);
        return Err(refuse(subject, Reason::ArgumentsInvalid, Detail::Schema(faults)));
    }
    let subject = scope.subject_of(call_id, &proposal.name, Some(contract), &arguments);
    Ok(Admitted::new(Arc::clone(contract), subject, attempt, arguments))
}

fn has_valid_form(proposal: &Proposal, contract: Option<&Contract>) -> bool {
    is_call_id(&proposal.tool_call_id)
        && !proposal.name.is_empty()
        && valid_attempt(proposal, contract).is_some()
}

/// The first attempt's number, if it and every retry stay within [`MAX_ATTEMPT`].
fn valid_attempt(proposal: &Proposal, contract: Option<&Contract>) -> Option<u32> {
    let first = proposal.attempt.unwrap_or(1);
    let more = contract.map_or(1, |contract| contract.limits.max_attempts) - 1;
    (first >= 1 && first.saturating_add(more) <= MAX_ATTEMPT).then_some(first)
}

fn refuse_batch(
    scope: &Scope,
    index: usize,
    proposal: &Proposal,
    contract: Option<&Contract>,
    reason: Reason,
) -> Box<BatchRefusal> {
    let id = proposal.tool_call_id.as_str();
    let id = if is_call_id(id) { id } else { Event::INVALID_CALL_ID };
    let refusal = Refusal {
        subject: scope.subject(id.into(), &proposal.name, contract),
        attempt: valid_attempt(proposal, contract).unwrap_or(1),
        reason,
        detail: Detail::None,
    };
    Box::new(BatchRefusal { index, refusal })
}
