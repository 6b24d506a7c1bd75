//! A handler in the test's own process, which therefore outlives every gate.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use toolgate::proto::tool_handler_server::{ToolHandler, ToolHandlerServer};
use toolgate::proto::{InvokeRequest, InvokeResponse};

/// Has its effect as soon as it is called, then does what the tool's name says.
#[derive(Clone, Default)]
pub struct Effects {
    seen: Arc<Mutex<Vec<InvokeRequest>>>,
    held: watch::Sender<bool>,
}

impl Effects {
    /// Starts it on a loopback port: itself, its endpoint, and what stops it.
    pub async fn start() -> (Self, String, DropGuard) {
        let effects = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let server = Server::builder()
            .add_service(ToolHandlerServer::new(effects.clone()))
            .serve_with_incoming_shutdown(
                TcpListenerStream::new(listener),
                stop.clone().cancelled_owned(),
            );
        tokio::spawn(server);
        (effects, endpoint, stop.drop_guard())
    }

    /// From now on it has its effect and keeps the answer.
    pub fn hold(&self) {
        self.held.send_replace(true);
    }

    /// Gives the answers that it has kept, and all others at once.
    pub fn go_on(&self) {
        self.held.send_replace(false);
    }

    /// How often the handler was called.
    pub fn len(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// The attempts in which this call reached the handler.
    pub fn attempts(&self, call: &str) -> Vec<u32> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|seen| seen.tool_call_id == call).map(|seen| seen.attempt).collect()
    }

    /// How often each idempotency key took effect: every time it came, but for
    /// tools that apply a key once.
    pub fn by_key(&self) -> BTreeMap<String, usize> {
        let mut effects = BTreeMap::new();
        for seen in &*self.seen.lock().unwrap() {
            let effect = effects.entry(seen.idempotency_key.clone()).or_default();
            *effect = if seen.tool == "again" { 1 } else { *effect + 1 };
        }
        effects
    }

    /// The calls that reached the handler, each with its attempt.
    pub fn calls(&self) -> Vec<(String, u32)> {
        let seen = self.seen.lock().unwrap();
        seen.iter().map(|seen| (seen.tool_call_id.clone(), seen.attempt)).collect()
    }
}

#[tonic::async_trait]
impl ToolHandler for Effects {
    async fn invoke(
        &self,
        request: Request<InvokeRequest>,
    ) -> Result<Response<InvokeResponse>, Status> {
        let message = request.into_inner();
        let (tool, attempt) = (message.tool.clone(), message.attempt);
        self.seen.lock().unwrap().push(message);
        // The sender lives as long as this does.
        let _ = self.held.subscribe().wait_for(|held| !held).await;
        match tool.as_str() {
            "fails" => return Err(Status::internal("it failed")),
            "stuck" => std::future::pending().await,
            "again" if attempt == 1 => std::future::pending().await,
            _ => {}
        }
        Ok(Response::new(InvokeResponse { result_json: r#"{"id":"d-1"}"#.to_owned() }))
    }
}
