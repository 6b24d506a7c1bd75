//! Handlers that keep to gRPC, served by tonic.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::metadata::{KeyAndValueRef, MetadataMap};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use toolgate::domain::audit::TraceId;
use toolgate::domain::stages::TraceContext;
use toolgate::ports::{Upstream, UpstreamFault};
use toolgate::proto::tool_handler_server::{ToolHandler, ToolHandlerServer};
use toolgate::proto::{InvokeRequest, InvokeResponse};

use super::{Call, invoke, upstreams, within};

/// Hands every call to the test.
struct Handler {
    seen: UnboundedSender<Seen>,
    answers: bool,
}

#[derive(Debug)]
enum Seen {
    Call(MetadataMap, Box<InvokeRequest>),
    Dropped,
}

/// Tells the test when the handler's future is dropped before it ends.
struct TellDropped(UnboundedSender<Seen>);

impl Drop for TellDropped {
    fn drop(&mut self) {
        let _ = self.0.send(Seen::Dropped);
    }
}

#[tonic::async_trait]
impl ToolHandler for Handler {
    async fn invoke(
        &self,
        request: Request<InvokeRequest>,
    ) -> Result<Response<InvokeResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        self.seen.send(Seen::Call(metadata, Box::new(message))).unwrap();
        if !self.answers {
            let _guard = TellDropped(self.seen.clone());
            pending::<()>().await;
        }
        Ok(Response::new(InvokeResponse { result_json: r#"{"title":"Zürich"}"#.to_owned() }))
    }
}

async fn serve_tcp(answers: bool) -> (String, UnboundedReceiver<Seen>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (seen, received) = unbounded_channel();
    let service = ToolHandlerServer::new(Handler { seen, answers });
    let incoming = TcpListenerStream::new(listener);
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    (endpoint, received)
}

async fn call(received: &mut UnboundedReceiver<Seen>) -> (MetadataMap, InvokeRequest) {
    match within(received.recv()).await.unwrap() {
        Seen::Call(metadata, message) => (metadata, *message),
        Seen::Dropped => panic!("dropped"),
    }
}

fn keys(metadata: &MetadataMap) -> BTreeSet<&str> {
    metadata
        .iter()
        .map(|field| match field {
            KeyAndValueRef::Ascii(key, _) => key.as_str(),
            KeyAndValueRef::Binary(key, _) => key.as_str(),
        })
        .collect()
}

/// What every request carries, and nothing besides.
const ALWAYS: [&str; 9] = [
    "content-length",
    "content-type",
    "grpc-timeout",
    "te",
    "user-agent",
    "x-toolgate-conversation-id-bin",
    "x-toolgate-request-id-bin",
    "x-toolgate-tenant-id-bin",
    "x-toolgate-user-id-bin",
];

#[tokio::test]
async fn a_delivery_arrives_exactly() {
    let (endpoint, mut received) = serve_tcp(true).await;
    let upstreams = upstreams(&endpoint);
    assert_eq!(invoke(&upstreams).await.as_deref(), Ok(r#"{"title":"Zürich"}"#));
    let (metadata, message) = call(&mut received).await;
    let wanted = InvokeRequest {
        tool: "get_document_status".to_owned(),
        tenant_id: "Zürich 租户".to_owned(),
        user_id: "user-1".to_owned(),
        conversation_id: "conversation-1".to_owned(),
        request_id: "request-1".to_owned(),
        tool_call_id: "call-1".to_owned(),
        // SHA-256(C([tenant, conversation, tool_call_id])), computed by hand.
        idempotency_key: "ce3844b60c9d2f67e074696c568492bd22e7e0859cbf37ebe9322a82089a2a86"
            .to_owned(),
        attempt: 3,
        arguments_json: r#"{"document_id":"ä"}"#.to_owned(),
    };
    assert_eq!(message, wanted);
    for (key, text) in [
        ("x-toolgate-tenant-id-bin", "Zürich 租户"),
        ("x-toolgate-user-id-bin", "user-1"),
        ("x-toolgate-conversation-id-bin", "conversation-1"),
        ("x-toolgate-request-id-bin", "request-1"),
    ] {
        assert_eq!(metadata.get_bin(key).unwrap().to_bytes().unwrap(), text, "{key}");
    }
    // The gate's two seconds and the slack.
    assert_eq!(metadata.get("grpc-timeout").unwrap(), "2100m");
    assert_eq!(keys(&metadata), BTreeSet::from(ALWAYS));
}

#[tokio::test]
async fn trace_context_travels_on() {
    let (endpoint, mut received) = serve_tcp(true).await;
    let upstreams = upstreams(&endpoint);
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let mut call_with_trace = Call::new();
    for tracestate in [Some("vendor=1"), None, Some("bro\nken")] {
        call_with_trace.trace = Some(TraceContext {
            traceparent: traceparent.to_owned(),
            tracestate: tracestate.map(str::to_owned),
            trace_id: TraceId::new([7; 16]).unwrap(),
        });
        within(upstreams.invoke(&call_with_trace.delivery())).await.unwrap();
        let (metadata, _) = call(&mut received).await;
        assert_eq!(metadata.get("traceparent").unwrap(), traceparent);
        let arrived = metadata.get("tracestate").map(|value| value.to_str().unwrap());
        assert_eq!(arrived, tracestate.filter(|state| !state.contains('\n')));
    }
}

#[tokio::test]
async fn a_unix_socket_is_an_endpoint() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tools.sock");
    let upstreams = upstreams(&format!("unix:{}", path.display()));
    // The gate may start before its handlers.
    assert_eq!(invoke(&upstreams).await, Err(UpstreamFault::Unavailable { sent: false }));
    let incoming = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
    let (seen, mut received) = unbounded_channel();
    let service = ToolHandlerServer::new(Handler { seen, answers: true });
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    assert_eq!(invoke(&upstreams).await.as_deref(), Ok(r#"{"title":"Zürich"}"#));
    assert_eq!(call(&mut received).await.1.tool_call_id, "call-1");
}

#[tokio::test]
async fn dropping_the_call_cancels_the_handler() {
    let (endpoint, mut received) = serve_tcp(false).await;
    let upstreams = Arc::new(upstreams(&endpoint));
    let running = tokio::spawn({
        let upstreams = Arc::clone(&upstreams);
        async move {
            let mut call = Call::new();
            call.timeout = Duration::from_hours(1);
            let delivery = call.delivery();
            upstreams.invoke(&delivery).await
        }
    });
    call(&mut received).await;
    running.abort();
    assert!(matches!(within(received.recv()).await, Some(Seen::Dropped)));
}
