//! `toolgate audit replay`: recorded events as metrics, which a real Prometheus reads.

use std::net::Ipv4Addr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use toolgate::domain::audit::{Digest, Entry, Event, EventKind, Head, PayloadSummary, write_line};
use toolgate::domain::reason::Reason;

use super::prometheus::{Prometheus, is_installed};
use super::{event, millis};
use crate::support::process::run_text;
use crate::support::running::{Options, write_config};

/// What replay prints of these events, as a gate without these tools sees them.
fn replayed(events: impl IntoIterator<Item = Event>) -> String {
    let directory = tempfile::tempdir().unwrap();
    let config = write_config(directory.path(), "http://127.0.0.1:1", &Options::default());
    let mut lines = Vec::new();
    for (sequence, event) in (1..).zip(events) {
        let at = Head { sequence, mac: Digest([9; 32]) };
        write_line(&mut lines, &Entry::Call(Arc::new(event)), "journal-1", at);
        lines.push(b'\n');
    }
    let file = directory.path().join("events.jsonl");
    std::fs::write(&file, lines).unwrap();
    let arguments =
        ["audit", "replay", "--config", config.to_str().unwrap(), file.to_str().unwrap()];
    let (code, out, log) = run_text(arguments);
    assert_eq!((code, log.as_str()), (Some(0), ""));
    out
}

fn success(tool: &str, milliseconds: u64) -> Event {
    let mut event = millis(tool, Reason::Ok, milliseconds);
    if let EventKind::Completed { result_summary, result_digest, .. } = &mut event.kind {
        (*result_summary, *result_digest) =
            (Some(PayloadSummary::default()), Some(Digest([4; 32])));
    }
    event
}

/// The example of the specification.
fn example() -> String {
    replayed([
        event("order.lookup", EventKind::Started),
        success("order.lookup", 82),
        millis("refund.create", Reason::AttemptDeadline, 2_001),
        success("refund.create", 311),
    ])
}

#[test]
fn replay_prints_the_specification_s_example() {
    let text = example();
    let samples: Vec<&str> =
        text.lines().filter(|line| !line.starts_with('#') && !line.contains("_bucket{")).collect();
    assert_eq!(
        samples,
        [
            "toolgate_tool_calls_total{outcome=\"success\",tool=\"unknown\"} 2.0",
            "toolgate_tool_calls_total{outcome=\"timeout\",tool=\"unknown\"} 1.0",
            "toolgate_tool_duration_seconds_count{outcome=\"success\",tool=\"unknown\"} 2",
            "toolgate_tool_duration_seconds_sum{outcome=\"success\",tool=\"unknown\"} 0.393",
            "toolgate_tool_duration_seconds_count{outcome=\"timeout\",tool=\"unknown\"} 1",
            "toolgate_tool_duration_seconds_sum{outcome=\"timeout\",tool=\"unknown\"} 2.001",
        ]
    );
    let bucket = "toolgate_tool_duration_seconds_bucket{outcome=\"timeout\",tool=\"unknown\",le=";
    assert!(text.contains(&format!("{bucket}\"2.0\"}} 0\n{bucket}\"2.5\"}} 1\n")), "{text}");
    assert!(text.contains("# TYPE toolgate_tool_calls counter\n"), "{text}");
    assert!(text.ends_with("} 2.001\n# EOF\n"), "{text}");
    assert!(!replayed([]).contains("toolgate_tool_calls_total"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prometheus_reads_what_replay_prints() {
    if !is_installed() {
        assert!(std::env::var_os("CI").is_none(), "CI needs a prometheus binary");
        eprintln!("SKIPPED reading a replay: there is no prometheus binary in PATH");
        return;
    }
    let text = tokio::task::spawn_blocking(example).await.unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = format!(
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\ncontent-type: \
         application/openmetrics-text; version=1.0.0; charset=utf-8\r\n\r\n{text}",
        text.len()
    );
    let serving = tokio::spawn(async move {
        while let Ok((mut scrape, _)) = listener.accept().await {
            let mut request = [0; 4_096];
            let _ = scrape.read(&mut request).await;
            let _ = scrape.write_all(answer.as_bytes()).await;
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let prometheus = Prometheus::start(folder.path(), &[address]).await;
    prometheus
        .wait("sum(toolgate_tool_calls_total{tool=\"unknown\",outcome=\"success\"})", 2.0)
        .await;
    prometheus.wait("sum(toolgate_tool_duration_seconds_sum{outcome=\"success\"})", 0.393).await;
    prometheus.wait("sum(toolgate_tool_duration_seconds_bucket{le=\"+Inf\"})", 3.0).await;
    // A text that does not parse is no scrape that was up.
    prometheus.wait("min_over_time(up[1m])", 1.0).await;
    serving.abort();
}
