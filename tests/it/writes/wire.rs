//! Confirmed writes over a real connection, from the preview to the replay.

mod canary;
mod refused;
mod restarts;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tonic::transport::Channel;
use tonic::{Request, Status};
use toolgate::proto::confirmations_client::ConfirmationsClient;
use toolgate::proto::tool_gate_client::ToolGateClient;
use toolgate::proto::{
    BatchMode, CallContext, CheckRequest, CheckVerdict, Effect, ExecuteRequest, ExecuteResponse,
    IssueRequest, IssueResponse, Outcome, Reason, RevokeRequest, RevokeResponse, ToolCall,
    ToolResult,
};

use crate::support::journal;
use crate::support::running::{
    CONFIRMER, Does, Options, PROPOSER, World, call, context, with_bearer,
};

/// Both sides of a confirmation, on one connection.
#[derive(Clone)]
pub struct Sides {
    channel: Channel,
}

impl Sides {
    pub const fn new(channel: Channel) -> Self {
        Self { channel }
    }

    pub async fn check(&self, context: CallContext, call: ToolCall) -> CheckVerdict {
        let message = CheckRequest { context: Some(context), calls: vec![call] };
        let request = with_bearer(Request::new(message), CONFIRMER);
        let answer = ToolGateClient::new(self.channel.clone()).check(request).await.unwrap();
        answer.into_inner().verdicts.remove(0)
    }

    /// What a confirmation page sends once the user of the conversation has agreed.
    pub async fn request(&self, context: CallContext, call: ToolCall) -> IssueRequest {
        let preview = self.check(context.clone(), call.clone()).await.preview.unwrap();
        IssueRequest {
            confirming_user_id: context.user_id.clone(),
            context: Some(context),
            call: Some(call),
            arguments_hash: preview.arguments_hash,
            key_id: preview.key_id,
            contract_digest: preview.contract_digest,
            ..IssueRequest::default()
        }
    }

    pub async fn issue(&self, message: IssueRequest) -> Result<IssueResponse, Status> {
        let request = with_bearer(Request::new(message), CONFIRMER);
        let answer = ConfirmationsClient::new(self.channel.clone()).issue(request).await;
        answer.map(tonic::Response::into_inner)
    }

    pub async fn revoke(&self, confirmation_id: &str) -> Result<RevokeResponse, Status> {
        let confirmation_id = confirmation_id.to_owned();
        let message = RevokeRequest { context: Some(context()), confirmation_id };
        let request = with_bearer(Request::new(message), CONFIRMER);
        let answer = ConfirmationsClient::new(self.channel.clone()).revoke(request).await;
        answer.map(tonic::Response::into_inner)
    }

    /// Preview and ticket: the call as the user has confirmed it, and the ticket's id.
    pub async fn confirm(&self, call: ToolCall) -> (ToolCall, String) {
        let request = self.request(context(), call.clone()).await;
        let issued = self.issue(request).await.unwrap();
        let id = issued.claims.unwrap().confirmation_id;
        (ToolCall { confirmation_ticket: issued.ticket, ..call }, id)
    }

    pub async fn execute_in(&self, context: CallContext, calls: Vec<ToolCall>) -> ExecuteResponse {
        let mode = BatchMode::Continue.into();
        let message = ExecuteRequest { context: Some(context), calls, mode };
        let request = with_bearer(Request::new(message), PROPOSER);
        ToolGateClient::new(self.channel.clone()).execute(request).await.unwrap().into_inner()
    }

    pub async fn execute(&self, call: &ToolCall) -> ToolResult {
        self.execute_in(context(), vec![call.clone()]).await.results.remove(0)
    }

    pub async fn reason(&self, call: &ToolCall) -> Reason {
        self.execute(call).await.reason()
    }
}

pub fn sides(world: &World) -> Sides {
    Sides::new(world.channel.clone())
}

pub fn draft(id: &str, text: &str) -> ToolCall {
    call(id, "draft", &format!(r#"{{"text": "{text}"}}"#))
}

fn refund(id: &str, text: &str) -> ToolCall {
    call(id, "refund", &format!(r#"{{"text": "{text}"}}"#))
}

/// The policy of the cases, changed, in a directory of its own.
fn write_policy(into: &Path, change: impl Fn(String) -> String) {
    let from = Options::writes().policy;
    fs::create_dir_all(into).unwrap();
    for name in ["policy.yaml", "tools.yaml"] {
        let text = fs::read_to_string(from.join(name)).unwrap();
        fs::write(into.join(name), change(text)).unwrap();
    }
}

#[tokio::test]
async fn preview_ticket_write_and_the_same_again() {
    let mut world = World::start_with(Options::writes()).await;
    world.handler.set("draft", Does::Answer(r#"{"id": 7}"#.to_owned()));
    let sides = sides(&world);
    let bare = draft("c1", "  hello ");
    let verdict = sides.check(context(), bare.clone()).await;
    assert_eq!((verdict.admitted, verdict.reason()), (false, Reason::ConfirmationRequired));
    let preview = verdict.preview.unwrap();
    assert_eq!(preview.prompt, r#"Write the draft "hello"?"#);
    assert_eq!(preview.normalised_arguments_json, r#"{"text":"hello"}"#);
    assert_eq!(preview.key_id, "confirm-1");

    let issued = sides.issue(sides.request(context(), bare.clone()).await).await.unwrap();
    let claims = issued.claims.unwrap();
    assert_eq!((&*claims.tool, &*claims.purpose, &*claims.tool_call_id), ("draft", "draft", "c1"));
    assert_eq!((&*claims.user_id, &*claims.confirmed_by_user_id), ("user-1", "user-1"));
    assert_eq!(claims.arguments_hash, preview.arguments_hash);
    assert_eq!(claims.contract_digest, preview.contract_digest);
    let (from, until) = (claims.confirmed_at.unwrap(), claims.expires_at.unwrap());
    assert_eq!((until.seconds - from.seconds, from.nanos, until.nanos), (300, 0, 0));

    let confirmed = ToolCall { confirmation_ticket: issued.ticket, ..bare.clone() };
    assert!(sides.check(context(), confirmed.clone()).await.admitted);
    let response = sides.execute_in(context(), vec![confirmed.clone()]).await;
    let result = &response.results[0];
    assert_eq!((result.reason(), result.effect()), (Reason::Ok, Effect::Applied));
    assert_eq!(result.result_json, r#"{"id": 7}"#);
    for event in &response.events {
        assert_eq!(event.confirmation_id, claims.confirmation_id);
        assert_eq!(event.confirmed_by_user_id, "user-1");
        assert_eq!(event.confirmation_purpose, "draft");
        assert_eq!((event.confirmed_at, event.confirmation_expires_at), (Some(from), Some(until)));
    }

    for again in [&confirmed, &bare] {
        let replayed = sides.execute(again).await;
        assert_eq!(
            (replayed.outcome(), replayed.reason()),
            (Outcome::Denied, Reason::CallReplayed)
        );
        assert_eq!((replayed.effect(), replayed.retryable), (Effect::Applied, false));
        assert!(replayed.result_json.is_empty(), "the result itself is not kept");
        let recorded = replayed.recorded.unwrap();
        assert_eq!((recorded.outcome(), recorded.reason()), (Outcome::Success, Reason::Ok));
        assert_eq!(recorded.effect(), Effect::Applied);
        assert_eq!(recorded.result_digest, response.events[1].result_digest);
        assert!(recorded.ended_at.is_some());
    }
    let seen = world.handler.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].1.arguments_json, r#"{"text":"hello"}"#);
    world.stop().await;
    let ends: Vec<_> = journal::endings(world.directory.path());
    assert_eq!(ends.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_executes_of_one_ticket_have_one_effect() {
    let mut world = World::start_with(Options::writes()).await;
    let sides = sides(&world);
    let (call, _) = sides.confirm(refund("c1", "a")).await;
    let all = futures_util::future::join_all((0..64).map(|_| sides.reason(&call))).await;
    let mut counts = BTreeMap::<Reason, usize>::new();
    for reason in all {
        *counts.entry(reason).or_default() += 1;
    }
    assert_eq!(counts.remove(&Reason::Ok), Some(1), "{counts:?}");
    let others = [Reason::CallInProgress, Reason::CallReplayed];
    assert!(counts.keys().all(|reason| others.contains(reason)), "{counts:?}");
    assert_eq!(world.handler.seen().len(), 1);
    world.stop().await;
    assert_eq!(journal::endings(world.directory.path()).len(), 64);
}

#[tokio::test]
async fn a_retry_carries_the_same_key_and_the_next_number() {
    let world = World::start_with(Options::writes()).await;
    world.handler.set("draft", Does::Hang);
    let sides = sides(&world);
    let (first, _) = sides.confirm(draft("c1", "a")).await;
    let (second, _) = sides.confirm(draft("c1", "a")).await;
    let timed_out = sides.execute(&first).await;
    assert_eq!((timed_out.reason(), timed_out.attempt), (Reason::AttemptDeadline, 2));
    assert_eq!((timed_out.effect(), timed_out.retryable), (Effect::Unknown, true));
    world.handler.set("draft", Does::Answer("{}".to_owned()));
    let reopened = sides.execute(&second).await;
    assert_eq!((reopened.reason(), reopened.attempt), (Reason::Ok, 3));
    let seen = world.handler.seen();
    let attempts: Vec<_> = seen.iter().map(|(_, message)| message.attempt).collect();
    assert_eq!(attempts, [1, 2, 3]);
    assert_eq!(seen[0].1.idempotency_key.len(), 64);
    for (_, message) in &seen {
        assert_eq!(message.idempotency_key, seen[0].1.idempotency_key);
        assert_eq!(message.tool_call_id, "c1");
    }
}

#[tokio::test]
async fn people_leave_administrative_events() {
    let mut world = World::start_with(Options::writes()).await;
    let sides = sides(&world);
    let (call, id) = sides.confirm(draft("c1", "a")).await;
    assert_eq!(sides.reason(&call).await, Reason::Ok);
    let (_, other) = sides.confirm(refund("c2", "a")).await;
    sides.revoke(&other).await.unwrap();
    world.stop().await;
    // Verifies the chain.
    assert_eq!(journal::endings(world.directory.path()).len(), 1);
    let records = journal::records(world.directory.path());
    let told: Vec<_> = records
        .iter()
        .map(|record| {
            let field = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
            (field("event"), field("confirmation_id"))
        })
        .collect();
    let event = |name: &str, id: &str| (name.to_owned(), id.to_owned());
    assert_eq!(
        told,
        [
            event("confirmation_issued", &id),
            event("tool_call_started", &id),
            event("tool_call_completed", &id),
            event("confirmation_issued", &other),
            event("confirmation_revoked", &other),
        ]
    );
    assert_eq!(records[0]["confirmed_by_user_id"], "user-1");
    assert_eq!(records[0]["tool_call_id"], "c1");
}
