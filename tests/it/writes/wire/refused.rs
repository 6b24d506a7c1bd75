//! Tickets that were moved, changed, revoked or not given at all.

use tonic::{Code, Status};
use toolgate::proto::{CallContext, IssueRequest, Reason, ToolCall};

use super::{Sides, draft, refund, sides};
use crate::grpc::assert_refused;
use crate::support::running::{Options, World, call, context};

type Change<T> = fn(&mut T);
type BoxedChange<'a> = Box<dyn Fn(&mut IssueRequest) + 'a>;

#[tokio::test]
async fn a_moved_ticket_does_not_fit() {
    let world = World::start_with(Options::writes()).await;
    let sides = sides(&world);
    let (confirmed, _) = sides.confirm(draft("c1", "a")).await;
    let calls: [Change<ToolCall>; 3] = [
        |call| call.arguments_json = r#"{"text": "b"}"#.to_owned(),
        |call| "c2".clone_into(&mut call.tool_call_id),
        |call| "refund".clone_into(&mut call.name),
    ];
    for change in calls {
        let mut moved = confirmed.clone();
        change(&mut moved);
        assert_eq!(sides.reason(&moved).await, Reason::ConfirmationMismatch, "{moved:?}");
    }
    let contexts: [Change<CallContext>; 3] = [
        |context| "conversation-2".clone_into(&mut context.conversation_id),
        |context| "user-2".clone_into(&mut context.user_id),
        |context| "tenant-2".clone_into(&mut context.tenant_id),
    ];
    for change in contexts {
        let mut moved = context();
        change(&mut moved);
        let response = sides.execute_in(moved, vec![confirmed.clone()]).await;
        assert_eq!(response.results[0].reason(), Reason::ConfirmationMismatch);
    }
    assert!(world.handler.seen().is_empty());
    // The ticket is none the worse for it. Another request of the conversation is the same call.
    let later = CallContext { request_id: "request-2".to_owned(), ..context() };
    let response = sides.execute_in(later, vec![confirmed]).await;
    assert_eq!(response.results[0].reason(), Reason::Ok);
}

#[tokio::test]
async fn a_changed_ticket_is_nobodys_and_names_nothing() {
    let world = World::start_with(Options::writes()).await;
    let sides = sides(&world);
    let (confirmed, _) = sides.confirm(draft("c1", "a")).await;
    let ticket = &confirmed.confirmation_ticket;
    for at in [0, ticket.len() / 2, ticket.len() - 3] {
        let mut bytes = ticket.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        let confirmation_ticket = String::from_utf8(bytes).unwrap();
        let changed = ToolCall { confirmation_ticket, ..confirmed.clone() };
        let response = sides.execute_in(context(), vec![changed]).await;
        assert_eq!(response.results[0].reason(), Reason::ConfirmationInvalid);
        for event in response.events {
            assert!(event.confirmation_id.is_empty() && event.confirmed_by_user_id.is_empty());
            assert!(event.confirmed_at.is_none() && event.confirmation_purpose.is_empty());
        }
    }
    assert_eq!(sides.reason(&confirmed).await, Reason::Ok);
}

async fn refusal(sides: &Sides, call: ToolCall, change: impl FnOnce(&mut IssueRequest)) -> Status {
    let mut request = sides.request(context(), call).await;
    change(&mut request);
    sides.issue(request).await.unwrap_err()
}

#[tokio::test]
async fn a_preview_that_is_not_current_confirms_nothing() {
    let mut world = World::start_with(Options::writes()).await;
    let sides = sides(&world);
    let other = sides.request(context(), draft("c1", "b")).await;
    let changes: [BoxedChange<'_>; 5] = [
        Box::new(|request| request.arguments_hash = other.arguments_hash.clone()),
        Box::new(|request| request.arguments_hash.clear()),
        Box::new(|request| "confirm-2".clone_into(&mut request.key_id)),
        Box::new(|request| request.contract_digest = "0".repeat(64)),
        // What was shown is not what is asked for.
        Box::new(|request| {
            request.call.as_mut().unwrap().arguments_json = r#"{"text": "b"}"#.to_owned();
        }),
    ];
    for change in changes {
        let status = refusal(&sides, draft("c1", "a"), change).await;
        assert_refused(&status, Code::FailedPrecondition, "PREVIEW_STALE", None);
    }
    world.stop().await;
    assert!(world.journal().is_empty(), "what was not issued leaves no event");
}

#[tokio::test]
async fn only_the_user_or_the_named_role_may_confirm() {
    let world = World::start_with(Options::writes()).await;
    let sides = sides(&world);
    let as_clerk = |roles: &[&str]| {
        let roles = roles.iter().map(|role| (*role).to_owned()).collect();
        move |request: &mut IssueRequest| {
            "clerk-1".clone_into(&mut request.confirming_user_id);
            request.confirming_user_roles = roles;
        }
    };
    let denied = |status: &Status| {
        assert_refused(status, Code::PermissionDenied, "MAY_NOT_CONFIRM", None);
    };
    denied(&refusal(&sides, refund("c1", "a"), as_clerk(&[])).await);
    denied(&refusal(&sides, refund("c1", "a"), as_clerk(&["Supervisor", "super"])).await);
    // The contract of draft names no role.
    denied(&refusal(&sides, draft("c1", "a"), as_clerk(&["supervisor"])).await);

    let mut request = sides.request(context(), refund("c1", "a")).await;
    as_clerk(&["clerk", "supervisor"])(&mut request);
    let issued = sides.issue(request).await.unwrap();
    assert_eq!(issued.claims.unwrap().confirmed_by_user_id, "clerk-1");
    let confirmed = ToolCall { confirmation_ticket: issued.ticket, ..refund("c1", "a") };
    let response = sides.execute_in(context(), vec![confirmed]).await;
    assert_eq!(response.results[0].reason(), Reason::Ok);
    assert_eq!(response.events[1].confirmed_by_user_id, "clerk-1");
}

#[tokio::test]
async fn a_call_that_no_ticket_would_help_is_not_confirmed() {
    let world = World::start_with(Options::writes()).await;
    let sides = sides(&world);
    let seen = sides.request(context(), draft("c1", "a")).await;
    let (done, _) = sides.confirm(draft("done", "a")).await;
    assert_eq!(sides.reason(&done).await, Reason::Ok);
    let long = format!(r#"{{"text": "{}"}}"#, "x".repeat(90));
    let cases = [
        (call("c1", "search", r#"{"text": "a"}"#), "CONFIRMATION_UNEXPECTED"),
        (call("c1", "note", r#"{"text": "a"}"#), "CONFIRMATION_UNEXPECTED"),
        (call("c1", "nothing", "{}"), "UNKNOWN_TOOL"),
        (call("c1", "draft", r#"{"text": 1}"#), "ARGUMENTS_INVALID"),
        (call("c1", "draft", "{"), "ARGUMENTS_NOT_JSON"),
        (call("c1", "draft", &long), "ARGUMENTS_TOO_LARGE"),
        (call("/", "draft", r#"{"text": "a"}"#), "PROTOCOL_INVALID"),
        (ToolCall { attempt: Some(100), ..draft("c1", "a") }, "PROTOCOL_INVALID"),
        (draft("done", "a"), "CALL_REPLAYED"),
        (draft("done", "b"), "CALL_ID_CONFLICT"),
    ];
    for (call, reason) in cases {
        let status = sides.issue(IssueRequest { call: Some(call), ..seen.clone() }).await;
        assert_refused(&status.unwrap_err(), Code::FailedPrecondition, reason, None);
    }
}

#[tokio::test]
async fn a_revoked_ticket_is_dead_and_a_spent_one_says_so() {
    let world = World::start_with(Options::writes()).await;
    let sides = sides(&world);
    let (call, id) = sides.confirm(draft("c1", "a")).await;
    assert!(!sides.revoke(&id).await.unwrap().was_spent);
    assert!(!sides.revoke(&id).await.unwrap().was_spent, "twice is the same");
    assert_eq!(sides.reason(&call).await, Reason::ConfirmationRevoked);
    assert!(world.handler.seen().is_empty());

    let (call, id) = sides.confirm(draft("c1", "a")).await;
    assert_eq!(sides.reason(&call).await, Reason::Ok);
    let revoked = sides.revoke(&id).await.unwrap();
    assert!(revoked.was_spent && revoked.revoked_at.is_some());
    assert_eq!(sides.reason(&call).await, Reason::CallReplayed);

    for wrong in ["", "c1", &id.to_uppercase(), &id[1..]] {
        let status = sides.revoke(wrong).await.unwrap_err();
        let field = Some("confirmation_id");
        assert_refused(&status, Code::InvalidArgument, "REQUEST_INVALID", field);
    }
}
