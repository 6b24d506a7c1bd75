//! The admin listener: `/metrics`, `/healthz` and `/readyz` over HTTP/1.1.
//!
//! For scrapers and probes inside the pod's network, without authentication, so
//! it says nothing that needs any: fixed texts, and the metrics. It reads no
//! body, repeats nothing of a request, and bounds connections, headers and time.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::metrics::{Exposition, Metrics};
use super::readiness::{NotReady, Notice, Notices, Readiness};

/// Connections served at once; further ones wait to be accepted.
pub const MAX_CONNECTIONS: usize = 32;
/// How long a client may take to send a head, and how long a kept connection may idle.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a request's head.
pub const MAX_HEADER_BYTES: usize = 16 * 1024;
/// Headers of a request.
pub const MAX_HEADERS: usize = 64;
/// After this long a connection ends with the response it is at.
pub const CONNECTION_LIFETIME: Duration = Duration::from_mins(1);
/// How long a connection that shall end may take to do so.
pub const CLOSING: Duration = Duration::from_secs(2);

/// Serves until `shutdown`, and returns when the last connection has ended, at the latest
/// [`CLOSING`] later.
///
/// Cancel it last: while the gate drains, probes must still see that it does.
pub async fn serve(
    listener: TcpListener,
    metrics: Metrics,
    readiness: Readiness,
    notices: Notices,
    shutdown: CancellationToken,
) {
    accept(listener, Arc::new(Admin::new(metrics, readiness, notices)), shutdown).await;
}

/// What every connection shares.
struct Admin {
    metrics: Metrics,
    readiness: Readiness,
    notices: Notices,
    connections: Arc<Semaphore>,
    /// One scrape at a time: the text of many series is large.
    scrape: Arc<Semaphore>,
}

type Answer = Response<Full<Bytes>>;

const PLAIN: &str = "text/plain; charset=utf-8";
/// A pause after a failed accept: it fails again at once while descriptors are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(250);

async fn accept(listener: TcpListener, admin: Arc<Admin>, shutdown: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        // The permit comes first: what cannot be served is not accepted.
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = next(&listener, &admin) => accepted,
        };
        // Finished tasks must not pile up in the set.
        while connections.try_join_next().is_some() {}
        if let Some((stream, permit)) = accepted {
            connections.spawn(converse(stream, Arc::clone(&admin), shutdown.clone(), permit));
        } else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn next(listener: &TcpListener, admin: &Admin) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(&admin.connections).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, permit)),
        Err(error) => {
            tracing::warn!(error_kind = %error.kind(), listener = "admin", "accept failed");
            None
        }
    }
}

/// One connection from its first request to its end.
async fn converse(
    stream: TcpStream,
    admin: Arc<Admin>,
    shutdown: CancellationToken,
    _permit: OwnedSemaphorePermit,
) {
    let service = service_fn(|request: Request<_>| {
        let admin = Arc::clone(&admin);
        async move { Ok::<_, Infallible>(admin.answer(&request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        // How it ended is the client's affair.
        _ = connection.as_mut() => return,
        () = shutdown.cancelled() => {}
        () = tokio::time::sleep(CONNECTION_LIFETIME) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(CLOSING, connection).await;
}

impl Admin {
    fn new(metrics: Metrics, readiness: Readiness, notices: Notices) -> Self {
        Self {
            metrics,
            readiness,
            notices,
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            scrape: Arc::new(Semaphore::new(1)),
        }
    }

    async fn answer<B>(&self, request: &Request<B>) -> Answer {
        let path = request.uri().path();
        if !matches!(path, "/metrics" | "/healthz" | "/readyz") {
            return plain(StatusCode::NOT_FOUND, "not found\n");
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return method_not_allowed();
        }
        match path {
            "/metrics" => self.metrics().await,
            "/readyz" => self.ready(),
            _ => plain(StatusCode::OK, "ok\n"),
        }
    }

    fn ready(&self) -> Answer {
        let reasons: Vec<_> = (self.readiness)().into_iter().map(NotReady::text).collect();
        let (status, first) = match reasons[..] {
            [] => (StatusCode::OK, Some("ready")),
            _ => (StatusCode::SERVICE_UNAVAILABLE, None),
        };
        let notices = (self.notices)().into_iter().map(Notice::text);
        let lines = first.into_iter().chain(reasons).chain(notices);
        plain(status, lines.flat_map(|line| [line, "\n"]).collect::<String>())
    }

    /// Writes the exposition on a thread of its own, away from those that serve calls.
    async fn metrics(&self) -> Answer {
        let metrics = self.metrics.clone();
        // The permit moves with the work, which outlives a client that leaves.
        let Ok(permit) = Arc::clone(&self.scrape).acquire_owned().await else {
            return scrape_failed();
        };
        let exposition = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            metrics.exposition()
        });
        match exposition.await {
            Ok(Ok(Exposition { content_type, text })) => answer(StatusCode::OK, content_type, text),
            Ok(Err(_)) | Err(_) => scrape_failed(),
        }
    }
}

fn scrape_failed() -> Answer {
    tracing::error!(listener = "admin", "the metrics could not be read");
    plain(StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be read\n")
}

fn method_not_allowed() -> Answer {
    let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n");
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    // Such a request may have a body, which is not going to be read.
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    answer(status, PLAIN, text)
}

fn answer(status: StatusCode, content_type: &'static str, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(text.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

#[cfg(test)]
mod tests;
