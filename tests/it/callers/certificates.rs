//! Callers that are known by their certificate, and TLS itself.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::rustls::version;
use tokio_util::sync::DropGuard;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use toolgate::app::Running;
use toolgate::config;
use toolgate::proto::tool_gate_client::ToolGateClient;
use toolgate::proto::{CallContext, CheckRequest, ExecuteRequest, ExecuteResponse};

use crate::grpc::assert_refused;
use crate::support::certificates::{
    Authority, Certificate, connect, connect_speaking, connect_with, self_signed,
};
use crate::support::process::Process;
use crate::support::running::{
    CONFIRMER, Options, PROPOSER, call, channel, context, get, metric, start_handler, until,
    with_bearer, write_config,
};

const BACKEND: &str = "spiffe://example.org/ns/shop/sa/backend";

/// A gate that is reached under TLS and verifies client certificates.
struct World {
    gate: Running,
    authority: Authority,
    directory: TempDir,
    _upstream: DropGuard,
}

impl World {
    async fn start() -> Self {
        let (_, upstream, stop) = start_handler().await;
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        authority.server().write(directory.path(), "server");
        fs::write(directory.path().join("ca.crt"), &authority.pem).unwrap();
        let file = configure(&directory, &upstream);
        let gate = Running::start(config::load(&file).unwrap()).await.unwrap();
        Self { gate, authority, directory, _upstream: stop }
    }

    fn address(&self) -> &str {
        &self.gate.addresses()[0]
    }

    async fn connect(&self, client: Option<&Certificate>) -> Channel {
        connect(self.address(), &self.authority.pem, client).await.unwrap()
    }

    /// What a client of these names is answered.
    async fn answer(&self, names: &[&str]) -> Result<ExecuteResponse, Status> {
        run(&self.connect(Some(&self.authority.client(names))).await, request()).await
    }

    /// Whether a connection is refused, by its handshake or by the first use of it.
    async fn is_shut_out(&self, client: Option<&Certificate>) -> bool {
        match connect(self.address(), &self.authority.pem, client).await {
            Err(_) => true,
            // TLS 1.3 tells a client of its certificate's refusal after it has begun.
            Ok(channel) => {
                let status = run(&channel, with_bearer(request(), PROPOSER)).await.unwrap_err();
                assert_ne!(status.code(), Code::Unauthenticated, "{status:?}");
                true
            }
        }
    }
}

fn configure(directory: &TempDir, upstream: &str) -> PathBuf {
    let file = write_config(directory.path(), upstream, &Options::default());
    let tls = "{certificate: server.crt, key: server.key, client_ca: ca.crt}";
    let callers = format!(
        "- {{role: proposer, certificate: {{spiffe: {BACKEND}}}, tenants: [tenant-1]}}\n\
         - {{roles: [auditor, operator], certificate: {{dns: auditor.example.org}}}}\n\
         - {{role: confirmer, certificate: {{dns: page.example.org}}}}\n"
    );
    let text = fs::read_to_string(&file).unwrap();
    let text = text
        .replace("\"127.0.0.1:0\"", &format!("{{address: \"127.0.0.1:0\", tls: {tls}}}"))
        .replace("upstreams:", &format!("{callers}upstreams:"));
    fs::write(&file, text).unwrap();
    file
}

fn request() -> Request<ExecuteRequest> {
    let calls = vec![call("c1", "patient", "{}")];
    Request::new(ExecuteRequest { context: Some(context()), calls, mode: 0 })
}

async fn run(
    channel: &Channel,
    request: Request<ExecuteRequest>,
) -> Result<ExecuteResponse, Status> {
    ToolGateClient::new(channel.clone()).execute(request).await.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn a_certificate_is_a_caller_by_its_name_alone() {
    let world = World::start().await;
    world.answer(&[BACKEND]).await.unwrap();
    world.answer(&[BACKEND, "some.example.org"]).await.unwrap();
    let strangers: [&[&str]; 8] = [
        &[],
        &["spiffe://example.com/ns/shop/sa/backend"],
        &["spiffe://example.org/ns/shop/sa/backend2"],
        &["spiffe://example.org/ns/shop/sa"],
        &["spiffe://example.org/ns/shop/sa/Backend"],
        &["https://example.org/ns/shop/sa/backend"],
        &["*.example.org"],
        // Two URI names are no X.509-SVID.
        &[BACKEND, "spiffe://example.org/ns/other/sa/other"],
    ];
    for names in strangers {
        let status = world.answer(names).await.unwrap_err();
        assert_refused(&status, Code::Unauthenticated, "UNAUTHENTICATED", None);
    }
    // More names than are looked at, of which the first are a caller's.
    let more: Vec<_> = (0..64).map(|number| format!("n{number}.example.org")).collect();
    let more = more.iter().map(String::as_str);
    let within: Vec<_> = std::iter::once(BACKEND).chain(more.clone().take(63)).collect();
    world.answer(&within).await.unwrap();
    let beyond: Vec<_> = std::iter::once(BACKEND).chain(more).collect();
    let status = world.answer(&beyond).await.unwrap_err();
    assert_refused(&status, Code::Unauthenticated, "UNAUTHENTICATED", None);
    // Known, and of other roles; and known twice.
    let status = world.answer(&["auditor.example.org"]).await.unwrap_err();
    assert_refused(&status, Code::PermissionDenied, "ROLE_MISSING", None);
    let status = world.answer(&[BACKEND, "page.example.org"]).await.unwrap_err();
    assert_refused(&status, Code::Unauthenticated, "UNAUTHENTICATED", None);
}

#[tokio::test]
async fn a_caller_speaks_for_its_tenants_alone() {
    let world = World::start().await;
    let channel = world.connect(Some(&world.authority.client(&[BACKEND]))).await;
    let mut gate = ToolGateClient::new(channel);
    let other = || Some(CallContext { tenant_id: "tenant-2".to_owned(), ..context() });
    let calls = vec![call("c1", "patient", "{}")];
    let mut request = request();
    request.get_mut().context = other();
    let denied = [
        gate.execute(request).await.unwrap_err(),
        gate.check(CheckRequest { context: other(), calls }).await.unwrap_err(),
        gate.list_tools(toolgate::proto::ListToolsRequest { context: other() }).await.unwrap_err(),
    ];
    for status in denied {
        assert_refused(&status, Code::PermissionDenied, "TENANT_NOT_CALLERS", None);
        assert!(!status.message().contains("tenant-2"));
    }
}

#[tokio::test]
async fn nobody_vouches_for_these() {
    let world = World::start().await;
    let others = [
        None,
        Some(self_signed(&[BACKEND])),
        Some(Authority::new().client(&[BACKEND])),
        Some(world.authority.expired(&[BACKEND])),
        // A server's certificate is no client's.
        Some(world.authority.server()),
    ];
    for client in &others {
        assert!(world.is_shut_out(client.as_ref()).await);
    }
    let client = world.authority.client(&[BACKEND]);
    let older = connect_with(world.address(), &world.authority.pem, Some(&client), &version::TLS12);
    assert!(older.await.is_err(), "TLS 1.2 is not spoken");
    // HTTP/2 is asked for by name: another protocol's clients could be led here.
    for protocols in [&["http/1.1"][..], &[]] {
        let (address, trusted) = (world.address(), &world.authority.pem);
        let channel =
            connect_speaking(address, trusted, Some(&client), &version::TLS13, protocols).await;
        if let Ok(channel) = channel {
            assert!(run(&channel, request()).await.is_err(), "{protocols:?}");
        }
    }
    world.answer(&[BACKEND]).await.unwrap();
}

/// The caller is told nothing; who looks after the gate is.
#[tokio::test]
async fn why_a_handshake_failed_is_logged() {
    let (_, upstream, _stop) = start_handler().await;
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    authority.server().write(directory.path(), "server");
    fs::write(directory.path().join("ca.crt"), &authority.pem).unwrap();
    let (process, address, _) = Process::serving(&configure(&directory, &upstream)).await;
    let cases = [
        (Some(authority.expired(&[BACKEND])), "the client's certificate has expired"),
        (Some(self_signed(&[BACKEND])), "no authority vouches for the client's certificate"),
        (None, "the client showed no certificate"),
    ];
    for (client, fault) in cases {
        if let Ok(channel) = connect(&address, &authority.pem, client.as_ref()).await {
            run(&channel, request()).await.unwrap_err();
        }
        until(fault, async || process.log().contains(fault)).await;
    }
    let mut plain = TcpStream::connect(&address).await.unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    until("the rest", async || process.log().contains("what came is no TLS")).await;
}

#[tokio::test]
async fn two_identities_must_mean_one_caller() {
    let world = World::start().await;
    let bearer = |secret| with_bearer(request(), secret);
    let stranger = world.connect(Some(&world.authority.client(&["some.example.org"]))).await;
    // A certificate that is no caller's lets a secret speak.
    run(&stranger, bearer(PROPOSER)).await.unwrap();
    let backend = world.connect(Some(&world.authority.client(&[BACKEND]))).await;
    // The same role, and other tenants: not the same caller.
    for secret in [PROPOSER, CONFIRMER, "unknown-Tz5kP8rWm2Vx6Yn3Qs9Lb4Hc"] {
        let status = run(&backend, bearer(secret)).await.unwrap_err();
        assert_refused(&status, Code::Unauthenticated, "UNAUTHENTICATED", None);
    }
    run(&backend, request()).await.unwrap();
}

#[tokio::test]
async fn what_is_not_tls_keeps_nobody_waiting() {
    let world = World::start().await;
    // More than the gate takes off its queue at once, all silent.
    let mut silent = Vec::new();
    for _ in 0..64 {
        silent.push(TcpStream::connect(world.address()).await.unwrap());
    }
    world.answer(&[BACKEND]).await.unwrap();
    let mut plain = TcpStream::connect(world.address()).await.unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // An alert, or nothing.
    drop(plain.read_to_end(&mut answer).await);
    assert!(answer.len() < 16, "{answer:?}");
    drop(silent);
}

#[tokio::test]
async fn files_that_change_are_followed_and_bad_ones_are_not() {
    let world = World::start().await;
    let path = |name: &str| world.directory.path().join(name);
    let reloads = async |result| {
        let text = get(world.gate.admin(), "/metrics").await;
        metric(&text, "toolgate_tls_reloads_total", &[("result", result)])
    };
    let before = world.connect(Some(&world.authority.client(&[BACKEND]))).await;
    run(&before, request()).await.unwrap();

    // Half of a change: the key is another one's.
    let other = Authority::new();
    let server = other.server();
    fs::write(path("server.key"), &server.key).unwrap();
    until("the half is refused", async || reloads("refused").await == 1).await;
    world.answer(&[BACKEND]).await.unwrap();

    fs::write(path("server.crt"), &server.chain).unwrap();
    fs::write(path("ca.crt"), &other.pem).unwrap();
    let is_changed = async || {
        let client = other.client(&[BACKEND]);
        let channel = connect(world.address(), &other.pem, Some(&client)).await;
        matches!(channel, Ok(channel) if run(&channel, request()).await.is_ok())
    };
    until("the new files are in force", is_changed).await;
    assert!(reloads("taken").await >= 1);
    // Who is connected stays; who was vouched for by the former authority does not come in again.
    run(&before, request()).await.unwrap();
    let former = world.authority.client(&[BACKEND]);
    let again = connect(world.address(), &other.pem, Some(&former)).await;
    let is_out = match again {
        Err(_) => true,
        Ok(channel) => run(&channel, request()).await.is_err(),
    };
    assert!(is_out);
}

#[tokio::test]
async fn a_listener_without_client_certificates_takes_secrets() {
    let world = World::start().await;
    let directory = tempfile::tempdir().unwrap();
    world.authority.server().write(directory.path(), "server");
    let file = write_config(directory.path(), "http://127.0.0.1:1", &Options::default());
    let text = fs::read_to_string(&file).unwrap();
    let tls =
        "[127.0.0.1:0, {address: \"0.0.0.0:0\", tls: {certificate: server.crt, key: server.key}}]";
    fs::write(&file, text.replace("[\"127.0.0.1:0\"]", tls)).unwrap();
    let gate = Running::start(config::load(&file).unwrap()).await.unwrap();
    let under_tls = gate.addresses()[1].replace("0.0.0.0", "127.0.0.1");
    let secure = connect(&under_tls, &world.authority.pem, None).await.unwrap();
    for channel in [channel(&gate.addresses()[0]).await, secure] {
        run(&channel, with_bearer(request(), PROPOSER)).await.unwrap();
        let status = run(&channel, request()).await.unwrap_err();
        assert_refused(&status, Code::Unauthenticated, "UNAUTHENTICATED", None);
    }
    tokio::time::timeout(Duration::from_secs(30), gate.stop()).await.unwrap();
}
