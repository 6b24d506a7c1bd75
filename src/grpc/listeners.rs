//! Listeners and the connections that they accept.

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
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::callers::{Identity, Peer, Ways};
use super::tls::{HTTP2, Tls, handshake_fault, names_of};

/// After a failed accept (out of file descriptors, say) the next waits, so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a new connection may take to send the HTTP/2 preface (RFC 9113, section 3.4).
const PREFACE_TIME: Duration = Duration::from_secs(10);
const PREFACE_BYTES: usize = 24;
/// How long a TLS handshake may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Connections whose handshake is done and that nobody has taken yet.
const HANDSHAKEN: usize = 16;

/// A bound listener.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    ways: Ways,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Tls(TcpListener, Arc<Tls>),
    Unix(UnixListener, PathBuf),
}

/// A stream of accepted connections.
pub(super) type Incoming<C> = Pin<Box<dyn Stream<Item = io::Result<Counted<C>>> + Send>>;

/// The connections of one listener.
pub(super) enum Connections {
    Tcp(Incoming<TcpStream>),
    Tls(Incoming<TlsStream<TcpStream>>),
    Unix(Incoming<UnixStream>, PathBuf),
}

impl Listener {
    /// Binds TCP in clear text, which is for loopback addresses.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub async fn tcp(address: SocketAddr, ways: Ways) -> io::Result<Self> {
        let socket = Socket::Tcp(TcpListener::bind(address).await?);
        Ok(Self { socket, ways })
    }

    /// Binds TCP under TLS.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub async fn tls(address: SocketAddr, ways: Ways, tls: Arc<Tls>) -> io::Result<Self> {
        let socket = Socket::Tls(TcpListener::bind(address).await?, tls);
        Ok(Self { socket, ways })
    }

    /// Binds a Unix socket of mode 0660 in an existing or new directory of mode 0750.
    ///
    /// The socket is made under another name and moved into place, so that it is
    /// never there with another mode. One that a dead process left is replaced.
    ///
    /// # Errors
    ///
    /// `AddrInUse` where somebody listens there; else what the operating system says.
    pub fn unix(path: &Path, ways: Ways) -> io::Result<Self> {
        let directory = directory_of(path);
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
        Ok(Self { socket: Socket::Unix(listener, path.to_owned()), ways })
    }

    /// Where clients find it: `127.0.0.1:7443` or `unix:/run/toolgate/toolgate.sock`.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn address(&self) -> io::Result<String> {
        match &self.socket {
            Socket::Tcp(listener) | Socket::Tls(listener, _) => {
                listener.local_addr().map(|address| address.to_string())
            }
            Socket::Unix(_, path) => Ok(format!("unix:{}", path.display())),
        }
    }

    /// Accepts connections, at most so many at once.
    pub(super) fn connections(self, most: usize) -> Connections {
        let permits = Arc::new(Semaphore::new(most));
        let ways = self.ways;
        match self.socket {
            Socket::Tcp(listener) => Connections::Tcp(incoming(listener, permits, ways)),
            Socket::Tls(listener, tls) => {
                Connections::Tls(handshaken(listener, permits, ways, tls))
            }
            Socket::Unix(listener, path) => {
                Connections::Unix(incoming(listener, permits, ways), path)
            }
        }
    }
}

/// Something that accepts connections.
trait Accept: Send + Sync + 'static {
    type Connection: Send + 'static;
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Connection, Identity)>> + Send;
}

impl Accept for TcpListener {
    type Connection = TcpStream;
    async fn accept(&self) -> io::Result<(TcpStream, Identity)> {
        let (connection, _) = Self::accept(self).await?;
        connection.set_nodelay(true)?;
        Ok((connection, Identity::Unknown))
    }
}

impl Accept for UnixListener {
    type Connection = UnixStream;
    async fn accept(&self) -> io::Result<(UnixStream, Identity)> {
        let (connection, _) = Self::accept(self).await?;
        let process = connection.peer_cred()?;
        Ok((connection, Identity::Process { uid: process.uid(), gid: process.gid() }))
    }
}

/// The next connection, whatever goes wrong before it.
async fn next<L: Accept>(listener: &L) -> (L::Connection, Identity) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::warn!(error_kind = %error.kind(), "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Connections, at most as many at once as there are permits.
fn incoming<L: Accept>(
    listener: L,
    permits: Arc<Semaphore>,
    ways: Ways,
) -> Incoming<L::Connection> {
    Box::pin(stream::unfold((listener, permits), move |(listener, permits)| async move {
        let permit = Arc::clone(&permits).acquire_owned().await.ok()?;
        let (connection, identity) = next(&listener).await;
        let peer = Peer { ways, identity };
        Some((Ok(Counted::new(connection, peer, permit)), (listener, permits)))
    }))
}

fn told(fault: &'static str) {
    tracing::warn!(fault, "a TLS handshake failed");
}

/// The same under TLS. Each handshake is a task of its own, so that a slow client
/// keeps nobody waiting; it holds one of the permits meanwhile.
fn handshaken(
    listener: TcpListener,
    permits: Arc<Semaphore>,
    ways: Ways,
    tls: Arc<Tls>,
) -> Incoming<TlsStream<TcpStream>> {
    let (sender, connections) = mpsc::channel(HANDSHAKEN);
    tokio::spawn(async move {
        loop {
            let accepted = async {
                let permit = Arc::clone(&permits).acquire_owned().await;
                (permit, next(&listener).await.0)
            };
            let (permit, connection) = tokio::select! {
                () = sender.closed() => return,
                accepted = accepted => accepted,
            };
            let Ok(permit) = permit else { return };
            let (acceptor, sender) = (tls.acceptor(), sender.clone());
            tokio::spawn(async move {
                match timeout(HANDSHAKE_TIME, acceptor.accept(connection)).await {
                    Ok(Ok(connection)) if connection.get_ref().1.alpn_protocol() == Some(HTTP2) => {
                        let names = names_of(connection.get_ref().1);
                        let identity = names.map_or(Identity::Unknown, Identity::Certificate);
                        let peer = Peer { ways, identity };
                        // Nobody takes it any more: the gate is stopping.
                        drop(sender.send(Ok(Counted::new(connection, peer, permit))).await);
                    }
                    Ok(Ok(_)) => told("the client did not ask for HTTP/2"),
                    Ok(Err(error)) => told(handshake_fault(&error)),
                    Err(_) => told("it took too long"),
                }
            });
        }
    });
    let connections = stream::unfold(connections, |mut connections| async move {
        connections.recv().await.map(|connection| (connection, connections))
    });
    Box::pin(connections)
}

/// A connection that gives its permit back when it closes, and closes if its client is silent.
pub(super) struct Counted<C> {
    connection: C,
    peer: Peer,
    preface: Preface,
    _permit: OwnedSemaphorePermit,
}

impl<C> Counted<C> {
    fn new(connection: C, peer: Peer, permit: OwnedSemaphorePermit) -> Self {
        let preface = Preface::Owed(Box::pin(sleep(PREFACE_TIME)), 0);
        Self { connection, peer, preface, _permit: permit }
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

impl<C> Connected for Counted<C> {
    type ConnectInfo = Peer;
    fn connect_info(&self) -> Peer {
        self.peer.clone()
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

/// A name alone is in the present directory, and not in one without a name.
fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

pub(super) fn remove_if_there(path: &Path) -> io::Result<()> {
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
        let peer = Peer { ways: Ways::ALL, identity: Identity::Unknown };
        (Counted::new(connection, peer, permit), client)
    }

    #[test]
    fn a_socket_is_in_the_directory_that_its_path_says() {
        for (path, directory) in
            [("s", "."), ("./s", "."), ("a/s", "a"), ("/s", "/"), ("/a/s", "/a")]
        {
            assert_eq!(directory_of(Path::new(path)), Path::new(directory), "{path}");
        }
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
