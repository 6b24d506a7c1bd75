//! What the next gate finds and answers.

use toolgate::domain::audit::{Event, EventKind};
use toolgate::domain::reason::{Effect, Outcome, Reason};
use toolgate::proto::{self, ToolCall, ToolResult};

use super::world::{Client, World};
use crate::support::journal;

/// What a dead gate has left of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Nothing durable: its ticket runs it, once.
    Unspent,
    /// A spent ticket, and no effect.
    Spent,
    /// An end that is replayed.
    Ended(Reason, Effect),
}

/// Not known, though it may have had its effect.
pub const LOST: Left = Left::Ended(Reason::ProcessLost, Effect::Unknown);
/// Done, and known to be.
pub const DONE: Left = Left::Ended(Reason::Ok, Effect::Applied);

/// Asks a gate about each call in turn, with the ticket that it had, and checks
/// every answer against one of those that are `wanted` and against the handler.
pub async fn ask(
    world: &World,
    client: &Client,
    calls: &[ToolCall],
    wanted: &[&[Left]],
    what: &str,
) {
    for (call, wanted) in calls.iter().zip(wanted) {
        let id = &call.tool_call_id;
        let before = world.effects.attempts(id);
        let result = execute_one(client, call).await;
        let left = left_by(&result, what);
        assert!(wanted.contains(&left), "{what}: {id} left {left:?}, not one of {wanted:?}");
        match left {
            Left::Unspent => {
                assert!(before.is_empty(), "{what}: {id} was run before");
                let again = left_by(&execute_one(client, call).await, what);
                assert!(matches!(again, Left::Ended(..)), "{what}: {id} ran, then {again:?}");
            }
            Left::Spent => {
                assert!(before.is_empty(), "{what}: {id} had an effect, and is said to have none");
                let fresh = client.confirmed(id, &call.name).await.unwrap();
                let reopened = execute_one(client, &fresh).await;
                assert_eq!(reopened.effect(), proto::Effect::Applied, "{what}: {reopened:?}");
            }
            Left::Ended(_, effect) => {
                assert_eq!(world.effects.attempts(id), before, "{what}: {id} was run again");
                assert_ne!(effect, Effect::None, "{what}: {id}");
                if effect == Effect::Applied {
                    assert!(!before.is_empty(), "{what}: {id} is said to have had an effect");
                }
            }
        }
    }
    world.check_effects(what);
}

/// Verifies the chain, that each pair is closed once, and that an attempt's pair
/// ends as the ledger says that its call has.
pub fn check_journal(world: &World, calls: &[ToolCall], wanted: &[&[Left]], what: &str) {
    let events = journal::events(world.directory.path());
    journal::endings_of(&events);
    for (call, wanted) in calls.iter().zip(wanted) {
        let [Left::Ended(reason, effect)] = wanted else { continue };
        let (last, changed) = attempts_of(&events, &call.tool_call_id);
        assert_eq!((last, changed), (Some(*reason), *effect), "{what}: {}", call.tool_call_id);
    }
}

/// How the last attempt of a call ended, and what all of them changed.
fn attempts_of(events: &[Event], id: &str) -> (Option<Reason>, Effect) {
    let mut found = (None, Effect::None);
    for event in events.iter().filter(|event| *event.tool_call_id == *id) {
        if let EventKind::Completed { reason, effect, .. } = event.kind
            && !matches!(reason.outcome(), Outcome::Denied | Outcome::Validation)
        {
            found = (Some(reason), found.1.and(effect));
        }
    }
    found
}

async fn execute_one(client: &Client, call: &ToolCall) -> ToolResult {
    let response = client.execute(std::slice::from_ref(call)).await.unwrap();
    response.results.into_iter().next().unwrap()
}

/// What an answer tells of the call before it.
pub fn left_by(result: &ToolResult, what: &str) -> Left {
    match result.reason() {
        proto::Reason::ConfirmationConsumed => Left::Spent,
        proto::Reason::CallReplayed => {
            let recorded = result.recorded.as_ref().expect("what is replayed");
            assert_eq!(result.effect, recorded.effect, "{what}");
            let reason = match recorded.reason() {
                proto::Reason::Ok => Reason::Ok,
                proto::Reason::ProcessLost => Reason::ProcessLost,
                proto::Reason::AttemptDeadline => Reason::AttemptDeadline,
                proto::Reason::HandlerFailed => Reason::HandlerFailed,
                proto::Reason::UpstreamUnavailable => Reason::UpstreamUnavailable,
                other => panic!("{what}: replayed {other:?}"),
            };
            let effect = match recorded.effect() {
                proto::Effect::None => Effect::None,
                proto::Effect::Applied => Effect::Applied,
                proto::Effect::Unknown => Effect::Unknown,
                proto::Effect::Unspecified => panic!("{what}: no effect is recorded"),
            };
            Left::Ended(reason, effect)
        }
        // The ticket was still good; whatever came of that, the call ran now.
        _ if result.attempt > 0 => Left::Unspent,
        other => panic!("{what}: {other:?}"),
    }
}
