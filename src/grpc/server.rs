//! Listeners and the limits of the transport.
//!
//! tonic hands hyper no limits of its own: every one that matters is set here.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Connected;

use super::callers::Callers;
use super::refusals::Guarded;
use super::tool_gate::ToolGateService;
use crate::gate::Gate;
use crate::proto;
use crate::proto::tool_gate_server::ToolGateServer;
use crate::telemetry::metrics::Metrics;

/// After a failed accept (out of file descriptors, say) the next waits, so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_HEADER_LIST_BYTES: u32 = 16 * 1024;
const MAX_RESET_STREAMS: usize = 64;

/// What one listener takes from its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransportLimits {
    /// Bytes of one request message.
    pub max_request_bytes: usize,
    /// Connections at once; further ones wait to be accepted.
    pub max_connections: usize,
    /// Streams at once on one connection.
    pub max_streams_per_connection: u32,
}

/// A bound listener.
#[derive(Debug)]
pub enum Listener {
    /// Loopback TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener, PathBuf),
}

/// The services that every listener serves.
#[derive(Clone)]
pub struct Services {
    routes: Routes,
    limits: TransportLimits,
}

impl Listener {
    /// Binds loopback TCP.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub async fn tcp(address: SocketAddr) -> io::Result<Self> {
        TcpListener::bind(address).await.map(Self::Tcp)
    }

    /// Binds a Unix socket of mode 0660 in an existing or new directory of mode 0750.
    ///
    /// The socket is made under another name and moved into place, so that it is
    /// never there with another mode. One that a dead process left is replaced.
    ///
    /// # Errors
    ///
    /// `AddrInUse` where somebody listens there; else what the operating system says.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let directory = path.parent().unwrap_or(Path::new("."));
        if !directory.exists() {
            std::fs::create_dir_all(directory)?;
            std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o750))?;
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::Error::from(io::ErrorKind::AddrInUse));
        }
        let unready = path.with_extension("binding");
        remove_if_there(&unready)?;
        let listener = UnixListener::bind(&unready)?;
        std::fs::set_permissions(&unready, std::fs::Permissions::from_mode(0o660))?;
        std::fs::rename(&unready, path)?;
        Ok(Self::Unix(listener, path.to_owned()))
    }

    /// Where clients find it: `127.0.0.1:7443` or `unix:/run/toolgate/toolgate.sock`.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn address(&self) -> io::Result<String> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(|address| address.to_string()),
            Self::Unix(_, path) => Ok(format!("unix:{}", path.display())),
        }
    }
}

impl Services {
    /// `ToolGate`, health, and reflection in both of its versions.
    #[must_use]
    pub fn new(
        gate: Arc<Gate>,
        callers: Arc<Callers>,
        metrics: Metrics,
        limits: TransportLimits,
    ) -> (Self, tonic_health::server::HealthReporter) {
        let service = ToolGateServer::new(ToolGateService::new(gate))
            .max_decoding_message_size(limits.max_request_bytes);
        let (reporter, health) = tonic_health::server::health_reporter();
        let routes = Routes::new(Guarded::new(service, callers, metrics))
            .add_service(health)
            .add_service(
                reflection().build_v1().unwrap_or_else(|_| unreachable!("{DESCRIPTORS_HOLD}")),
            )
            .add_service(
                reflection().build_v1alpha().unwrap_or_else(|_| unreachable!("{DESCRIPTORS_HOLD}")),
            );
        (Self { routes, limits }, reporter)
    }

    /// Serves one listener until `shutdown`, then lets running requests finish.
    ///
    /// # Errors
    ///
    /// Where the transport fails as a whole.
    pub async fn serve(
        self,
        listener: Listener,
        shutdown: CancellationToken,
    ) -> Result<(), tonic::transport::Error> {
        let connections = Arc::new(Semaphore::new(self.limits.max_connections));
        let server = Server::builder()
            .max_concurrent_streams(self.limits.max_streams_per_connection)
            .http2_max_header_list_size(MAX_HEADER_LIST_BYTES)
            .http2_max_local_error_reset_streams(Some(MAX_RESET_STREAMS))
            .http2_max_pending_accept_reset_streams(Some(MAX_RESET_STREAMS))
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .add_routes(self.routes);
        match listener {
            Listener::Tcp(listener) => {
                server
                    .serve_with_incoming_shutdown(
                        incoming(listener, connections),
                        shutdown.cancelled_owned(),
                    )
                    .await
            }
            Listener::Unix(listener, path) => {
                let ended = server
                    .serve_with_incoming_shutdown(
                        incoming(listener, connections),
                        shutdown.cancelled_owned(),
                    )
                    .await;
                // Best effort: a socket left behind is replaced at the next start.
                drop(remove_if_there(&path));
                ended
            }
        }
    }
}

const DESCRIPTORS_HOLD: &str = "the descriptors that build.rs compiled can be served";

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::SERVED_DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

/// Something that accepts connections.
trait Accept: Send + 'static {
    type Connection: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static;
    fn accept(&self) -> impl Future<Output = io::Result<Self::Connection>> + Send;
}

impl Accept for TcpListener {
    type Connection = TcpStream;
    async fn accept(&self) -> io::Result<TcpStream> {
        let (connection, _) = Self::accept(self).await?;
        connection.set_nodelay(true)?;
        Ok(connection)
    }
}

impl Accept for UnixListener {
    type Connection = UnixStream;
    async fn accept(&self) -> io::Result<UnixStream> {
        Self::accept(self).await.map(|(connection, _)| connection)
    }
}

/// Connections, at most as many at once as there are permits.
fn incoming<L: Accept + Sync>(
    listener: L,
    permits: Arc<Semaphore>,
) -> impl Stream<Item = io::Result<Counted<L::Connection>>> {
    stream::unfold((listener, permits), |(listener, permits)| async move {
        let permit = Arc::clone(&permits).acquire_owned().await.ok()?;
        let connection = loop {
            match listener.accept().await {
                Ok(connection) => break connection,
                Err(error) => {
                    tracing::warn!(error_kind = %error.kind(), "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        };
        Some((Ok(Counted { connection, _permit: permit }), (listener, permits)))
    })
}

/// A connection that gives its permit back when it closes.
struct Counted<C> {
    connection: C,
    _permit: OwnedSemaphorePermit,
}

impl<C: Connected> Connected for Counted<C> {
    type ConnectInfo = C::ConnectInfo;
    fn connect_info(&self) -> Self::ConnectInfo {
        self.connection.connect_info()
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Counted<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(cx, buf)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Counted<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
