//! What changes for callers between two policies, in words.
//!
//! A comparison of what contracts say, not a proof: of a keyword whose bearing
//! depends on others it tells that it changed, and that it may go either way.

mod schemas;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use super::audit::Digest;
use super::contract::{Confirmation, Contract, ContractLimits, Exception};
use super::policy::{PolicyLimits, PolicySnapshot};

/// Everything that changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyDiff {
    /// The policy before.
    pub before: Digest,
    /// The policy after.
    pub after: Digest,
    /// What changes: the policy's own limits first, then tools in the order of their names.
    pub changes: Vec<Change>,
    /// Tools whose tickets that are out end: their contracts change or go.
    pub tickets_end: Vec<Arc<str>>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The tool; `None` for the policy as a whole.
    pub tool: Option<Arc<str>>,
    /// What kind of change. Stable.
    pub kind: &'static str,
    /// Whom it concerns.
    pub bearing: Bearing,
    /// What changes, in one line.
    pub text: String,
}

/// What a change does to calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bearing {
    /// Calls that ran may be refused, or find less time or room.
    Narrower,
    /// Calls that were refused may run.
    Wider,
    /// Either.
    Either,
    /// Neither: it tells or records otherwise.
    Neither,
}

impl Bearing {
    /// The word in answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Narrower => "narrower",
            Self::Wider => "wider",
            Self::Either => "either",
            Self::Neither => "neither",
        }
    }

    /// Of a bound that moved, where more lets more calls through.
    fn of_most<T: PartialOrd>(before: &T, after: &T) -> Self {
        if after < before { Self::Narrower } else { Self::Wider }
    }
}

impl PolicyDiff {
    /// Compares two policies.
    #[must_use]
    pub fn between(before: &PolicySnapshot, after: &PolicySnapshot) -> Self {
        let mut changes = Vec::new();
        policy_limits(before.limits(), after.limits(), &mut changes);
        let mut tickets_end = Vec::new();
        let names: BTreeSet<&Arc<str>> =
            before.contracts().chain(after.contracts()).map(|contract| &contract.name).collect();
        for name in names {
            let mut told = Told { tool: name, changes: &mut changes };
            match (before.contract(name), after.contract(name)) {
                (None, Some(new)) => {
                    let asks = if new.needs_ticket() { ", with a confirmation" } else { "" };
                    let effect = new.effect.as_str();
                    told.add("tool_added", Bearing::Wider, format!("added: a {effect}{asks}"));
                }
                (Some(_), None) => {
                    told.add("tool_removed", Bearing::Narrower, "removed".to_owned());
                }
                (Some(old), Some(new)) => contracts(old, new, &mut told),
                (None, None) => {}
            }
            let of = |policy: &PolicySnapshot| policy.contract(name).map(|one| one.digest);
            let had_tickets = before.contract(name).is_some_and(|old| old.needs_ticket());
            if had_tickets && of(before) != of(after) {
                tickets_end.push(Arc::clone(name));
            }
        }
        Self { before: before.digest(), after: after.digest(), changes, tickets_end }
    }

    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.before == self.after
    }
}

/// Where changes of one tool go.
struct Told<'a> {
    tool: &'a Arc<str>,
    changes: &'a mut Vec<Change>,
}

impl Told<'_> {
    fn add(&mut self, kind: &'static str, bearing: Bearing, text: String) {
        self.changes.push(Change { tool: Some(Arc::clone(self.tool)), kind, bearing, text });
    }

    /// Tells of a value that is another now.
    fn value<T: PartialEq>(
        &mut self,
        kind: &'static str,
        name: &str,
        (before, after): (&T, &T),
        bearing: Bearing,
        show: impl Fn(&T) -> String,
    ) {
        if before != after {
            self.add(kind, bearing, format!("{name}: {} -> {}", show(before), show(after)));
        }
    }
}

fn policy_limits(before: &PolicyLimits, after: &PolicyLimits, changes: &mut Vec<Change>) {
    let mut tell = |name: &str, old: String, new: String, bearing| {
        if old != new {
            let text = format!("{name}: {old} -> {new}");
            changes.push(Change { tool: None, kind: "policy_limit", bearing, text });
        }
    };
    let (old, new) = (before.max_steps, after.max_steps);
    tell("max_steps", old.to_string(), new.to_string(), Bearing::of_most(&old, &new));
    let (old, new) = (before.batch_total, after.batch_total);
    tell("batch_total", time(&old), time(&new), Bearing::of_most(&old, &new));
    let (old, new) = (before.min_attempt, after.min_attempt);
    tell("min_attempt", time(&old), time(&new), Bearing::of_most(&new, &old));
}

fn contracts(old: &Contract, new: &Contract, told: &mut Told<'_>) {
    use Bearing::{Either, Narrower, Neither, Wider};
    told.value("effect", "effect", (&old.effect, &new.effect), Either, |effect| {
        effect.as_str().to_owned()
    });
    schemas::arguments(old.arguments_schema.document(), new.arguments_schema.document(), told);
    confirmation(old.confirmation.as_ref(), new.confirmation.as_ref(), told);
    limits(&old.limits, &new.limits, told);
    let retries = (&old.retry_unavailable, &new.retry_unavailable);
    told.value("attempts", "retry_on unavailable", retries, Neither, |one| yes_or_no(*one));
    let deduplicates = (&old.handler_deduplicates, &new.handler_deduplicates);
    let wider = if new.handler_deduplicates { Wider } else { Narrower };
    told.value("attempts", "handler_deduplicates", deduplicates, wider, |one| yes_or_no(*one));
    told.value(
        "trim_strings",
        "trim_strings",
        (&old.trim_strings, &new.trim_strings),
        Either,
        |one| yes_or_no(*one),
    );
    told.value(
        "upstream",
        "upstream",
        (&old.upstream, &new.upstream),
        Neither,
        ToString::to_string,
    );
    if old.description != new.description {
        told.add("description", Neither, "the description for the model changes".to_owned());
    }
    let result = |contract: &Contract| {
        contract.result_schema.as_ref().map(|schema| schema.document().clone())
    };
    match (result(old), result(new)) {
        (None, Some(_)) => told.add("result", Narrower, "results must fit a schema now".to_owned()),
        (Some(_), None) => told.add("result", Wider, "results fit any schema now".to_owned()),
        (before, after) if before != after => {
            told.add("result", Either, "the schema of results changes".to_owned());
        }
        _ => {}
    }
    lists(
        "redaction",
        "redacts",
        &sorted(&old.redact),
        &sorted(&new.redact),
        Neither,
        Neither,
        told,
    );
    let exceptions = |contract: &Contract| -> BTreeSet<String> {
        let show = |one: &Exception| format!("{} at {}: {}", one.code, one.at, one.reason);
        contract.exceptions.iter().map(show).collect()
    };
    lists("exception", "exception", &exceptions(old), &exceptions(new), Wider, Narrower, told);
}

fn confirmation(old: Option<&Confirmation>, new: Option<&Confirmation>, told: &mut Told<'_>) {
    use Bearing::{Either, Narrower, Neither, Wider};
    let (old, new) = match (old, new) {
        (None, None) => return,
        (None, Some(_)) => {
            return told.add("confirmation", Narrower, "a person must confirm it now".to_owned());
        }
        (Some(_), None) => {
            return told.add("confirmation", Wider, "nobody confirms it any more".to_owned());
        }
        (Some(old), Some(new)) => (old, new),
    };
    let prompts = (&old.prompt.text().to_owned(), &new.prompt.text().to_owned());
    told.value("prompt", "prompt", prompts, Neither, |text| format!("{text:?}"));
    let by = (&old.confirm_by, &new.confirm_by);
    told.value("confirm_by", "confirm_by", by, Either, |role| {
        role.clone().unwrap_or_else(|| "the user alone".to_owned())
    });
    let hidden = |one: &Confirmation| -> BTreeSet<String> {
        one.not_shown.iter().map(|(name, reason)| format!("{name}: {reason}")).collect()
    };
    lists("not_shown", "not shown", &hidden(old), &hidden(new), Neither, Neither, told);
}

fn limits(old: &ContractLimits, new: &ContractLimits, told: &mut Told<'_>) {
    let mut tell = |kind, name: &str, before: u128, after: u128, show: &dyn Fn(u128) -> String| {
        let bearing = Bearing::of_most(&before, &after);
        told.value(kind, name, (&before, &after), bearing, |one| show(*one));
    };
    let number = |one: u128| one.to_string();
    let bytes = |one: u128| format!("{one} bytes");
    let length = |one: u128| format!("{one} ms");
    let size = |one: usize| one as u128;
    let kind = "limit";
    tell(
        kind,
        "attempt_timeout",
        old.attempt_timeout.as_millis(),
        new.attempt_timeout.as_millis(),
        &length,
    );
    tell("attempts", "max_attempts", old.max_attempts.into(), new.max_attempts.into(), &number);
    tell(
        kind,
        "max_argument_bytes",
        size(old.max_argument_bytes),
        size(new.max_argument_bytes),
        &bytes,
    );
    tell(kind, "max_result_bytes", size(old.max_result_bytes), size(new.max_result_bytes), &bytes);
    tell(
        kind,
        "max_authorised_bytes",
        size(old.max_authorised_bytes),
        size(new.max_authorised_bytes),
        &bytes,
    );
    // A record that is kept longer refuses a repeated call for longer.
    let (before, after) = (new.record_kept.as_millis(), old.record_kept.as_millis());
    let bearing = Bearing::of_most(&before, &after);
    told.value(kind, "record_kept", (&after, &before), bearing, |one| length(*one));
}

/// Tells of what came to a list and what left it.
fn lists(
    kind: &'static str,
    name: &str,
    before: &BTreeSet<String>,
    after: &BTreeSet<String>,
    coming: Bearing,
    going: Bearing,
    told: &mut Told<'_>,
) {
    for one in after.difference(before) {
        told.add(kind, coming, format!("{name} added: {one}"));
    }
    for one in before.difference(after) {
        told.add(kind, going, format!("{name} removed: {one}"));
    }
}

fn sorted(names: &[String]) -> BTreeSet<String> {
    names.iter().cloned().collect()
}

fn yes_or_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

fn time(duration: &Duration) -> String {
    format!("{} ms", duration.as_millis())
}

/// A value as it stands in the policy, cut where it is long.
fn shown(value: &impl Display) -> String {
    const MOST: usize = 200;
    let text = value.to_string();
    if text.chars().count() <= MOST {
        return text;
    }
    text.chars().take(MOST).chain(['…']).collect()
}
