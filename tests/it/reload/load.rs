//! Swaps in a loop under load: no call fails, and none sees two policies.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tonic::Request;
use tonic::transport::Channel;
use toolgate::proto::tool_gate_client::ToolGateClient;
use toolgate::proto::{
    BatchMode, CheckRequest, ExecuteRequest, ExecuteStreamRequest, ListToolsRequest, Outcome,
    Reason, ToolCall,
};

use super::{Policies, reload, tools};
use crate::support::running::{PROPOSER, World, call, context, with_bearer};

/// What every answer under one policy looks like, by its digest.
struct Known {
    digest: String,
    name: &'static str,
    max_steps: usize,
}

fn known<'a>(known: &'a [Known; 2], digest: &str) -> &'a Known {
    known.iter().find(|one| one.digest == digest).expect("one of the two policies")
}

/// One call that both have, and one of each alone.
fn calls() -> Vec<ToolCall> {
    ["common", "only_a", "only_b"].map(|name| call(name, name, "{}")).into()
}

/// As many calls as one policy allows and the other does not.
fn five_calls() -> Vec<ToolCall> {
    (0..5).map(|number| call(&format!("c{number}"), "common", "{}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_fails_and_none_sees_two_policies() {
    let policies = Policies::new();
    let world = World::start_with(policies.options()).await;
    let a = Known { digest: tools(&world).await.0, name: "a", max_steps: 4 };
    policies.switch("b");
    assert!(reload(&world.channel).await.unwrap().applied);
    let b = Known { digest: tools(&world).await.0, name: "b", max_steps: 5 };
    let both = Arc::new([a, b]);

    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..8)
        .map(|kind| {
            let (channel, both, stop) = (world.channel.clone(), both.clone(), stop.clone());
            tokio::spawn(async move {
                let mut seen = BTreeSet::new();
                while !stop.load(Ordering::SeqCst) || seen.len() < 2 {
                    seen.insert(match kind % 4 {
                        0 => list(&channel, &both).await,
                        1 => check(&channel, &both).await,
                        2 => stream(&channel, &both).await,
                        _ => run(&channel, &both).await,
                    });
                }
                seen.len()
            })
        })
        .collect();
    for swap in 0..60 {
        policies.switch(if swap % 2 == 0 { "a" } else { "b" });
        assert!(reload(&world.channel).await.unwrap().applied);
        tokio::task::yield_now().await;
    }
    stop.store(true, Ordering::SeqCst);
    // Those that have seen only one policy need the other.
    let mut swap = 0;
    while readers.iter().any(|reader| !reader.is_finished()) && swap < 200 {
        policies.switch(if swap % 2 == 0 { "a" } else { "b" });
        assert!(reload(&world.channel).await.unwrap().applied);
        swap += 1;
    }
    for reader in readers {
        assert_eq!(reader.await.unwrap(), 2, "a reader saw both policies");
    }
}

async fn list(channel: &Channel, both: &[Known; 2]) -> String {
    let message = ListToolsRequest { context: Some(context()) };
    let request = with_bearer(Request::new(message), PROPOSER);
    let answer = ToolGateClient::new(channel.clone()).list_tools(request).await.unwrap();
    let answer = answer.into_inner();
    let known = known(both, &answer.policy_digest);
    let names: Vec<_> = answer.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["common", "filler_00", &format!("only_{}", known.name)]);
    let description = format!("Of policy {}.", known.name);
    assert!(answer.tools.iter().all(|tool| tool.description == description));
    answer.policy_digest
}

async fn check(channel: &Channel, both: &[Known; 2]) -> String {
    let message = |calls| CheckRequest { context: Some(context()), calls };
    let request = with_bearer(Request::new(message(calls())), PROPOSER);
    let mut client = ToolGateClient::new(channel.clone());
    let answer = client.check(request).await.unwrap().into_inner();
    let one = known(both, &answer.policy_digest);
    let admitted: Vec<_> = answer.verdicts.iter().map(|verdict| verdict.admitted).collect();
    assert_eq!(admitted, [true, one.name == "a", one.name == "b"]);
    // Its step budget is the same policy's.
    let request = with_bearer(Request::new(message(five_calls())), PROPOSER);
    let budget = client.check(request).await.unwrap().into_inner();
    let one = known(both, &budget.policy_digest);
    let admitted = budget.verdicts.iter().filter(|verdict| verdict.admitted).count();
    assert_eq!(admitted, if one.max_steps == 5 { 5 } else { 0 });
    answer.policy_digest
}

async fn run(channel: &Channel, both: &[Known; 2]) -> String {
    let mode = BatchMode::Continue.into();
    let message = ExecuteRequest { context: Some(context()), calls: calls(), mode };
    let request = with_bearer(Request::new(message), PROPOSER);
    let answer = ToolGateClient::new(channel.clone()).execute(request).await.unwrap();
    let answer = answer.into_inner();
    let one = known(both, &answer.policy_digest);
    for (result, runs) in answer.results.iter().zip([true, one.name == "a", one.name == "b"]) {
        let outcome = if runs { Outcome::Success } else { Outcome::Validation };
        let reason = if runs { Reason::Ok } else { Reason::UnknownTool };
        assert_eq!((result.outcome(), result.reason()), (outcome, reason), "{answer:?}");
    }
    assert_eq!(answer.events.len(), 6);
    for event in &answer.events {
        assert_eq!(event.policy_digest, answer.policy_digest);
        assert!(event.sequence > 0, "it is in the journal");
    }
    answer.policy_digest
}

/// The steps of a batch, all of which must have been told: there was room for them.
async fn stream(channel: &Channel, both: &[Known; 2]) -> String {
    use toolgate::proto::execute_stream_response::Step;
    let message = ExecuteStreamRequest {
        context: Some(context()),
        calls: calls(),
        mode: BatchMode::Continue.into(),
    };
    let request = with_bearer(Request::new(message), PROPOSER);
    let answer = ToolGateClient::new(channel.clone()).execute_stream(request).await.unwrap();
    let mut steps = answer.into_inner();
    let (mut digests, mut outcomes) = (Vec::new(), Vec::new());
    while let Some(answer) = steps.message().await.unwrap() {
        match answer.step.unwrap() {
            Step::Event(event) => digests.push(event.policy_digest),
            Step::Result(result) => outcomes.push(result.result.unwrap().outcome()),
        }
    }
    assert_eq!(digests.len(), 6);
    assert!(digests.iter().all(|digest| *digest == digests[0]));
    let one = known(both, &digests[0]);
    let runs = |runs| if runs { Outcome::Success } else { Outcome::Validation };
    assert_eq!(outcomes, [runs(true), runs(one.name == "a"), runs(one.name == "b")]);
    digests.swap_remove(0)
}
