//! The composition root: the only place that knows every room.

mod issuers;
mod keys;
mod ledger;
mod listen;
mod open_journal;
mod recover;
mod reload;
mod sinks;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::adapters::clock::SystemClock;
use crate::adapters::journal::{self, JournalFiles, JournalOptions};
use crate::adapters::ledger::{OpenError, PostgresError};
use crate::adapters::sinks::{OpenError as SinksOpenError, Sinks};
use crate::adapters::upstream::{GrpcUpstreams, UpstreamConfig};
use crate::config::{
    CallerConfig, Config, ConfirmationConfig, JournalConfig, LedgerConfig, ListenerConfig, Shows,
};
use crate::domain::audit::{Digest, JournalKeys};
use crate::domain::authorisation::Confirmations;
use crate::domain::ticket::KeysFault;
use crate::gate::{Gate, GateOptions, Ports, Recorder};
use crate::grpc::audit::AuditOptions;
use crate::grpc::listeners::Listener;
use crate::grpc::server::Services;
use crate::grpc::tls::{Tls, TlsFault};
use crate::ports::{AuditLog, Clock, Journal, Upstream};
use crate::proto::audit_server::AuditServer;
use crate::proto::confirmations_server::ConfirmationsServer;
use crate::proto::tool_gate_server::ToolGateServer;
use crate::telemetry::admin;
use crate::telemetry::metrics::{Metrics, MetricsError};
use crate::telemetry::readiness::{NotReady, Readiness};
use keys::known_keys;
pub use keys::{audit_keys, confirmation_keys};
use ledger::{Started, Unstarted};
use listen::{bind, callers, keep_tls};
use open_journal::{shown, why_not_ready};
use recover::open_and_recover;
pub use reload::Reloader;
use reload::{Loaded, Told};

/// How long idle connections get to close once every request has ended.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// How long the journal gets to write what it owes at the end.
const JOURNAL_GRACE: Duration = Duration::from_secs(5);

/// How long audit sinks get to deliver what came last.
const SINK_GRACE: Duration = Duration::from_secs(5);

/// How soon gRPC health follows the gate's readiness.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

/// A serving gate.
pub struct Running {
    addresses: Vec<String>,
    admin: SocketAddr,
    gate: Arc<Gate>,
    journal: Arc<JournalFiles>,
    ledger: Option<Started>,
    drain: Duration,
    stop_serving: CancellationToken,
    stop_admin: CancellationToken,
    servers: JoinSet<Result<(), tonic::transport::Error>>,
    admin_server: JoinHandle<()>,
    health: HealthReporter,
    follow_readiness: JoinHandle<()>,
    keep_ledger: JoinHandle<()>,
    keep_tls: JoinHandle<()>,
    reloader: Reloader,
    follow_files: Option<JoinHandle<()>>,
    sinks: Sinks,
    _key_files: issuers::Following,
}

/// Why a gate did not start.
#[derive(Debug)]
pub enum StartError {
    /// The ledger cannot be opened.
    Ledger(OpenError),
    /// The ledger's database cannot be used.
    Postgres {
        /// Which, and where.
        database: String,
        /// Why.
        source: PostgresError,
    },
    /// The calls that a killed process left running cannot be settled.
    LedgerRecovery,
    /// The ledger is older than the journal beside it.
    LedgerOld,
    /// The data directory has a ledger, and the configuration names none.
    LedgerLeftOut,
    /// The confirmation keys do not go together.
    Keys(KeysFault),
    /// The journal cannot be opened.
    Journal(journal::OpenError),
    /// How far the audit sinks are cannot be read.
    Sinks(SinksOpenError),
    /// The pairs that a killed process left open cannot be closed.
    Recovery,
    /// An address cannot be bound.
    Bind {
        /// Which.
        address: String,
        /// What the operating system says.
        source: io::Error,
    },
    /// The files of a listener's TLS cannot be used.
    Tls(TlsFault),
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
        let caller_secrets = caller_secrets(&config.callers);
        let confirmation = config.confirmation.as_ref().map(|terms| &terms.secrets);
        let keys = known_keys(&config.audit_secrets, confirmation).map_err(StartError::Keys)?;
        let policy = Arc::new(config.policy.snapshot);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (key, journal_keys) = audit_keys(&config.audit_secrets);
        let (confirmations, ledger) =
            open_ledger(config.confirmation, &config.data, &*clock).await?.unzip();
        let bounds = (&config.journal, config.journal_queue_events);
        let options = journal_options(&config.data, bounds, journal_keys, clock.now());
        let metrics = Metrics::new(env!("CARGO_PKG_VERSION"), policy.contracts().len())
            .map_err(StartError::Metrics)?;
        let tool_metrics = metrics.tools(policy.contracts().map(|contract| &*contract.name));
        let (journal, ledger) =
            open_and_recover(options, ledger, &policy, &*clock, &tool_metrics).await?;
        let recorder = recorder(confirmations, ledger.as_ref());
        let journal = shown(journal, &metrics);

        let upstreams = Arc::new(GrpcUpstreams::new(named(config.upstreams)));
        let gate = Gate::new(
            GateOptions {
                policy,
                key,
                read_durability: config.read_durability,
                in_flight: config.in_flight,
                recorder,
            },
            ports(&journal, &upstreams, &clock),
            metrics.clone(),
        );

        let Bound { admin_listener, admin, listeners, addresses, tls } =
            bind_all(config.admin, &config.listeners).await?;
        let (sinks, notices) =
            sinks::start(config.sinks, &config.data, &journal, &clock, &metrics).await?;
        let readiness = readiness(&gate, &journal);
        metrics.watch_readiness(Arc::clone(&readiness));
        let (tokens, key_files) = issuers::follow(config.jwt, &metrics);
        let callers = Arc::new(callers(&config.callers, tokens, &clock));
        let reloader = Reloader::new(
            Told {
                file: config.source.file.clone(),
                persistent: config.persistent,
                clock,
                metrics: metrics.clone(),
                readiness: Arc::clone(&readiness),
                sinks: Arc::clone(sinks.statuses()),
            },
            Loaded { source: config.source, caller_secrets, keys, upstreams },
            &gate,
            &journal,
        );
        let stop_serving = CancellationToken::new();
        let log = Arc::clone(&journal) as Arc<dyn AuditLog>;
        let audit = AuditOptions { log, watchers: config.watchers, ended: stop_serving.clone() };
        let (services, health) = Services::new(
            Arc::clone(&gate),
            Arc::new(reloader.clone()),
            callers,
            audit,
            metrics.clone(),
            config.transport,
        );
        let stop_admin = CancellationToken::new();
        let mut servers = JoinSet::new();
        for listener in listeners {
            servers.spawn(services.clone().serve(listener, stop_serving.clone()));
        }
        let keep_tls = tokio::spawn(keep_tls(tls, metrics.clone()));
        let keep_ledger = tokio::spawn(keep_ledger(Arc::clone(&gate)));
        let follow_files =
            config.poll.map(|every| tokio::spawn(reloader.clone().follow_files(every)));
        let follow_readiness =
            tokio::spawn(follow_readiness(health.clone(), Arc::clone(&readiness)));
        let stop = stop_admin.clone();
        let admin_server =
            tokio::spawn(admin::serve(admin_listener, metrics, readiness, notices, stop));
        // Everybody who holds records does so by now.
        journal.start_retention(config.journal.retention);
        announce(&addresses, admin, &gate, &journal);
        Ok(Self {
            addresses,
            admin,
            gate,
            journal,
            ledger,
            drain: config.drain,
            stop_serving,
            stop_admin,
            servers,
            admin_server,
            health,
            follow_readiness,
            keep_ledger,
            keep_tls,
            reloader,
            follow_files,
            sinks,
            _key_files: key_files,
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

    /// What loads configuration and policy again, and tells what is in force.
    #[must_use]
    pub const fn reloader(&self) -> &Reloader {
        &self.reloader
    }

    /// Drains: readiness off and new calls refused, running ones finish within
    /// their grace, then connections close, the journal is flushed and the ledger closed.
    pub async fn stop(mut self) {
        end(self.follow_readiness).await;
        tell_health(&self.health, false).await;
        self.gate.drain(self.drain).await;
        self.stop_serving.cancel();
        let closed = tokio::time::timeout(CLOSE_GRACE, async {
            while self.servers.join_next().await.is_some() {}
        });
        if closed.await.is_err() {
            self.servers.shutdown().await;
        }
        end(self.keep_ledger).await;
        end(self.keep_tls).await;
        if let Some(follow_files) = self.follow_files {
            end(follow_files).await;
        }
        self.reloader.close().await;
        if let Some(ledger) = self.ledger {
            ledger.close().await;
        }
        // The last event is there; the admin server still shows how far the sinks are.
        self.sinks.finish(self.journal.head().sequence, SINK_GRACE).await;
        self.stop_admin.cancel();
        // The admin server bounds its own closing; a panic of it costs nothing any more.
        drop(self.admin_server.await);
        let (gate, journal) = (self.gate, self.journal);
        // The last to hold them: closing waits for what is queued, and gives the locks back.
        let flushed = tokio::task::spawn_blocking(move || {
            drop(gate);
            journal.close(JOURNAL_GRACE)
        })
        .await;
        match flushed {
            Ok(Ok(())) => {}
            Ok(Err(unwritten)) => {
                tracing::error!(count = unwritten.events, "events were not written before the end");
            }
            Err(_) => tracing::error!("the journal could not be flushed"),
        }
    }
}

async fn keep_ledger(gate: Arc<Gate>) {
    gate.keep_ledger().await;
}

/// Ends a task that never ends by itself, and waits until what it held is dropped.
async fn end(task: JoinHandle<()>) {
    task.abort();
    drop(task.await);
}

/// What tells the callers' secrets from others, in the order of the configuration.
fn caller_secrets(callers: &[CallerConfig]) -> Vec<Digest> {
    let print = |caller: &CallerConfig| match &caller.shows {
        Shows::Secret(secret) => Some(secret.print()),
        Shows::Process(_) | Shows::Certificate(_) => None,
    };
    callers.iter().filter_map(print).collect()
}

fn named(
    upstreams: BTreeMap<String, UpstreamConfig>,
) -> impl Iterator<Item = (Arc<str>, UpstreamConfig)> {
    upstreams.into_iter().map(|(name, upstream)| (name.into(), upstream))
}

fn journal_options(
    data: &Path,
    (files, queue_events): (&JournalConfig, usize),
    keys: JournalKeys,
    now: Timestamp,
) -> JournalOptions {
    let new = JournalOptions::new(data.join("journal"), keys, now);
    let JournalConfig { segment_bytes, segment_age, min_free_bytes, .. } = *files;
    JournalOptions { segment_bytes, segment_age, min_free_bytes, queue_events, ..new }
}

/// The ledger, with the keys of the tickets whose use it remembers.
async fn open_ledger(
    config: Option<ConfirmationConfig>,
    data: &Path,
    clock: &dyn Clock,
) -> Result<Option<(Arc<Confirmations>, Unstarted)>, StartError> {
    let is_embedded =
        config.as_ref().is_some_and(|terms| matches!(terms.ledger, LedgerConfig::Embedded { .. }));
    if !is_embedded && data.join("ledger").exists() {
        return Err(StartError::LedgerLeftOut);
    }
    let Some(config) = config else { return Ok(None) };
    let keys = confirmation_keys(&config.secrets).map_err(StartError::Keys)?;
    let confirmations = Confirmations { keys, ticket_ttl: config.ticket_ttl, skew: config.skew };
    let ledger = Unstarted::open(&config.ledger, data, clock.now()).await?;
    Ok(Some((Arc::new(confirmations), ledger)))
}

fn recorder(
    confirmations: Option<Arc<Confirmations>>,
    ledger: Option<&Started>,
) -> Option<Recorder> {
    let both = confirmations.zip(ledger);
    both.map(|(confirmations, ledger)| Recorder { confirmations, ledger: ledger.port() })
}

fn ports(
    journal: &Arc<JournalFiles>,
    upstreams: &Arc<GrpcUpstreams>,
    clock: &Arc<dyn Clock>,
) -> Ports {
    Ports {
        journal: Arc::clone(journal) as Arc<dyn Journal>,
        upstream: Arc::clone(upstreams) as Arc<dyn Upstream>,
        clock: Arc::clone(clock),
    }
}

/// Every address, bound.
struct Bound {
    admin_listener: TcpListener,
    admin: SocketAddr,
    listeners: Vec<Listener>,
    addresses: Vec<String>,
    /// What some of the listeners speak TLS with.
    tls: Vec<Arc<Tls>>,
}

async fn bind_all(admin: SocketAddr, listeners: &[ListenerConfig]) -> Result<Bound, StartError> {
    let fault = |address: String| move |source| StartError::Bind { address, source };
    let admin_listener = TcpListener::bind(admin).await.map_err(fault(admin.to_string()))?;
    let admin = local(&admin_listener)?;
    let (listeners, tls) = bind(listeners).await?;
    let addresses = listeners.iter().map(Listener::address).collect::<io::Result<Vec<_>>>();
    let addresses = addresses.map_err(fault("listeners".to_owned()))?;
    Ok(Bound { admin_listener, admin, listeners, addresses, tls })
}

/// Logs where the gate is, and what is in force.
fn announce(addresses: &[String], admin: SocketAddr, gate: &Gate, journal: &JournalFiles) {
    for listener in addresses {
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

/// Of each service, and of the server as a whole, which a probe without a name asks for.
async fn tell_health(health: &HealthReporter, is_ready: bool) {
    let status = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
    let tool_gate = <ToolGateServer<()> as NamedService>::NAME;
    let confirmations = <ConfirmationsServer<()> as NamedService>::NAME;
    let audit = <AuditServer<()> as NamedService>::NAME;
    for service in [tool_gate, confirmations, audit, ""] {
        health.set_service_status(service, status).await;
    }
}

fn readiness(gate: &Arc<Gate>, journal: &Arc<JournalFiles>) -> Readiness {
    // Weak, for the metrics keep this as long as they live, and the gate keeps the ledger open.
    let (gate, journal) = (Arc::downgrade(gate), Arc::downgrade(journal));
    Arc::new(move || {
        let (Some(gate), Some(journal)) = (gate.upgrade(), journal.upgrade()) else {
            return vec![NotReady::Draining];
        };
        let draining = gate.is_draining().then_some(NotReady::Draining);
        let ledger = (!gate.is_ledger_ready()).then_some(NotReady::LedgerDown);
        let clock = (!gate.is_clock_trusted()).then_some(NotReady::ClockUntrusted);
        let journal = why_not_ready(&journal);
        draining.into_iter().chain(journal).chain(ledger).chain(clock).collect()
    })
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ledger(_) => f.write_str("the ledger cannot be opened"),
            Self::Postgres { database, .. } => {
                write!(f, "the ledger's database {database} cannot be used")
            }
            Self::LedgerRecovery => f.write_str(
                "the calls that a killed process left running cannot be settled in the ledger; look at the data directory's disk",
            ),
            Self::LedgerOld => f.write_str(
                "the ledger is older than the journal beside it: it has forgotten tickets that were spent since, and must not be used; if it was restored from a copy, run toolgate ledger new-identity, which ends every ticket that is out",
            ),
            Self::LedgerLeftOut => f.write_str(
                "the data directory has an embedded ledger, and the configuration does not use it: calls that a killed process left running could not be told; put ledger: {kind: embedded} and the confirmation section back, or move the directory ledger/ aside for good",
            ),
            Self::Keys(_) => f.write_str("the confirmation keys cannot be used"),
            Self::Journal(_) => f.write_str("the journal cannot be opened"),
            Self::Sinks(_) => f.write_str("the audit sinks cannot go on"),
            Self::Recovery => f.write_str(
                "the pairs that a killed process left open cannot be closed in the journal; look at the data directory's disk",
            ),
            Self::Bind { address, .. } => write!(f, "{address} cannot be bound"),
            Self::Tls(fault) => write!(f, "{fault}: {}", fault.mend()),
            Self::Metrics(_) => f.write_str("the metrics cannot be set up"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Ledger(error) => Some(error),
            Self::Postgres { source, .. } => Some(source),
            Self::Keys(error) => Some(error),
            Self::Journal(error) => Some(error),
            Self::Sinks(error) => Some(error),
            Self::Bind { source, .. } => Some(source),
            Self::Tls(error) => Some(error),
            Self::Metrics(error) => Some(error),
            Self::LedgerRecovery | Self::LedgerOld | Self::LedgerLeftOut | Self::Recovery => None,
        }
    }
}
