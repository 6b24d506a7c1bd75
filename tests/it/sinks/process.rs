//! Gates in processes of their own: what they print, and what a kill leaves.

use std::io::{BufRead as _, BufReader, PipeReader};
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tonic::transport::Channel;
use toolgate::proto::tool_gate_client::ToolGateClient;

use super::a_call;
use crate::support::collector::{Collector, Does, Listening, sink};
use crate::support::process::{Process, run_text};
use crate::support::running::{
    Options, connect, execute, get, journal_text, metric, start_handler, until, write_config,
};

/// A configuration that gates come and go on.
struct Place {
    directory: TempDir,
    config: PathBuf,
    _handler: tokio_util::sync::DropGuard,
}

impl Place {
    async fn new(audit: &str) -> Self {
        let (_, upstream, stop) = start_handler().await;
        let directory = tempfile::tempdir().unwrap();
        let options = Options { audit, ..Options::default() };
        let config = write_config(directory.path(), &upstream, &options);
        Self { directory, config, _handler: stop }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn lines(&self) -> Vec<String> {
        journal_text(self.path()).lines().map(str::to_owned).collect()
    }
}

/// Each call leaves two events.
async fn calls(client: &mut ToolGateClient<Channel>, from: u64, to: u64) {
    for number in from..=to {
        let answer = client.execute(execute(vec![a_call(&format!("c{number}"))])).await;
        assert_eq!(answer.unwrap().into_inner().results[0].result_json, "{}");
    }
}

async fn collected() -> (Collector, Listening, Place) {
    let collector = Collector::default();
    let listening = collector.listen().await;
    let place = Place::new(&sink(&listening.address)).await;
    (collector, listening, place)
}

/// What a pipe holds, line by line, until its writer is gone.
fn read_lines(reader: PipeReader) -> std::thread::JoinHandle<Vec<String>> {
    std::thread::spawn(move || BufReader::new(reader).lines().map(Result::unwrap).collect())
}

const STDOUT: &str = ", sinks: [{name: lines, stdout: {}}]";

#[tokio::test]
async fn standard_output_has_the_lines_of_audit_tail_and_no_other() {
    let place = Place::new(STDOUT).await;
    let (reader, writer) = std::io::pipe().unwrap();
    let printed = read_lines(reader);
    let mut process = Process::serve_printing(&place.config, writer);
    let (grpc, _) = process.addresses().await;
    let mut client = connect(&grpc).await;
    calls(&mut client, 1, 20).await;
    let secret = place.path().join("auditor");
    let secret = secret.to_str().unwrap();
    let tail = ["audit", "tail", "--gate", &grpc, "--secret-file", secret, "--output", "json"];
    let mut told = String::new();
    until("all is synced", async || {
        told = run_text(tail).1;
        told.lines().count() == 40
    })
    .await;
    process.terminate();
    assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
    assert_eq!(printed.join().unwrap(), told.lines().collect::<Vec<_>>());
    assert_eq!(place.lines(), told.lines().collect::<Vec<_>>());
}

/// More events than a pipe and the sink's own step hold, and nobody reads.
#[tokio::test]
async fn standard_output_that_nobody_reads_stops_neither_calls_nor_the_end() {
    let place = Place::new(STDOUT).await;
    let (reader, writer) = std::io::pipe().unwrap();
    let mut process = Process::serve_printing(&place.config, writer);
    let (grpc, admin) = process.addresses().await;
    let mut client = connect(&grpc).await;
    calls(&mut client, 1, 200).await;
    process.terminate();
    assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
    assert!(process.log().contains("were not delivered before the end"), "{}", process.log());
    drop(reader);

    // The next one has them, from the first that was not taken.
    let (reader, writer) = std::io::pipe().unwrap();
    let printed = read_lines(reader);
    let mut process = Process::serve_printing(&place.config, writer);
    process.addresses().await;
    process.terminate();
    assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
    let lines = place.lines();
    let printed = printed.join().unwrap();
    assert_eq!(printed, lines[lines.len() - printed.len()..]);
    assert!(printed.len() > 100, "{}", printed.len());
    let _ = admin;
}

#[tokio::test]
async fn standard_output_that_is_closed_stops_neither_calls_nor_the_end() {
    let place = Place::new(STDOUT).await;
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut process = Process::serve_printing(&place.config, writer);
    let (grpc, admin) = process.addresses().await;
    let mut client = connect(&grpc).await;
    calls(&mut client, 1, 20).await;
    until("it is told", async || {
        get(admin, "/readyz").await.contains("ready\nsink behind: an audit sink")
    })
    .await;
    let failures = metric(
        &get(admin, "/metrics").await,
        "toolgate_sink_failures_total",
        &[("sink", "lines"), ("kind", "unreachable")],
    );
    assert!(failures > 0);
    process.terminate();
    assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
}

/// kill -9 after the receiver has taken something and before the gate can know it.
#[tokio::test]
async fn what_a_kill_interrupts_is_sent_again() {
    let (collector, _listening, place) = collected().await;
    collector.then([Does::Take]);
    collector.set(Does::TakeAndHang);
    for round in 1..=3 {
        let (mut process, grpc, _) = Process::serving(&place.config).await;
        let mut client = connect(&grpc).await;
        let before = collector.sequences().len();
        calls(&mut client, 10 * round, 10 * round + 4).await;
        until("it took something", async || collector.sequences().len() > before).await;
        process.kill();
    }
    collector.set(Does::Take);
    let (mut process, _, admin) = Process::serving(&place.config).await;
    until("all is taken", async || {
        metric(&get(admin, "/metrics").await, "toolgate_sink_lag_events", &[]) == 0
    })
    .await;
    process.terminate();
    assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
    assert_whole(&collector, &place);
}

/// Every event of the journal has arrived, each with its link and none before the one before it.
fn assert_whole(collector: &Collector, place: &Place) {
    let mut wanted = 1;
    let lines = place.lines();
    for received in collector.taken() {
        let sequence = received.sequence().unwrap();
        assert!(sequence <= wanted, "{sequence} came before {wanted}");
        let line = &lines[usize::try_from(sequence).unwrap() - 1];
        let mac = received.attributes["toolgate.mac"].as_str().unwrap();
        assert!(line.contains(mac), "{sequence} has another link");
        wanted = wanted.max(sequence + 1);
    }
    assert_eq!(wanted, lines.len() as u64 + 1);
}

/// A drain gives the sinks a last chance; the cursor is exact after it, and nothing comes twice.
#[tokio::test]
async fn a_drain_delivers_what_came_last_and_the_next_gate_nothing_of_it() {
    let (collector, _listening, place) = collected().await;
    for round in 1..=3_u64 {
        let (mut process, grpc, _) = Process::serving(&place.config).await;
        let mut client = connect(&grpc).await;
        calls(&mut client, 10 * round, 10 * round + 9).await;
        process.terminate();
        assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
        assert_eq!(collector.sequences(), (1..=20 * round).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_drain_does_not_wait_for_a_receiver_that_is_down() {
    let (collector, listening, place) = collected().await;
    let address = listening.address.clone();
    drop(listening);
    let (mut process, grpc, _) = Process::serving(&place.config).await;
    let mut client = connect(&grpc).await;
    calls(&mut client, 1, 5).await;
    process.terminate();
    assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
    assert!(process.log().contains("were not delivered before the end"), "{}", process.log());
    let _listening = collector.listen_at(&address).await;
    let (_process, _, _) = Process::serving(&place.config).await;
    collector.until_taken(10).await;
    assert_whole(&collector, &place);
}

/// What says nothing of how far a sink is must not be taken for a beginning.
#[tokio::test]
async fn a_cursor_that_cannot_be_read_keeps_the_gate_from_starting() {
    let (_collector, _listening, place) = collected().await;
    let sinks = place.path().join("data/sinks");
    std::fs::create_dir_all(&sinks).unwrap();
    std::fs::write(sinks.join("collector.json"), "{}").unwrap();
    let (code, _, told) = run_text(["serve", "--config", place.config.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    let told = told.lines().last().unwrap();
    assert!(told.contains("the audit sinks cannot go on"), "{told}");
    assert!(told.contains("collector.json") && told.contains("remove the file"), "{told}");
}

/// The gate ends between the receiver's answer and the cursor, and between that and the hold.
#[cfg(feature = "failpoints")]
#[tokio::test]
async fn whatever_a_sink_was_at_nothing_is_lost() {
    for (point, is_repeated) in [("sink-delivered", true), ("sink-cursor-written", false)] {
        let (collector, _listening, place) = collected().await;
        let mut process = Process::serve_to(&place.config, Some(point));
        let (grpc, _) = process.addresses().await;
        let mut client = connect(&grpc).await;
        // The gate may end on any of them.
        for number in 1..=5 {
            drop(client.execute(execute(vec![a_call(&format!("c{number}"))])).await);
        }
        assert_eq!(process.exit_code().await, None, "{}", process.log());
        let before = collector.sequences();
        assert!(!before.is_empty(), "{point}");
        let (mut process, grpc, _) = Process::serving(&place.config).await;
        let mut client = connect(&grpc).await;
        calls(&mut client, 11, 15).await;
        process.terminate();
        assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
        assert_whole(&collector, &place);
        let again = collector.sequences()[before.len()..].contains(&1);
        assert_eq!(again, is_repeated, "{point}");
    }
}
