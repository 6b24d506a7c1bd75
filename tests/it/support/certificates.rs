//! Authorities and certificates that tests make, and clients that show them.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SanType, date_time_ymd,
};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion, version};
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// An authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Certificate {
    pub chain: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// The certificate of a server that is reached at localhost.
    pub fn server(&self) -> Certificate {
        self.server_at(&["localhost"])
    }

    /// The same of one that is reached at these names and addresses.
    pub fn server_at(&self, names: &[&str]) -> Certificate {
        let all: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(all).unwrap();
        // OpenSSL takes a certificate for self-signed that has its issuer's name.
        params.distinguished_name.push(DnType::CommonName, names[0]);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(&params)
    }

    /// The certificate of a client of these names: URIs, and DNS names.
    pub fn client(&self, names: &[&str]) -> Certificate {
        self.sign(&client(names))
    }

    /// One that was over long ago.
    pub fn expired(&self, names: &[&str]) -> Certificate {
        let mut params = client(names);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2020, 1, 2);
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Certificate {
        let key = KeyPair::generate().unwrap();
        let chain = params.signed_by(&key, &self.issuer).unwrap().pem();
        Certificate { chain, key: key.serialize_pem() }
    }
}

/// Makes listeners and callers of a configuration hold every field that there is,
/// and writes the files that they name.
pub fn complete(document: &mut Value, directory: &Path) {
    let authority = Authority::new();
    authority.server().write(directory, "server");
    fs::write(directory.join("ca.crt"), &authority.pem).unwrap();
    let tls = json!({"certificate": "server.crt", "key": "server.key", "client_ca": "ca.crt"});
    document["listeners"] = json!([
        {"address": "127.0.0.1:0", "tls": tls, "ways": ["secret", "process", "certificate"]},
        "unix:gate.sock",
    ]);
    document["audit"]["sinks"] = json!([{"name": "lines", "stdout": {}}, {"name": "collector", "otlp": {
        "endpoint": "https://localhost:4317", "ca": "ca.crt", "certificate": "server.crt", "key": "server.key",
        "headers_file": "headers", "timeout": "10s",
    }}]);
    let headers = directory.join("headers");
    fs::write(&headers, "authorization: Bearer t\n").unwrap();
    fs::set_permissions(&headers, fs::Permissions::from_mode(0o600)).unwrap();
    let callers = document["callers"].as_array_mut().unwrap();
    callers.extend([
        json!({"roles": ["auditor"], "tenants": ["north"], "process": {"uid": 1, "gid": 1}}),
        json!({"role": "auditor", "certificate": {"spiffe": "spiffe://example.org/a"}}),
        json!({"role": "auditor", "certificate": {"dns": "a.example.org"}}),
    ]);
    document["audit"]["segment_age"] = json!("24h");
    document["audit"]["min_free_bytes"] = json!(134_217_728);
    document["audit"]["retention"] = json!({"age": "720h", "bytes": 10_737_418_240_u64});
    document["allow_self_confirmation"] = json!("somebody's reason");
}

/// The same with a ledger in a database, and every field that this has.
pub fn with_postgres(document: &Value, directory: &Path) -> Value {
    let password = directory.join("postgres-password");
    fs::write(&password, "not well known").unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
    let mut document = document.clone();
    document["ledger"] = json!({"kind": "postgres", "postgres": {
        "host": "db.example.org", "port": 5432, "database": "toolgate", "user": "gate",
        "password_file": "postgres-password",
        "tls": {"ca": "ca.crt", "certificate": "server.crt", "key": "server.key"},
        "connections": 8, "connect_timeout": "2s", "takeover_after": "30s",
    }});
    document
}

/// The pointer of a field of the reference in such a document: `*` is the first that has it.
pub fn pointer_of(document: &Value, place: &str) -> String {
    let Some((before, after)) = place.split_once("/*") else { return place.to_owned() };
    let names: Vec<String> = match document.pointer(before) {
        Some(Value::Array(items)) => (0..items.len()).map(|index| index.to_string()).collect(),
        Some(Value::Object(members)) => members.keys().cloned().collect(),
        _ => Vec::new(),
    };
    let mut pointers = names.iter().map(|name| format!("{before}/{name}{after}"));
    let found = pointers.clone().find(|pointer| document.pointer(pointer).is_some());
    let first = found.or_else(|| pointers.next()).unwrap();
    pointer_of(document, &first)
}

/// A certificate that nobody vouches for.
pub fn self_signed(names: &[&str]) -> Certificate {
    let key = KeyPair::generate().unwrap();
    let chain = client(names).self_signed(&key).unwrap().pem();
    Certificate { chain, key: key.serialize_pem() }
}

fn client(names: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.subject_alt_names = names
        .iter()
        .map(|name| {
            if name.contains("://") {
                SanType::URI((*name).try_into().unwrap())
            } else {
                SanType::DnsName((*name).try_into().unwrap())
            }
        })
        .collect();
    params
}

impl Certificate {
    /// Writes `NAME.crt` and `NAME.key`, the key for its owner alone.
    pub fn write(&self, directory: &Path, name: &str) {
        let key = directory.join(format!("{name}.key"));
        fs::write(directory.join(format!("{name}.crt")), &self.chain).unwrap();
        fs::write(&key, &self.key).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    }
}

/// Connects under TLS, trusting one authority.
pub async fn connect(
    address: &str,
    authority: &str,
    client: Option<&Certificate>,
) -> Result<Channel, tonic::transport::Error> {
    connect_with(address, authority, client, &version::TLS13).await
}

/// The same with the version of TLS that the client speaks.
pub async fn connect_with(
    address: &str,
    authority: &str,
    client: Option<&Certificate>,
    version: &'static SupportedProtocolVersion,
) -> Result<Channel, tonic::transport::Error> {
    connect_speaking(address, authority, client, version, &["h2"]).await
}

/// The same with the protocols that the client asks for under TLS.
pub async fn connect_speaking(
    address: &str,
    authority: &str,
    client: Option<&Certificate>,
    version: &'static SupportedProtocolVersion,
    protocols: &[&str],
) -> Result<Channel, tonic::transport::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match client {
        None => builder.with_no_client_auth(),
        Some(Certificate { chain, key }) => {
            let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).map(Result::unwrap);
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain.collect(), key).unwrap()
        }
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let connector = TlsConnector::from(Arc::new(config));
    let address = address.to_owned();
    let connect = service_fn(move |_| {
        let (connector, address) = (connector.clone(), address.clone());
        async move {
            let stream = TcpStream::connect(address).await?;
            let name = ServerName::try_from("localhost").unwrap();
            Ok::<_, io::Error>(TokioIo::new(connector.connect(name, stream).await?))
        }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connect).await
}
