//! One HTTP/2 connection to one endpoint, shared by all its calls.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::uri::Authority;
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::rt::{Read, Write};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;

use super::{Endpoint, UpstreamConfig, request};

/// A connection that is made when first needed and made anew after it closed.
/// However many calls wait, one attempt to connect runs at a time and all of them
/// get its outcome.
pub(super) struct Connection {
    uri: Uri,
    link: Arc<Link>,
    progress: Mutex<watch::Receiver<Progress>>,
}

/// Why no answer began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendFault {
    /// The request was never put on a connection.
    NotSent,
    /// The request, or a part of it, may have reached the handler.
    MaybeSent,
}

/// The state of an upstream's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// None: not needed yet, or closed since.
    Idle,
    /// One is being made.
    Connecting,
    /// It stands.
    Connected,
    /// The last attempt to connect failed. The next call tries again.
    Failed,
}

impl LinkState {
    /// The word in the status.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Connecting => "connecting",
            Self::Connected => "connected",
            Self::Failed => "failed",
        }
    }
}

/// What connecting needs, and what it last said.
struct Link {
    name: Arc<str>,
    config: UpstreamConfig,
    reported_failure: AtomicBool,
}

type Sender = http2::SendRequest<Full<Bytes>>;

/// How far an attempt to connect is.
#[derive(Clone)]
enum Progress {
    Idle,
    Connecting,
    Connected(Sender),
    Failed,
}

/// What a handler may send as the head of an answer, or as its trailers.
const MAX_HEADER_LIST_BYTES: u32 = 16 * 1024;
/// What a handler may send of one answer before the gate has read it.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// The same over all answers of a connection.
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

impl Connection {
    pub(super) fn new(name: Arc<str>, config: UpstreamConfig) -> Self {
        let authority = match &config.endpoint {
            Endpoint::Tcp { authority, .. } => authority.clone(),
            Endpoint::Unix { .. } => Authority::from_static("localhost"),
        };
        let link = Arc::new(Link { name, config, reported_failure: AtomicBool::new(false) });
        let (_, idle) = watch::channel(Progress::Idle);
        Self { uri: request::uri(authority), link, progress: Mutex::new(idle) }
    }

    /// Where its requests go.
    pub(super) const fn uri(&self) -> &Uri {
        &self.uri
    }

    /// How it is made.
    pub(super) fn config(&self) -> &UpstreamConfig {
        &self.link.config
    }

    /// The connection's state at this moment.
    pub(super) fn state(&self) -> LinkState {
        match &*self.lock().borrow() {
            Progress::Idle => LinkState::Idle,
            Progress::Connecting => LinkState::Connecting,
            Progress::Connected(sender) if sender.is_closed() => LinkState::Idle,
            Progress::Connected(_) => LinkState::Connected,
            Progress::Failed => LinkState::Failed,
        }
    }

    /// Sends a request and waits for the head of its answer. Dropping the future
    /// resets the stream; an attempt to connect goes on for the next call.
    ///
    /// # Errors
    ///
    /// See [`SendFault`].
    pub(super) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, SendFault> {
        // A connection may close between being chosen and being used. hyper then
        // hands the request back, unsent, and a new connection may take it.
        for _ in 0..2 {
            let mut sender = self.sender().await.ok_or(SendFault::NotSent)?;
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(response),
                Err(mut refused) => {
                    request = refused.take_message().ok_or(SendFault::MaybeSent)?;
                }
            }
        }
        Err(SendFault::NotSent)
    }

    async fn sender(&self) -> Option<Sender> {
        let mut progress = self.progress();
        let outcome = progress.wait_for(|at| !matches!(at, Progress::Connecting)).await.ok()?;
        match &*outcome {
            Progress::Connected(sender) => Some(sender.clone()),
            _ => None,
        }
    }

    /// The standing or coming connection, or a new attempt to make one.
    fn progress(&self) -> watch::Receiver<Progress> {
        let mut current = self.lock();
        let usable = match &*current.borrow() {
            Progress::Idle | Progress::Failed => false,
            Progress::Connected(sender) => !sender.is_closed(),
            // Without its task, which ends with the runtime, it would never go on.
            Progress::Connecting => current.has_changed().is_ok(),
        };
        if !usable {
            let (report, started) = watch::channel(Progress::Connecting);
            let link = Arc::clone(&self.link);
            // A task, so that no caller's deadline cuts the attempt of the others;
            // connect_timeout bounds it.
            tokio::spawn(async move { report.send(link.connect().await) });
            *current = started;
        }
        current.clone()
    }

    fn lock(&self) -> MutexGuard<'_, watch::Receiver<Progress>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    async fn connect(&self) -> Progress {
        let attempt = tokio::time::timeout(self.config.connect_timeout, self.open());
        match attempt.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(sender) => {
                if self.reported_failure.swap(false, Ordering::Relaxed) {
                    tracing::info!(upstream = %self.name, "upstream connected again");
                }
                Progress::Connected(sender)
            }
            Err(error) => {
                // Once an outage, not once a call.
                if !self.reported_failure.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        upstream = %self.name,
                        error_kind = ?error.kind(),
                        "cannot connect to upstream"
                    );
                }
                Progress::Failed
            }
        }
    }

    async fn open(&self) -> io::Result<Sender> {
        match &self.config.endpoint {
            Endpoint::Tcp { host, port, .. } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                self.handshake(TokioIo::new(stream)).await
            }
            Endpoint::Unix { path } => {
                self.handshake(TokioIo::new(UnixStream::connect(path).await?)).await
            }
        }
    }

    /// Starts HTTP/2. Its task ends with the last [`Sender`] and its streams.
    async fn handshake<T>(&self, io: T) -> io::Result<Sender>
    where
        T: Read + Write + Send + Unpin + 'static,
    {
        let (sender, driver) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(self.config.keep_alive_interval)
            .keep_alive_timeout(self.config.keep_alive_timeout)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(MAX_HEADER_LIST_BYTES)
            .handshake(io)
            .await
            .map_err(io::Error::other)?;
        // Its error may quote a peer's GOAWAY, and every call learns of it anyway.
        tokio::spawn(async move { drop(driver.await) });
        Ok(sender)
    }
}
