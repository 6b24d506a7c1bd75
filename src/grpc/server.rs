//! What every listener serves, and the limits of the transport.
//!
//! tonic hands hyper no limits of its own: every one that matters is set here.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tower::util::MapRequestLayer;

use super::admin::AdminService;
use super::audit::{AuditOptions, AuditService};
use super::callers::Callers;
use super::confirmations::ConfirmationsService;
use super::listeners::{Connections, Listener, remove_if_there};
use super::refusals::Guarded;
use super::request_body;
use super::tool_gate::ToolGateService;
use crate::gate::Gate;
use crate::ports::Administration;
use crate::proto;
use crate::proto::admin_server::AdminServer;
use crate::proto::audit_server::AuditServer;
use crate::proto::confirmations_server::ConfirmationsServer;
use crate::proto::tool_gate_server::ToolGateServer;
use crate::telemetry::metrics::Metrics;

const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection that is too old may take to end.
pub const CLOSING_TIME: Duration = Duration::from_mins(5);
const MAX_HEADER_LIST_BYTES: u32 = 16 * 1024;
const MAX_RESET_STREAMS: usize = 64;

/// What one listener takes from its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransportLimits {
    /// Bytes of one request message.
    pub max_request_bytes: usize,
    /// Connections at once; further ones wait to be accepted.
    pub max_connections: usize,
    /// After this long a connection takes no further requests and is closed once
    /// those that run have ended, [`CLOSING_TIME`] later at the latest.
    pub max_connection_age: Duration,
    /// Streams at once on one connection.
    pub max_streams_per_connection: u32,
}

/// The services that every listener serves.
#[derive(Clone)]
pub struct Services {
    routes: Routes,
    limits: TransportLimits,
}

impl Services {
    /// `ToolGate`, `Confirmations`, `Audit`, `Admin`, health, and reflection in both of its versions.
    #[must_use]
    pub fn new(
        gate: Arc<Gate>,
        administration: Arc<dyn Administration>,
        callers: Arc<Callers>,
        audit: AuditOptions,
        metrics: Metrics,
        limits: TransportLimits,
    ) -> (Self, tonic_health::server::HealthReporter) {
        let service = ToolGateServer::new(ToolGateService::new(Arc::clone(&gate)))
            .max_decoding_message_size(limits.max_request_bytes);
        let audit = AuditServer::new(AuditService::new(Arc::clone(&gate), audit, metrics.clone()))
            .max_decoding_message_size(limits.max_request_bytes);
        let confirmations = ConfirmationsServer::new(ConfirmationsService::new(gate))
            .max_decoding_message_size(limits.max_request_bytes);
        let admin = AdminServer::new(AdminService::new(administration))
            .max_decoding_message_size(limits.max_request_bytes);
        let (reporter, health) = tonic_health::server::health_reporter();
        let routes = Routes::new(Guarded::new(service, Arc::clone(&callers), metrics.clone()))
            .add_service(Guarded::new(confirmations, Arc::clone(&callers), metrics.clone()))
            .add_service(Guarded::new(audit, Arc::clone(&callers), metrics.clone()))
            .add_service(Guarded::new(admin, callers, metrics))
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
        let server = Server::builder()
            .max_concurrent_streams(self.limits.max_streams_per_connection)
            .http2_max_header_list_size(MAX_HEADER_LIST_BYTES)
            .http2_max_local_error_reset_streams(Some(MAX_RESET_STREAMS))
            .http2_max_pending_accept_reset_streams(Some(MAX_RESET_STREAMS))
            .max_connection_age(self.limits.max_connection_age)
            .max_connection_age_grace(CLOSING_TIME)
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .layer(MapRequestLayer::new(request_body::in_time))
            .add_routes(self.routes);
        let shutdown = shutdown.cancelled_owned();
        match listener.connections(self.limits.max_connections) {
            Connections::Tcp(incoming) => {
                server.serve_with_incoming_shutdown(incoming, shutdown).await
            }
            Connections::Tls(incoming) => {
                server.serve_with_incoming_shutdown(incoming, shutdown).await
            }
            Connections::Unix(incoming, path) => {
                let ended = server.serve_with_incoming_shutdown(incoming, shutdown).await;
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
