//! What of a request's metadata counts, and what travels on.

use std::collections::BTreeSet;
use std::time::Duration;

use tonic::Request;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};
use toolgate::proto::{ExecuteRequest, ExecuteResponse, Outcome, Reason};

use crate::support::running::{CONFIRMER, World, call, execute, execute_within};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn request() -> Request<ExecuteRequest> {
    execute(vec![call("c1", "slow", "{}")])
}

async fn run(world: &mut World, request: Request<ExecuteRequest>) -> ExecuteResponse {
    world.client.execute(request).await.unwrap().into_inner()
}

/// The handler's time-out in milliseconds, from the last delivery.
fn time_given(world: &World) -> u32 {
    let (metadata, _) = world.handler.seen().pop().unwrap();
    let text = metadata.get("grpc-timeout").unwrap().to_str().unwrap().to_owned();
    text.strip_suffix('m').unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_time_out_too_short_for_an_attempt_denies_the_call() {
    let mut world = World::start().await;
    let response =
        execute_within(&mut world.client, Duration::from_millis(99), request).await.into_inner();
    let result = &response.results[0];
    assert_eq!((result.outcome(), result.reason()), (Outcome::Denied, Reason::DeadlineTooShort));
    assert!(result.retryable);
    assert_eq!(response.events.len(), 2);
    assert!(world.handler.seen().is_empty());
}

#[tokio::test]
async fn the_handlers_time_is_cut_by_the_callers_and_only_by_a_well_formed_one() {
    let mut world = World::start().await;
    let mut cut = request();
    cut.metadata_mut().insert("grpc-timeout", "5S".parse().unwrap());
    run(&mut world, cut).await;
    // The gate keeps 20 ms for its answer and grants the handler's own timer 100 ms.
    let given = time_given(&world);
    assert!((4_000..=5_080).contains(&given), "{given} ms");

    // The contract's six seconds, and the same 100 ms.
    run(&mut world, request()).await;
    assert_eq!(time_given(&world), 6_100);
    for malformed in ["", "5", "S", "5s", "123456789S", "-5S", "5.0S", "5 S", "+5S", "5S, 5S"] {
        let mut malformed_request = request();
        malformed_request.metadata_mut().insert("grpc-timeout", malformed.parse().unwrap());
        let response = run(&mut world, malformed_request).await;
        assert_eq!(response.results[0].reason(), Reason::Ok, "{malformed:?}");
        assert_eq!(time_given(&world), 6_100, "{malformed:?}");
    }
}

#[tokio::test]
async fn a_valid_traceparent_reaches_handler_and_events() {
    let mut world = World::start().await;
    let mut traced = request();
    traced.metadata_mut().insert("traceparent", PARENT.parse().unwrap());
    traced.metadata_mut().insert("tracestate", "vendor=1".parse().unwrap());
    let response = run(&mut world, traced).await;
    assert!(
        response.events.iter().all(|event| event.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736")
    );
    assert_eq!(
        world.journal().matches(r#""trace_id":"4bf92f3577b34da6a3ce929d0e0e4736""#).count(),
        2
    );
    let (metadata, _) = world.handler.seen().pop().unwrap();
    assert_eq!(metadata.get("traceparent").unwrap(), PARENT);
    assert_eq!(metadata.get("tracestate").unwrap(), "vendor=1");
}

#[tokio::test]
async fn an_invalid_or_repeated_traceparent_reaches_nobody() {
    let mut world = World::start().await;
    let invalid = [
        "",
        "hunter2",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
    ];
    for parent in invalid {
        let mut traced = request();
        traced.metadata_mut().insert("traceparent", parent.parse().unwrap());
        assert_untraced(&mut world, traced, parent).await;
    }
    let mut twice = request();
    twice.metadata_mut().append("traceparent", PARENT.parse().unwrap());
    twice.metadata_mut().append("traceparent", PARENT.parse().unwrap());
    assert_untraced(&mut world, twice, "twice").await;
}

async fn assert_untraced(world: &mut World, mut request: Request<ExecuteRequest>, what: &str) {
    request.metadata_mut().insert("tracestate", "vendor=1".parse().unwrap());
    let response = run(world, request).await;
    assert!(response.events.iter().all(|event| event.trace_id.is_empty()), "{what}");
    let (metadata, _) = world.handler.seen().pop().unwrap();
    assert!(
        metadata.get("traceparent").is_none() && metadata.get("tracestate").is_none(),
        "{what}"
    );
    assert!(!world.journal().contains("trace_id"), "{what}");
}

#[tokio::test]
async fn tracestate_beyond_its_bound_is_left_behind() {
    let mut world = World::start().await;
    for (length, travels) in [(512, true), (513, false)] {
        let mut traced = request();
        traced.metadata_mut().insert("traceparent", PARENT.parse().unwrap());
        traced
            .metadata_mut()
            .insert("tracestate", format!("a={}", "x".repeat(length - 2)).parse().unwrap());
        run(&mut world, traced).await;
        let (metadata, _) = world.handler.seen().pop().unwrap();
        assert_eq!(metadata.get("tracestate").is_some(), travels, "{length}");
        assert_eq!(metadata.get("traceparent").unwrap(), PARENT);
    }
}

#[tokio::test]
async fn identity_travels_in_binary_metadata_and_nothing_of_the_callers_does() {
    let mut world = World::start().await;
    let mut request = request();
    let metadata = request.metadata_mut();
    for name in [
        "x-toolgate-tenant-id",
        "x-toolgate-role",
        "x-toolgate-anything",
        "baggage",
        "cookie",
        "x-request-id",
        "forwarded",
    ] {
        metadata.insert(name, "hunter2".parse().unwrap());
    }
    for name in
        ["x-toolgate-tenant-id-bin", "x-toolgate-user-id-bin", "x-toolgate-extra-bin", "other-bin"]
    {
        metadata.insert_bin(name, BinaryMetadataValue::from_bytes(b"hunter2"));
    }
    request.get_mut().context.as_mut().unwrap().tenant_id = "Zürich 租户".to_owned();
    run(&mut world, request).await;

    let (metadata, message) = world.handler.seen().pop().unwrap();
    let identity = |name: &str| {
        let value = metadata.get_bin(name).unwrap().to_bytes().unwrap();
        String::from_utf8(value.to_vec()).unwrap()
    };
    assert_eq!(identity("x-toolgate-tenant-id-bin"), "Zürich 租户");
    assert_eq!(identity("x-toolgate-user-id-bin"), "user-1");
    assert_eq!(identity("x-toolgate-conversation-id-bin"), "conversation-1");
    assert_eq!(identity("x-toolgate-request-id-bin"), "request-1");
    assert_eq!(message.tenant_id, "Zürich 租户");
    let wanted = [
        "content-length",
        "content-type",
        "grpc-timeout",
        "te",
        "user-agent",
        "x-toolgate-conversation-id-bin",
        "x-toolgate-request-id-bin",
        "x-toolgate-tenant-id-bin",
        "x-toolgate-user-id-bin",
    ];
    assert_eq!(names(&metadata), wanted.map(str::to_owned).into());
    let all = format!("{metadata:?}");
    assert!(
        !all.contains("hunter2") && !all.contains(CONFIRMER) && !all.contains("earer"),
        "{all}"
    );
}

fn names(metadata: &MetadataMap) -> BTreeSet<String> {
    metadata.clone().into_headers().keys().map(ToString::to_string).collect()
}
