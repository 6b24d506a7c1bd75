//! SIGTERM, and what becomes of what runs then.

use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags};
use tokio::sync::Notify;
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use toolgate::domain::reason::Reason;
use toolgate::proto;
use toolgate::proto::tool_gate_client::ToolGateClient;

use crate::grpc::assert_refused;
use crate::support::journal;
use crate::support::process::Process;
use crate::support::running::{
    Does, Options, PROPOSER, call, channel, context, execute, get, start_handler, until,
    with_bearer, write_config,
};

#[tokio::test]
async fn a_running_call_finishes_while_new_ones_are_refused() {
    let (handler, upstream, _stop) = start_handler().await;
    let told = Arc::new(Notify::new());
    handler.set("slow", Does::Wait(Arc::clone(&told), r#"{"done":1}"#.to_owned()));
    let directory = tempfile::tempdir().unwrap();
    let config = write_config(directory.path(), &upstream, &Options::default());
    let (mut process, grpc, admin) = Process::serving(&config).await;
    let channel = channel(&grpc).await;
    let mut client = ToolGateClient::new(channel.clone());
    client.execute(execute(vec![call("before", "patient", "{}")])).await.unwrap();
    assert!(get(admin, "/readyz").await.starts_with("HTTP/1.1 200 "));

    let mut running = client.clone();
    let running = tokio::spawn(async move {
        running
            .execute(execute(vec![call("running", "slow", "{}"), call("after", "patient", "{}")]))
            .await
    });
    until("the handler is entered", async || handler.running() == 1).await;
    process.terminate();
    let mut ready = String::new();
    until("readiness is off", async || {
        ready = get(admin, "/readyz").await;
        ready.starts_with("HTTP/1.1 503 ")
    })
    .await;
    assert!(
        ready.ends_with("\r\n\r\ndraining: the gate is stopping and takes no new calls\n"),
        "{ready}"
    );
    assert!(get(admin, "/healthz").await.starts_with("HTTP/1.1 200 "), "a draining gate lives");
    assert!(get(admin, "/metrics").await.contains("toolgate_ready 0"));
    let mut health = HealthClient::new(channel);
    for service in ["", "toolgate.v1.ToolGate"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let status = health.check(request).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::NotServing, "{service:?}");
    }

    let status = client.execute(execute(vec![call("late", "patient", "{}")])).await.unwrap_err();
    assert_refused(&status, Code::Unavailable, "DRAINING", None);
    let check = proto::CheckRequest {
        context: Some(context()),
        calls: vec![call("late", "patient", "{}")],
    };
    let status = client.check(with_bearer(Request::new(check), PROPOSER)).await.unwrap_err();
    assert_refused(&status, Code::Unavailable, "DRAINING", None);

    told.notify_one();
    let response = running.await.unwrap().unwrap().into_inner();
    assert_eq!(response.results[0].result_json, r#"{"done":1}"#);
    assert_eq!(response.results[1].reason(), proto::Reason::Ok);
    assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
    let wanted = ["before", "running", "after"].map(|call| (call.to_owned(), 1, Reason::Ok));
    assert_eq!(journal::endings(directory.path()), wanted);
    assert!(process.log().ends_with(r#""message":"stopped"}"#), "{}", process.log());
}

#[tokio::test]
async fn what_still_runs_after_the_grace_is_cancelled_and_on_record() {
    let (handler, upstream, _stop) = start_handler().await;
    handler.set("slow", Does::Hang);
    let directory = tempfile::tempdir().unwrap();
    let options = Options { more: "limits: {drain: 200ms}", ..Options::default() };
    let config = write_config(directory.path(), &upstream, &options);
    let (mut process, grpc, _) = Process::serving(&config).await;
    let mut client = ToolGateClient::new(channel(&grpc).await);
    let running = tokio::spawn(async move {
        client.execute(execute(vec![call("c1", "slow", "{}"), call("c2", "patient", "{}")])).await
    });
    until("the handler is entered", async || handler.running() == 1).await;
    process.terminate();

    let response = running.await.unwrap().unwrap().into_inner();
    assert_eq!(response.results[0].reason(), proto::Reason::Cancelled);
    assert_eq!(response.results[0].audit(), proto::AuditState::Recorded);
    assert_eq!(response.results[1].outcome(), proto::Outcome::NotRun);
    assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
    assert_eq!(journal::endings(directory.path()), [("c1".to_owned(), 1, Reason::Cancelled)]);
    until("the handler was cancelled", async || handler.running() == 0).await;
}

#[tokio::test]
async fn a_gate_that_still_verifies_its_journal_stops_at_once() {
    let (_handler, upstream, _stop) = start_handler().await;
    let directory = tempfile::tempdir().unwrap();
    let config = write_config(directory.path(), &upstream, &Options::default());
    // Reading never ends: a pipe in the place of the segment, which nobody writes to.
    let journal = directory.path().join("data/journal");
    std::fs::create_dir_all(journal.join("segments")).unwrap();
    let manifest =
        r#"{"format":1,"journal_id":"88da0e1d-c649-4079-91b3-96fa9e0d2678","created":""}"#;
    std::fs::write(journal.join("journal.json"), manifest).unwrap();
    let pipe = journal.join("segments/00000000000000000001.jsonl");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
        .unwrap();
    let mut process = Process::serve(&config);
    let mut writer = None;
    until("the gate reads its journal", async || {
        // Nobody can open it so without its having a reader.
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        writer = rustix::fs::open(&pipe, flags, Mode::empty()).ok();
        writer.is_some()
    })
    .await;
    process.terminate();
    assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
    assert!(process.log().contains("stopped before it served"), "{}", process.log());
}
