//! Requests that are answered with a status: its form, its count, and that nothing else comes of them.

use prost::Message as _;
use tonic::{Code, Request, Status};
use toolgate::proto::{BatchMode, CallContext, CheckRequest, ExecuteRequest, ListToolsRequest};

use super::{CHECK, EXECUTE, assert_refused};
use crate::support::journal;
use crate::support::raw::send;
use crate::support::running::{
    Does, Options, PROPOSER, World, call, context, execute, until, with_bearer,
};
use tonic_types::StatusExt as _;

/// A field of the context.
type Field = fn(&mut CallContext) -> &mut String;

#[tokio::test]
async fn a_context_outside_its_form_is_refused_by_field() {
    let mut world = World::start().await;
    let long = "x".repeat(129);
    let bad = [
        "",
        &long,
        "a\nb",
        "\u{0}",
        "a\u{7f}",
        "a\u{85}",
        "a\u{2028}b",
        "a\u{2029}",
        "\u{202e}abc",
        "a\u{2066}",
        "\u{feff}a",
        "a\u{200b}",
        "\u{ad}",
        "\u{e0041}",
    ];
    let fields: [(&str, Field); 4] = [
        ("request_id", |context| &mut context.request_id),
        ("user_id", |context| &mut context.user_id),
        ("tenant_id", |context| &mut context.tenant_id),
        ("conversation_id", |context| &mut context.conversation_id),
    ];
    let mut refused = 0_u32;
    for (name, field) in fields {
        for text in bad {
            let mut wrong = context();
            text.clone_into(field(&mut wrong));
            for status in refusals(&mut world, Some(wrong)).await {
                assert_refused(&status, Code::InvalidArgument, "CONTEXT_INVALID", Some(name));
                assert!(text.is_empty() || !status.message().contains(text), "{status:?}");
                refused += 1;
            }
        }
    }
    for status in refusals(&mut world, None).await {
        assert_refused(&status, Code::InvalidArgument, "CONTEXT_INVALID", Some("context"));
        refused += 1;
    }
    assert_eq!(count(&world, "CONTEXT_INVALID").await, i64::from(refused));
    assert_nothing_happened(&world);

    let wide = "租".repeat(128);
    let request = ExecuteRequest {
        context: Some(CallContext { tenant_id: wide.clone(), ..context() }),
        calls: vec![call("c1", "patient", "{}")],
        mode: 0,
    };
    world.client.execute(with_bearer(Request::new(request), PROPOSER)).await.unwrap();
    assert_eq!(world.handler.seen()[0].1.tenant_id, wide);
}

#[tokio::test]
async fn a_batch_without_calls_and_a_mode_of_another_version_are_refused() {
    let mut world = World::start().await;
    let status = world.client.execute(execute(Vec::new())).await.unwrap_err();
    assert_refused(&status, Code::InvalidArgument, "BATCH_EMPTY", None);
    let check = with_bearer(
        Request::new(CheckRequest { context: Some(context()), calls: Vec::new() }),
        PROPOSER,
    );
    let status = world.client.check(check).await.unwrap_err();
    assert_refused(&status, Code::InvalidArgument, "BATCH_EMPTY", None);
    assert_eq!(count(&world, "BATCH_EMPTY").await, 2);

    for mode in [3, -1, i32::MAX] {
        let mut request = execute(vec![call("c1", "patient", "{}")]);
        request.get_mut().mode = mode;
        let status = world.client.execute(request).await.unwrap_err();
        assert_refused(&status, Code::InvalidArgument, "REQUEST_INVALID", Some("mode"));
    }
    assert_eq!(count(&world, "REQUEST_INVALID").await, 3);
    assert_nothing_happened(&world);
}

#[tokio::test]
async fn bytes_that_are_no_message_are_refused_without_saying_what_they_were() {
    let world = World::start().await;
    let not_utf8 =
        ExecuteRequest { calls: vec![call("c1", "hunter", "{}")], ..ExecuteRequest::default() };
    let mut not_utf8 = not_utf8.encode_to_vec();
    let place = not_utf8.windows(6).position(|bytes| bytes == b"hunter").unwrap();
    not_utf8[place] = 0xff;
    let bodies = [vec![0xff; 40], vec![0x0a, 0x7f, 1], b"{\"context\": {}}".to_vec(), not_utf8];
    for body in &bodies {
        for path in [EXECUTE, CHECK] {
            let status =
                send(&world.channel, path, with_bearer(Request::new(body.clone()), PROPOSER))
                    .await
                    .unwrap_err();
            assert_refused(&status, Code::InvalidArgument, "UNDECODABLE", None);
            assert!(
                status.message().starts_with("the bytes are not a message of this method"),
                "{status:?}"
            );
        }
    }
    assert_eq!(count(&world, "UNDECODABLE").await, 8);
    assert_nothing_happened(&world);
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_and_one_of_the_limit_is_not() {
    let mut world = World::start_with(Options {
        more: "limits: {max_request_bytes: 4096}",
        ..Options::default()
    })
    .await;
    let request = |padding| ExecuteRequest {
        context: Some(context()),
        calls: vec![call("c1", "run_shell", &"x".repeat(padding))],
        mode: 0,
    };
    let frame = request(3_000).encoded_len() - 3_000;
    let fits = with_bearer(Request::new(request(4_096 - frame)), PROPOSER);
    world.client.execute(fits).await.unwrap();
    let before = journal::records(world.directory.path()).len();
    let over = with_bearer(Request::new(request(4_097 - frame)), PROPOSER);
    let status = world.client.execute(over).await.unwrap_err();
    assert_refused(&status, Code::ResourceExhausted, "REQUEST_TOO_LARGE", None);
    assert_eq!(count(&world, "REQUEST_TOO_LARGE").await, 1);
    assert_eq!(journal::records(world.directory.path()).len(), before);
}

#[tokio::test]
async fn what_is_not_served_is_unimplemented_and_counted() {
    let world = World::start().await;
    for method in ["Nothing", "ExecuteStreams", "GetCalls"] {
        let path = format!("/toolgate.v1.ToolGate/{method}");
        let status = send(&world.channel, &path, with_bearer(Request::new(Vec::new()), PROPOSER))
            .await
            .unwrap_err();
        assert_refused(&status, Code::Unimplemented, "NOT_SERVED", None);
        let status = send(&world.channel, &path, Request::new(Vec::new())).await.unwrap_err();
        assert_refused(&status, Code::Unauthenticated, "UNAUTHENTICATED", None);
    }
    let mut packed = with_bearer(Request::new(Vec::new()), PROPOSER);
    packed.metadata_mut().insert("grpc-encoding", "hunter2".parse().unwrap());
    let status = send(&world.channel, EXECUTE, packed).await.unwrap_err();
    assert_refused(&status, Code::Unimplemented, "NOT_SERVED", None);
    assert!(!format!("{status:?}").contains("hunter2"), "{status:?}");
    assert_eq!(count(&world, "NOT_SERVED").await, 4);
    assert_nothing_happened(&world);
}

#[tokio::test]
async fn a_request_over_the_limit_is_shed_with_a_time_to_retry() {
    let mut world =
        World::start_with(Options { more: "limits: {in_flight: 1}", ..Options::default() }).await;
    world.handler.set("slow", Does::Hang);
    let mut client = world.client.clone();
    let first =
        tokio::spawn(async move { client.execute(execute(vec![call("c1", "slow", "{}")])).await });
    until("the first call runs", async || world.handler.running() == 1).await;
    let status =
        world.client.execute(execute(vec![call("c2", "patient", "{}")])).await.unwrap_err();
    assert_refused(&status, Code::ResourceExhausted, "OVERLOADED", None);
    assert!(
        status.get_details_retry_info().unwrap().retry_delay.is_some_and(|delay| !delay.is_zero())
    );
    assert_eq!(count(&world, "OVERLOADED").await, 1);
    assert_eq!(world.metric("toolgate_requests_shed_total", &[]).await, 1);
    // Judging takes no place.
    let check = CheckRequest { context: Some(context()), calls: vec![call("c2", "patient", "{}")] };
    world.client.check(with_bearer(Request::new(check), PROPOSER)).await.unwrap();

    first.abort();
    until("the place is free", async || {
        world.metric("toolgate_requests_in_flight", &[]).await == 0
    })
    .await;
    world.client.execute(execute(vec![call("c3", "patient", "{}")])).await.unwrap();
    let calls: Vec<_> =
        journal::endings(world.directory.path()).into_iter().map(|(call, ..)| call).collect();
    assert_eq!(calls, ["c1", "c3"]);
}

/// The statuses with which each method refuses this context.
async fn refusals(world: &mut World, context: Option<CallContext>) -> [Status; 3] {
    let calls = vec![call("c1", "patient", "{}")];
    let execute = ExecuteRequest {
        context: context.clone(),
        calls: calls.clone(),
        mode: BatchMode::Unspecified.into(),
    };
    let check = CheckRequest { context: context.clone(), calls };
    [
        world.client.execute(with_bearer(Request::new(execute), PROPOSER)).await.unwrap_err(),
        world.client.check(with_bearer(Request::new(check), PROPOSER)).await.unwrap_err(),
        world
            .client
            .list_tools(with_bearer(Request::new(ListToolsRequest { context }), PROPOSER))
            .await
            .unwrap_err(),
    ]
}

async fn count(world: &World, reason: &str) -> i64 {
    world.metric("toolgate_requests_refused_total", &[("reason", reason)]).await
}

fn assert_nothing_happened(world: &World) {
    assert_eq!(world.journal(), "");
    assert!(world.handler.seen().is_empty());
}
