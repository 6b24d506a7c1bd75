//! A gate in a process of its own, whose data directory somebody spoils.

use std::net::SocketAddr;
use std::path::PathBuf;

use tempfile::TempDir;
use tokio_util::sync::DropGuard;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt as _;
use toolgate::proto::tool_gate_client::ToolGateClient;
use toolgate::proto::{
    AuditState, ExecuteResponse, GetCallRequest, GetCallResponse, Reason, ToolCall, ToolResult,
};

use crate::support::process::Process;
use crate::support::running::{
    Handler, Options, PROPOSER, call, channel, context, execute, get, start_handler, until,
    with_bearer, write_config,
};
use crate::writes::wire::Sides;

/// What outlives a gate.
pub struct Place {
    pub handler: Handler,
    pub directory: TempDir,
    config: PathBuf,
    _upstream: DropGuard,
}

/// A gate that serves.
pub struct Gate {
    pub process: Process,
    pub sides: Sides,
    pub admin: SocketAddr,
    channel: Channel,
}

/// What a caller is told of one call.
#[derive(Debug)]
pub enum Told {
    Result(Box<ToolResult>),
    /// The reason of a status: nothing has run.
    Refused(String),
}

impl Place {
    /// One whose journal closes only when its disk is all but full.
    pub async fn new() -> Self {
        Self::leaving(1 << 20).await
    }

    /// One whose journal leaves so many bytes free.
    pub async fn leaving(bytes: u64) -> Self {
        let (handler, upstream, stop) = start_handler().await;
        let directory = tempfile::tempdir().unwrap();
        let audit = format!(", min_free_bytes: {bytes}");
        let options = Options { audit: &audit, ..Options::writes() };
        let config = write_config(directory.path(), &upstream, &options);
        Self { handler, directory, config, _upstream: stop }
    }

    /// The data directory, or that of one of its two.
    pub fn data(&self, name: Option<&str>) -> PathBuf {
        let data = self.directory.path().join("data");
        name.map_or(data.clone(), |name| data.join(name))
    }

    pub async fn serve(&self) -> Gate {
        let (process, grpc, admin) = Process::serving(&self.config).await;
        let channel = channel(&grpc).await;
        Gate { process, sides: Sides::new(channel.clone()), admin, channel }
    }

    /// Starts one that cannot serve: what it says.
    pub async fn fails_to_serve(&self) -> String {
        let mut process = Process::serve(&self.config);
        assert_eq!(process.exit_code().await, Some(1), "{}", process.log());
        process.log()
    }

    /// How often the handler was called for a call.
    pub fn effects(&self, id: &str) -> usize {
        self.handler.seen().iter().filter(|(_, message)| message.tool_call_id == id).count()
    }
}

impl Gate {
    /// The write with a ticket of its own.
    pub async fn confirmed(&self, id: &str) -> ToolCall {
        self.sides.confirm(crate::writes::wire::draft(id, "a")).await.0
    }

    pub async fn run(&self, call: &ToolCall) -> Told {
        match self.try_run(call).await {
            Ok(mut response) => Told::Result(Box::new(response.results.remove(0))),
            Err(status) => Told::Refused(reason_of(&status)),
        }
    }

    async fn try_run(&self, call: &ToolCall) -> Result<ExecuteResponse, Status> {
        let mut client = ToolGateClient::new(self.channel.clone());
        client.execute(execute(vec![call.clone()])).await.map(tonic::Response::into_inner)
    }

    /// A read, which needs no ledger.
    pub async fn read(&self, id: &str) -> Told {
        self.run(&call(id, "search", r#"{"text": "a"}"#)).await
    }

    pub async fn recorded(&self, id: &str) -> Option<GetCallResponse> {
        let message = GetCallRequest { context: Some(context()), tool_call_id: id.to_owned() };
        let request = with_bearer(Request::new(message), PROPOSER);
        match ToolGateClient::new(self.channel.clone()).get_call(request).await {
            Ok(answer) => Some(answer.into_inner()),
            Err(status) if status.code() == Code::NotFound => None,
            Err(status) => panic!("{status:?}"),
        }
    }

    /// Waits until the gate says that it is ready, or names this in the way.
    pub async fn until_readiness(&self, wanted: &str) {
        let mut last = String::new();
        until(&format!("readiness is {wanted}"), async || {
            last = get(self.admin, "/readyz").await;
            last.contains(wanted)
        })
        .await;
    }

    pub async fn stop(mut self) {
        self.process.terminate();
        assert_eq!(self.process.exit_code().await, Some(0), "{}", self.process.log());
    }
}

impl Told {
    /// The reason, whether of a result or of a status.
    pub fn reason(&self) -> String {
        match self {
            Self::Result(result) => {
                result.reason().as_str_name().trim_start_matches("REASON_").to_owned()
            }
            Self::Refused(reason) => reason.clone(),
        }
    }

    pub fn result(&self) -> &ToolResult {
        match self {
            Self::Result(result) => result,
            Self::Refused(reason) => panic!("refused: {reason}"),
        }
    }

    /// Whether it acknowledges the call with its audit.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Result(result)
            if result.reason() == Reason::Ok && result.audit() == AuditState::Recorded)
    }
}

pub fn reason_of(status: &Status) -> String {
    let info = status.get_details_error_info();
    info.unwrap_or_else(|| panic!("no ErrorInfo: {status:?}")).reason
}
