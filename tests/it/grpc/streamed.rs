//! `ExecuteStream`: each event and result as it happens.

use std::sync::Arc;

use tokio::sync::Notify;
use tonic::{Code, Request, Streaming};
use toolgate::domain::reason::Reason as End;
use toolgate::proto::execute_stream_response::Step;
use toolgate::proto::tool_gate_client::ToolGateClient;
use toolgate::proto::{
    AuditEvent, AuditEventType, BatchMode, Effect, ExecuteStreamRequest, ExecuteStreamResponse,
    IndexedToolResult, Outcome, Reason, ToolCall,
};

use super::assert_refused;
use crate::support::journal;
use crate::support::process::Process;
use crate::support::running::{
    Does, Options, PROPOSER, World, call, channel, context, execute, start_handler, until,
    with_bearer, write_config,
};

fn streamed(calls: Vec<ToolCall>) -> Request<ExecuteStreamRequest> {
    let mode = BatchMode::Continue.into();
    let message = ExecuteStreamRequest { context: Some(context()), calls, mode };
    with_bearer(Request::new(message), PROPOSER)
}

async fn start(world: &mut World, calls: Vec<ToolCall>) -> Streaming<ExecuteStreamResponse> {
    world.client.execute_stream(streamed(calls)).await.unwrap().into_inner()
}

async fn event(steps: &mut Streaming<ExecuteStreamResponse>) -> AuditEvent {
    match steps.message().await.unwrap().unwrap().step.unwrap() {
        Step::Event(event) => event,
        other @ Step::Result(_) => panic!("{other:?}"),
    }
}

async fn result(steps: &mut Streaming<ExecuteStreamResponse>) -> IndexedToolResult {
    match steps.message().await.unwrap().unwrap().step.unwrap() {
        Step::Result(result) => result,
        other @ Step::Event(_) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn steps_come_as_they_happen() {
    let mut world = World::start().await;
    let told = Arc::new(Notify::new());
    world.handler.set("patient", Does::Wait(Arc::clone(&told), r#"{"a":1}"#.to_owned()));
    let calls =
        vec![call("c1", "patient", "{}"), call("c2", "nothing", "{}"), call("c3", "patient", "{}")];
    let mut steps = start(&mut world, calls).await;

    let started = event(&mut steps).await;
    assert_eq!(started.event(), AuditEventType::ToolCallStarted);
    until("the handler is entered", async || world.handler.running() == 1).await;
    assert_eq!(started.sequence, 1, "it is in the journal before the handler is called");
    told.notify_one();
    let completed = event(&mut steps).await;
    assert_eq!((&*completed.tool_call_id, completed.outcome()), ("c1", Outcome::Success));
    let first = result(&mut steps).await;
    assert_eq!((first.index, &*first.result.unwrap().result_json), (0, r#"{"a":1}"#));

    // The second is refused while the third still runs.
    assert_eq!(event(&mut steps).await.tool_call_id, "c2");
    assert_eq!(event(&mut steps).await.reason(), Reason::UnknownTool);
    let second = result(&mut steps).await;
    assert_eq!((second.index, second.result.unwrap().reason()), (1, Reason::UnknownTool));
    assert_eq!(event(&mut steps).await.tool_call_id, "c3");
    until("the handler is entered", async || world.handler.running() == 1).await;
    told.notify_one();
    event(&mut steps).await;
    assert_eq!(result(&mut steps).await.index, 2);
    assert_eq!(steps.message().await.unwrap(), None);
}

#[tokio::test]
async fn a_batch_that_is_refused_answers_every_call() {
    let mut world = World::start().await;
    let calls =
        vec![call("c1", "patient", "{}"), call("c2", "patient", "{}"), call("c1", "a", "{}")];
    let mut steps = start(&mut world, calls).await;
    assert_eq!(event(&mut steps).await.tool_call_id, "c1");
    assert_eq!(event(&mut steps).await.reason(), Reason::DuplicateCallId);
    let mut results = Vec::new();
    while let Some(step) = steps.message().await.unwrap() {
        let Some(Step::Result(result)) = step.step else { panic!("{step:?}") };
        results.push((result.index, result.result.unwrap().outcome()));
    }
    let wanted = [(0, Outcome::NotRun), (1, Outcome::NotRun), (2, Outcome::Validation)];
    assert_eq!(results, wanted);
    assert!(world.handler.seen().is_empty());
}

#[tokio::test]
async fn what_is_refused_as_a_whole_is_a_status() {
    let mut world = World::start().await;
    let empty = world.client.execute_stream(streamed(Vec::new())).await.unwrap_err();
    assert_refused(&empty, Code::InvalidArgument, "BATCH_EMPTY", None);
    let mut request = streamed(vec![call("c1", "patient", "{}")]);
    request.get_mut().mode = 99;
    let mode = world.client.execute_stream(request).await.unwrap_err();
    assert_refused(&mode, Code::InvalidArgument, "REQUEST_INVALID", Some("mode"));
    assert!(journal::records(world.directory.path()).is_empty());
}

#[tokio::test]
async fn a_stream_that_is_left_cancels_a_read() {
    let mut world = World::start().await;
    world.handler.set("patient", Does::Hang);
    let calls = vec![call("c1", "patient", "{}"), call("c2", "patient", "{}")];
    let mut steps = start(&mut world, calls).await;
    event(&mut steps).await;
    until("the handler is entered", async || world.handler.running() == 1).await;
    drop(steps);
    until("the handler is cancelled", async || world.handler.running() == 0).await;
    until("nothing is in flight", async || {
        world.metric("toolgate_requests_in_flight", &[]).await == 0
    })
    .await;
    let ends = journal::endings(world.directory.path());
    assert_eq!(ends, [("c1".to_owned(), 1, End::Cancelled)]);
}

/// The work is done and its place given back, whoever reads what it tells.
#[tokio::test]
async fn a_stream_that_nobody_reads_holds_nothing_up() {
    let limits = Options { more: "limits: {in_flight: 1}", ..Options::default() };
    let mut world = World::start_with(limits).await;
    let large = format!(r#"{{"text":"{}"}}"#, "x".repeat(900_000));
    world.handler.set("patient", Does::Answer(large));
    let calls = || (1..=8).map(|number| call(&format!("c{number}"), "patient", "{}")).collect();
    let mut unread = Vec::new();
    for _ in 0..4 {
        unread.push(start(&mut world, calls()).await);
        until("nothing is in flight", async || {
            world.metric("toolgate_requests_in_flight", &[]).await == 0
        })
        .await;
    }
    world.handler.set("patient", Does::Answer("{}".to_owned()));
    let mut other = ToolGateClient::new(channel(&world.running().addresses()[0]).await);
    other.execute(execute(vec![call("c1", "patient", "{}")])).await.unwrap();
    for steps in &mut unread {
        let mut results = 0;
        while let Some(step) = steps.message().await.unwrap() {
            results += usize::from(matches!(step.step, Some(Step::Result(_))));
        }
        assert_eq!(results, 8);
    }
}

/// What a killed gate owes is no end of the stream.
#[tokio::test]
async fn a_gate_that_goes_down_ends_no_stream_well() {
    let (handler, upstream, _stop) = start_handler().await;
    handler.set("patient", Does::Hang);
    let directory = tempfile::tempdir().unwrap();
    let config = write_config(directory.path(), &upstream, &Options::default());
    let (mut process, grpc, _) = Process::serving(&config).await;
    let mut client = ToolGateClient::new(channel(&grpc).await);
    let steps = client.execute_stream(streamed(vec![call("c1", "patient", "{}")])).await;
    let mut steps = steps.unwrap().into_inner();
    assert_eq!(event(&mut steps).await.effect(), Effect::Unspecified);
    process.kill();
    steps.message().await.unwrap_err();
}
