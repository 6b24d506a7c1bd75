//! The gate ends while it deletes what retention lets go, or right after a checkpoint.

use std::fs;
use std::path::Path;

use toolgate::proto::tool_gate_client::ToolGateClient;

use crate::support::process::{Process, run_text};
use crate::support::running::{
    Options, call, channel, execute, get, metric, start_handler, until, write_config,
};

/// Segments and a journal as small as they can be configured.
const SMALL: &str = ", sync: all, segment_bytes: 65536, retention: {bytes: 1048576}";

fn first_segment(directory: &Path) -> String {
    let entries = fs::read_dir(directory.join("data/journal/segments")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.min().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_verifies_wherever_the_gate_ends() {
    let points = [
        ("checkpoint-written", None),
        ("anchored-not-deleted", Some(true)),
        ("some-segments-deleted:1", Some(false)),
    ];
    for (point, first_is_there) in points {
        let (_handler, upstream, _stop) = start_handler().await;
        let directory = tempfile::tempdir().unwrap();
        let options = Options { audit: SMALL, ..Options::default() };
        let config = write_config(directory.path(), &upstream, &options);
        let mut process = Process::serve_to(&config, Some(point));
        let (grpc, _) = process.addresses().await;
        let mut client = ToolGateClient::new(channel(&grpc).await);
        while client.execute(execute(vec![call("c", "patient", "{}")])).await.is_ok() {}
        assert_eq!(process.exit_code().await, None, "{point}: {}", process.log());
        let is_there = first_segment(directory.path()).starts_with("00000000000000000001.");
        assert!(first_is_there.is_none_or(|wanted| wanted == is_there), "{point}");

        let mut process = Process::serve(&config);
        let (grpc, admin) = process.addresses().await;
        let mut client = ToolGateClient::new(channel(&grpc).await);
        client.execute(execute(vec![call("later", "patient", "{}")])).await.unwrap();
        until("what is no part of the journal is gone", async || {
            let exposition = get(admin, "/metrics").await;
            let oldest = metric(&exposition, "toolgate_journal_oldest_sequence", &[]);
            first_segment(directory.path()) == format!("{oldest:020}.jsonl")
        })
        .await;
        let verify = ["audit", "verify", "--config", config.to_str().unwrap()];
        let (code, out, log) = run_text(verify);
        assert_eq!((code, log.as_str()), (Some(0), ""), "{point}: {out}");
        process.terminate();
        assert_eq!(process.exit_code().await, Some(0), "{point}: {}", process.log());
    }
}
