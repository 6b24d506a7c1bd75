//! Configuration, policy and keys that change while the gate serves.

mod bad;
mod files;
mod keys;
mod load;
mod status;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tonic::transport::Channel;
use tonic::{Request, Status};
use toolgate::domain::audit::{ReloadResult, ReloadTrigger};
use toolgate::ports::{Administration as _, ReloadReport};
use toolgate::proto::admin_client::AdminClient;
use toolgate::proto::{
    GetStatusRequest, GetStatusResponse, ListToolsRequest, Outcome, Reason, ReloadRequest,
    ReloadResponse,
};

use crate::support::journal;
use crate::support::running::{
    Does, OPERATOR, Options, PROPOSER, World, call, context, execute, until, with_bearer,
};

/// Two policies, and a link that stands for one of them.
pub struct Policies {
    pub directory: TempDir,
}

impl Policies {
    /// `a` is in force.
    pub fn new() -> Self {
        let policies = Self { directory: tempfile::tempdir().unwrap() };
        for (name, steps) in [("a", 4), ("b", 5)] {
            write_policy(&policies.directory.path().join(name), name, steps, 1);
        }
        policies.switch("a");
        policies
    }

    pub fn link(&self) -> PathBuf {
        self.directory.path().join("policy")
    }

    /// Replaces the link by one rename.
    pub fn switch(&self, to: &str) {
        let unready = self.directory.path().join("unready");
        symlink(to, &unready).unwrap();
        fs::rename(unready, self.link()).unwrap();
    }

    pub fn options(&self) -> Options<'static> {
        Options { policy: self.link(), ..Options::default() }
    }
}

/// A policy of the tools `common`, whose description names the policy, and
/// `only_NAME`, and of fillers; with a limit of its own.
pub fn write_policy(into: &Path, name: &str, steps: usize, fillers: usize) {
    fs::create_dir_all(into).unwrap();
    let limits = format!(
        "apiVersion: toolgate.dev/v1\nkind: Policy\nlimits: {{max_steps: {steps}, batch_total: 10s}}\n"
    );
    fs::write(into.join("policy.yaml"), limits).unwrap();
    let tools = ["common".to_owned(), format!("only_{name}")];
    let tools = tools.into_iter().chain((0..fillers).map(|number| format!("filler_{number:02}")));
    for tool in tools {
        let text = format!(
            "apiVersion: toolgate.dev/v1\nkind: Tool\nname: {tool}\ndescription: Of policy {name}.\n\
             effect: read\nupstream: handlers\nlimits: {{attempt_timeout: 5s}}\n\
             arguments_schema: {{type: object, additionalProperties: false, properties: {{}}}}\n"
        );
        fs::write(into.join(format!("{tool}.yaml")), text).unwrap();
    }
}

pub async fn status(channel: &Channel) -> GetStatusResponse {
    let request = with_bearer(Request::new(GetStatusRequest {}), OPERATOR);
    AdminClient::new(channel.clone()).get_status(request).await.unwrap().into_inner()
}

pub async fn reload(channel: &Channel) -> Result<ReloadResponse, Status> {
    let request = with_bearer(Request::new(ReloadRequest {}), OPERATOR);
    AdminClient::new(channel.clone()).reload(request).await.map(tonic::Response::into_inner)
}

/// The digest and names of the tools offered now.
pub async fn tools(world: &World) -> (String, Vec<String>) {
    let request =
        with_bearer(Request::new(ListToolsRequest { context: Some(context()) }), PROPOSER);
    let answer = world.client.clone().list_tools(request).await.unwrap().into_inner();
    (answer.policy_digest, answer.tools.into_iter().map(|tool| tool.name).collect())
}

/// The administrative records that a journal holds, each in short.
pub fn administrative(directory: &Path) -> Vec<String> {
    let records = journal::records(directory).into_iter();
    let others = records.filter(|record| {
        !record["event"].as_str().unwrap().starts_with("tool_call_")
            && !record["event"].as_str().unwrap().starts_with("confirmation_")
    });
    let short = |record: serde_json::Value| {
        let of = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
        let words = ["event", "reload_result", "reload_trigger", "key_purpose", "key_id"].map(of);
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    };
    others.map(short).collect()
}

/// A secret file as `keygen` would write it.
pub fn write_secret(directory: &Path, name: &str, text: &str) {
    let file = directory.join(name);
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Changes the configuration file in place.
pub fn edit_config(directory: &Path, from: &str, to: &str) {
    let file = directory.join("toolgate.yaml");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{from} is not in {text}");
    fs::write(&file, text.replacen(from, to, 1)).unwrap();
}

#[tokio::test]
async fn a_whole_policy_comes_into_force_without_a_restart() {
    let policies = Policies::new();
    let world = World::start_with(policies.options()).await;
    let (before, names) = tools(&world).await;
    assert_eq!(names, ["common", "filler_00", "only_a"]);

    policies.switch("b");
    let answer = reload(&world.channel).await.unwrap();
    assert!(answer.applied);
    let report = answer.report.unwrap();
    assert_eq!(report.policy_digest_before, before);
    let (after, names) = tools(&world).await;
    assert_eq!(names, ["common", "filler_00", "only_b"]);
    assert_eq!((&report.policy_digest, &answer.policy_digest), (&after, &after));
    assert_ne!(before, after);
    // The new tool runs and is counted by its name, the removed one is unknown.
    let calls = vec![call("c1", "only_b", "{}")];
    let answer = world.client.clone().execute(execute(calls)).await.unwrap().into_inner();
    assert_eq!(answer.results[0].outcome(), Outcome::Success);
    assert_eq!(answer.policy_digest, after);
    let calls = vec![call("c2", "only_a", "{}")];
    let answer = world.client.clone().execute(execute(calls)).await.unwrap().into_inner();
    assert_eq!(answer.results[0].reason(), Reason::UnknownTool);
    let count = async |tool| world.metric("toolgate_tool_calls_total", &[("tool", tool)]).await;
    assert_eq!((count("only_b").await, count("only_a").await, count("unknown").await), (1, 0, 1));
    assert_eq!(world.metric("toolgate_policy_info", &[("policy_digest", &after)]).await, 1);
    assert_eq!(world.metric("toolgate_policy_info", &[]).await, 1, "the old digest has left");
    assert_eq!(world.metric("toolgate_reloads_total", &[("result", "applied")]).await, 1);

    // The same again changes nothing, and says so.
    let report = reload(&world.channel).await.unwrap().report.unwrap();
    assert_eq!(report.result(), toolgate::proto::ReloadResult::Unchanged);
    assert_eq!(world.metric("toolgate_reloads_total", &[("result", "unchanged")]).await, 1);
    let recorded = administrative(world.directory.path());
    assert_eq!(recorded, ["reload applied request", "reload unchanged request"]);
    let records = journal::records(world.directory.path());
    let record = records.iter().find(|record| record["event"] == "reload").unwrap();
    assert_eq!(record["policy_digest_before"], before.as_str());
    assert_eq!(record["policy_digest"], after.as_str());
}

#[tokio::test]
async fn a_batch_in_flight_ends_on_the_policy_it_began_with() {
    let policies = Policies::new();
    let world = World::start_with(policies.options()).await;
    let (before, _) = tools(&world).await;
    let told = std::sync::Arc::new(tokio::sync::Notify::new());
    world.handler.set("common", Does::Wait(told.clone(), "{}".to_owned()));
    let mut client = world.client.clone();
    let calls = vec![call("c1", "common", "{}"), call("c2", "only_a", "{}")];
    let mut request = execute(calls);
    request.get_mut().mode = toolgate::proto::BatchMode::Continue.into();
    let running = tokio::spawn(async move { client.execute(request).await });
    until("the first call runs", async || world.handler.running() == 1).await;

    policies.switch("b");
    assert!(reload(&world.channel).await.unwrap().applied);
    assert!(tools(&world).await.1.contains(&"only_b".to_owned()));
    told.notify_one();
    let answer = running.await.unwrap().unwrap().into_inner();
    // The second call was admitted after the swap, by the policy of its batch.
    let outcomes: Vec<_> =
        answer.results.iter().map(toolgate::proto::ToolResult::outcome).collect();
    assert_eq!(outcomes, [Outcome::Success, Outcome::Success]);
    assert_eq!(answer.policy_digest, before);
    assert!(answer.events.iter().all(|event| event.policy_digest == before));
    let count = world.metric("toolgate_tool_calls_total", &[("tool", "only_a")]).await;
    assert_eq!(count, 1, "it is counted by the name that its policy registers");
}

#[tokio::test]
async fn upstreams_come_and_go_with_the_policy_that_names_them() {
    let policies = Policies::new();
    let world = World::start_with(policies.options()).await;
    let calls = || vec![call("c1", "common", "{}")];
    let answer = world.client.clone().execute(execute(calls())).await.unwrap().into_inner();
    assert_eq!(answer.results[0].outcome(), Outcome::Success);
    let (handler, endpoint, _stop) = crate::support::running::start_handler().await;
    edit_config(
        world.directory.path(),
        "nowhere: {endpoint: \"http://127.0.0.1:1\"}",
        &format!("second: {{endpoint: \"{endpoint}\"}}"),
    );
    let tool = policies.directory.path().join("a/common.yaml");
    let text = fs::read_to_string(&tool).unwrap().replace("upstream: handlers", "upstream: second");
    fs::write(tool, text).unwrap();
    assert!(reload(&world.channel).await.unwrap().applied);
    let answer = world.client.clone().execute(execute(calls())).await.unwrap().into_inner();
    assert_eq!(answer.results[0].outcome(), Outcome::Success);
    assert_eq!((world.handler.seen().len(), handler.seen().len()), (1, 1));
    let upstreams = status(&world.channel).await.upstreams;
    let states: Vec<_> =
        upstreams.iter().map(|one| (one.name.as_str(), one.connection.as_str())).collect();
    // The first keeps the connection that it had.
    assert_eq!(states, [("handlers", "connected"), ("second", "connected")]);
    assert_eq!(upstreams[1].endpoint, endpoint);
}

#[tokio::test]
async fn reloads_come_one_after_the_other_and_end_with_the_gate() {
    let policies = Policies::new();
    let mut world = World::start_with(policies.options()).await;
    let all = (0..8).map(|number| {
        policies.switch(if number % 2 == 0 { "b" } else { "a" });
        let channel = world.channel.clone();
        tokio::spawn(async move { reload(&channel).await.unwrap().applied })
    });
    for one in all.collect::<Vec<_>>() {
        assert!(one.await.unwrap());
    }
    let count = administrative(world.directory.path()).len();
    assert_eq!(count, 8);
    let reloader = world.running().reloader().clone();
    world.stop().await;
    let refused = reloader.reload(ReloadTrigger::Signal).await.unwrap_err();
    assert_eq!(refused.row().reason, "DRAINING");
    assert_eq!(reloader.status().unwrap_err().row().reason, "DRAINING");
    assert_eq!(administrative(world.directory.path()).len(), count);
}

/// The report of a reload that must fail with exactly these codes.
pub async fn failed(world: &World, codes: &[&str]) -> ReloadReport {
    let report = world.running().reloader().reload(ReloadTrigger::Signal).await.unwrap();
    assert_eq!(report.result, ReloadResult::Failed);
    let found: Vec<_> = report.faults.iter().map(|fault| fault.code.name()).collect();
    assert_eq!(found, codes, "{:#?}", report.faults);
    report
}
