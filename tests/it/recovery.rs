//! A gate that was killed, and journals that a gate does not take over.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use toolgate::domain::reason::Reason;
use toolgate::proto;
use toolgate::proto::tool_gate_client::ToolGateClient;

use crate::support::journal;
use crate::support::process::{Process, run_text};
use crate::support::running::{
    AUDIT_KEY, Does, Handler, Options, call, channel, execute, get, metric, start_handler, until,
    write_config,
};

/// Acknowledged calls, then `hanging` ones, then kill -9.
async fn kill_with_open_pairs(
    config: &Path,
    handler: &Handler,
    hanging: usize,
) -> Vec<proto::AuditEvent> {
    handler.set("slow", Does::Hang);
    let (mut process, grpc, _) = Process::serving(config).await;
    let client = ToolGateClient::new(channel(&grpc).await);
    let mut acknowledged = Vec::new();
    for (id, tool) in [("ok-1", "patient"), ("ok-2", "nothing"), ("ok-3", "patient")] {
        let response = client.clone().execute(execute(vec![call(id, tool, "{}")])).await.unwrap();
        acknowledged.extend(response.into_inner().events);
    }
    for number in 1..=hanging {
        let mut client = client.clone();
        let calls = vec![
            call(&format!("open-{number}"), "slow", "{}"),
            call(&format!("never-{number}"), "patient", "{}"),
        ];
        tokio::spawn(async move { client.execute(execute(calls)).await });
    }
    until("all handlers are entered", async || handler.running() == hanging).await;
    process.kill();
    acknowledged
}

#[tokio::test]
async fn open_pairs_of_a_killed_gate_are_closed_once_and_nothing_acknowledged_is_lost() {
    let (handler, upstream, _stop) = start_handler().await;
    let directory = tempfile::tempdir().unwrap();
    let config = write_config(directory.path(), &upstream, &Options::default());
    let acknowledged = kill_with_open_pairs(&config, &handler, 2).await;
    let left = journal::records(directory.path());
    assert_eq!(left.len(), 6 + 2);

    for start in 1..=2 {
        let (mut process, _, admin) = Process::serving(&config).await;
        let metrics = get(admin, "/metrics").await;
        let lost = metric(
            &metrics,
            "toolgate_tool_calls_total",
            &[("tool", "slow"), ("outcome", "error")],
        );
        assert_eq!(lost, if start == 1 { 2 } else { 0 }, "once per completed event");
        process.terminate();
        assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
        assert_eq!(
            process.log().contains("closing the pairs that a killed process left open"),
            start == 1
        );
        // Verifies the chain over kill and restart.
        let mut endings = journal::endings(directory.path());
        endings[3..].sort_by(|a, b| a.0.cmp(&b.0));
        let end = |call: &str, reason| (call.to_owned(), 1, reason);
        let wanted = [
            end("ok-1", Reason::Ok),
            end("ok-2", Reason::UnknownTool),
            end("ok-3", Reason::Ok),
            end("open-1", Reason::ProcessLost),
            end("open-2", Reason::ProcessLost),
        ];
        assert_eq!(endings, wanted, "start {start}");
    }
    let records = journal::records(directory.path());
    assert_eq!(records[..8], left);
    for (event, record) in acknowledged.iter().zip(&records) {
        assert_eq!(
            (Value::from(event.sequence), Value::from(event.mac.clone())),
            (record["sequence"].clone(), record["mac"].clone())
        );
    }
    for closed in &records[8..] {
        assert_eq!(
            (&closed["outcome"], &closed["effect"]),
            (&Value::from("error"), &Value::from("none"))
        );
        assert_eq!(closed["duration_ms"], 0);
        assert_eq!(
            (&closed["request_id"], &closed["tool"]),
            (&Value::from("request-1"), &Value::from("slow"))
        );
    }
    assert_eq!(handler.seen().len(), 2 + 2, "nothing is run again");
}

#[tokio::test]
async fn more_pairs_than_the_journals_queue_holds_are_closed_as_well() {
    let (handler, upstream, _stop) = start_handler().await;
    let directory = tempfile::tempdir().unwrap();
    let config = write_config(directory.path(), &upstream, &Options::default());
    kill_with_open_pairs(&config, &handler, 70).await;
    let options = Options { more: "limits: {journal_queue_events: 64}", ..Options::default() };
    let config = write_config(directory.path(), &upstream, &options);
    let (mut process, ..) = Process::serving(&config).await;
    process.terminate();
    assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
    let endings = journal::endings(directory.path());
    assert_eq!(endings.iter().filter(|(.., reason)| *reason == Reason::ProcessLost).count(), 70);
}

#[tokio::test]
async fn a_second_gate_on_the_same_data_does_not_start() {
    let (_handler, upstream, _stop) = start_handler().await;
    let directory = tempfile::tempdir().unwrap();
    let config = write_config(directory.path(), &upstream, &Options::default());
    let (mut process, grpc, _) = Process::serving(&config).await;
    let (code, out, log) = serve(&config);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    let journal = directory.path().join("data/journal");
    let wanted = format!(
        "toolgate: the journal cannot be opened: {}: another gate has this journal open. Stop it, or give this one a directory of its own\n",
        journal.display()
    );
    assert!(log.ends_with(&wanted), "{log}");
    // The first is none the worse for it.
    let mut client = ToolGateClient::new(channel(&grpc).await);
    client.execute(execute(vec![call("c1", "patient", "{}")])).await.unwrap();
    process.terminate();
    assert_eq!(process.exit_code().await, Some(0));
    assert_eq!(journal::endings(directory.path()), [("c1".to_owned(), 1, Reason::Ok)]);
}

#[tokio::test]
async fn a_journal_that_was_tampered_with_does_not_start_and_stays_as_it_is() {
    let (handler, upstream, _stop) = start_handler().await;
    let directory = tempfile::tempdir().unwrap();
    let config = write_config(directory.path(), &upstream, &Options::default());
    kill_with_open_pairs(&config, &handler, 1).await;
    let segment = only_segment(directory.path());
    let sound = fs::read_to_string(&segment).unwrap();
    let lines: Vec<&str> = sound.lines().collect();

    let edited = sound.replacen("UNKNOWN_TOOL", "PROTOCOL_INVALID", 1);
    let removed = [&lines[..1], &lines[2..]].concat().join("\n") + "\n";
    let swapped = [&lines[..2], &[lines[3], lines[2]], &lines[4..]].concat().join("\n") + "\n";
    let repeated = [&lines[..1], &lines[..]].concat().join("\n") + "\n";
    for (tampered, line, sequence) in
        [(edited, 4, 4), (removed, 2, 2), (swapped, 3, 3), (repeated, 2, 2)]
    {
        fs::write(&segment, &tampered).unwrap();
        let (code, _, log) = serve(&config);
        assert_eq!(code, Some(1), "{log}");
        let place =
            format!("{}: line {line}, where sequence {sequence} belongs: ", segment.display());
        assert!(log.contains(&place), "{place}\n{log}");
        assert_eq!(fs::read_to_string(&segment).unwrap(), tampered, "evidence was changed");
    }

    fs::write(&segment, &sound).unwrap();
    fs::write(directory.path().join("audit"), AUDIT_KEY.replace("Vt8x", "Vt9x")).unwrap();
    let (code, _, log) = serve(&config);
    assert_eq!(code, Some(1), "another key: {log}");
    assert!(log.contains(": line 1, where sequence 1 belongs: "), "{log}");
    assert_eq!(fs::read_to_string(&segment).unwrap(), sound);
}

/// Serves where it is known that it cannot.
fn serve(config: &Path) -> (Option<i32>, String, String) {
    run_text(["serve", "--config", config.to_str().unwrap()])
}

fn only_segment(directory: &Path) -> PathBuf {
    let mut segments = fs::read_dir(directory.join("data/journal/segments")).unwrap();
    let segment = segments.next().unwrap().unwrap().path();
    assert!(segments.next().is_none());
    segment
}
