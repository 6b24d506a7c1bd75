#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::net::SocketAddr;
use std::sync::Mutex;

use jiff::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::*;
use crate::domain::audit::{Digest, Event, EventKind, PayloadSummary};
use crate::domain::proposal::Context;
use crate::domain::reason::{Effect, Reason};

struct Server {
    address: SocketAddr,
    admin: Arc<Admin>,
    not_ready: Arc<Mutex<Vec<NotReady>>>,
    noticed: Arc<Mutex<Vec<Notice>>>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

async fn server() -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let not_ready = Arc::new(Mutex::new(Vec::new()));
    let state = Arc::clone(&not_ready);
    let readiness: Readiness = Arc::new(move || state.lock().unwrap().clone());
    let metrics = Metrics::new("1.2.3", 1).unwrap();
    metrics.watch_readiness(Arc::clone(&readiness));
    let noticed = Arc::new(Mutex::new(Vec::new()));
    let state = Arc::clone(&noticed);
    let told: Notices = Arc::new(move || state.lock().unwrap().clone());
    let admin = Arc::new(Admin::new(metrics, readiness, told));
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(accept(listener, Arc::clone(&admin), shutdown.clone()));
    Server { address, admin, not_ready, noticed, shutdown, task }
}

impl Server {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends bytes and reads until the server closes the connection.
    async fn exchange(&self, request: &str) -> String {
        let mut stream = self.connect().await;
        // The server may answer and close before all is written.
        let _ = stream.write_all(request.as_bytes()).await;
        read_to_end(&mut stream).await
    }

    async fn get(&self, path: &str) -> String {
        self.exchange(&format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")).await
    }
}

/// What came before the end; a reset is an end, too.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        read.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8(read).unwrap()
}

async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut read = Vec::new();
    while !read.ends_with(end.as_bytes()) {
        read.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(read).unwrap()
}

fn status(response: &str) -> &str {
    response.lines().next().unwrap_or_default()
}

fn body(response: &str) -> &str {
    response.split_once("\r\n\r\n").unwrap().1
}

#[tokio::test]
async fn health_says_ok_whatever_readiness_says() {
    let server = server().await;
    server.not_ready.lock().unwrap().push(NotReady::JournalDown);

    let response = server.get("/healthz").await;

    assert_eq!(status(&response), "HTTP/1.1 200 OK");
    assert_eq!(body(&response), "ok\n");
}

#[tokio::test]
async fn readiness_names_everything_in_the_way() {
    let server = server().await;
    let ready = server.get("/readyz").await;
    assert_eq!((status(&ready), body(&ready)), ("HTTP/1.1 200 OK", "ready\n"));

    *server.not_ready.lock().unwrap() = NotReady::ALL.to_vec();
    let response = server.get("/readyz").await;

    assert_eq!(status(&response), "HTTP/1.1 503 Service Unavailable");
    assert_eq!(body(&response).lines().count(), NotReady::ALL.len());
    for reason in NotReady::ALL {
        assert!(body(&response).lines().any(|line| line == reason.text()), "{reason:?}");
    }
}

#[tokio::test]
async fn what_is_noticed_is_said_and_turns_no_probe() {
    let server = server().await;
    *server.noticed.lock().unwrap() = Notice::ALL.to_vec();
    let told = format!("{}\n", Notice::SinkBehind.text());
    let ready = server.get("/readyz").await;
    assert_eq!(status(&ready), "HTTP/1.1 200 OK");
    assert_eq!(body(&ready), format!("ready\n{told}"));

    server.not_ready.lock().unwrap().push(NotReady::Draining);
    let not_ready = server.get("/readyz").await;
    assert_eq!(status(&not_ready), "HTTP/1.1 503 Service Unavailable");
    assert_eq!(body(&not_ready), format!("{}\n{told}", NotReady::Draining.text()));
}

#[tokio::test]
async fn metrics_follow_readiness() {
    let server = server().await;
    let response = server.get("/metrics?x=1").await;
    assert_eq!(status(&response), "HTTP/1.1 200 OK");
    assert!(response.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    assert!(body(&response).contains("toolgate_build_info{version=\"1.2.3\"} 1\n"));
    assert!(body(&response).contains("toolgate_ready 1\n"));

    server.not_ready.lock().unwrap().push(NotReady::Draining);
    assert!(server.get("/metrics").await.contains("toolgate_ready 0\n"));
}

#[tokio::test]
async fn head_has_the_length_and_no_body() {
    let server = server().await;
    let response =
        server.exchange("HEAD /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert_eq!(status(&response), "HTTP/1.1 200 OK");
    assert!(response.contains("content-length: 3\r\n"));
    assert_eq!(body(&response), "");
}

#[tokio::test]
async fn other_paths_are_not_found_and_not_repeated() {
    let server = server().await;
    for path in ["/", "/metrics/", "/canary-17", "/HEALTHZ", "/%6detrics", "//metrics"] {
        let response = server.get(path).await;
        assert_eq!(status(&response), "HTTP/1.1 404 Not Found", "{path}");
        assert_eq!(body(&response), "not found\n");
    }
}

#[tokio::test]
async fn other_methods_are_refused_without_reading_their_body() {
    let server = server().await;
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CANARY"] {
        let response = server
            .exchange(&format!(
                "{method} /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\nx"
            ))
            .await;
        assert_eq!(status(&response), "HTTP/1.1 405 Method Not Allowed", "{method}");
        assert!(response.contains("allow: GET, HEAD\r\n"));
        assert_eq!(body(&response), "method not allowed\n");
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = server().await;
    let response = server
        .exchange(
            "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /nothing HTTP/1.1\r\nhost: x\r\n\r\n\
             GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        )
        .await;
    let statuses: Vec<_> = response.split("HTTP/1.1 ").skip(1).map(|part| &part[..3]).collect();
    assert_eq!(statuses, ["200", "404", "200"]);
}

#[tokio::test]
async fn a_large_head_is_refused_and_not_repeated() {
    let server = server().await;
    let long = "canary".repeat(MAX_HEADER_BYTES / 6 + 1);
    let response = server.exchange(&format!("GET /healthz HTTP/1.1\r\nx: {long}\r\n\r\n")).await;
    assert_eq!(status(&response), "HTTP/1.1 431 Request Header Fields Too Large");
    assert!(!response.contains("canary"));

    let many = "x: canary\r\n".repeat(MAX_HEADERS + 1);
    let response = server.exchange(&format!("GET /healthz HTTP/1.1\r\n{many}\r\n")).await;
    assert_eq!(status(&response), "HTTP/1.1 431 Request Header Fields Too Large");
    assert!(!response.contains("canary"));
}

#[tokio::test]
async fn what_is_not_http_is_not_repeated() {
    let server = server().await;
    let response = server.exchange("canary\r\n\r\n").await;
    assert_eq!(status(&response), "HTTP/1.1 400 Bad Request");
    assert!(!response.contains("canary"));
}

#[tokio::test(start_paused = true)]
async fn a_head_that_does_not_end_is_given_up() {
    let server = server().await;
    let start = tokio::time::Instant::now();
    let response = server.exchange("GET /healthz HTTP/1.1\r\nhost: x\r\n").await;
    assert!(!response.contains("200"), "{response}");
    assert_eq!(start.elapsed().as_secs(), HEADER_TIMEOUT.as_secs());
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed() {
    let server = server().await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    read_until(&mut stream, "\r\n\r\nok\n").await;
    let start = tokio::time::Instant::now();
    assert_eq!(read_to_end(&mut stream).await, "");
    assert!(start.elapsed() <= HEADER_TIMEOUT * 2);
}

#[tokio::test(start_paused = true)]
async fn a_busy_connection_ends_with_its_lifetime() {
    let server = server().await;
    let start = tokio::time::Instant::now();
    let mut stream = server.connect().await;
    let mut answered = 0;
    let mut buffer = [0; 4096];
    while stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.is_ok()
        && matches!(stream.read(&mut buffer).await, Ok(1..))
    {
        answered += 1;
        tokio::time::sleep(HEADER_TIMEOUT / 2).await;
        assert!(start.elapsed() < CONNECTION_LIFETIME * 2, "still open");
    }
    assert!(answered > 2);
    assert!(start.elapsed() >= CONNECTION_LIFETIME);
}

#[tokio::test]
async fn connections_are_bounded_and_those_beyond_wait() {
    let server = server().await;
    let mut open = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut stream = server.connect().await;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        read_until(&mut stream, "\r\n\r\nok\n").await;
        open.push(stream);
    }
    assert_eq!(server.admin.connections.available_permits(), 0);

    let mut waiting = server.connect().await;
    waiting.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    open.pop();

    read_until(&mut waiting, "\r\n\r\nok\n").await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_closes_idle_and_hanging_connections() {
    let server = server().await;
    let mut idle = server.connect().await;
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    read_until(&mut idle, "\r\n\r\nok\n").await;
    let mut hanging = server.connect().await;
    hanging.write_all(b"GET /healthz HT").await.unwrap();

    let start = tokio::time::Instant::now();
    server.shutdown.cancel();
    server.task.await.unwrap();
    assert!(start.elapsed() < CLOSING * 2);

    assert_eq!(read_to_end(&mut idle).await, "");
    assert_eq!(read_to_end(&mut hanging).await, "");
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_holds_no_shutdown_up() {
    let server = server().await;
    fill(&server.admin.metrics, 8_000);
    let mut stream = server.connect().await;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    read_until(&mut stream, "HTTP/1.1 200 OK\r\n").await;

    server.shutdown.cancel();

    let ended = tokio::time::timeout(CLOSING * 2, server.task).await;
    assert!(ended.is_ok(), "still serving");
}

/// Gives a scrape more text than the buffers between server and client hold.
fn fill(metrics: &Metrics, tools: usize) {
    let names: Vec<_> = (0..tools).map(|n| format!("tool-{n}")).collect();
    let tools = metrics.tools(names.iter().map(String::as_str));
    for name in &names {
        tools.completed(&completed(name));
    }
}

fn completed(tool: &str) -> Event {
    let text = Arc::<str>::from("x");
    Event {
        kind: EventKind::Completed {
            reason: Reason::Ok,
            duration_us: 1,
            result_summary: None,
            result_digest: None,
            effect: Effect::None,
        },
        time: Timestamp::UNIX_EPOCH,
        context: Arc::new(Context {
            request_id: Arc::clone(&text),
            user_id: Arc::clone(&text),
            tenant_id: Arc::clone(&text),
            conversation_id: Arc::clone(&text),
        }),
        tool_call_id: Arc::clone(&text),
        tool: Arc::from(tool),
        suggested_tool_hash: Digest([0; 32]),
        attempt: 1,
        arguments_summary: PayloadSummary::default(),
        arguments_digest: Digest([0; 32]),
        policy_digest: Digest([0; 32]),
        audit_key_id: text,
        confirmation: None,
        trace_id: None,
    }
}
