//! What operators are told, over the wire and on the command line.

use serde_json::Value;
use tonic::{Code, Request};
use toolgate::proto::admin_client::AdminClient;
use toolgate::proto::{GetStatusRequest, ReloadRequest};

use super::{Policies, edit_config, reload, status};
use crate::grpc::assert_refused;
use crate::support::process::run_text;
use crate::support::running::{
    AUDITOR, CONFIRMER, Options, PROPOSER, World, call, execute, with_bearer,
};

#[tokio::test]
async fn the_status_tells_what_is_in_force() {
    let world = World::start_with(Options::writes()).await;
    world.client.clone().execute(execute(vec![call("c1", "search", "{}")])).await.unwrap();
    let status = status(&world.channel).await;
    assert_eq!(status.version, env!("CARGO_PKG_VERSION"));
    assert_eq!(status.policy_digest, super::tools(&world).await.0);
    let names: Vec<_> = status.contracts.iter().map(|one| one.name.as_str()).collect();
    assert!(names.contains(&"draft") && names.is_sorted());
    assert!(status.contracts.iter().all(|one| one.contract_digest.len() == 64));
    let note = status.contracts.iter().find(|one| one.name == "note").unwrap();
    let [exception] = &note.exceptions[..] else { panic!("{note:?}") };
    assert_eq!(
        (exception.code.as_str(), exception.at.as_str(), exception.reason.as_str()),
        ("NO_CONFIRMATION", "/effect", "It only notes a time.")
    );
    let keys: Vec<_> = status
        .keys
        .iter()
        .map(|key| (key.purpose().as_str_name(), key.id.as_str(), key.signs))
        .collect();
    assert_eq!(
        keys,
        [("KEY_PURPOSE_AUDIT", "audit-1", true), ("KEY_PURPOSE_CONFIRMATION", "confirm-1", true)]
    );
    let last: Value =
        serde_json::from_str(world.journal().lines().last().expect("a refusal")).unwrap();
    assert_eq!(status.journal_id, last["journal_id"].as_str().unwrap());
    assert_eq!(status.journal_sequence, last["sequence"].as_u64().unwrap());
    assert_eq!(status.journal_mac, last["mac"].as_str().unwrap());
    assert!(status.journal_ready && status.persistent && !status.draining);
    let ledger = status.ledger.unwrap();
    assert!(ledger.ready && ledger.clock_trusted && ledger.id.len() == 36);
    let upstreams: Vec<_> = status.upstreams.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(upstreams, ["handlers", "nowhere"]);
    assert_eq!(status.upstreams[1].endpoint, "http://127.0.0.1:1");
    assert!(status.not_ready.is_empty());
    assert!(status.last_reload.is_none() && status.last_failed_reload.is_none());
    assert_eq!(status.policy_since, status.serving_since);
}

#[tokio::test]
async fn nobody_else_may_ask_or_reload() {
    let world = World::start().await;
    let mut client = AdminClient::new(world.channel.clone());
    for secret in [PROPOSER, CONFIRMER, AUDITOR] {
        let asked = client.get_status(with_bearer(Request::new(GetStatusRequest {}), secret)).await;
        assert_refused(&asked.unwrap_err(), Code::PermissionDenied, "ROLE_MISSING", None);
        let asked = client.reload(with_bearer(Request::new(ReloadRequest {}), secret)).await;
        assert_refused(&asked.unwrap_err(), Code::PermissionDenied, "ROLE_MISSING", None);
    }
    let asked = client.reload(Request::new(ReloadRequest {})).await;
    assert_refused(&asked.unwrap_err(), Code::Unauthenticated, "UNAUTHENTICATED", None);
    assert!(super::administrative(world.directory.path()).is_empty(), "nothing was tried");
}

/// Runs a subcommand against the gate, as its operator.
async fn ask(world: &World, arguments: &[&str]) -> (Option<i32>, String, String) {
    let gate = world.running().addresses()[0].clone();
    let secret = world.directory.path().join("operator").to_string_lossy().into_owned();
    let arguments: Vec<String> = arguments
        .iter()
        .copied()
        .chain(["--gate", &gate, "--secret-file", &secret])
        .map(str::to_owned)
        .collect();
    let run = move || run_text(arguments.iter().map(String::as_str));
    tokio::task::spawn_blocking(run).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_shows_and_reloads() {
    let policies = Policies::new();
    let world = World::start_with(policies.options()).await;
    let first = status(&world.channel).await.policy_digest;
    let (code, text, _) = ask(&world, &["status"]).await;
    assert_eq!(code, Some(0), "{text}");
    for wanted in [&first, "ready          yes", "3 tools", "key            audit audit-1 signs"] {
        assert!(text.contains(wanted), "{wanted} is not in {text}");
    }

    policies.switch("b");
    let (code, text, _) = ask(&world, &["reload"]).await;
    let second = status(&world.channel).await.policy_digest;
    assert_eq!((code, text), (Some(0), format!("applied: policy {first} -> {second}\n")));
    let (code, text, _) = ask(&world, &["reload"]).await;
    assert_eq!((code, text), (Some(0), format!("nothing has changed: policy {second}\n")));

    edit_config(world.directory.path(), "admin: 127.0.0.1:0", "admin: 127.0.0.2:0");
    let (code, text, _) = ask(&world, &["reload"]).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("/admin: RESTART_NEEDED: this has changed"), "{text}");
    assert!(text.ends_with(&format!("stays in force, policy {second}\n")), "{text}");
    let (_, text, _) = ask(&world, &["status"]).await;
    assert!(text.contains("last failure") && text.contains("RESTART_NEEDED"), "{text}");

    let (code, text, _) = ask(&world, &["status", "--output", "json"]).await;
    let shown: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, shown["policy_digest"].as_str()), (Some(0), Some(second.as_str())));
    assert_eq!(shown["last_failed_reload"]["faults"][0]["pointer"], "/admin");
    assert_eq!(shown["contracts"][0]["name"], "common");
    let (code, text, _) = ask(&world, &["reload", "--output", "json"]).await;
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, report["result"].as_str()), (Some(1), Some("failed")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_of_another_role_is_told_so_and_never_shown() {
    let world = World::start().await;
    let gate = world.running().addresses()[0].clone();
    let secret = world.directory.path().join("proposer").to_string_lossy().into_owned();
    let run = move || run_text(["status", "--gate", &gate, "--secret-file", &secret]);
    let (code, out, told) = tokio::task::spawn_blocking(run).await.unwrap();
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(told.contains("ROLE_MISSING") && !told.contains(PROPOSER), "{told}");
    // The gate goes on.
    assert!(reload(&world.channel).await.unwrap().applied);
}
