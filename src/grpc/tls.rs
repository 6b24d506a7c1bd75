//! TLS of a listener, with files that may change while it serves.
//!
//! TLS 1.3 alone, HTTP/2 alone. A client certificate, where one is asked for, is
//! verified in the handshake; which caller it is, its names say (`callers.rs`).

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection, version};
use sha2::{Digest as _, Sha256};
use tokio_rustls::TlsAcceptor;
use zeroize::Zeroizing;

use crate::domain::identity::San;

/// A certificate, key or CA file is no longer.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// A certificate of more names is nobody's: one that is left out could be another caller's.
const MAX_NAMES: usize = 64;
/// The one protocol under TLS (RFC 7301).
pub(super) const HTTP2: &[u8] = b"h2";

/// The PEM files of a listener's TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate chain, its own first.
    pub certificate: PathBuf,
    /// The key to it.
    pub key: PathBuf,
    /// Authorities of client certificates; without, no client is asked for one.
    pub client_ca: Option<PathBuf>,
}

/// Why files are not taken. Holds nothing of their content.
#[derive(Debug)]
pub enum TlsFault {
    /// A file cannot be read.
    Unreadable(PathBuf, io::ErrorKind),
    /// Others on the machine may read the key.
    WorldReadable(PathBuf, u32),
    /// A file is longer than any of its kind.
    TooLong(PathBuf),
    /// A file holds no certificate, or something else beside.
    NoCertificate(PathBuf),
    /// The file holds no private key.
    NoKey(PathBuf),
    /// The certificate's key is another one.
    OtherKey(PathBuf),
    /// The files cannot be used together.
    Unusable(PathBuf),
}

/// What a listener speaks TLS with now.
pub struct Tls {
    files: TlsFiles,
    current: RwLock<Current>,
}

struct Current {
    config: Arc<ServerConfig>,
    /// Of the files that were judged last, taken or not.
    judged: [u8; 32],
}

/// The content of all files at one moment.
struct Content {
    certificate: Zeroizing<Vec<u8>>,
    key: Zeroizing<Vec<u8>>,
    client_ca: Option<Zeroizing<Vec<u8>>>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// See [`TlsFault`].
    pub fn open(files: TlsFiles) -> Result<Self, TlsFault> {
        let content = files.read()?;
        let config = Arc::new(files.compile(&content)?);
        let current = RwLock::new(Current { config, judged: content.digest() });
        Ok(Self { files, current })
    }

    /// Reads the files again; whether they have changed. New connections are made
    /// with what was read, those that are there stay.
    ///
    /// # Errors
    ///
    /// See [`TlsFault`]: told once for each content, and what was there stays.
    pub fn reload(&self) -> Result<bool, TlsFault> {
        let content = self.files.read();
        let digest = match &content {
            Ok(content) => content.digest(),
            Err(fault) => Sha256::digest(fault.to_string()).into(),
        };
        if self.current.read().unwrap_or_else(PoisonError::into_inner).judged == digest {
            return Ok(false);
        }
        let config = content.and_then(|content| self.files.compile(&content));
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        current.judged = digest;
        current.config = Arc::new(config?);
        Ok(true)
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(&current.config))
    }
}

impl TlsFiles {
    /// The field of the file that a fault is about.
    #[must_use]
    pub fn field_of(&self, fault: &TlsFault) -> &'static str {
        let path = fault.path();
        if path == self.key {
            "key"
        } else if Some(path) == self.client_ca.as_deref() {
            "client_ca"
        } else {
            "certificate"
        }
    }

    fn read(&self) -> Result<Content, TlsFault> {
        Ok(Content {
            key: read_key(&self.key)?,
            certificate: read(&self.certificate)?,
            client_ca: self.client_ca.as_deref().map(read).transpose()?,
        })
    }

    fn compile(&self, content: &Content) -> Result<ServerConfig, TlsFault> {
        let chain = certificates(&self.certificate, &content.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&content.key)
            .map_err(|_| TlsFault::NoKey(self.key.clone()))?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|_| TlsFault::Unusable(self.certificate.clone()))?;
        let builder = match (&self.client_ca, &content.client_ca) {
            (Some(path), Some(pem)) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(path, pem)? {
                    roots.add(authority).map_err(|_| TlsFault::NoCertificate(path.clone()))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .build()
                        .map_err(|_| TlsFault::Unusable(path.clone()))?;
                builder.with_client_cert_verifier(verifier)
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => TlsFault::OtherKey(self.key.clone()),
            _ => TlsFault::Unusable(self.certificate.clone()),
        })?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        // A resumed session would outlive the authority that it was verified by.
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

impl Content {
    fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        let none = Zeroizing::new(Vec::new());
        for part in [&self.certificate, &self.key, self.client_ca.as_ref().unwrap_or(&none)] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        digest.finalize().into()
    }
}

/// The names of a client's verified certificate that may name a caller. One with
/// two URI names has none (X.509-SVID, section 2). `None` without a certificate.
pub(super) fn names_of(connection: &ServerConnection) -> Option<Arc<[San]>> {
    let leaf = connection.peer_certificates()?.first()?;
    let leaf = webpki::EndEntityCert::try_from(leaf).ok()?;
    let mut uris = leaf.valid_uri_names();
    let id = match (uris.next(), uris.next()) {
        (Some(uri), None) => San::spiffe(uri),
        _ => None,
    };
    let names = id.into_iter().chain(leaf.valid_dns_names().filter_map(San::dns));
    let names: Vec<_> = names.take(MAX_NAMES + 1).collect();
    Some(if names.len() > MAX_NAMES { Arc::default() } else { names.into() })
}

/// What a client of a listener needs: the authorities that vouch for the gate, and
/// where the listener asks for one its own certificate with the key to it.
///
/// # Errors
///
/// See [`TlsFault`].
pub fn client(ca: &Path, identity: Option<(&Path, &Path)>) -> Result<ClientConfig, TlsFault> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(ca, &read(ca)?)? {
        roots.add(authority).map_err(|_| TlsFault::NoCertificate(ca.to_owned()))?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&version::TLS13])
        .map_err(|_| TlsFault::Unusable(ca.to_owned()))?
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate, &read(certificate)?)?;
            let content = read_key(key)?;
            let content = PrivateKeyDer::from_pem_slice(&content)
                .map_err(|_| TlsFault::NoKey(key.to_owned()))?;
            builder.with_client_auth_cert(chain, content).map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => TlsFault::OtherKey(key.to_owned()),
                _ => TlsFault::Unusable(certificate.to_owned()),
            })?
        }
    };
    config.alpn_protocols = vec![HTTP2.to_vec()];
    Ok(config)
}

fn read_key(path: &Path) -> Result<Zeroizing<Vec<u8>>, TlsFault> {
    let metadata =
        fs::metadata(path).map_err(|error| TlsFault::Unreadable(path.to_owned(), error.kind()))?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o007 != 0 {
        return Err(TlsFault::WorldReadable(path.to_owned(), mode));
    }
    read(path)
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, TlsFault> {
    let unreadable = |error: io::Error| TlsFault::Unreadable(path.to_owned(), error.kind());
    let mut bytes = Zeroizing::new(Vec::with_capacity(8192));
    // Before it is opened: a pipe would keep whoever opens it waiting.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(TlsFault::Unreadable(path.to_owned(), io::ErrorKind::InvalidInput));
    }
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(TlsFault::TooLong(path.to_owned()));
    }
    Ok(bytes)
}

/// Why a handshake failed, in a fixed word for the log: nothing of it is the client's.
pub(super) fn handshake_fault(error: &io::Error) -> &'static str {
    use rustls::{CertificateError, Error};
    let Some(fault) = error.get_ref().and_then(|source| source.downcast_ref::<Error>()) else {
        return "the client went away";
    };
    match fault {
        Error::NoCertificatesPresented => "the client showed no certificate",
        Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => "the client's certificate has expired",
        Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => "the client's certificate is not valid yet",
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "no authority vouches for the client's certificate",
        Error::InvalidCertificate(_) => "the client's certificate was refused",
        Error::AlertReceived(_) => "the client refused the gate's certificate, or gave up",
        Error::PeerIncompatible(_) | Error::NoApplicationProtocol => {
            "the client speaks no TLS 1.3, or no HTTP/2"
        }
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => "what came is no TLS",
        _ => "the handshake went wrong",
    }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsFault> {
    let none = || TlsFault::NoCertificate(path.to_owned());
    let all: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|_| none())?;
    if all.is_empty() { Err(none()) } else { Ok(all) }
}

impl TlsFault {
    /// The file at fault.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Unreadable(path, _)
            | Self::WorldReadable(path, _)
            | Self::TooLong(path)
            | Self::NoCertificate(path)
            | Self::NoKey(path)
            | Self::OtherKey(path)
            | Self::Unusable(path) => path,
        }
    }

    /// What an operator should do about it.
    #[must_use]
    pub const fn mend(&self) -> &'static str {
        match self {
            Self::Unreadable(..) => "name a file that the gate's user can read",
            Self::WorldReadable(..) => {
                "chmod 0600 the file, or give a Secret volume defaultMode: 0440"
            }
            Self::TooLong(_) | Self::NoCertificate(_) => {
                "write PEM: one CERTIFICATE block after the other, and nothing else"
            }
            Self::NoKey(_) => "write PEM: one PRIVATE KEY block (PKCS #8)",
            Self::OtherKey(_) => "give the certificate with the key that it was made for",
            Self::Unusable(_) => {
                "use X.509 version 3 with an ECDSA, Ed25519 or RSA key of at least 2,048 bits"
            }
        }
    }
}

impl fmt::Display for TlsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(path, kind) => {
                write!(f, "{}: the file cannot be read: {kind}", path.display())
            }
            Self::WorldReadable(path, mode) => write!(
                f,
                "{}: everybody on the machine may read the key (mode {mode:04o})",
                path.display()
            ),
            Self::TooLong(path) => {
                write!(f, "{}: the file has more than {MAX_FILE_BYTES} bytes", path.display())
            }
            Self::NoCertificate(path) => {
                write!(f, "{}: this is no PEM file of certificates", path.display())
            }
            Self::NoKey(path) => write!(f, "{}: this is no PEM file of a key", path.display()),
            Self::OtherKey(path) => {
                write!(f, "{}: this is not the certificate's key", path.display())
            }
            Self::Unusable(path) => {
                write!(f, "{}: the certificate or its key cannot be used", path.display())
            }
        }
    }
}

impl std::error::Error for TlsFault {}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}
