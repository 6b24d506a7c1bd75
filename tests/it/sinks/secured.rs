//! Receivers behind TLS, credentials, and Unix sockets.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, version};

use super::a_call;
use crate::support::certificates::{Authority, Certificate};
use crate::support::collector::{Collector, Does};
use crate::support::process::run_text;
use crate::support::running::{
    Options, World, execute, start_gate, start_handler, until, write_config,
};

/// Listens with TLS, asks for a certificate of the authority's, and hands on to a collector.
async fn behind_tls(server: &Certificate, clients: &str, to: String) -> u16 {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(clients.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let chain = CertificateDer::pem_slice_iter(server.chain.as_bytes()).map(Result::unwrap);
    let key = PrivateKeyDer::from_pem_slice(server.key.as_bytes()).unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(chain.collect(), key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, to) = (acceptor.clone(), to.clone());
            tokio::spawn(async move {
                // Whom the handshake turns away, and how a connection ends, is seen at the gate.
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut plain = TcpStream::connect(to).await.unwrap();
                drop(tokio::io::copy_bidirectional(&mut stream, &mut plain).await);
            });
        }
    });
    port
}

fn private(directory: &Path, name: &str, text: &str) {
    fs::write(directory.join(name), text).unwrap();
    fs::set_permissions(directory.join(name), fs::Permissions::from_mode(0o600)).unwrap();
}

/// A gate on a directory that has been prepared, and a call that leaves two events.
async fn gate_in(directory: tempfile::TempDir, audit: &str) -> World {
    let (handler, upstream, stop) = start_handler().await;
    let options = Options { audit, ..Options::default() };
    let config = write_config(directory.path(), &upstream, &options);
    let gate = start_gate(&config).await;
    let mut world = World::of(gate, handler, directory, stop).await;
    world.client.execute(execute(vec![a_call("c1")])).await.unwrap();
    world
}

/// Certificates and credentials are read again for each connection, as they are renewed in place.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_renewed_in_place_is_used_from_the_next_connection_on() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let collector = Collector::default();
    let listening = collector.listen().await;
    let port = behind_tls(&authority.server(), &authority.pem, listening.address.clone()).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    fs::write(path.join("ca.crt"), &authority.pem).unwrap();
    // One that the receiver does not know.
    stranger.client(&["gate.example.org"]).write(&path, "gate");
    private(&path, "headers", "authorization: Bearer first-token\nx-scope-orgid: north\n");
    let audit = format!(
        ", sinks: [{{name: collector, otlp: {{endpoint: \"https://localhost:{port}\", ca: ca.crt, \
         certificate: gate.crt, key: gate.key, headers_file: headers, timeout: 5s}}}}]"
    );
    let mut world = gate_in(directory, &audit).await;
    let of = |kind| [("sink", "collector"), ("kind", kind)];
    let failures = async |kind| world.metric("toolgate_sink_failures_total", &of(kind)).await;
    until("it is turned away", async || failures("unreachable").await > 0).await;
    assert_eq!(collector.requests(), 0);

    collector.set(Does::Answer(tonic::Status::unauthenticated("")));
    authority.client(&["gate.example.org"]).write(&path, "gate");
    until("the token is turned away", async || failures("status").await > 0).await;
    fs::remove_file(path.join("headers")).unwrap();
    until("there is no token", async || failures("files").await > 0).await;
    collector.set(Does::Take);
    private(&path, "headers", "authorization: Bearer second-token\n");
    collector.until_taken(2).await;
    let metadata = collector.metadata();
    let (first, last) = (metadata.first().unwrap(), metadata.last().unwrap());
    assert_eq!(first.get("authorization").unwrap(), "Bearer first-token");
    assert_eq!(first.get("x-scope-orgid").unwrap(), "north");
    assert_eq!(last.get("authorization").unwrap(), "Bearer second-token");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_nobody_vouches_for_gets_nothing() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let collector = Collector::default();
    let listening = collector.listen().await;
    let port = behind_tls(&stranger.server(), &authority.pem, listening.address.clone()).await;
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("ca.crt"), &authority.pem).unwrap();
    let audit = format!(
        ", sinks: [{{name: collector, otlp: {{endpoint: \"https://localhost:{port}\", ca: ca.crt}}}}]"
    );
    let mut world = gate_in(directory, &audit).await;
    until("it was tried", async || {
        world.metric("toolgate_sink_failures_total", &[("kind", "unreachable")]).await > 2
    })
    .await;
    assert_eq!(collector.requests(), 0);
    world.stop().await;
}

/// Two sinks: one on a Unix socket, one that is not there. Neither waits for the other, and the
/// status tells of both.
#[tokio::test(flavor = "multi_thread")]
async fn sinks_do_not_wait_for_each_other_and_the_status_shows_each() {
    let collector = Collector::default();
    let listening = collector.listen().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("collector.sock");
    let socket = UnixListener::bind(&path).unwrap();
    let to = listening.address.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = socket.accept().await.unwrap();
            let mut plain = TcpStream::connect(&to).await.unwrap();
            tokio::spawn(async move {
                drop(tokio::io::copy_bidirectional(&mut stream, &mut plain).await);
            });
        }
    });
    let audit = format!(
        ", sinks: [{{name: nowhere, otlp: {{endpoint: \"http://127.0.0.1:1\"}}}}, \
         {{name: socket, otlp: {{endpoint: \"unix:{}\"}}}}]",
        path.display()
    );
    let mut world = gate_in(directory, &audit).await;
    collector.until_taken(2).await;
    until("the other was tried", async || {
        world.metric("toolgate_sink_failures_total", &[("sink", "nowhere")]).await > 0
    })
    .await;
    until("the lag is known", async || {
        world.metric("toolgate_sink_lag_events", &[("sink", "socket")]).await == 0
    })
    .await;
    let address = world.running().addresses()[0].clone();
    let secret = world.directory.path().join("operator");
    let ask = |more: &[&str]| {
        let secret = secret.to_str().unwrap();
        run_text([&["status", "--gate", &address, "--secret-file", secret], more].concat())
    };
    let (code, out, _) = ask(&[]);
    assert_eq!(code, Some(0), "{out}");
    let nowhere = "sink           nowhere otlp http://127.0.0.1:1, at 0, 2 behind, does not get on: unreachable\n";
    assert!(out.contains(nowhere), "{out}");
    let socket = format!("sink           socket otlp unix:{}, at 2, 0 behind\n", path.display());
    assert!(out.contains(&socket), "{out}");
    let (_, out, _) = ask(&["--output", "json"]);
    let status: Value = serde_json::from_str(&out).unwrap();
    let sinks = status["sinks"].as_array().unwrap();
    assert_eq!((&sinks[0]["name"], &sinks[0]["lag"]), (&"nowhere".into(), &2.into()));
    assert_eq!((&sinks[1]["fault"], &sinks[1]["sequence"]), (&"".into(), &2.into()));
    assert!(sinks[1]["last_success"].as_str().unwrap().ends_with('Z'));
    assert_eq!(sinks[0]["last_success"], "");
    // A change of a sink waits for a restart, and says so.
    let file = world.directory.path().join("toolgate.yaml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("name: nowhere", "name: elsewhere")).unwrap();
    let secret = secret.to_str().unwrap();
    let (code, out, told) = run_text(["reload", "--gate", &address, "--secret-file", secret]);
    assert_eq!(code, Some(1));
    assert!(format!("{out}{told}").contains("/audit/sinks: RESTART_NEEDED"), "{out}{told}");
    world.stop().await;
}
