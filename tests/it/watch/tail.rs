//! `toolgate audit tail` against a gate of its own.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use toolgate::domain::audit::ReloadTrigger;
use toolgate::ports::Administration as _;

use crate::support::journal::records;
use crate::support::process::{Process, run_text};
use crate::support::running::{Options, start_handler, until, write_config};

/// Arguments for a gate at this address, with the auditor's secret.
fn arguments<'a>(address: &'a str, secret: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["audit", "tail", "--gate", address, "--secret-file", secret], more].concat()
}

fn values(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn secret(directory: &Path, name: &str) -> String {
    directory.join(name).to_str().unwrap().to_owned()
}

/// Reloads and keys are of no tenant: an auditor of every one hears of them.
#[tokio::test(flavor = "multi_thread")]
async fn what_concerns_the_gate_as_a_whole_is_printed_with_all_it_says() {
    let mut world = super::small_world().await;
    super::read(&world, "tenant-1", "patient", "c1").await;
    let reloader = world.running().reloader().clone();
    reloader.reload(ReloadTrigger::Signal).await.unwrap();
    let file = world.directory.path().join("toolgate.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("kind: Gate", "kind: Gates")).unwrap();
    reloader.reload(ReloadTrigger::Files).await.unwrap();
    let records = records(world.directory.path());
    assert_eq!(records.len(), 4, "{records:?}");
    let address = world.running().addresses()[0].clone();
    let auditor = secret(world.directory.path(), "auditor");
    let (code, out, told) = run_text(arguments(&address, &auditor, &["--output", "json"]));
    assert_eq!((code, &*told), (Some(0), ""));
    assert_eq!(values(&out), records);
    assert_eq!(
        (&records[2]["reload_result"], &records[2]["reload_trigger"]),
        (&"unchanged".into(), &"signal".into())
    );
    let (_, people, _) = run_text(arguments(&address, &auditor, &[]));
    assert!(people.contains("reload  failed  files"), "{people}");
    // Who asks for a tenant, or for a tool, asks for nothing of the kind.
    for more in [["--tenant", "tenant-1"], ["--tool", "patient"]] {
        let (_, out, _) = run_text(arguments(&address, &auditor, &more));
        assert_eq!(out.lines().count(), 2, "{out}");
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_prints_what_the_journal_holds_and_ends() {
    let world = super::small_world().await;
    for number in 0..8 {
        let tenant = ["tenant-1", "tenant-2"][number % 2];
        let tool = ["patient", "echo", "typed", "no-such"][number / 2];
        super::read(&world, tenant, tool, &format!("c{number}")).await;
    }
    let records = records(world.directory.path());
    let address = world.running().addresses()[0].clone();
    let auditor = secret(world.directory.path(), "auditor");
    let tail = |more: &[&str]| {
        let (code, out, told) = run_text(arguments(&address, &auditor, more));
        assert_eq!((code, &*told), (Some(0), ""), "{more:?}");
        out
    };
    // Field by field what the journal's own lines say, in their order.
    let out = tail(&["--output", "json"]);
    assert_eq!(values(&out), records);
    let journal = crate::support::running::journal_text(world.directory.path());
    for (printed, written) in out.lines().zip(journal.lines()) {
        // To the byte: the chain's MACs are over the lines.
        assert_eq!(printed, written);
    }

    assert_eq!(values(&tail(&["--output", "json", "--from", "13"])), records[12..]);
    assert_eq!(tail(&["--from", "17"]), "");
    let id = records[0]["journal_id"].as_str().unwrap();
    assert_eq!(tail(&["--journal", id]).lines().count(), 16);
    let filtered = tail(&[
        "--output", "json", "--tenant", "tenant-2", "--tool", "patient", "--tool", "unknown",
    ]);
    let wanted = records.iter().filter(|record| {
        record["tenant_id"] == "tenant-2"
            && ["patient", "unknown"].contains(&record["tool"].as_str().unwrap())
    });
    assert_eq!(values(&filtered), wanted.cloned().collect::<Vec<_>>());

    let people = tail(&[]);
    assert_eq!(people.lines().count(), 16);
    let last = people.lines().last().unwrap();
    for word in ["16  ", "tool_call_completed", "unknown", "c7", "UNKNOWN_TOOL", "tenant-2"] {
        assert!(last.contains(word), "{last}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_asked_for_is_told() {
    let world = super::small_world().await;
    let address = world.running().addresses()[0].clone();
    let directory = world.directory.path();
    let (auditor, proposer) = (secret(directory, "auditor"), secret(directory, "proposer"));
    let nowhere = "127.0.0.1:1";
    let cases: [(Vec<&str>, i32, &str); 6] = [
        (arguments(&address, &proposer, &[]), 1, "ROLE_MISSING"),
        (arguments(&address, &proposer, &["--follow"]), 1, "ROLE_MISSING"),
        (arguments(&address, &auditor, &["--journal", "x", "--follow"]), 1, "JOURNAL_UNKNOWN"),
        (arguments(nowhere, &auditor, &["--follow"]), 1, "cannot be reached"),
        (arguments(&address, "no-such-file", &[]), 1, "no-such-file"),
        (arguments(&address, &auditor, &["--from", "x"]), 2, "invalid value"),
    ];
    for (arguments, code, word) in cases {
        let (found, out, told) = run_text(arguments.clone());
        assert_eq!((found, &*out), (Some(code), ""), "{arguments:?}: {told}");
        assert!(told.contains(word), "{arguments:?}: {told}");
    }
}

/// A tail that follows, and what it has printed so far.
struct Following {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Following {
    fn start(arguments: Vec<&str>) -> Self {
        let mut child = spawn(arguments);
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (out, kept) = (BufReader::new(child.stdout.take().unwrap()), Arc::clone(&lines));
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).for_each(|line| kept.lock().unwrap().push(line));
        });
        Self { child, lines }
    }

    fn text(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    async fn until(&self, count: usize) {
        until("it has printed them", async || self.lines.lock().unwrap().len() >= count).await;
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn spawn(arguments: Vec<&str>) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolgate"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn it_follows_over_a_restart_and_prints_each_event_once() {
    let (_handler, upstream, _stop) = start_handler().await;
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("run/gate.sock");
    let listener = format!("unix:{}", socket.display());
    let options =
        Options { listener: Some(listener.clone()), audit: super::SMALL, ..Options::default() };
    let config = write_config(directory.path(), &upstream, &options);
    let (mut process, grpc, _) = Process::serving(&config).await;
    let auditor = secret(directory.path(), "auditor");
    let more = ["--follow", "--output", "json", "--tool", "patient"];
    let following = Following::start(arguments(&listener, &auditor, &more));
    execute(&grpc, &["patient", "echo", "patient"]).await;
    following.until(4).await;
    process.terminate();
    assert_eq!(process.exit_code().await, Some(0));
    let (mut process, grpc, _) = Process::serving(&config).await;
    execute(&grpc, &["echo", "patient"]).await;
    following.until(6).await;
    // Killed this time: the connection breaks without a word.
    process.kill();
    let (_process, grpc, _) = Process::serving(&config).await;
    execute(&grpc, &["patient"]).await;
    following.until(8).await;
    let wanted = records(directory.path()).into_iter().filter(|record| record["tool"] == "patient");
    assert_eq!(values(&following.text()), wanted.collect::<Vec<_>>());
}

/// Executes one call after the other.
async fn execute(grpc: &str, tools: &[&str]) {
    let mut client = crate::support::running::connect(grpc).await;
    for tool in tools {
        let calls = vec![crate::support::running::call("c1", tool, "{}")];
        client.execute(crate::support::running::execute(calls)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_ends_quietly_when_nobody_reads_on() {
    let world = super::small_world().await;
    for number in 0..300 {
        super::read(&world, "tenant-1", "patient", &format!("c{number}")).await;
    }
    let address = world.running().addresses()[0].clone();
    let auditor = secret(world.directory.path(), "auditor");
    for more in [&["--output", "json"][..], &["--follow"]] {
        let mut child = spawn(arguments(&address, &auditor, more));
        let mut out: BufReader<ChildStdout> = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert!(!line.is_empty());
        drop(out);
        until("it ends", async || child.try_wait().unwrap().is_some()).await;
        let mut told = String::new();
        child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!((child.wait().unwrap().code(), &*told), (Some(0), ""));
    }
}
