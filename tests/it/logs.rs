//! Log records as a collector reads them: one JSON object a line, allowed fields only.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::io::{self, Write};
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use toolgate::telemetry::logs;
use tracing::level_filters::LevelFilter;

const CANARY: &str = "hunter2";

/// A writer whose text can be read back, and which counts its writes.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<String>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().push(String::from_utf8(bytes.to_vec()).unwrap());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The records that `act` causes, each checked to be one line written at once.
fn records(level: LevelFilter, act: impl FnOnce()) -> Vec<Value> {
    let memory = Memory::default();
    tracing::subscriber::with_default(logs::subscriber(memory.clone(), level), act);
    let writes = memory.0.lock().unwrap();
    writes.iter().map(|line| record(line)).collect()
}

fn record(line: &str) -> Value {
    assert_eq!(line.matches('\n').count(), 1, "{line}");
    assert!(line.ends_with('\n'), "{line}");
    serde_json::from_str(line).unwrap()
}

fn without_time(mut record: Value) -> Value {
    let time = record.as_object_mut().unwrap().remove("time").unwrap();
    let time = time.as_str().unwrap();
    assert!(time.ends_with('Z') && time.parse::<jiff::Timestamp>().is_ok(), "{time}");
    record
}

#[test]
fn a_record_has_a_head_and_allowed_fields_only() {
    let records = records(LevelFilter::INFO, || {
        tracing::info!(
            target: "toolgate::test",
            tool = "search",
            attempt = 2_u64,
            duration_ms = 1.5,
            reason = %"OK",
            arguments = CANARY,
            user_id = ?CANARY,
            error = %CANARY,
            "a call {}", "ended"
        );
    });
    let wanted = json!({
        "level": "INFO", "target": "toolgate::test", "message": "a call ended",
        "tool": "search", "attempt": 2, "duration_ms": 1.5, "reason": "OK",
        "dropped_fields": 3,
    });
    assert_eq!(records.into_iter().map(without_time).collect::<Vec<_>>(), [wanted]);
}

#[test]
fn spans_give_their_allowed_fields_to_what_happens_in_them() {
    let records = records(LevelFilter::INFO, || {
        let outer = tracing::info_span!(
            target: "toolgate", "outer", request_id = "r1", attempt = 1, prompt = CANARY, tool = tracing::field::Empty
        );
        outer.record("tool", "search");
        let _outer = outer.enter();
        let _inner = tracing::info_span!(target: "toolgate", "inner", attempt = 2).entered();
        let _foreign = tracing::error_span!(target: "h2", "foreign", code = CANARY).entered();
        tracing::info!(target: "toolgate", attempt = 3, "one");
        tracing::info!(target: "toolgate", "two");
    });
    let fields = |record: &Value| {
        json!([record["request_id"], record["attempt"], record["tool"], record["dropped_fields"]])
    };
    let fields: Vec<_> = records.iter().map(fields).collect();
    assert_eq!(fields, [json!(["r1", 3, "search", 1]), json!(["r1", 2, "search", 1])]);
    assert!(!format!("{records:?}").contains(CANARY));
}

#[test]
fn dependencies_are_heard_from_warnings_up_and_never_quoted() {
    let records = records(LevelFilter::TRACE, || {
        tracing::trace!(target: "toolgate", "own");
        tracing::info!(target: "h2", "quiet");
        tracing::warn!(target: "h2::codec", code = CANARY, "peer sent {CANARY}");
        tracing::error!(target: "toolgateway", code = CANARY, "{CANARY}");
    });
    let heads: Vec<_> =
        records.iter().map(|r| json!([r["level"], r["target"], r["file"]])).collect();
    assert_eq!(
        heads,
        [
            json!(["TRACE", "toolgate", null]),
            json!(["WARN", "h2::codec", "logs.rs"]),
            json!(["ERROR", "toolgateway", "logs.rs"]),
        ]
    );
    assert_eq!(records[1]["message"], "a dependency warns; its text is withheld");
    assert!(records[1]["line"].is_u64());
    assert!(!format!("{records:?}").contains(CANARY));
}

#[test]
fn the_level_bounds_the_gate_and_its_dependencies() {
    let levels = |level| {
        let act = || {
            tracing::error!(target: "toolgate", "1");
            tracing::warn!(target: "toolgate", "2");
            tracing::debug!(target: "toolgate", "3");
            tracing::warn!(target: "hyper", "4");
            tracing::error!(target: "hyper", "5");
        };
        records(level, act).len()
    };
    assert_eq!(levels(LevelFilter::OFF), 0);
    assert_eq!(levels(LevelFilter::ERROR), 2);
    assert_eq!(levels(LevelFilter::INFO), 4);
    assert_eq!(levels(LevelFilter::DEBUG), 5);
}

#[test]
fn what_is_allowed_is_still_redacted_bounded_and_kept_on_one_line() {
    let long = "x".repeat(100_000);
    let records = records(LevelFilter::INFO, || {
        tracing::warn!(
            target: "toolgate",
            fault = "cannot reach postgres://gate:hunter2@db",
            pointer = "\u{1b}[2J\r\n{\"level\":\"ERROR\"}\u{2028}",
            path = ?format!("{{\"token\":\"{CANARY}\"}}"),
            upstream = %long,
            "authorization: Bearer {CANARY}"
        );
    });
    assert_eq!(records.len(), 1);
    let record = &records[0];
    assert!(!record.to_string().contains(CANARY));
    assert_eq!(record["fault"], "cannot reach postgres://[REDACTED]@db");
    assert_eq!(record["pointer"], "\u{1b}[2J\r\n{\"level\":\"ERROR\"}\u{2028}");
    assert_eq!(record["upstream"].as_str().unwrap().chars().count(), 2_048);
    assert_eq!(record["level"], "WARN");
}

#[test]
fn a_writer_that_fails_stops_nobody() {
    struct Broken;
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let subscriber = logs::subscriber(Broken, LevelFilter::INFO);
    tracing::subscriber::with_default(subscriber, || {
        tracing::info!(target: "toolgate", "one");
    });
}

#[test]
fn a_panic_tells_where_and_never_what() {
    let this = std::env::current_exe().unwrap();
    let output = Command::new(this)
        .args(["--exact", "logs::panics_on_purpose", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let stderr = String::from_utf8(output.stderr).unwrap();
    let line = stderr.lines().find(|line| line.starts_with('{')).expect("a record");
    let record = without_time(serde_json::from_str(line).unwrap());
    assert_eq!(record["level"], "ERROR");
    assert_eq!(record["target"], "toolgate::panic");
    assert_eq!(record["message"], "a thread panicked");
    assert_eq!(record["file"], file!());
    assert!(record["line"].is_u64());
    assert!(!stderr.contains(CANARY), "{stderr}");
    assert!(!String::from_utf8(output.stdout).unwrap().contains(CANARY));
}

#[test]
#[ignore = "run by a_panic_tells_where_and_never_what, in a process of its own"]
fn panics_on_purpose() {
    logs::init(std::io::stderr(), LevelFilter::INFO).unwrap();
    panic!("{CANARY}");
}
