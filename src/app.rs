//! The composition root: the only place that knows every room.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::adapters::clock::SystemClock;
use crate::adapters::journal::{JournalFiles, JournalOptions, OpenError, Recovered};
use crate::adapters::upstream::GrpcUpstreams;
use crate::config::{AuditSecrets, Config, ListenAt, Secret};
use crate::domain::audit::{AuditKey, JournalKey, JournalKeys, close_lost};
use crate::domain::caller::Role;
use crate::domain::policy::PolicySnapshot;
use crate::gate::{Gate, GateOptions, Ports};
use crate::grpc::callers::Callers;
use crate::grpc::server::{Listener, Services};
use crate::ports::{Clock, Durability, Journal};
use crate::proto::tool_gate_server::ToolGateServer;
use crate::telemetry::admin;
use crate::telemetry::metrics::{Metrics, MetricsError, ToolMetrics};
use crate::telemetry::readiness::{NotReady, Readiness};

/// How long idle connections get to close once every request has ended.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// How long the journal gets to write what it owes at the end.
const JOURNAL_GRACE: Duration = Duration::from_secs(5);

/// How soon gRPC health follows the gate's readiness.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

/// Lost pairs that one append closes. There may be more of them than the smallest
/// `limits.journal_queue_events` takes at once.
const CLOSED_AT_ONCE: usize = 32;

/// What HKDF derives from an audit secret (semantics, section 6).
const AUDIT_PURPOSE: &str = "toolgate/audit/v1";
const JOURNAL_PURPOSE: &str = "toolgate/journal/v1";

/// A serving gate.
pub struct Running {
    addresses: Vec<String>,
    admin: SocketAddr,
    gate: Arc<Gate>,
    journal: Arc<JournalFiles>,
    drain: Duration,
    stop_serving: CancellationToken,
    stop_admin: CancellationToken,
    servers: JoinSet<Result<(), tonic::transport::Error>>,
    admin_server: JoinHandle<()>,
    health: HealthReporter,
    follow_readiness: JoinHandle<()>,
}

/// Why a gate did not start.
#[derive(Debug)]
pub enum StartError {
    /// A contract needs the ledger.
    NeedsLedger(Arc<str>),
    /// The journal cannot be opened.
    Journal(OpenError),
    /// The pairs that a killed process left open cannot be closed.
    Recovery,
    /// An address cannot be bound.
    Bind {
        /// Which.
        address: String,
        /// What the operating system says.
        source: io::Error,
    },
    /// The metrics cannot be set up.
    Metrics(MetricsError),
}

impl Running {
    /// Opens the journal, closes what a killed process left open, and serves.
    ///
    /// # Errors
    ///
    /// See [`StartError`]. Nothing is left running.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let policy = Arc::new(config.policy.snapshot);
        refuse_what_needs_a_ledger(&policy)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (key, journal_keys) = audit_keys(&config.audit_secrets);

        let options = JournalOptions {
            segment_bytes: config.segment_bytes,
            queue_events: config.journal_queue_events,
            ..JournalOptions::new(config.data.join("journal"), journal_keys, clock.now())
        };
        let (journal, recovered) = JournalFiles::open(options).map_err(StartError::Journal)?;
        let journal = Arc::new(journal);

        let metrics = Metrics::new(env!("CARGO_PKG_VERSION"), policy.contracts().len())
            .map_err(StartError::Metrics)?;
        let tool_metrics = metrics.tools(policy.contracts().map(|contract| &*contract.name));
        close_open_pairs(&*journal, recovered, &*clock, &tool_metrics).await?;
        let upstreams =
            config.upstreams.into_iter().map(|(name, upstream)| (name.into(), upstream));
        let gate = Gate::new(
            GateOptions {
                policy,
                key,
                read_durability: config.read_durability,
                in_flight: config.in_flight,
            },
            Ports {
                journal: Arc::clone(&journal) as Arc<dyn Journal>,
                upstream: Arc::new(GrpcUpstreams::new(upstreams)),
                clock,
            },
            metrics.clone(),
        );

        let admin_listener = TcpListener::bind(config.admin)
            .await
            .map_err(|source| StartError::Bind { address: config.admin.to_string(), source })?;
        let admin = local(&admin_listener)?;
        let listeners = bind(&config.listeners).await?;
        let addresses = listeners
            .iter()
            .map(Listener::address)
            .collect::<io::Result<Vec<_>>>()
            .map_err(|source| StartError::Bind { address: "listeners".to_owned(), source })?;

        let readiness = readiness(&gate, &journal);
        metrics.watch_readiness(Arc::clone(&readiness));
        let callers = Arc::new(Callers::new(credentials(&config.callers)));
        let (services, health) =
            Services::new(Arc::clone(&gate), callers, metrics.clone(), config.transport);
        let stop_serving = CancellationToken::new();
        let stop_admin = CancellationToken::new();
        let mut servers = JoinSet::new();
        for listener in listeners {
            servers.spawn(services.clone().serve(listener, stop_serving.clone()));
        }
        let follow_readiness =
            tokio::spawn(follow_readiness(health.clone(), Arc::clone(&readiness)));
        let admin_server =
            tokio::spawn(admin::serve(admin_listener, metrics, readiness, stop_admin.clone()));
        for listener in &addresses {
            tracing::info!(listener, "serving");
        }
        tracing::info!(
            listener = %admin,
            policy_digest = %gate.policy().digest(),
            journal_id = %journal.id(),
            sequence = journal.head().sequence,
            version = env!("CARGO_PKG_VERSION"),
            "admin serving",
        );
        Ok(Self {
            addresses,
            admin,
            gate,
            journal,
            drain: config.drain,
            stop_serving,
            stop_admin,
            servers,
            admin_server,
            health,
            follow_readiness,
        })
    }

    /// Where clients reach the gate, in the order of the configuration.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Where metrics and probes are.
    #[must_use]
    pub const fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Drains: readiness off and new calls refused, running ones finish within
    /// their grace, then connections close and the journal is flushed.
    pub async fn stop(mut self) {
        self.follow_readiness.abort();
        tell_health(&self.health, false).await;
        self.gate.drain(self.drain).await;
        self.stop_serving.cancel();
        let closed = tokio::time::timeout(CLOSE_GRACE, async {
            while self.servers.join_next().await.is_some() {}
        });
        if closed.await.is_err() {
            self.servers.shutdown().await;
        }
        self.stop_admin.cancel();
        // The admin server bounds its own closing; a panic of it costs nothing any more.
        drop(self.admin_server.await);
        let journal = Arc::clone(&self.journal);
        let flushed = tokio::task::spawn_blocking(move || journal.close(JOURNAL_GRACE)).await;
        match flushed {
            Ok(Ok(())) => {}
            Ok(Err(unwritten)) => {
                tracing::error!(count = unwritten.events, "events were not written before the end");
            }
            Err(_) => tracing::error!("the journal could not be flushed"),
        }
    }
}

/// Writes and confirmed reads wait for the ledger; a gate that cannot run them does not offer them.
///
/// # Errors
///
/// [`StartError::NeedsLedger`] with the first tool that does.
pub fn refuse_what_needs_a_ledger(policy: &PolicySnapshot) -> Result<(), StartError> {
    match policy.contracts().find(|contract| contract.needs_record()) {
        Some(contract) => Err(StartError::NeedsLedger(Arc::clone(&contract.name))),
        None => Ok(()),
    }
}

/// The key that digests, and the chain's keys, the one that signs first.
fn audit_keys(secrets: &AuditSecrets) -> (AuditKey, JournalKeys) {
    let chain = |(_, secret): &(Arc<str>, Secret)| JournalKey::new(&secret.derive(JOURNAL_PURPOSE));
    let (id, secret) = &secrets.current;
    let key = AuditKey::new(Arc::clone(id), &secret.derive(AUDIT_PURPOSE));
    (key, JournalKeys::new(chain(&secrets.current), secrets.former.iter().map(chain)))
}

/// Loading has refused secrets that no metadata could carry.
fn credentials(callers: &[(Role, Secret)]) -> impl Iterator<Item = (Role, &[u8])> {
    callers.iter().filter_map(|(role, secret)| Some((*role, secret.as_credential().ok()?)))
}

/// Closes and counts what a killed process left open.
async fn close_open_pairs(
    journal: &dyn Journal,
    recovered: Recovered,
    clock: &dyn Clock,
    tool_metrics: &ToolMetrics,
) -> Result<(), StartError> {
    if recovered.cut_bytes > 0 {
        tracing::warn!(bytes = recovered.cut_bytes, "a torn tail of the journal was cut");
    }
    if recovered.open.is_empty() {
        return Ok(());
    }
    let lost: Vec<_> = close_lost(&recovered.open, clock.now()).into_iter().map(Arc::new).collect();
    tracing::warn!(count = lost.len(), "closing the pairs that a killed process left open");
    for some in lost.chunks(CLOSED_AT_ONCE) {
        journal
            .append(some.to_vec(), Durability::Synced)
            .await
            .map_err(|_| StartError::Recovery)?;
    }
    for event in &lost {
        tool_metrics.completed(event);
    }
    Ok(())
}

async fn bind(addresses: &[ListenAt]) -> Result<Vec<Listener>, StartError> {
    let mut listeners = Vec::with_capacity(addresses.len());
    for address in addresses {
        let bound = match address {
            ListenAt::Tcp(address) => Listener::tcp(*address).await,
            ListenAt::Unix(path) => Listener::unix(path),
        };
        let bound =
            bound.map_err(|source| StartError::Bind { address: address.to_string(), source });
        listeners.push(bound?);
    }
    Ok(listeners)
}

fn local(listener: &TcpListener) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(|source| StartError::Bind { address: "admin".to_owned(), source })
}

/// Lets gRPC health say what `/readyz` says.
async fn follow_readiness(health: HealthReporter, readiness: Readiness) {
    let mut interval = tokio::time::interval(HEALTH_INTERVAL);
    loop {
        interval.tick().await;
        tell_health(&health, readiness().is_empty()).await;
    }
}

/// Of the service, and of the server as a whole, which a probe without a name asks for.
async fn tell_health(health: &HealthReporter, is_ready: bool) {
    let status = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
    for service in [<ToolGateServer<()> as NamedService>::NAME, ""] {
        health.set_service_status(service, status).await;
    }
}

fn readiness(gate: &Arc<Gate>, journal: &Arc<JournalFiles>) -> Readiness {
    let (gate, journal) = (Arc::clone(gate), Arc::clone(journal));
    Arc::new(move || {
        let draining = gate.is_draining().then_some(NotReady::Draining);
        let journal = (!journal.is_ready()).then_some(NotReady::JournalDown);
        draining.into_iter().chain(journal).collect()
    })
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeedsLedger(name) => write!(
                f,
                "the tool {name} is a write or needs a confirmation, and this version has no ledger to remember either in; remove the tool, or make it a plain read"
            ),
            Self::Journal(_) => f.write_str("the journal cannot be opened"),
            Self::Recovery => f.write_str(
                "the pairs that a killed process left open cannot be closed in the journal; look at the data directory's disk",
            ),
            Self::Bind { address, .. } => write!(f, "{address} cannot be bound"),
            Self::Metrics(_) => f.write_str("the metrics cannot be set up"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Journal(error) => Some(error),
            Self::Bind { source, .. } => Some(source),
            Self::Metrics(error) => Some(error),
            Self::NeedsLedger(_) | Self::Recovery => None,
        }
    }
}
