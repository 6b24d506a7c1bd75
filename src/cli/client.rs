//! How a subcommand reaches a running gate.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic_types::StatusExt as _;

use super::Failure;
use crate::config::Secret;
use crate::domain::proposal::is_forbidden;
use crate::grpc::tls;

/// Where the gate is, and who asks.
#[derive(Debug, Clone, Args)]
pub struct GateAddress {
    /// The gate's address: HOST:PORT, https://HOST:PORT, or unix:PATH
    #[arg(long, default_value = "127.0.0.1:7443", value_name = "ADDRESS")]
    gate: String,
    /// The secret of a caller whose role allows this; without it the certificate or,
    /// on a Unix socket, the process must be such a caller
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// The authorities that vouch for a gate at https://, in PEM
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The certificate to show, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["ca", "key"])]
    cert: Option<PathBuf>,
    /// The key to the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

/// A connection to a gate, and the credential that is shown on it.
pub(super) struct Connected {
    channel: Channel,
    bearer: Option<MetadataValue<Ascii>>,
}

impl GateAddress {
    /// Reads the files and connects.
    ///
    /// # Errors
    ///
    /// Why a file cannot be used, or why the gate cannot be reached.
    pub(super) async fn connect(&self) -> Result<Connected, Failure> {
        let bearer = self.bearer()?;
        let channel = match (self.gate.strip_prefix("https://"), &self.ca) {
            (Some(authority), Some(ca)) => self.connect_tls(authority, ca).await,
            (Some(_), None) => {
                return Err(Failure::new("add --ca FILE: it says who vouches for the gate"));
            }
            (None, Some(_)) => {
                return Err(Failure::new("write --gate https://HOST:PORT: --ca is for TLS alone"));
            }
            (None, None) if self.gate.contains("://") => {
                return Err(Failure::new("write --gate HOST:PORT, https://HOST:PORT or unix:PATH"));
            }
            (None, None) => {
                let is_socket = self.gate.starts_with("unix:");
                let uri =
                    if is_socket { self.gate.clone() } else { format!("http://{}", self.gate) };
                Endpoint::from_shared(uri)?.connect().await.map_err(Failure::from)
            }
        };
        let channel = channel.map_err(|Failure(cause)| {
            Failure::new(format!("the gate at {} cannot be reached: {cause}", self.gate))
        })?;
        Ok(Connected { channel, bearer })
    }

    fn bearer(&self) -> Result<Option<MetadataValue<Ascii>>, Failure> {
        let Some(file) = &self.secret_file else { return Ok(None) };
        let named =
            |fault: &dyn std::fmt::Display| Failure::new(format!("{}: {fault}", file.display()));
        let secret = Secret::read(file).map_err(|fault| named(&fault))?;
        let credential = secret.as_credential().map_err(|fault| named(&fault))?;
        let mut bearer = MetadataValue::try_from([b"Bearer ", credential].concat())?;
        bearer.set_sensitive(true);
        Ok(Some(bearer))
    }

    /// Not with tonic's own TLS, which has other defaults than the gate.
    async fn connect_tls(&self, authority: &str, ca: &Path) -> Result<Channel, Failure> {
        let identity = self.cert.as_deref().zip(self.key.as_deref());
        let config = tls::client(ca, identity)
            .map_err(|fault| Failure::new(format!("{fault}; {}", fault.mend())))?;
        let connector = TlsConnector::from(Arc::new(config));
        let endpoint = Endpoint::from_shared(format!("http://{authority}"))?;
        let host = endpoint.uri().host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            Failure::new("write https://HOST:PORT, and the host that its certificate names")
        })?;
        let authority = authority.to_owned();
        let connect = tower::service_fn(move |_| {
            let (connector, name, authority) = (connector.clone(), name.clone(), authority.clone());
            async move {
                let connection = TcpStream::connect(authority).await?;
                Ok::<_, io::Error>(TokioIo::new(connector.connect(name, connection).await?))
            }
        });
        endpoint.connect_with_connector(connect).await.map_err(Failure::from)
    }
}

impl Connected {
    /// The connection, for a client of one of the gate's services.
    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// A request that shows the credential.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(bearer) = &self.bearer {
            request.metadata_mut().insert("authorization", bearer.clone());
        }
        request
    }
}

/// What the gate answered instead, for the operator.
///
/// By value, as a closure of `map_err` takes it.
#[allow(clippy::needless_pass_by_value, reason = "map_err hands the status over")]
pub(super) fn told(status: tonic::Status) -> Failure {
    let text = match status.get_details_error_info() {
        Some(info) => {
            format!("the gate answered {:?} {}: {}", status.code(), info.reason, status.message())
        }
        // No answer of a gate's: under TLS a certificate is refused once the handshake seems done.
        None => format!(
            "no answer from the gate ({:?}, {}); where it refused the connection, its log says why",
            status.code(),
            status.message()
        ),
    };
    // Whoever answers there: a terminal is sent no control character.
    Failure::new(text.replace(is_forbidden, "\u{fffd}"))
}

/// Whether asking again may help: the connection broke, or the gate says that it is not for good.
pub(super) fn may_pass(status: &tonic::Status) -> bool {
    // A status without a reason is the transport's.
    status.get_details_error_info().is_none()
        || matches!(status.code(), tonic::Code::Unavailable | tonic::Code::ResourceExhausted)
}
