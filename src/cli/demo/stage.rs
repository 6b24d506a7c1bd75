//! Sets the stage: keys, sample upstream and gate in a temporary directory.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tracing::level_filters::LevelFilter;

use super::scenes::Scene;
use super::upstream::{CallCounts, SampleUpstream};
use crate::app::Running;
use crate::cli::Failure;
use crate::config::{self, secrets};
use crate::proto::tool_gate_client::ToolGateClient;
use crate::proto::{CallContext, ExecuteRequest, ExecuteResponse};
use crate::telemetry::logs;

/// Two servers, and a client that proposes.
pub(super) struct Stage {
    directory: TemporaryDirectory,
    gate: Running,
    client: ToolGateClient<Channel>,
    bearer: MetadataValue<Ascii>,
    upstream: SocketAddr,
    calls: Arc<CallCounts>,
    seen: u64,
    stop_upstream: CancellationToken,
    upstream_server: JoinHandle<()>,
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

        let sample = SampleUpstream::load(&from.join("knowledge.yaml"))?;
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

        for role in ["proposer", "audit"] {
            secrets::write_new(&directory.0.join(role), secrets::generate()?.as_bytes())?;
        }
        let mut document = config::read(&config_file)?;
        // The demo's own files and ports in place of those of a deployment.
        document["listeners"] = json!(["127.0.0.1:0"]);
        document["admin"] = json!("127.0.0.1:0");
        document["data"]["directory"] = json!(directory.0.join("data"));
        document["audit"]["keys"] = json!([{"id": "demo", "file": directory.0.join("audit")}]);
        document["callers"] =
            json!([{"role": "proposer", "secret_file": directory.0.join("proposer")}]);
        document["upstreams"]["knowledge"]["endpoint"] = json!(format!("http://{upstream}"));
        let config = config::compile(&document, &config_file)?;
        let gate = Running::start(config).await?;

        let secret = fs::read_to_string(directory.0.join("proposer"))?;
        let address = gate.addresses().first().cloned().unwrap_or_default();
        let client = ToolGateClient::connect(format!("http://{address}")).await?;
        Ok(Self {
            bearer: format!("Bearer {secret}").parse()?,
            directory,
            gate,
            client,
            upstream,
            calls,
            seen: 0,
            stop_upstream,
            upstream_server,
        })
    }

    /// Sends a scene's batch as the backend would.
    pub(super) async fn execute(&mut self, scene: &Scene) -> Result<ExecuteResponse, Failure> {
        let mut request = Request::new(ExecuteRequest {
            context: Some(CallContext {
                request_id: format!("demo-{}", scene.id),
                user_id: "user-anna".to_owned(),
                tenant_id: "tenant-north".to_owned(),
                conversation_id: "conversation-1".to_owned(),
            }),
            calls: scene.calls.clone(),
            mode: scene.mode.into(),
        });
        request.metadata_mut().insert("authorization", self.bearer.clone());
        Ok(self.client.execute(request).await?.into_inner())
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
        let mut connection = TcpStream::connect(self.gate.admin()).await?;
        connection
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: demo\r\nconnection: close\r\n\r\n")
            .await?;
        let mut text = String::new();
        connection.read_to_string(&mut text).await?;
        Ok(text)
    }

    pub(super) fn gate_address(&self) -> &str {
        self.gate.addresses().first().map_or("", String::as_str)
    }

    pub(super) fn admin_address(&self) -> SocketAddr {
        self.gate.admin()
    }

    pub(super) const fn upstream_address(&self) -> SocketAddr {
        self.upstream
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory.0
    }

    /// Stops both servers and removes what they wrote.
    pub(super) async fn strike(self) -> Result<(), Failure> {
        drop(self.client);
        self.gate.stop().await;
        self.stop_upstream.cancel();
        self.upstream_server.await?;
        Ok(())
    }
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
