//! The marked calls and requests, by how they end.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};
use tonic::{Code, Request, Status};
use toolgate::proto::tool_gate_client::ToolGateClient;
use toolgate::proto::{
    CallContext, ExecuteRequest, IssueRequest, ListToolsRequest, Reason, RevokeRequest, ToolCall,
};

use super::{Stage, marked_context};
use crate::grpc::{CHECK, EXECUTE};
use crate::support::running::{CONFIRMER, Does, PROPOSER, call, get, until, with_bearer};

/// Arguments that every tool takes, with a mark of every kind.
const GOOD: &str = r#"{"text":"canary-text","number":8675309.25,"integer":424242424242,"flags":[true,false,true,true,false]}"#;

pub async fn marked_arguments_are_refused(stage: &mut Stage) {
    let unlike_the_schema = [
        r#"{"canary_member":1}"#,
        r#"{"text":8675309.25}"#,
        r#"{"text":"CANARY"}"#,
        r#"{"text":424242424242}"#,
        r#"{"number":"canary"}"#,
        r#"{"number":86753090.5}"#,
        r#"{"integer":8675309.25}"#,
        r#"{"flags":{"canary_member":[true,false,true,true,false]}}"#,
        r#"{"flags":["canary"]}"#,
        r#"{"flags":[true,false,true,true,false,true,false,true,true,false]}"#,
        r#"{"kind":"canary"}"#,
        r#"{"text":"canary canary canary canary canary canary canary canary canary canary"}"#,
        r#"{"canary_member":{"canary_member":["canary",8675309.25]},"text":["canary"]}"#,
    ];
    for arguments in unlike_the_schema {
        assert_eq!(
            stage.execute(vec![call("c1", "probe", arguments)]).await,
            [Reason::ArgumentsInvalid],
            "{arguments}"
        );
    }
    let long = format!(r#"{{"text":"{}"}}"#, "canary".repeat(100));
    let deep = format!(r#"{{"canary_member":{}"canary"{}}}"#, "[".repeat(40), "]".repeat(40));
    let not_json = [
        "canary",
        "{canary}",
        r#""canary""#,
        r#"["canary"]"#,
        "8675309.25",
        "424242424242",
        r#"{"canary_member":1,"canary_member":2}"#,
        r#"{"text":"canary\ud800"}"#,
        r#"{"canary_member":1e999}"#,
        r#"{"integer":42424242424242424242}"#,
        r#"{"text":"canary"} canary"#,
        "{\"text\":\"canary\n\"}",
        &long,
        &deep,
    ];
    for arguments in not_json {
        assert_eq!(
            stage.execute(vec![call("c1", "probe", arguments)]).await,
            [Reason::ArgumentsNotJson],
            "{arguments}"
        );
    }
    assert_eq!(stage.execute(vec![call("c1", "canary_tool", GOOD)]).await, [Reason::UnknownTool]);
    assert_eq!(stage.execute(vec![call("c1", "canary tool\n", GOOD)]).await, [Reason::UnknownTool]);
    assert_eq!(
        stage.execute(vec![call("canary/id", "probe", GOOD)]).await,
        [Reason::ProtocolInvalid]
    );
    assert_eq!(stage.execute(vec![call("c1", "", GOOD)]).await, [Reason::ProtocolInvalid]);
    let attempt = ToolCall { attempt: Some(4_242_424_242), ..call("c1", "canary_tool", GOOD) };
    assert_eq!(stage.execute(vec![attempt]).await, [Reason::ProtocolInvalid]);
    let ticket = ToolCall {
        confirmation_ticket: "canary.ticket.canary".to_owned(),
        ..call("c1", "probe", GOOD)
    };
    assert_eq!(stage.execute(vec![ticket]).await, [Reason::ConfirmationUnexpected]);
    let twice = vec![call("c1", "probe", GOOD), call("c1", "canary_tool", GOOD)];
    assert_eq!(stage.execute(twice).await[1], Reason::DuplicateCallId);
    let many = (1..=5).map(|number| call(&format!("c{number}"), "canary_tool", GOOD)).collect();
    assert_eq!(stage.execute(many).await[4], Reason::StepBudgetExceeded);
    let short = stage
        .execute_within(vec![call("c1", "probe", GOOD)], Some(Duration::from_millis(90)))
        .await;
    assert_eq!(short, [Reason::DeadlineTooShort]);
    assert!(stage.handler.seen().is_empty());
}

fn marked_failure(code: Code) -> Status {
    let mut trailers = MetadataMap::new();
    trailers.insert("x-canary-trailer", "canary-trailer".parse().unwrap());
    trailers.insert_bin("x-canary-bin", BinaryMetadataValue::from_bytes(b"canary-binary"));
    Status::with_details_and_metadata(
        code,
        "canary-message 8675309.25",
        Bytes::from_static(b"canary-details"),
        trailers,
    )
}

pub async fn marked_attempts_end(stage: &mut Stage) {
    stage.handler.set(
        "probe",
        Does::Answer(r#"{"canary_member":"canary","n":[8675309.25,424242424242]}"#.to_owned()),
    );
    assert_eq!(stage.execute(vec![call("c1", "probe", GOOD)]).await, [Reason::Ok]);
    assert_eq!(
        stage.handler.seen()[0].1.arguments_json.matches("canary-text").count(),
        1,
        "marks do travel"
    );

    for code in (1..=16).map(Code::from) {
        stage.handler.set("probe", Does::Fail(marked_failure(code)));
        assert_eq!(
            stage.execute(vec![call("c1", "probe", GOOD)]).await,
            [Reason::HandlerFailed],
            "{code:?}"
        );
    }
    let long = format!(r#"{{"id":"{}"}}"#, "canary".repeat(1_000));
    for result in [
        "canary",
        r#"["canary"]"#,
        r#"{"canary_member":1}"#,
        r#"{"id":"canary"}"#,
        r#"{"id":424242424242}"#,
        r#"{"id":8675309.25}"#,
        r#"{"id":1,"id":8675309}"#,
        r#"{"id":[true,false,true,true,false]}"#,
        &long,
    ] {
        stage.handler.set("strict", Does::Answer(result.to_owned()));
        assert_eq!(
            stage.execute(vec![call("c1", "strict", GOOD)]).await,
            [Reason::ResultInvalid],
            "{result}"
        );
    }
    stage.handler.set("brief", Does::Hang);
    assert_eq!(stage.execute(vec![call("c1", "brief", GOOD)]).await, [Reason::AttemptDeadline]);
    assert_eq!(stage.execute(vec![call("c1", "gone", GOOD)]).await, [Reason::UpstreamUnavailable]);
}

pub async fn a_marked_call_is_cancelled(stage: &mut Stage) {
    stage.handler.set("probe", Does::Hang);
    let mut client = ToolGateClient::new(stage.channel.clone());
    let message = ExecuteRequest {
        context: Some(marked_context()),
        calls: vec![call("c1", "probe", GOOD)],
        mode: 0,
    };
    let running =
        tokio::spawn(
            async move { client.execute(with_bearer(Request::new(message), PROPOSER)).await },
        );
    let handler = stage.handler.clone();
    until("the handler is entered", async || handler.running() == 1).await;
    running.abort();
    until("the handler is cancelled", async || handler.running() == 0).await;
}

pub async fn marked_writes_are_confirmed(stage: &mut Stage) {
    stage.handler.set("send", Does::Answer(r#"{"canary_member":"canary"}"#.to_owned()));
    let write = call("w1", "send", GOOD);
    assert_eq!(stage.execute(vec![write.clone()]).await, [Reason::ConfirmationRequired]);
    let forged =
        ToolCall { confirmation_ticket: "canary.ticket.canary".to_owned(), ..write.clone() };
    assert_eq!(stage.execute(vec![forged]).await, [Reason::ConfirmationInvalid]);

    let confirmed = stage.confirmed(write).await;
    let other = r#"{"text":"canary-other","kind":"one"}"#;
    let moved = ToolCall { arguments_json: other.to_owned(), ..confirmed.clone() };
    assert_eq!(stage.execute(vec![moved.clone()]).await, [Reason::ConfirmationMismatch]);
    assert_eq!(stage.execute(vec![confirmed.clone()]).await, [Reason::Ok]);
    assert_eq!(stage.execute(vec![confirmed]).await, [Reason::CallReplayed]);
    assert_eq!(stage.execute(vec![moved]).await, [Reason::CallIdConflict]);

    stage.handler.set("send", Does::Fail(marked_failure(Code::Internal)));
    let confirmed = stage.confirmed(call("w2", "send", GOOD)).await;
    assert_eq!(stage.execute(vec![confirmed]).await, [Reason::HandlerFailed]);
}

pub async fn marked_confirmations_are_refused(stage: &mut Stage) {
    const ISSUE: &str = "/toolgate.v1.Confirmations/Issue";
    let bearer = |body: Vec<u8>| with_bearer(Request::new(body), CONFIRMER);
    let good = stage.issue_request(call("w3", "send", GOOD)).await;
    let canary = || "canary".to_owned();
    let changed = |change: fn(&mut IssueRequest, String)| {
        let mut request = good.clone();
        change(&mut request, canary());
        bearer(request.encode_to_vec())
    };
    for stale in [
        changed(|request, mark| request.arguments_hash = mark),
        changed(|request, mark| request.key_id = mark),
        changed(|request, mark| request.contract_digest = mark),
    ] {
        assert_eq!(stage.refuse(ISSUE, stale).await, Code::FailedPrecondition);
    }
    let somebody = changed(|request, mark| request.confirming_user_id = mark);
    assert_eq!(stage.refuse(ISSUE, somebody).await, Code::PermissionDenied);
    let nobody = changed(|request, mark| request.confirming_user_id = mark + "\n");
    assert_eq!(stage.refuse(ISSUE, nobody).await, Code::InvalidArgument);
    for (name, arguments) in
        [("canary_tool", GOOD), ("send", r#"{"canary_member":1}"#), ("probe", GOOD)]
    {
        let request = IssueRequest { call: Some(call("w3", name, arguments)), ..good.clone() };
        let code = stage.refuse(ISSUE, bearer(request.encode_to_vec())).await;
        assert_eq!(code, Code::FailedPrecondition, "{name}");
    }
    let revoke = RevokeRequest { context: Some(marked_context()), confirmation_id: canary() };
    let code =
        stage.refuse("/toolgate.v1.Confirmations/Revoke", bearer(revoke.encode_to_vec())).await;
    assert_eq!(code, Code::InvalidArgument);
}

pub async fn marked_requests_are_refused(stage: &mut Stage) {
    let bearer = |body: Vec<u8>| with_bearer(Request::new(body), PROPOSER);
    let message = |context, mode| {
        ExecuteRequest { context, calls: vec![call("c1", "probe", GOOD)], mode }.encode_to_vec()
    };
    let bad = |text: &str| Some(CallContext { tenant_id: text.to_owned(), ..marked_context() });
    for context in [bad("canary\n"), bad("canary\u{2028}"), bad(&"canary".repeat(50)), None] {
        assert_eq!(stage.refuse(EXECUTE, bearer(message(context, 0))).await, Code::InvalidArgument);
    }
    assert_eq!(
        stage.refuse(EXECUTE, bearer(message(Some(marked_context()), 424_242))).await,
        Code::InvalidArgument
    );
    let empty = ExecuteRequest { context: Some(marked_context()), ..ExecuteRequest::default() };
    assert_eq!(stage.refuse(EXECUTE, bearer(empty.encode_to_vec())).await, Code::InvalidArgument);
    let list = ListToolsRequest { context: bad("canary\t") };
    assert_eq!(
        stage.refuse("/toolgate.v1.ToolGate/ListTools", bearer(list.encode_to_vec())).await,
        Code::InvalidArgument
    );
    for path in [EXECUTE, CHECK] {
        assert_eq!(
            stage.refuse(path, bearer(b"canary 8675309.25 canary".to_vec())).await,
            Code::InvalidArgument
        );
        assert_eq!(
            stage.refuse(path, bearer(b"canary".repeat(200_000))).await,
            Code::ResourceExhausted
        );
    }
    for path in
        ["/toolgate.v1.ToolGate/Canary", "/toolgate.v1.Canary/Execute", "/canary.Canary/canary"]
    {
        assert_eq!(stage.refuse(path, bearer(b"canary".to_vec())).await, Code::Unimplemented);
    }
    for authorization in ["Bearer canary-canary-canary-canary-canary", "Basic canary", "canary"] {
        let mut request = Request::new(message(Some(marked_context()), 0));
        request.metadata_mut().insert("authorization", authorization.parse().unwrap());
        assert_eq!(stage.refuse(EXECUTE, request).await, Code::Unauthenticated);
    }
    let mut packed = bearer(b"canary".to_vec());
    packed.metadata_mut().insert("grpc-encoding", "canary".parse().unwrap());
    assert_eq!(stage.refuse(EXECUTE, packed).await, Code::Unimplemented);

    let mut marked = bearer(message(bad("canary\n"), 0));
    for name in
        ["traceparent", "tracestate", "grpc-timeout", "baggage", "x-canary", "x-toolgate-canary"]
    {
        marked.metadata_mut().insert(name, "canary".parse().unwrap());
    }
    assert_eq!(stage.refuse(EXECUTE, marked).await, Code::InvalidArgument);
}

pub async fn admin_requests_are_marked(stage: &mut Stage) {
    for path in [
        "/metrics",
        "/readyz",
        "/healthz",
        "/canary",
        "/metrics?canary=canary",
        "/readyz?8675309.25",
    ] {
        let answer = get(stage.admin, path).await;
        stage.evidence.keep(path, answer);
    }
}
