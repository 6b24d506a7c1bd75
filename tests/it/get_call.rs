//! `ToolGate/GetCall`: what is recorded of a call, and who is told.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use toolgate::adapters::ledger::{EmbeddedLedger, EmbeddedOptions};
use toolgate::domain::watermark::Reading;
use toolgate::ports::Ledger as _;
use toolgate::proto::tool_gate_client::ToolGateClient;
use toolgate::proto::{
    CallContext, Effect, GetCallRequest, GetCallResponse, Outcome, Reason, ToolCall,
};

use crate::grpc::assert_refused;
use crate::support::process::Process;
use crate::support::running::{
    AUDITOR, CONFIRMER, Does, OPERATOR, Options, PROPOSER, World, call, channel, context, get,
    start_gate, start_handler, until, with_bearer, write_config,
};
use crate::writes::wire::{Sides, draft, sides};

const DAY: i64 = 86_400;

async fn ask(
    channel: &Channel,
    secret: &str,
    context: CallContext,
    id: &str,
) -> Result<GetCallResponse, Status> {
    let message = GetCallRequest { context: Some(context), tool_call_id: id.to_owned() };
    let request = with_bearer(Request::new(message), secret);
    ToolGateClient::new(channel.clone()).get_call(request).await.map(tonic::Response::into_inner)
}

async fn told(channel: &Channel, id: &str) -> GetCallResponse {
    ask(channel, PROPOSER, context(), id).await.unwrap()
}

fn of_user(user: &str) -> CallContext {
    CallContext { user_id: user.to_owned(), ..context() }
}

fn not_recorded(answer: Result<GetCallResponse, Status>) -> Status {
    let status = answer.unwrap_err();
    assert_refused(&status, Code::NotFound, "CALL_NOT_RECORDED", None);
    status
}

#[tokio::test]
async fn an_ended_call_is_told_as_it_was_answered() {
    let mut world = World::start_with(Options::writes()).await;
    world.handler.set("draft", Does::Answer(r#"{"id": 7}"#.to_owned()));
    let (confirmed, ticket) = sides(&world).confirm(draft("c1", "a")).await;
    let response = sides(&world).execute_in(context(), vec![confirmed]).await;
    let journal = world.journal();

    let answer = told(&world.channel, "c1").await;
    let recorded = &response.events[1];
    assert_eq!((&*answer.tool_call_id, &*answer.tool, &*answer.user_id), ("c1", "draft", "user-1"));
    assert!(!answer.running);
    assert_eq!((answer.outcome(), answer.reason()), (Outcome::Success, Reason::Ok));
    assert_eq!((answer.effect(), answer.attempt), (Effect::Applied, 1));
    assert_eq!(
        (&answer.result_digest, &answer.confirmation_id),
        (&recorded.result_digest, &ticket)
    );
    let times = [answer.reserved_at, answer.ended_at, recorded.time];
    let times = times.map(|time| time.map(|time| (time.seconds, time.nanos)).unwrap());
    assert!(times.is_sorted(), "{times:?}");
    let kept = answer.kept_for.unwrap().seconds;
    assert!((1..=DAY).contains(&kept), "{kept}");
    assert_eq!(world.journal(), journal, "asking leaves no event");

    // So it is after a restart, while the time that is left goes on.
    world.restart().await;
    let again = told(&world.channel, "c1").await;
    assert!(again.kept_for.unwrap().seconds <= kept);
    assert_eq!(GetCallResponse { kept_for: answer.kept_for, ..again }, answer);
}

#[tokio::test]
async fn a_call_is_told_to_its_proposer_and_to_auditors_alone() {
    let (_handler, upstream, _stop) = start_handler().await;
    let directory = tempfile::tempdir().unwrap();
    let config = write_config(directory.path(), &upstream, &Options::writes());
    // One auditor of every tenant and one of another; one proposer of another.
    let text = fs::read_to_string(&config).unwrap().replace(
        "- {role: operator, secret_file: operator}",
        "- {role: auditor, tenants: [tenant-2], secret_file: operator}",
    );
    fs::write(&config, text).unwrap();
    let gate = start_gate(&config).await;
    let channel = channel(&gate.addresses()[0]).await;
    let (confirmed, _) = Sides::new(channel.clone()).confirm(draft("c1", "a")).await;
    assert_eq!(Sides::new(channel.clone()).reason(&confirmed).await, Reason::Ok);

    // The auditor names whoever asks.
    let answer = told(&channel, "c1").await;
    for user in ["user-1", "user-2", "auditor-anna"] {
        let audited = ask(&channel, AUDITOR, of_user(user), "c1").await.unwrap();
        assert_eq!(GetCallResponse { kept_for: answer.kept_for, ..audited }, answer);
    }
    let elsewhere = ask(&channel, OPERATOR, context(), "c1").await;
    let status = elsewhere.unwrap_err();
    assert_refused(&status, Code::PermissionDenied, "TENANT_NOT_CALLERS", None);
    let status = ask(&channel, CONFIRMER, context(), "c1").await.unwrap_err();
    assert_refused(&status, Code::PermissionDenied, "ROLE_MISSING", None);

    // Another user's call is as none at all, to the byte; so is another tenant's.
    let none = not_recorded(ask(&channel, PROPOSER, context(), "c2").await);
    let others = [
        of_user("user-2"),
        CallContext { tenant_id: "tenant-2".to_owned(), ..context() },
        CallContext { conversation_id: "conversation-2".to_owned(), ..context() },
    ];
    for other in others {
        let status = not_recorded(ask(&channel, PROPOSER, other, "c1").await);
        assert_eq!((status.message(), status.details()), (none.message(), none.details()));
    }
    for secret in [AUDITOR, OPERATOR] {
        let other = CallContext { tenant_id: "tenant-2".to_owned(), ..context() };
        not_recorded(ask(&channel, secret, other, "c1").await);
    }
    gate.stop().await;
}

#[tokio::test]
async fn what_never_ran_or_needs_no_record_is_not_found() {
    let world = World::start_with(Options::writes()).await;
    let sides = sides(&world);
    let plain = call("read", "search", r#"{"text": "a"}"#);
    assert_eq!(sides.reason(&plain).await, Reason::Ok);
    assert_eq!(sides.reason(&draft("bare", "a")).await, Reason::ConfirmationRequired);
    let (_, _) = sides.confirm(draft("issued", "a")).await;
    for id in ["read", "bare", "issued", "never"] {
        not_recorded(ask(&world.channel, PROPOSER, context(), id).await);
        not_recorded(ask(&world.channel, AUDITOR, context(), id).await);
    }
    // A read that needed a ticket has a record; a write that needed none as well.
    let (read, ticket) = sides.confirm(call("shown", "reveal", r#"{"text": "a"}"#)).await;
    assert_eq!(sides.reason(&read).await, Reason::Ok);
    let answer = told(&world.channel, "shown").await;
    assert_eq!((answer.effect(), &answer.confirmation_id), (Effect::None, &ticket));
    assert_eq!(sides.reason(&call("noted", "note", r#"{"text": "a"}"#)).await, Reason::Ok);
    let answer = told(&world.channel, "noted").await;
    assert_eq!((answer.effect(), &*answer.confirmation_id), (Effect::Applied, ""));

    for id in ["", "c 1", "-c1", &"c".repeat(129)] {
        let status = ask(&world.channel, PROPOSER, context(), id).await.unwrap_err();
        assert_refused(&status, Code::InvalidArgument, "PROTOCOL_INVALID", Some("tool_call_id"));
        assert!(status.message().ends_with(": [A-Za-z0-9][A-Za-z0-9._:-]{0,127}"), "{status}");
    }
    let status = ask(&world.channel, AUDITOR, of_user(""), "shown").await.unwrap_err();
    assert_refused(&status, Code::InvalidArgument, "CONTEXT_INVALID", Some("user_id"));
    let labels = [("rpc", "GetCall"), ("reason", "CALL_NOT_RECORDED")];
    assert_eq!(world.metric("toolgate_requests_refused_total", &labels).await, 8);
}

#[tokio::test]
async fn a_running_call_is_told_as_running_and_each_run_of_it_anew() {
    let world = World::start_with(Options::writes()).await;
    let sides = sides(&world);
    // Two attempts without an answer: nobody knows, and it may run again.
    world.handler.set("draft", Does::Hang);
    let (first, _) = sides.confirm(draft("c1", "a")).await;
    let (second, ticket) = sides.confirm(draft("c1", "a")).await;
    assert_eq!(sides.reason(&first).await, Reason::AttemptDeadline);
    let ended = told(&world.channel, "c1").await;
    assert_eq!((ended.outcome(), ended.effect()), (Outcome::Timeout, Effect::Unknown));
    assert_eq!((ended.attempt, &*ended.result_digest), (2, ""));

    let go = Arc::new(Notify::new());
    world.handler.set("draft", Does::Wait(Arc::clone(&go), "{}".to_owned()));
    let again = sides.clone();
    let running = tokio::spawn(async move { again.reason(&second).await });
    until("the call runs again", async || world.handler.running() == 1).await;
    let answer = told(&world.channel, "c1").await;
    let wanted = GetCallResponse {
        running: true,
        outcome: 0,
        reason: 0,
        effect: Effect::Unknown.into(),
        attempt: 3,
        reserved_at: answer.reserved_at,
        ended_at: None,
        kept_for: None,
        confirmation_id: ticket,
        ..ended
    };
    assert_eq!(answer, wanted);
    go.notify_one();
    assert_eq!(running.await.unwrap(), Reason::Ok);
    let answer = told(&world.channel, "c1").await;
    assert_eq!((answer.running, answer.effect(), answer.attempt), (false, Effect::Applied, 3));

    world.handler.set("reveal", Does::Wait(Arc::clone(&go), "{}".to_owned()));
    let (read, _) = sides.confirm(call("c2", "reveal", r#"{"text": "a"}"#)).await;
    let running = tokio::spawn(async move { sides.reason(&read).await });
    until("the read runs", async || world.handler.running() == 1).await;
    let answer = told(&world.channel, "c2").await;
    assert_eq!((answer.running, answer.effect()), (true, Effect::None));
    go.notify_one();
    running.await.unwrap();
}

#[tokio::test]
async fn a_record_whose_time_is_over_is_not_found() {
    let mut world = World::start_with(Options::writes()).await;
    let (confirmed, _) = sides(&world).confirm(draft("c1", "a")).await;
    assert_eq!(sides(&world).reason(&confirmed).await, Reason::Ok);
    world.stop().await;
    let now = Timestamp::now() + SignedDuration::from_secs(DAY + 60);
    let options = EmbeddedOptions::new(world.directory.path().join("data/ledger"), now);
    let ledger = EmbeddedLedger::open(&options).unwrap();
    ledger.observe(Reading { now, monotonic: Duration::ZERO }).await.unwrap();
    assert!(ledger.forget_expired().await.unwrap() > 0);
    drop(ledger);
    world.restart().await;
    not_recorded(ask(&world.channel, PROPOSER, context(), "c1").await);
}

/// Clients that a drain has cut off ask what became of their calls.
#[tokio::test]
async fn a_draining_gate_tells() {
    let (handler, upstream, _stop) = start_handler().await;
    let go = Arc::new(Notify::new());
    handler.set("draft", Does::Wait(Arc::clone(&go), "{}".to_owned()));
    let directory = tempfile::tempdir().unwrap();
    let config = write_config(directory.path(), &upstream, &Options::writes());
    let (mut process, grpc, admin) = Process::serving(&config).await;
    let channel = channel(&grpc).await;
    let sides = Sides::new(channel.clone());
    let (confirmed, _) = sides.confirm(draft("c1", "a")).await;
    let running = tokio::spawn(async move { sides.reason(&confirmed).await });
    until("the handler is entered", async || handler.running() == 1).await;
    process.terminate();
    until("it drains", async || get(admin, "/readyz").await.contains("draining")).await;
    assert!(told(&channel, "c1").await.running);
    not_recorded(ask(&channel, PROPOSER, context(), "c2").await);
    go.notify_one();
    assert_eq!(running.await.unwrap(), Reason::Ok);
    assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
}

/// The call of a gate that was killed: running in the ledger, and closed by the next start.
#[tokio::test]
async fn a_killed_gates_call_is_told_as_its_successor_closed_it() {
    let (handler, upstream, _stop) = start_handler().await;
    handler.set("draft", Does::Hang);
    let directory = tempfile::tempdir().unwrap();
    let config = write_config(directory.path(), &upstream, &Options::writes());
    let (mut process, grpc, _) = Process::serving(&config).await;
    let first = Sides::new(channel(&grpc).await);
    let (confirmed, _) = first.confirm(draft("c1", "a")).await;
    let lost: ToolCall = confirmed.clone();
    tokio::spawn(async move { first.execute_in(context(), vec![lost]).await });
    until("the handler is entered", async || handler.running() == 1).await;
    process.kill();
    let (_process, grpc, _) = Process::serving(&config).await;
    let answer = told(&channel(&grpc).await, "c1").await;
    assert_eq!((answer.outcome(), answer.reason()), (Outcome::Error, Reason::ProcessLost));
    assert_eq!((answer.running, answer.effect()), (false, Effect::Unknown));
}
