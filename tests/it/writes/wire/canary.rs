//! Marked arguments, prompts and ticket texts go through every outcome of a
//! write, and are found in nothing that the gate keeps or tells.

use std::fs;
use std::path::Path;

use prost::Message as _;
use tonic::Code;
use toolgate::proto::{Reason, ToolCall};

use super::{Sides, draft, refund, write_policy};
use crate::support::process::Process;
use crate::support::running::{
    Does, LEDGER, Options, channel, context, get, start_handler, write_config,
};

/// In no lower-case text that the gate keeps.
const MARK: &str = "canary";

/// Everything that was kept or told, by where.
#[derive(Default)]
struct Evidence {
    kept: Vec<(String, Vec<u8>)>,
    tickets: Vec<String>,
}

impl Evidence {
    fn keep(&mut self, place: &str, bytes: impl Into<Vec<u8>>) {
        self.kept.push((place.to_owned(), bytes.into()));
    }

    fn keep_files(&mut self, directory: &Path) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                self.keep_files(&path);
            } else {
                self.keep(&path.to_string_lossy(), fs::read(&path).unwrap());
            }
        }
    }

    /// Executes and keeps all of the answer but a relayed result.
    async fn execute(&mut self, sides: &Sides, call: &ToolCall) -> Reason {
        let mut response = sides.execute_in(context(), vec![call.clone()]).await;
        response.results[0].result_json.clear();
        self.keep("Execute", response.encode_to_vec());
        response.results[0].reason()
    }

    async fn confirm(&mut self, sides: &Sides, call: ToolCall) -> ToolCall {
        let issued = sides.issue(sides.request(context(), call.clone()).await).await.unwrap();
        self.keep("claims", issued.claims.unwrap().encode_to_vec());
        self.tickets.push(issued.ticket.clone());
        ToolCall { confirmation_ticket: issued.ticket, ..call }
    }

    fn assert_clean(&self) {
        let parts = self.tickets.iter().flat_map(|ticket| ticket.split('.').skip(1));
        let needles: Vec<_> = parts.chain([MARK]).map(str::as_bytes).collect();
        for (place, bytes) in &self.kept {
            let lower = bytes.to_ascii_lowercase();
            for needle in &needles {
                let is_in = |text: &[u8]| text.windows(needle.len()).any(|part| part == *needle);
                let needle = String::from_utf8_lossy(needle);
                assert!(!is_in(bytes) && !is_in(&lower), "{needle} in {place}");
            }
        }
    }
}

#[tokio::test]
async fn what_is_confirmed_is_found_nowhere() {
    let (handler, upstream, _stop) = start_handler().await;
    let directory = tempfile::tempdir().unwrap();
    let policy = directory.path().join("policy");
    write_policy(&policy, |text| text.replace("Write the draft", "Canary draft"));
    let more = format!("{LEDGER}\nlog: {{level: debug}}");
    let options = Options { policy, more: &more, ..Options::writes() };
    let config = write_config(directory.path(), &upstream, &options);
    let (mut process, grpc, admin) = Process::serving(&config).await;
    let sides = Sides::new(channel(&grpc).await);
    let mut evidence = Evidence::default();

    let bare = draft("c1", "canary one");
    let preview = sides.check(context(), bare.clone()).await.preview.unwrap();
    assert_eq!(preview.prompt, r#"Canary draft "canary one"?"#, "the marks do go in");
    assert_eq!(evidence.execute(&sides, &bare).await, Reason::ConfirmationRequired);
    handler.set("draft", Does::Answer(r#"{"id": "canary"}"#.to_owned()));
    let call = evidence.confirm(&sides, bare).await;
    assert_eq!(evidence.execute(&sides, &call).await, Reason::ResultInvalid);
    assert_eq!(evidence.execute(&sides, &call).await, Reason::CallReplayed);

    let failed = tonic::Status::internal("canary upstream");
    handler.set("refund", Does::Fail(failed));
    let call = evidence.confirm(&sides, refund("c2", "canary two")).await;
    assert_eq!(evidence.execute(&sides, &call).await, Reason::HandlerFailed);
    handler.set("draft", Does::Hang);
    let call = evidence.confirm(&sides, draft("c3", "canary three")).await;
    assert_eq!(evidence.execute(&sides, &call).await, Reason::AttemptDeadline);
    let moved = ToolCall { arguments_json: r#"{"text":"canary four"}"#.to_owned(), ..call.clone() };
    assert_eq!(evidence.execute(&sides, &moved).await, Reason::CallIdConflict);
    let moved = ToolCall { tool_call_id: "c5".to_owned(), ..call };
    assert_eq!(evidence.execute(&sides, &moved).await, Reason::ConfirmationMismatch);
    let forged = ToolCall { confirmation_ticket: "canary.canary.canary".to_owned(), ..moved };
    assert_eq!(evidence.execute(&sides, &forged).await, Reason::ConfirmationInvalid);
    refuse(&mut evidence, &sides).await;

    evidence.keep("metrics", get(admin, "/metrics").await);
    evidence.keep("readyz", get(admin, "/readyz").await);
    process.terminate();
    assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
    let log = process.log();
    assert!(log.lines().count() > 10, "the log says something: {log}");
    evidence.keep("log", log);
    evidence.keep_files(&directory.path().join("data"));
    assert!(evidence.kept.iter().any(|(place, _)| place.ends_with("ledger.redb")));
    evidence.assert_clean();
}

/// Requests of a confirmation page that are answered with a status.
async fn refuse(evidence: &mut Evidence, sides: &Sides) {
    let mut request = sides.request(context(), draft("c6", "canary six")).await;
    "canary".clone_into(&mut request.key_id);
    let stale = sides.issue(request.clone()).await.unwrap_err();
    "canary\n".clone_into(&mut request.confirming_user_id);
    let malformed = sides.issue(request).await.unwrap_err();
    let revoked = sides.revoke("canary").await.unwrap_err();
    let codes = [Code::FailedPrecondition, Code::InvalidArgument, Code::InvalidArgument];
    for (status, code) in [stale, malformed, revoked].iter().zip(codes) {
        assert_eq!(status.code(), code);
        evidence.keep("status", format!("{status:?} {status}"));
        evidence.keep("details", status.details());
    }
}
