//! Sets the stage: keys, sample upstream and gate in a temporary directory.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Status};
use tracing::level_filters::LevelFilter;

use super::scenes::Scene;
use super::upstream::{CallCounts, SampleUpstream};
use crate::app::Running;
use crate::cli::Failure;
use crate::config::{self, secrets};
use crate::proto::confirmations_client::ConfirmationsClient;
use crate::proto::tool_gate_client::ToolGateClient;
use crate::proto::{
    CallContext, CheckRequest, ConfirmationPreview, ExecuteRequest, ExecuteResponse, IssueRequest,
    RevokeRequest, ToolCall,
};
use crate::telemetry::logs;

/// How long the demo's tickets live: whole seconds, so at least one less.
pub(super) const TICKET_TTL: Duration = Duration::from_secs(5);

/// Two servers, a client that proposes and one that confirms.
pub(super) struct Stage {
    directory: TemporaryDirectory,
    config_file: PathBuf,
    document: Value,
    /// Absent only while it restarts.
    gate: Option<Running>,
    channel: Channel,
    proposer: MetadataValue<Ascii>,
    confirmer: MetadataValue<Ascii>,
    upstream: SocketAddr,
    calls: Arc<CallCounts>,
    seen: u64,
    stop_upstream: CancellationToken,
    upstream_server: JoinHandle<()>,
}

/// Whose call it is.
pub(super) struct Who {
    user: &'static str,
    conversation: &'static str,
}

impl Who {
    pub(super) const fn user() -> Self {
        Self { user: "user-anna", conversation: "conversation-1" }
    }

    pub(super) const fn called(user: &'static str) -> Self {
        Self { user, ..Self::user() }
    }

    pub(super) const fn in_conversation(conversation: &'static str) -> Self {
        Self { conversation, ..Self::user() }
    }

    fn context(&self, request: &str) -> CallContext {
        CallContext {
            request_id: format!("demo-{request}"),
            user_id: self.user.to_owned(),
            tenant_id: "tenant-north".to_owned(),
            conversation_id: self.conversation.to_owned(),
        }
    }
}

/// A preview of something else.
pub(super) fn stale(preview: &ConfirmationPreview) -> ConfirmationPreview {
    ConfirmationPreview { arguments_hash: "0".repeat(64), ..preview.clone() }
}

/// A directory that goes when the demo ends.
struct TemporaryDirectory(PathBuf);

impl Stage {
    pub(super) async fn set(from: &Path) -> Result<Self, Failure> {
        let config_file = from.join("toolgate.yaml");
        if !config_file.is_file() {
            return Err(Failure::new(format!(
                "{} is not there; run the demo from the project's root, or name its directory with --from",
                config_file.display(),
            )));
        }
        let directory = TemporaryDirectory::new()?;
        logs::init(fs::File::create(directory.0.join("gate.log"))?, LevelFilter::INFO)?;

        let sample =
            SampleUpstream::load(&from.join("knowledge.yaml"), directory.0.join("drafts"))?;
        let calls = sample.calls();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let upstream = listener.local_addr()?;
        let stop_upstream = CancellationToken::new();
        let serving = sample.serve(listener, stop_upstream.clone());
        let upstream_server = tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!(error_kind = %error, "the sample upstream ended");
            }
        });

        for role in ["proposer", "confirmer", "audit", "confirmation"] {
            secrets::write_new(&directory.0.join(role), secrets::generate()?.as_bytes())?;
        }
        let mut document = config::read(&config_file)?;
        // The demo's own files and ports in place of those of a deployment.
        document["listeners"] = json!(["127.0.0.1:0"]);
        document["admin"] = json!("127.0.0.1:0");
        document["data"]["directory"] = json!(directory.0.join("data"));
        document["audit"]["keys"] = json!([{"id": "demo", "file": directory.0.join("audit")}]);
        // The story shows the audit itself.
        document["audit"]["sinks"] = json!([]);
        document["callers"] = json!(
            ["proposer", "confirmer"]
                .map(|role| json!({"role": role, "secret_file": directory.0.join(role)}))
        );
        document["confirmation"] = json!({
            "keys": [{"id": "demo", "file": directory.0.join("confirmation")}],
            "ticket_ttl": format!("{}s", TICKET_TTL.as_secs()),
        });
        document["upstreams"]["knowledge"]["endpoint"] = json!(format!("http://{upstream}"));
        let config = config::compile(&document, &config_file)?;
        let gate = Running::start(config).await?;
        let channel = connect(&gate).await?;
        let bearer = |role: &str| -> Result<MetadataValue<Ascii>, Failure> {
            let secret = fs::read_to_string(directory.0.join(role))?;
            Ok(format!("Bearer {secret}").parse()?)
        };
        Ok(Self {
            proposer: bearer("proposer")?,
            confirmer: bearer("confirmer")?,
            directory,
            config_file,
            document,
            gate: Some(gate),
            channel,
            upstream,
            calls,
            seen: 0,
            stop_upstream,
            upstream_server,
        })
    }

    /// Sends a scene's batch as the backend would.
    pub(super) async fn execute(
        &self,
        scene: &Scene,
        who: &Who,
    ) -> Result<ExecuteResponse, Failure> {
        let message = ExecuteRequest {
            context: Some(who.context(scene.id)),
            calls: scene.calls.clone(),
            mode: scene.mode.into(),
        };
        let request = authorised(message, &self.proposer);
        Ok(ToolGateClient::new(self.channel.clone()).execute(request).await?.into_inner())
    }

    /// What a confirmation page would show.
    pub(super) async fn preview(
        &self,
        call: &ToolCall,
        who: &Who,
    ) -> Result<ConfirmationPreview, Failure> {
        let message =
            CheckRequest { context: Some(who.context("check")), calls: vec![call.clone()] };
        let request = authorised(message, &self.confirmer);
        let answer = ToolGateClient::new(self.channel.clone()).check(request).await?;
        let verdict = answer.into_inner().verdicts.into_iter().next();
        verdict
            .and_then(|verdict| verdict.preview)
            .ok_or_else(|| Failure::new("the gate gave no preview"))
    }

    /// What a confirmation page would send once a person has agreed.
    pub(super) async fn issue(
        &self,
        call: &ToolCall,
        who: &Who,
        preview: &ConfirmationPreview,
    ) -> Result<String, Status> {
        let message = IssueRequest {
            context: Some(who.context("issue")),
            call: Some(call.clone()),
            confirming_user_id: who.user.to_owned(),
            confirming_user_roles: Vec::new(),
            arguments_hash: preview.arguments_hash.clone(),
            key_id: preview.key_id.clone(),
            contract_digest: preview.contract_digest.clone(),
        };
        let request = authorised(message, &self.confirmer);
        let answer = ConfirmationsClient::new(self.channel.clone()).issue(request).await?;
        Ok(answer.into_inner().ticket)
    }

    /// Preview and ticket in one.
    pub(super) async fn confirm(&self, call: &ToolCall, who: &Who) -> Result<String, Failure> {
        let preview = self.preview(call, who).await?;
        Ok(self.issue(call, who, &preview).await?)
    }

    /// Revokes a ticket by the id that it carries.
    pub(super) async fn revoke(&self, ticket: &str) -> Result<(), Failure> {
        let payload = ticket.split('.').nth(1).unwrap_or_default();
        let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload)?)?;
        let message = RevokeRequest {
            context: Some(Who::user().context("revoke")),
            confirmation_id: claims["jti"].as_str().unwrap_or_default().to_owned(),
        };
        let request = authorised(message, &self.confirmer);
        ConfirmationsClient::new(self.channel.clone()).revoke(request).await?;
        Ok(())
    }

    /// Stops the gate and starts it on the same data, with another contract for drafts.
    pub(super) async fn restart_with_changed_contract(&mut self) -> Result<(), Failure> {
        let from = self.config_file.parent().unwrap_or(Path::new("")).join("policy");
        let policy = self.directory.0.join("policy");
        fs::create_dir(&policy)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let text = fs::read_to_string(entry.path())?;
            let changed = text.replace("Drafts a question", "Drafts one question");
            fs::write(policy.join(entry.file_name()), changed)?;
        }
        self.document["policy"] = json!(policy);
        let config = config::compile(&self.document, &self.config_file)?;
        if let Some(gate) = self.gate.take() {
            gate.stop().await;
        }
        let gate = Running::start(config).await?;
        self.channel = connect(&gate).await?;
        self.gate = Some(gate);
        Ok(())
    }

    /// How many drafts the sample upstream has written.
    pub(super) fn drafts(&self) -> io::Result<usize> {
        Ok(fs::read_dir(self.directory.0.join("drafts"))?.count())
    }

    /// How often the upstream was called since this was last asked.
    pub(super) fn handler_calls_since_last(&mut self) -> u64 {
        let now = self.calls.total();
        let since = now - self.seen;
        self.seen = now;
        since
    }

    /// The journal's records, as its files hold them.
    pub(super) fn journal(&self) -> io::Result<String> {
        let segments = self.directory.0.join("data/journal/segments");
        let mut files: Vec<_> = fs::read_dir(segments)?.collect::<io::Result<Vec<_>>>()?;
        files.sort_by_key(fs::DirEntry::file_name);
        files.iter().map(|file| fs::read_to_string(file.path())).collect()
    }

    /// What a scrape of the admin address reads.
    pub(super) async fn metrics(&self) -> io::Result<String> {
        let mut connection = TcpStream::connect(self.admin_address()?).await?;
        connection
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: demo\r\nconnection: close\r\n\r\n")
            .await?;
        let mut text = String::new();
        connection.read_to_string(&mut text).await?;
        Ok(text)
    }

    pub(super) fn gate_address(&self) -> &str {
        let addresses = self.gate.as_ref().map(Running::addresses);
        addresses.and_then(<[String]>::first).map_or("", String::as_str)
    }

    pub(super) fn admin_address(&self) -> io::Result<SocketAddr> {
        self.gate.as_ref().map(Running::admin).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    pub(super) const fn upstream_address(&self) -> SocketAddr {
        self.upstream
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory.0
    }

    /// Stops both servers and removes what they wrote.
    pub(super) async fn strike(self) -> Result<(), Failure> {
        drop(self.channel);
        if let Some(gate) = self.gate {
            gate.stop().await;
        }
        self.stop_upstream.cancel();
        self.upstream_server.await?;
        Ok(())
    }
}

async fn connect(gate: &Running) -> Result<Channel, Failure> {
    let address = gate.addresses().first().map_or("", String::as_str);
    Ok(Channel::from_shared(format!("http://{address}"))?.connect().await?)
}

fn authorised<T>(message: T, bearer: &MetadataValue<Ascii>) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", bearer.clone());
    request
}

impl TemporaryDirectory {
    fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("toolgate-demo-{}", uuid::Uuid::new_v4()));
        fs::create_dir(&path)?;
        // Canonical, so that it stays the same whatever the configuration is relative to.
        Ok(Self(fs::canonicalize(path)?))
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // What cannot be removed is left to the system's own cleaning.
        drop(fs::remove_dir_all(&self.0));
    }
}
