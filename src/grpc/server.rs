//! Listeners and the limits of the transport.
//!
//! tonic hands hyper no limits of its own: every one that matters is set here.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tower::util::MapRequestLayer;

use super::callers::Callers;
use super::confirmations::ConfirmationsService;
use super::refusals::Guarded;
use super::request_body;
use super::tool_gate::ToolGateService;
use crate::gate::Gate;
use crate::proto;
use crate::proto::confirmations_server::ConfirmationsServer;
use crate::proto::tool_gate_server::ToolGateServer;
use crate::telemetry::metrics::Metrics;

/// After a failed accept (out of file descriptors, say) the next waits, so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a new connection may take to send the HTTP/2 preface (RFC 9113, section 3.4).
const PREFACE_TIME: Duration = Duration::from_secs(10);
const PREFACE_BYTES: usize = 24;
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
        if std::fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "something that is no socket is there",
            ));
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
    /// `ToolGate`, `Confirmations`, health, and reflection in both of its versions.
    #[must_use]
    pub fn new(
        gate: Arc<Gate>,
        callers: Arc<Callers>,
        metrics: Metrics,
        limits: TransportLimits,
    ) -> (Self, tonic_health::server::HealthReporter) {
        let service = ToolGateServer::new(ToolGateService::new(Arc::clone(&gate)))
            .max_decoding_message_size(limits.max_request_bytes);
        let confirmations = ConfirmationsServer::new(ConfirmationsService::new(gate))
            .max_decoding_message_size(limits.max_request_bytes);
        let (reporter, health) = tonic_health::server::health_reporter();
        let routes = Routes::new(Guarded::new(service, Arc::clone(&callers), metrics.clone()))
            .add_service(Guarded::new(confirmations, callers, metrics))
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
            .layer(MapRequestLayer::new(request_body::in_time))
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
        Some((Ok(Counted::new(connection, permit)), (listener, permits)))
    })
}

/// A connection that gives its permit back when it closes, and closes if its client is silent.
struct Counted<C> {
    connection: C,
    preface: Preface,
    _permit: OwnedSemaphorePermit,
}

impl<C> Counted<C> {
    fn new(connection: C, permit: OwnedSemaphorePermit) -> Self {
        let preface = Preface::Owed(Box::pin(sleep(PREFACE_TIME)), 0);
        Self { connection, preface, _permit: permit }
    }
}

/// Whether the client has sent the HTTP/2 preface. Until then no keep-alive watches it.
enum Preface {
    /// Not yet: until when, and how much of it.
    Owed(Pin<Box<Sleep>>, usize),
    Sent,
}

impl Preface {
    /// Counts what was read; an error once the time is over.
    fn watch(&mut self, cx: &mut Context<'_>, read: usize) -> io::Result<()> {
        let Self::Owed(time, bytes) = self else { return Ok(()) };
        *bytes += read;
        if *bytes >= PREFACE_BYTES {
            *self = Self::Sent;
        } else if time.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
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
        let before = buf.filled().len();
        let read = Pin::new(&mut self.connection).poll_read(cx, buf);
        let bytes = buf.filled().len() - before;
        match self.preface.watch(cx, bytes) {
            Ok(()) => read,
            Err(error) => Poll::Ready(Err(error)),
        }
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    async fn counted() -> (Counted<DuplexStream>, DuplexStream) {
        let (connection, client) = duplex(64);
        let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        (Counted::new(connection, permit), client)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_sends_the_preface_is_turned_away() {
        for sent in [0, 1, PREFACE_BYTES - 1] {
            let (mut connection, mut client) = counted().await;
            client.write_all(&vec![b'P'; sent]).await.unwrap();
            let mut read = Vec::new();
            let error = connection.read_to_end(&mut read).await.unwrap_err();
            assert_eq!((error.kind(), read.len()), (io::ErrorKind::TimedOut, sent));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_has_sent_it_may_be_silent() {
        let (mut connection, mut client) = counted().await;
        client.write_all(&[b'P'; PREFACE_BYTES]).await.unwrap();
        let mut read = [0; PREFACE_BYTES];
        connection.read_exact(&mut read).await.unwrap();
        let late = tokio::time::timeout(2 * PREFACE_TIME, connection.read_u8()).await;
        assert!(late.is_err(), "still open and waiting");
    }
}
