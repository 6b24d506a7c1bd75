//! A database, the handler that outlives every gate, and the directories of the gates.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use tokio_util::sync::DropGuard;
use tonic::Request;
use tonic::transport::Channel;
use toolgate::proto::tool_gate_client::ToolGateClient;
use toolgate::proto::{GetCallRequest, GetCallResponse, ToolCall, ToolResult};

use crate::crash::handler::Effects;
use crate::crash::world::Client;
use crate::support::postgres::{Database, Server};
use crate::support::process::{Process, run_text};
use crate::support::running::{
    Options, PROPOSER, channel, context, get, journal_text, until, with_bearer, write_config,
};

/// What outlives the gates.
pub struct Stage<'a> {
    pub effects: Effects,
    pub database: Database<'a>,
    replicas: Vec<(TempDir, PathBuf)>,
    _stop: DropGuard,
}

/// A gate that serves.
pub struct Replica {
    pub process: Process,
    pub client: Client,
    admin: SocketAddr,
    channel: Channel,
}

impl<'a> Stage<'a> {
    /// A migrated ledger and so many replicas, which reach it at this port.
    pub async fn new(server: &'a Server, port: u16, replicas: usize) -> Self {
        let (effects, endpoint, stop) = Effects::start().await;
        let database = server.database();
        let replicas: Vec<_> =
            (0..replicas).map(|_| configure(&database, port, &endpoint)).collect();
        let config = replicas[0].1.to_str().unwrap();
        let (code, _, log) = run_text(["ledger", "migrate", "--config", config]);
        assert_eq!(code, Some(0), "{log}");
        Self { effects, database, replicas, _stop: stop }
    }

    pub fn config(&self, number: usize) -> &Path {
        &self.replicas[number].1
    }

    pub fn directory(&self, number: usize) -> &Path {
        self.replicas[number].0.path()
    }

    /// Starts one that ends at a place by itself.
    #[cfg(feature = "failpoints")]
    pub fn serve_to(&self, number: usize, failpoint: &str) -> Process {
        Process::serve_to(&self.replicas[number].1, Some(failpoint))
    }

    pub async fn serve(&self, number: usize) -> Replica {
        let mut process = Process::serve(&self.replicas[number].1);
        let (grpc, admin) = process.addresses().await;
        let channel = channel(&grpc).await;
        Replica { process, client: Client::new(channel.clone()), admin, channel }
    }

    pub async fn serve_all(&self) -> Vec<Replica> {
        let mut all = Vec::new();
        for number in 0..self.replicas.len() {
            all.push(self.serve(number).await);
        }
        all
    }

    /// What holds at any time: no key has had two effects, and the handler was
    /// called for no attempt without a started record in some replica's journal.
    pub fn check_effects(&self, what: &str) {
        for (key, effects) in self.effects.by_key() {
            assert_eq!(effects, 1, "{what}: effects under {key}");
        }
        let started: BTreeSet<_> =
            (0..self.replicas.len()).flat_map(|number| started(self.directory(number))).collect();
        for called in self.effects.calls() {
            assert!(started.contains(&called), "{what}: no started record of {called:?}");
        }
    }
}

impl Replica {
    pub async fn run(&self, call: &ToolCall) -> ToolResult {
        let response = self.client.execute(std::slice::from_ref(call)).await.unwrap();
        response.results.into_iter().next().unwrap()
    }

    /// The reason of the result, or of the status: nothing has run then.
    pub async fn reason(&self, call: &ToolCall) -> String {
        match self.client.execute(std::slice::from_ref(call)).await {
            Ok(response) => {
                let reason = response.results[0].reason().as_str_name();
                reason.trim_start_matches("REASON_").to_owned()
            }
            Err(status) => crate::faults::stage::reason_of(&status),
        }
    }

    /// What is recorded of a call; None where nothing is, or nobody can tell now.
    pub async fn recorded(&self, id: &str) -> Option<GetCallResponse> {
        let message = GetCallRequest { context: Some(context()), tool_call_id: id.to_owned() };
        let request = with_bearer(Request::new(message), PROPOSER);
        let answer = ToolGateClient::new(self.channel.clone()).get_call(request).await;
        answer.ok().map(tonic::Response::into_inner)
    }

    pub async fn until_ready(&self) {
        self.until_readiness("200 OK").await;
    }

    pub async fn until_readiness(&self, wanted: &str) {
        until(&format!("readiness is {wanted}"), async || {
            get(self.admin, "/readyz").await.contains(wanted)
        })
        .await;
    }

    pub async fn stop(mut self) {
        self.process.terminate();
        assert_eq!(self.process.exit_code().await, Some(0), "{}", self.process.log());
    }
}

/// A directory of its own, on the one database.
fn configure(database: &Database<'_>, port: u16, endpoint: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let more = format!(
        "ledger: {{kind: postgres, postgres: {{host: 127.0.0.1, port: {port}, database: {name}, \
         user: {user}, password_file: database, takeover_after: 1s}}}}\n\
         confirmation: {{keys: [{{id: confirm-1, file: confirmation}}]}}\n\
         limits: {{in_flight: 1024}}",
        name = database.name,
        user = database.user,
    );
    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/crash/policy");
    let options = Options { policy, more: &more, persistent: true, ..Options::default() };
    let config = write_config(directory.path(), endpoint, &options);
    let password = directory.path().join("database");
    fs::write(&password, &database.password).unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
    (directory, config)
}

/// The attempts with a started record, whatever a crash has left behind them.
fn started(directory: &Path) -> Vec<(String, u32)> {
    let text = journal_text(directory);
    let whole = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    whole
        .filter(|record| record["event"] == "tool_call_started")
        .map(|record| {
            let attempt = record["attempt"].as_u64().unwrap().try_into().unwrap();
            (record["tool_call_id"].as_str().unwrap().to_owned(), attempt)
        })
        .collect()
}
