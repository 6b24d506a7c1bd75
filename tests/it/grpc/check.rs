//! Check against Execute, over the case files.

use std::path::Path;

use serde::Deserialize;
use tonic::Request;
use toolgate::proto::{BatchMode, CheckRequest, ExecuteRequest, Outcome, Reason, ToolCall};

use crate::support::journal;
use crate::support::running::{PROPOSER, World, context, with_bearer};

/// The parts of a case file that a client can play.
#[derive(Deserialize)]
struct Case {
    behaviour: String,
    #[serde(default)]
    mode: Option<String>,
    calls: Vec<Call>,
}

#[derive(Deserialize)]
struct Call {
    id: String,
    tool: String,
    arguments: Option<String>,
    attempt: Option<u32>,
    ticket: Option<String>,
}

#[tokio::test]
async fn check_agrees_with_execute_on_every_refusal_and_changes_nothing() {
    let mut world = World::start().await;
    let (mut refused, mut admitted) = (0, 0);
    for file in ["protocol.yaml", "admission.yaml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/gate").join(file);
        let cases: Vec<Case> =
            serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        for case in cases {
            let name = case.behaviour;
            let calls: Vec<ToolCall> = case.calls.into_iter().map(ToolCall::from).collect();
            let before =
                (journal::records(world.directory.path()).len(), world.handler.seen().len());
            let request = CheckRequest { context: Some(context()), calls: calls.clone() };
            let request = with_bearer(Request::new(request), PROPOSER);
            let checked = world.client.check(request).await.unwrap().into_inner();
            let after =
                (journal::records(world.directory.path()).len(), world.handler.seen().len());
            assert_eq!(before, after, "{name}: Check has no effect");

            let mode = case.mode.map_or(BatchMode::Unspecified, |_| BatchMode::Continue);
            let request = ExecuteRequest { context: Some(context()), calls, mode: mode.into() };
            let request = with_bearer(Request::new(request), PROPOSER);
            let done = world.client.execute(request).await.unwrap().into_inner();
            assert_eq!(checked.policy_digest, done.policy_digest);
            assert_eq!(checked.verdicts.len(), done.results.len());
            for (verdict, result) in checked.verdicts.iter().zip(&done.results) {
                assert_eq!(verdict.tool_call_id, result.tool_call_id, "{name}");
                assert!(verdict.preview.is_none(), "{name}");
                match result.outcome() {
                    Outcome::Validation | Outcome::Denied => {
                        refused += 1;
                        let told = (
                            verdict.outcome(),
                            verdict.reason(),
                            &verdict.message,
                            &verdict.faults,
                            verdict.retryable,
                        );
                        let happened = (
                            result.outcome(),
                            result.reason(),
                            &result.message,
                            &result.faults,
                            result.retryable,
                        );
                        assert_eq!(told, happened, "{name}");
                        assert!(!verdict.admitted, "{name}");
                    }
                    Outcome::NotRun => assert!(
                        verdict.outcome() == Outcome::NotRun || mode == BatchMode::Unspecified,
                        "{name}"
                    ),
                    _ => {
                        admitted += 1;
                        assert!(verdict.admitted, "{name}");
                        assert_eq!(
                            (verdict.outcome(), verdict.reason()),
                            (Outcome::Unspecified, Reason::Unspecified),
                            "{name}"
                        );
                    }
                }
            }
        }
    }
    assert!(refused >= 18 && admitted >= 3, "{refused} refused, {admitted} admitted");
}

impl From<Call> for ToolCall {
    fn from(call: Call) -> Self {
        Self {
            tool_call_id: call.id,
            name: call.tool,
            arguments_json: call.arguments.unwrap_or_else(|| "{}".to_owned()),
            attempt: call.attempt,
            confirmation_ticket: call.ticket.unwrap_or_default(),
        }
    }
}
