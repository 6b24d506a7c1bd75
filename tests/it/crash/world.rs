//! A directory that gates come and go on, a handler that stays, and their client.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use tokio_util::sync::DropGuard;
use tonic::transport::Channel;
use tonic::{Request, Status};
use toolgate::proto::confirmations_client::ConfirmationsClient;
use toolgate::proto::tool_gate_client::ToolGateClient;
use toolgate::proto::{CheckRequest, ExecuteResponse, IssueRequest, ToolCall};

use super::handler::Effects;
use crate::support::process::Process;
use crate::support::running::{
    CONFIRMER, Options, call, channel, context, execute, journal_text, with_bearer, write_config,
};

/// What outlives a gate.
pub struct World {
    pub effects: Effects,
    pub directory: TempDir,
    pub config: PathBuf,
    endpoint: String,
    _stop: DropGuard,
}

impl World {
    pub async fn new() -> Self {
        let (effects, endpoint, stop) = Effects::start().await;
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            policy: Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/crash/policy"),
            ..Options::writes()
        };
        let config = write_config(directory.path(), &endpoint, &options);
        Self { effects, directory, config, endpoint, _stop: stop }
    }

    /// A gate that serves until it is stopped, killed or at this failpoint.
    pub async fn serve(&self, failpoint: Option<&str>) -> (Process, Client) {
        let mut process = Process::serve_to(&self.config, failpoint);
        let (grpc, _) = process.addresses().await;
        (process, Client::new(channel(&grpc).await))
    }

    /// Lets the next gates find nothing where the handler was.
    pub fn lose_handler(&self) {
        let config = fs::read_to_string(&self.config).unwrap();
        fs::write(&self.config, config.replace(&self.endpoint, "http://127.0.0.1:1")).unwrap();
    }

    /// Stops a gate in the way that leaves nothing open.
    pub async fn stop(&self, mut process: Process) {
        process.terminate();
        assert_eq!(process.exit_code().await, Some(0), "{}", process.log());
    }

    /// The attempts with a started record, whatever a crash has left behind them.
    pub fn started(&self) -> BTreeSet<(String, u32)> {
        let text = journal_text(self.directory.path());
        let whole = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        whole
            .filter(|record| record["event"] == "tool_call_started")
            .map(|record| {
                let attempt = record["attempt"].as_u64().unwrap().try_into().unwrap();
                (record["tool_call_id"].as_str().unwrap().to_owned(), attempt)
            })
            .collect()
    }

    /// What holds at any time: no key has had two effects, and the handler was
    /// called for no attempt without a started record.
    pub fn check_effects(&self, what: &str) {
        for (key, effects) in self.effects.by_key() {
            assert_eq!(effects, 1, "{what}: effects under {key}");
        }
        let started = self.started();
        for called in self.effects.calls() {
            assert!(started.contains(&called), "{what}: no started record of {called:?}");
        }
    }
}

/// A backend and a confirmation page in one.
#[derive(Clone)]
pub struct Client {
    channel: Channel,
}

impl Client {
    pub const fn new(channel: Channel) -> Self {
        Self { channel }
    }

    /// The proposal with a ticket of its own.
    pub async fn confirmed(&self, id: &str, tool: &str) -> Result<ToolCall, Status> {
        let proposal = call(id, tool, r#"{"text":"hello"}"#);
        let check = CheckRequest { context: Some(context()), calls: vec![proposal.clone()] };
        let checked = ToolGateClient::new(self.channel.clone())
            .check(with_bearer(Request::new(check), CONFIRMER))
            .await?
            .into_inner();
        let preview = checked.verdicts[0].preview.clone().expect("a preview");
        let issue = IssueRequest {
            context: Some(context()),
            call: Some(proposal.clone()),
            confirming_user_id: "user-1".to_owned(),
            confirming_user_roles: Vec::new(),
            arguments_hash: preview.arguments_hash,
            key_id: preview.key_id,
            contract_digest: preview.contract_digest,
        };
        let issued = ConfirmationsClient::new(self.channel.clone())
            .issue(with_bearer(Request::new(issue), CONFIRMER))
            .await?
            .into_inner();
        Ok(ToolCall { confirmation_ticket: issued.ticket, ..proposal })
    }

    pub async fn execute(&self, calls: &[ToolCall]) -> Result<ExecuteResponse, Status> {
        self.execute_as("request-1", calls).await
    }

    /// Executes as the request of this id.
    pub async fn execute_as(
        &self,
        request_id: &str,
        calls: &[ToolCall],
    ) -> Result<ExecuteResponse, Status> {
        let mut request = execute(calls.to_vec());
        if let Some(context) = &mut request.get_mut().context {
            request_id.clone_into(&mut context.request_id);
        }
        let mut client = ToolGateClient::new(self.channel.clone());
        Ok(client.execute(request).await?.into_inner())
    }
}
