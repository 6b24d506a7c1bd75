//! Results, verdicts, tools and events.

use serde_json::{Value, json};
use tonic::{Request, Status};
use toolgate::proto::{
    ArgumentFault, AuditState, BatchMode, Effect, ListToolsRequest, Outcome, Reason, Tool,
    ToolEffect, ToolResult,
};

use super::record::record;
use crate::support::journal;
use crate::support::running::{Does, PROPOSER, World, call, context, execute, with_bearer};

#[tokio::test]
async fn execute_answers_each_call_and_gives_the_journals_records() {
    let mut world = World::start().await;
    world.handler.set(
        "echo",
        Does::Answer(r#"{"found": [1, 2], "query": "q", "n": 1234567890123456789012}"#.to_owned()),
    );
    world.handler.set("typed", Does::Fail(Status::internal("no")));
    let mut request = execute(vec![
        call("c1", "echo", r#"{"text":" a "}"#),
        call("c2", "echo", r#"{"text":7,"other":1}"#),
        call("c3", "typed", "{}"),
        call("c4", "run_shell", "{}"),
    ]);
    request.get_mut().mode = BatchMode::Continue.into();
    let response = world.client.execute(request).await.unwrap().into_inner();

    let result = |tool_call_id: &str, outcome: Outcome, reason: Reason, message: &str| ToolResult {
        tool_call_id: tool_call_id.to_owned(),
        outcome: outcome.into(),
        reason: reason.into(),
        message: message.to_owned(),
        effect: Effect::None.into(),
        audit: AuditState::Recorded.into(),
        ..ToolResult::default()
    };
    let fault = |pointer: &str, keyword: &str| ArgumentFault {
        pointer: pointer.to_owned(),
        keyword: keyword.to_owned(),
        missing: String::new(),
    };
    let wanted = [
        ToolResult {
            result_json: r#"{"found": [1, 2], "query": "q", "n": 1234567890123456789012}"#
                .to_owned(),
            attempt: 1,
            ..result("c1", Outcome::Success, Reason::Ok, "The tool call succeeded.")
        },
        ToolResult {
            faults: vec![fault("", "additionalProperties"), fault("/text", "type")],
            ..result(
                "c2",
                Outcome::Validation,
                Reason::ArgumentsInvalid,
                "The arguments do not fit the tool's schema. Correct the named places and propose again.",
            )
        },
        ToolResult {
            attempt: 1,
            ..result("c3", Outcome::Error, Reason::HandlerFailed, "The tool failed.")
        },
        result(
            "c4",
            Outcome::Validation,
            Reason::UnknownTool,
            "There is no such tool. Use one of the tools that were offered.",
        ),
    ];
    let mut results = response.results;
    results[1].faults.sort_by(|a, b| a.pointer.cmp(&b.pointer));
    assert_eq!(results, wanted);
    let policy = policy_in_force(&world).await;
    assert_eq!(response.policy_digest, policy);

    assert_eq!(response.events.len(), 8);
    let events: Vec<Value> = response.events.iter().map(record).collect();
    assert_eq!(events, journal::records(world.directory.path()));
    assert_eq!(journal::endings(world.directory.path()).len(), 4);
    assert!(response.events.iter().all(|event| event.policy_digest == policy));
    let sequences: Vec<u64> = response.events.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[tokio::test]
async fn a_call_that_was_not_reached_says_so_and_leaves_nothing() {
    let mut world = World::start().await;
    let request = execute(vec![
        call("c1", "patient", "{}"),
        call("bad/id", "patient", "{}"),
        call("c3", "patient", "{}"),
    ]);
    let response = world.client.execute(request).await.unwrap().into_inner();
    let not_run = |id: &str| ToolResult {
        tool_call_id: id.to_owned(),
        outcome: Outcome::NotRun.into(),
        message: "This tool call was not reached.".to_owned(),
        effect: Effect::None.into(),
        ..ToolResult::default()
    };
    assert_eq!(response.results[0], not_run("c1"));
    assert_eq!(response.results[1].tool_call_id, "");
    assert_eq!(response.results[1].reason(), Reason::ProtocolInvalid);
    assert_eq!(response.results[2], not_run("c3"));
    assert_eq!(response.events.len(), 2);
    assert!(response.events.iter().all(|event| event.tool_call_id == "invalid"));
    assert!(world.handler.seen().is_empty());
}

#[tokio::test]
async fn a_result_of_the_limit_is_relayed_whole_and_one_byte_more_is_withheld() {
    let mut world = World::start().await;
    let frame = r#"{"text":""}"#.len();
    for (bytes, reason) in [(1 << 20, Reason::Ok), ((1 << 20) + 1, Reason::ResultInvalid)] {
        let text = format!(r#"{{"text":"{}"}}"#, "x".repeat(bytes - frame));
        world.handler.set("patient", Does::Answer(text.clone()));
        let response = world
            .client
            .execute(execute(vec![call("c1", "patient", "{}")]))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(response.results[0].reason(), reason);
        assert!(
            response.results[0].result_json
                == if reason == Reason::Ok { text } else { String::new() }
        );
    }
}

#[tokio::test]
async fn list_tools_tells_what_a_model_may_propose() {
    let mut world = World::start().await;
    let request =
        with_bearer(Request::new(ListToolsRequest { context: Some(context()) }), PROPOSER);
    let response = world.client.list_tools(request).await.unwrap().into_inner();
    let names: Vec<_> = response.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["echo", "patient", "slow", "stubborn", "typed"]);
    let Tool {
        name,
        description,
        arguments_schema_json,
        effect,
        confirmation_required,
        contract_digest,
    } = &response.tools[0];
    assert_eq!((name.as_str(), description.as_str()), ("echo", "One attempt of a second."));
    assert_eq!((*effect, *confirmation_required), (i32::from(ToolEffect::Read), false));
    let schema: Value = serde_json::from_str(arguments_schema_json).unwrap();
    assert_eq!(
        schema,
        json!({
            "type": "object", "additionalProperties": false, "required": ["text"],
            "properties": {"text": {"type": "string", "minLength": 1, "maxLength": 32}, "count": {"type": "integer"}},
        })
    );
    assert!(is_digest(contract_digest) && is_digest(&response.policy_digest));
    assert!(journal::records(world.directory.path()).is_empty());
}

/// The digest of the policy in force, from the metrics.
async fn policy_in_force(world: &World) -> String {
    let metrics = world.admin("/metrics").await;
    let (_, rest) = metrics.split_once("policy_digest=\"").unwrap();
    let digest = rest.split('"').next().unwrap();
    assert!(is_digest(digest));
    digest.to_owned()
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
