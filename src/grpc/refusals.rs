//! The one place where a refused request is counted, logged and given its details.
//!
//! Most refusals are made by the service as a [`Refused`]. Some are made by tonic
//! before the service sees the request (a message that is too large or cannot be
//! decoded): they get the same shape here.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower::Service;

use super::callers::{Callers, Peer};
use super::status::refusal_of;
use crate::domain::caller::Rpc;
use crate::domain::refused::Refused;
use crate::telemetry::metrics::Metrics;

/// Wraps a service: authenticates before a byte of the message is decoded, and watches its refusals.
#[derive(Clone)]
pub(super) struct Guarded<S> {
    inner: S,
    callers: Arc<Callers>,
    metrics: Metrics,
}

impl<S> Guarded<S> {
    pub(super) const fn new(inner: S, callers: Arc<Callers>, metrics: Metrics) -> Self {
        Self { inner, callers, metrics }
    }
}

impl<S: NamedService> NamedService for Guarded<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Guarded<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let served = rpc_name(request.uri().path());
        let rpc = served.unwrap_or("other");
        let metrics = self.metrics.clone();
        let caller =
            self.callers.authenticate(request.headers(), request.extensions().get::<Peer>());
        let caller = caller.map_err(|nobody| {
            let (way, result) = nobody.labels();
            metrics.caller_unknown(way, result);
            tracing::warn!(rpc, fault = nobody.as_str(), "nobody was recognised");
            Refused::Unauthenticated
        });
        match caller.and_then(|caller| served.map(|_| caller).ok_or(Refused::NotServed)) {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
                let answer = self.inner.call(request);
                Box::pin(async move { Ok(watch(rpc, &metrics, answer.await?)) })
            }
            Err(refused) => {
                let answer = Status::from(refused).into_http();
                Box::pin(async move { Ok(watch(rpc, &metrics, answer)) })
            }
        }
    }
}

fn watch(rpc: &'static str, metrics: &Metrics, response: Response<Body>) -> Response<Body> {
    let Some(status) = response.extensions().get::<Status>() else {
        return response;
    };
    let made_here = refusal_of(status);
    let Some(refused) = made_here.or_else(|| made_by_tonic(status.code())) else {
        return response;
    };
    let row = refused.row();
    metrics.request_refused(rpc, row.code.name(), row.reason);
    tracing::warn!(
        rpc,
        code = row.code.name(),
        reason = row.reason,
        field = refused.field(),
        "request refused"
    );
    if made_here.is_some() { response } else { Status::from(refused).into_http() }
}

/// What tonic's own refusals mean; `None` where the transport ended the request.
const fn made_by_tonic(code: Code) -> Option<Refused> {
    match code {
        Code::OutOfRange | Code::ResourceExhausted => Some(Refused::RequestTooLarge),
        Code::Internal | Code::InvalidArgument | Code::Unknown => Some(Refused::Undecodable),
        // The encoding: methods that do not exist never come as far as tonic.
        Code::Unimplemented => Some(Refused::NotServed),
        _ => None,
    }
}

/// The served method as a label: one of the table's, never the caller's text.
fn rpc_name(path: &str) -> Option<&'static str> {
    let method = path.rsplit('/').next().unwrap_or_default();
    Rpc::ALL.iter().map(|rpc| rpc.name()).find(|name| *name == method)
}
