//! A real gate before a real upstream, both on loopback ports of their own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status};
use toolgate::app::Running;
use toolgate::config;
use toolgate::proto::tool_gate_client::ToolGateClient;
use toolgate::proto::tool_handler_server::{ToolHandler, ToolHandlerServer};
use toolgate::proto::{
    BatchMode, CallContext, ExecuteRequest, ExecuteResponse, InvokeRequest, InvokeResponse,
    ToolCall,
};

pub const PROPOSER: &str = "proposer-7f3kq9zmX2vLr8sNb4Tj6Wd1";
pub const CONFIRMER: &str = "confirmer-Qm5zR8cVx1Ln7Hs3Kt9Gp2B";
pub const AUDITOR: &str = "auditor-Zp4tY7bWd2Mk9Jr6Fs1Xc8Vq3";
pub const OPERATOR: &str = "operator-Hn6yB3gTq8Rw1Lc5Zv9Dk2Mf";
pub const AUDIT_KEY: &str = "audit-Vt8xN2kLq5Rz7Wb9Jm4Hc6Yd1Gs3";
pub const CONFIRMATION_KEY: &str = "confirmation-Jx3vT9pQm6Wk1Zs8Rb5Ly2Hd";

/// What a gate that takes writes is configured with besides.
pub const LEDGER: &str = "ledger: {kind: embedded, single_replica: true}\n\
    confirmation: {keys: [{id: confirm-1, file: confirmation}]}";

/// What a handler does, by tool.
#[derive(Clone)]
pub enum Does {
    Answer(String),
    Fail(Status),
    /// Answers once it is told to.
    Wait(Arc<Notify>, String),
    Hang,
}

/// A handler whose tools do what the test says.
#[derive(Clone, Default)]
pub struct Handler {
    does: Arc<Mutex<BTreeMap<String, Does>>>,
    seen: Arc<Mutex<Vec<(tonic::metadata::MetadataMap, InvokeRequest)>>>,
    running: Arc<AtomicUsize>,
}

impl Handler {
    pub fn set(&self, tool: &str, does: Does) {
        self.does.lock().unwrap().insert(tool.to_owned(), does);
    }

    pub fn seen(&self) -> Vec<(tonic::metadata::MetadataMap, InvokeRequest)> {
        self.seen.lock().unwrap().clone()
    }

    /// Invocations that have neither answered nor been cancelled.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }
}

struct Counting(Arc<AtomicUsize>);

impl Drop for Counting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tonic::async_trait]
impl ToolHandler for Handler {
    async fn invoke(
        &self,
        request: Request<InvokeRequest>,
    ) -> Result<Response<InvokeResponse>, Status> {
        self.running.fetch_add(1, Ordering::SeqCst);
        let _counting = Counting(self.running.clone());
        let (metadata, _, message) = request.into_parts();
        let does = self.does.lock().unwrap().get(&message.tool).cloned();
        self.seen.lock().unwrap().push((metadata, message));
        let result_json = match does.unwrap_or(Does::Answer("{}".to_owned())) {
            Does::Answer(text) => text,
            Does::Fail(status) => return Err(status),
            Does::Wait(told, text) => {
                told.notified().await;
                text
            }
            Does::Hang => std::future::pending().await,
        };
        Ok(Response::new(InvokeResponse { result_json }))
    }
}

/// Everything a test needs, stopped and removed when dropped.
pub struct World {
    pub gate: Option<Running>,
    pub handler: Handler,
    pub directory: TempDir,
    pub client: ToolGateClient<Channel>,
    /// The connection behind the client.
    pub channel: Channel,
    _upstream: DropGuard,
}

/// What a test may change about the configuration, by text.
pub struct Options<'a> {
    pub policy: PathBuf,
    pub more: &'a str,
    /// Members of `audit`, each with a comma before it.
    pub audit: &'a str,
    pub listener: Option<String>,
    /// Whether the data directory is said to outlive the process.
    pub persistent: bool,
}

impl Default for Options<'_> {
    fn default() -> Self {
        let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/gate/policy");
        Self { policy, more: "", audit: "", listener: None, persistent: false }
    }
}

impl Options<'_> {
    /// A gate with a ledger before the tools of `tests/cases/writes/policy`.
    pub fn writes() -> Self {
        let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/writes/policy");
        Self { policy, more: LEDGER, persistent: true, ..Self::default() }
    }
}

impl World {
    pub async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    pub async fn start_with(options: Options<'_>) -> Self {
        let (handler, upstream, stop) = start_handler().await;
        let directory = tempfile::tempdir().unwrap();
        let config = write_config(directory.path(), &upstream, &options);
        Self::of(start_gate(&config).await, handler, directory, stop).await
    }

    /// Around a gate that has been started on this directory, before this handler.
    pub async fn of(gate: Running, handler: Handler, directory: TempDir, stop: DropGuard) -> Self {
        let channel = channel(&gate.addresses()[0]).await;
        let client = ToolGateClient::new(channel.clone());
        Self { gate: Some(gate), handler, directory, client, channel, _upstream: stop }
    }

    pub fn running(&self) -> &Running {
        self.gate.as_ref().unwrap()
    }

    /// Starts a new gate on the same directory, after the old one was stopped.
    pub async fn restart(&mut self) {
        self.stop().await;
        let gate = start_gate(&self.directory.path().join("toolgate.yaml")).await;
        self.channel = channel(&gate.addresses()[0]).await;
        self.client = ToolGateClient::new(self.channel.clone());
        self.gate = Some(gate);
    }

    /// Drains the gate. Nothing of it is left then.
    pub async fn stop(&mut self) {
        if let Some(gate) = self.gate.take() {
            gate.stop().await;
        }
    }

    /// The journal's records, as the files hold them.
    pub fn journal(&self) -> String {
        journal_text(self.directory.path())
    }

    pub async fn admin(&self, path: &str) -> String {
        get(self.running().admin(), path).await
    }

    /// The sum of the counts of this name that carry all these labels.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> i64 {
        metric(&self.admin("/metrics").await, name, labels)
    }
}

/// The sum of an exposition's counts of this name that carry all these labels.
pub fn metric(exposition: &str, name: &str, labels: &[(&str, &str)]) -> i64 {
    let labels: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
    let values = exposition.lines().filter_map(|line| {
        let rest = line.strip_prefix(name).filter(|rest| rest.starts_with(['{', ' ']))?;
        let (series, value) = rest.rsplit_once(' ')?;
        labels.iter().all(|label| series.contains(label)).then(|| value.parse::<i64>().unwrap())
    });
    values.sum()
}

/// A handler on a loopback port of its own, and its endpoint.
pub async fn start_handler() -> (Handler, String, DropGuard) {
    let handler = Handler::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let stop = CancellationToken::new();
    let server = Server::builder()
        .add_service(ToolHandlerServer::new(handler.clone()))
        .serve_with_incoming_shutdown(
            TcpListenerStream::new(listener),
            stop.clone().cancelled_owned(),
        );
    tokio::spawn(server);
    (handler, endpoint, stop.drop_guard())
}

/// Asks again and again until something holds; fails where it never does.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..4_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it never came that {what}");
}

pub fn journal_text(directory: &Path) -> String {
    let mut files: Vec<_> = fs::read_dir(directory.join("data/journal/segments"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files.into_iter().map(|file| fs::read_to_string(file).unwrap()).collect()
}

/// A whole HTTP/1.1 answer, head and body.
pub async fn get(address: std::net::SocketAddr, path: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut connection = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    connection.read_to_string(&mut text).await.unwrap();
    text
}

pub async fn start_gate(config: &Path) -> Running {
    let config = config::load(config).unwrap_or_else(|faults| panic!("{faults}"));
    Running::start(config).await.unwrap_or_else(|error| {
        panic!("{error}: {:?}", std::error::Error::source(&error).map(ToString::to_string))
    })
}

/// Writes `toolgate.yaml` and its secrets into a directory.
pub fn write_config(directory: &Path, upstream: &str, options: &Options<'_>) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let secrets = [
        ("proposer", PROPOSER),
        ("confirmer", CONFIRMER),
        ("auditor", AUDITOR),
        ("operator", OPERATOR),
        ("audit", AUDIT_KEY),
        ("confirmation", CONFIRMATION_KEY),
    ];
    for (name, secret) in secrets {
        let file = directory.join(name);
        fs::write(&file, secret).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let listener = options.listener.clone().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let text = format!(
        "apiVersion: toolgate.dev/v1\n\
         kind: Gate\n\
         listeners: [\"{listener}\"]\n\
         admin: 127.0.0.1:0\n\
         policy: {policy}\n\
         data: {{directory: data, persistence: {persistence}}}\n\
         audit: {{keys: [{{id: audit-1, file: audit}}]{audit}}}\n\
         callers:\n\
         - {{role: proposer, secret_file: proposer}}\n\
         - {{role: confirmer, secret_file: confirmer}}\n\
         - {{role: auditor, secret_file: auditor}}\n\
         - {{role: operator, secret_file: operator}}\n\
         upstreams: {{handlers: {{endpoint: \"{upstream}\"}}, nowhere: {{endpoint: \"http://127.0.0.1:1\"}}}}\n\
         {more}\n",
        policy = options.policy.display(),
        persistence = if options.persistent { "persistent" } else { "ephemeral" },
        audit = options.audit,
        more = options.more,
    );
    let file = directory.join("toolgate.yaml");
    fs::write(&file, text).unwrap();
    file
}

/// Connects to an address as [`Running::addresses`] gives it.
pub async fn channel(address: &str) -> Channel {
    let uri =
        if address.starts_with("unix:") { address.to_owned() } else { format!("http://{address}") };
    Endpoint::new(uri).unwrap().connect().await.unwrap()
}

pub async fn connect(address: &str) -> ToolGateClient<Channel> {
    ToolGateClient::new(channel(address).await)
}

pub fn context() -> CallContext {
    CallContext {
        request_id: "request-1".to_owned(),
        user_id: "user-1".to_owned(),
        tenant_id: "tenant-1".to_owned(),
        conversation_id: "conversation-1".to_owned(),
    }
}

pub fn call(tool_call_id: &str, name: &str, arguments_json: &str) -> ToolCall {
    ToolCall {
        tool_call_id: tool_call_id.to_owned(),
        name: name.to_owned(),
        arguments_json: arguments_json.to_owned(),
        ..ToolCall::default()
    }
}

/// A request as the proposer sends it.
pub fn execute(calls: Vec<ToolCall>) -> Request<ExecuteRequest> {
    let message =
        ExecuteRequest { context: Some(context()), calls, mode: BatchMode::Unspecified.into() };
    with_bearer(Request::new(message), PROPOSER)
}

/// Executes with a time-out so short that the client's own timer may overtake
/// the answer on a slow machine: then it asks again.
pub async fn execute_within(
    client: &mut ToolGateClient<Channel>,
    time: Duration,
    request: impl Fn() -> Request<ExecuteRequest>,
) -> Response<ExecuteResponse> {
    for _ in 0..100 {
        let mut request = request();
        request.set_timeout(time);
        match client.execute(request).await {
            Err(status) if status.code() == Code::Cancelled => {}
            answer => return answer.unwrap(),
        }
    }
    panic!("no answer came within {time:?}");
}

pub fn with_bearer<T>(mut request: Request<T>, secret: &str) -> Request<T> {
    request.metadata_mut().insert("authorization", format!("Bearer {secret}").parse().unwrap());
    request
}
