//! Events as OpenTelemetry log records, by OTLP over gRPC.
//!
//! With the protocol's own client instead of the SDK's exporter: an event counts
//! as delivered when the receiver has answered for it, and the SDK does not say
//! which of its batches that was.

mod answer;
mod connection;
mod endpoint;
mod headers;
mod record;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use tonic::Request;
use tonic::transport::Channel;

use super::peer::{Item, NotTaken, Peer, SinkFault, Taken};
use crate::ports::Clock;
use connection::connect;
pub use endpoint::{OtlpEndpoint, OtlpEndpointFault};
pub use headers::{Headers, HeadersFault};

/// An answer holds a number and a message that nobody reads.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// Where and how records are delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtlpConfig {
    /// The receiver.
    pub endpoint: OtlpEndpoint,
    /// What TLS needs; `None` exactly where the endpoint is not https.
    pub tls: Option<OtlpTls>,
    /// A file of metadata that every request carries: credentials, mostly.
    pub headers_file: Option<PathBuf>,
    /// How long one delivery may take, connecting included.
    pub timeout: Duration,
}

/// The PEM files of a connection under TLS. Read whenever one is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtlpTls {
    /// Authorities that vouch for the receiver.
    pub ca: PathBuf,
    /// The certificate to show, and the key to it.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Delivers to one receiver.
pub(super) struct Otlp {
    config: OtlpConfig,
    journal_id: Arc<str>,
    clock: Arc<dyn Clock>,
    /// The connection over which the last delivery was answered.
    link: Option<Link>,
}

/// A connection, and what every request on it carries.
struct Link {
    client: LogsServiceClient<Channel>,
    headers: Headers,
}

impl Otlp {
    pub(super) fn new(config: OtlpConfig, journal_id: Arc<str>, clock: Arc<dyn Clock>) -> Self {
        Self { config, journal_id, clock, link: None }
    }

    async fn link(&mut self) -> Result<Link, NotTaken> {
        if let Some(link) = self.link.take() {
            return Ok(link);
        }
        // Read whenever a connection is made, so that what was rotated is used.
        let later = |fault| NotTaken::Later { fault, wait: None };
        let config = self.config.clone();
        let read = tokio::task::spawn_blocking(move || {
            let headers = config.headers_file.as_deref().map(Headers::read).transpose();
            (headers.map(Option::unwrap_or_default).ok(), config.tls.map(|tls| tls.read()))
        });
        let (headers, tls) = read.await.map_err(|_| later(SinkFault::Files))?;
        let headers = headers.ok_or(later(SinkFault::Files))?;
        let tls = tls.transpose().map_err(|_| later(SinkFault::Files))?;
        let channel =
            connect(&self.config.endpoint, tls).await.map_err(|_| later(SinkFault::Unreachable))?;
        let client = LogsServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES);
        Ok(Link { client, headers })
    }
}

#[async_trait]
impl Peer for Otlp {
    /// Keeps the connection only where the receiver took something over it: after
    /// anything else, a dropped future included, the next delivery makes another.
    async fn deliver(&mut self, items: &[Item]) -> Result<Taken, NotTaken> {
        let mut link = self.link().await?;
        let mut request = Request::new(record::request(items, &self.journal_id, self.clock.now()));
        link.headers.put(request.metadata_mut());
        match link.client.export(request).await {
            Ok(response) => {
                self.link = Some(link);
                let ExportLogsServiceResponse { partial_success } = response.into_inner();
                let rejected = partial_success.map_or(0, |partial| partial.rejected_log_records);
                // What is no count of them rejects none of them.
                let rejected = u64::try_from(rejected).unwrap_or(0).min(items.len() as u64);
                Ok(Taken { rejected })
            }
            Err(status) => {
                let not_taken = answer::of(&status);
                if not_taken == NotTaken::Refused {
                    self.link = Some(link);
                }
                Err(not_taken)
            }
        }
    }
}
