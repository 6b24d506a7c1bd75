//! The registered handlers, reached over gRPC.
//!
//! An attempt's fate hangs on what exactly came back: a status that the handler
//! sent ends the call, the lack of one may be tried again, and only a request
//! that was never put on a connection had no effect for certain. General gRPC
//! clients fold these into one status type, and run a timer of their own whose
//! verdict looks like the handler's. So this adapter speaks unary gRPC itself, on
//! hyper's HTTP/2: `request` builds the request, `connection` owns the one
//! connection of an endpoint, `answer` reads what comes back.
//!
//! There is no timer on a call in here. The gate bounds each attempt by dropping
//! its future, which resets the stream.

mod answer;
mod connection;
mod endpoint;
mod request;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use prost::Message;

use crate::domain::stages::Delivery;
use crate::ports::{Upstream, UpstreamFault};
use crate::proto::InvokeResponse;
pub use connection::LinkState;
use connection::{Connection, SendFault};
pub use endpoint::{Endpoint, EndpointFault};

/// How one upstream is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamConfig {
    /// Where its handlers listen.
    pub endpoint: Endpoint,
    /// How long resolving and connecting may take together.
    pub connect_timeout: Duration,
    /// A connection this long without a frame is pinged, idle or not.
    pub keep_alive_interval: Duration,
    /// A ping unanswered for this long ends the connection.
    pub keep_alive_timeout: Duration,
}

/// All registered upstreams, each with at most one HTTP/2 connection.
///
/// Connections are made when first needed and made anew after they closed.
pub struct GrpcUpstreams {
    connections: BTreeMap<Arc<str>, Arc<Connection>>,
}

/// Bytes that an `InvokeResponse` may hold beside its `result_json`: tag, length,
/// and fields of a later version of the contract.
const MESSAGE_OVERHEAD_BYTES: usize = 1024;

impl UpstreamConfig {
    /// One second to connect, a ping after 20 s of silence, 10 s to answer it.
    #[must_use]
    pub const fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            connect_timeout: Duration::from_secs(1),
            keep_alive_interval: Duration::from_secs(20),
            keep_alive_timeout: Duration::from_secs(10),
        }
    }
}

impl GrpcUpstreams {
    /// Registers the upstreams. Connects to none.
    #[must_use]
    pub fn new(upstreams: impl IntoIterator<Item = (Arc<str>, UpstreamConfig)>) -> Self {
        let connections = upstreams
            .into_iter()
            .map(|(name, config)| (Arc::clone(&name), Arc::new(Connection::new(name, config))))
            .collect();
        Self { connections }
    }

    /// Registers other upstreams. One of the same name and configuration keeps
    /// its connection; the others' end with the calls that still use them.
    #[must_use]
    pub fn followed_by(
        &self,
        upstreams: impl IntoIterator<Item = (Arc<str>, UpstreamConfig)>,
    ) -> Self {
        let connections = upstreams.into_iter().map(|(name, config)| {
            let kept = self.connections.get(&name).filter(|kept| *kept.config() == config);
            let new = || Arc::new(Connection::new(Arc::clone(&name), config));
            (Arc::clone(&name), kept.map_or_else(new, Arc::clone))
        });
        Self { connections: connections.collect() }
    }

    /// Whether both register the same upstreams in the same way.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        let registered = |upstreams: &Self| -> Vec<_> {
            let all = upstreams.connections.iter();
            all.map(|(name, connection)| (Arc::clone(name), connection.config().clone())).collect()
        };
        registered(self) == registered(other)
    }

    /// Each upstream's name and the state of its connection, in the order of names.
    pub fn states(&self) -> impl Iterator<Item = (&str, LinkState)> {
        self.connections.iter().map(|(name, connection)| (&**name, connection.state()))
    }

    /// Where the upstream of this name is.
    #[must_use]
    pub fn endpoint(&self, name: &str) -> Option<&Endpoint> {
        self.connections.get(name).map(|connection| &connection.config().endpoint)
    }
}

#[async_trait]
impl Upstream for GrpcUpstreams {
    async fn invoke(&self, delivery: &Delivery<'_>) -> Result<String, UpstreamFault> {
        // Loading refuses a contract whose upstream is not registered.
        let Some(connection) = self.connections.get(&*delivery.call.contract().upstream) else {
            return Err(UpstreamFault::Unavailable { sent: false });
        };
        let request = request::invoke(connection.uri(), delivery);
        let response = connection.send(request).await.map_err(|fault| match fault {
            SendFault::NotSent => UpstreamFault::Unavailable { sent: false },
            SendFault::MaybeSent => UpstreamFault::Unavailable { sent: true },
        })?;
        let max_result_bytes = delivery.call.contract().limits.max_result_bytes;
        let max_message_bytes = max_result_bytes.saturating_add(MESSAGE_OVERHEAD_BYTES);
        let message = answer::read(response, max_message_bytes).await?;
        result_json(message, max_result_bytes)
    }
}

fn result_json(message: Bytes, max_result_bytes: usize) -> Result<String, UpstreamFault> {
    let response =
        InvokeResponse::decode(message).map_err(|_| UpstreamFault::Malformed { ok: true })?;
    if response.result_json.len() > max_result_bytes {
        return Err(UpstreamFault::Malformed { ok: true });
    }
    Ok(response.result_json)
}
