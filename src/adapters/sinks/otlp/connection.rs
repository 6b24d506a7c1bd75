//! A connection to a receiver.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::transport::{Channel, Endpoint, Error};
use tower::service_fn;

use super::{OtlpEndpoint, OtlpTls};
use crate::grpc::tls::{self, TlsFault};

/// A connection that says nothing for so long is asked whether it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// How long the answer may take.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// What a receiver may send as the head of an answer, or as its trailers.
const MAX_HEADER_LIST_BYTES: u32 = 16 * 1024;

impl OtlpTls {
    /// The field of the file that a fault is about.
    #[must_use]
    pub fn field_of(&self, fault: &TlsFault) -> &'static str {
        match &self.identity {
            Some((_, key)) if key == fault.path() => "key",
            Some((certificate, _)) if certificate == fault.path() => "certificate",
            _ => "ca",
        }
    }

    /// Reads the files, as they are now. Blocks the thread.
    ///
    /// # Errors
    ///
    /// See [`TlsFault`].
    pub fn read(&self) -> Result<ClientConfig, TlsFault> {
        let identity = self.identity.as_ref();
        tls::client(&self.ca, identity.map(|(certificate, key)| (&**certificate, &**key)))
    }
}

/// Connects once. The caller bounds how long.
pub(super) async fn connect(
    endpoint: &OtlpEndpoint,
    tls: Option<ClientConfig>,
) -> Result<Channel, Error> {
    match endpoint {
        OtlpEndpoint::Unix(path) => {
            let path = path.clone();
            let connect = service_fn(move |_| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            });
            settings("localhost")?.connect_with_connector(connect).await
        }
        OtlpEndpoint::Loopback { authority, addresses } => {
            let addresses = addresses.clone();
            let connect = service_fn(move |_| {
                let addresses = addresses.clone();
                async move { tcp(&*addresses).await.map(TokioIo::new) }
            });
            settings(authority.as_str())?.connect_with_connector(connect).await
        }
        OtlpEndpoint::Tls { authority, host, port } => {
            let (target, tls) = ((host.clone(), *port), tls.map(Arc::new));
            let connect = service_fn(move |_| {
                let (target, tls) = (target.clone(), tls.clone());
                async move {
                    let none = || io::Error::from(io::ErrorKind::InvalidInput);
                    let name = ServerName::try_from(target.0.clone()).map_err(|_| none())?;
                    let stream = tcp((target.0.as_str(), target.1)).await?;
                    // Loading has refused https without what it needs.
                    let connector = TlsConnector::from(tls.ok_or_else(none)?);
                    Ok::<_, io::Error>(TokioIo::new(connector.connect(name, stream).await?))
                }
            });
            settings(authority.as_str())?.connect_with_connector(connect).await
        }
    }
}

async fn tcp(to: impl tokio::net::ToSocketAddrs) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn settings(authority: &str) -> Result<Endpoint, Error> {
    Ok(Endpoint::from_shared(format!("http://{authority}"))?
        .user_agent(concat!("toolgate/", env!("CARGO_PKG_VERSION")))?
        .http2_max_header_list_size(MAX_HEADER_LIST_BYTES)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT))
}
