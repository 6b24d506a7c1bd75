//! Metrics: OpenTelemetry instruments, read in Prometheus' text format.
//!
//! [`Metrics`] owns the instruments and has one method for each thing that
//! happens; [`ToolMetrics`] counts completed tool calls against the tools of one
//! policy snapshot. Every label value is a registered name, a name from the
//! configuration or a fixed word: never an identifier, a tenant, an error's text
//! or a name that a model made up. `docs/metrics.md` lists them all.

mod instruments;
mod journal;
mod open_metrics;
mod sinks;
mod tools;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Registry, TextEncoder};

use self::instruments::Instruments;
pub use self::journal::JournalGauges;
pub use self::tools::ToolMetrics;
use self::tools::ToolRooms;
use super::readiness::Readiness;
use crate::domain::audit::{Digest, ReloadResult};
use crate::ports::{JournalFault, SinkStatuses, UpstreamFault};

/// The instruments and their reader. A clone is another handle to the same.
#[derive(Clone)]
pub struct Metrics {
    inner: Arc<Inner>,
}

struct Inner {
    registry: Registry,
    // Held because the reader answers nothing once its provider is gone.
    provider: SdkMeterProvider,
    instruments: Instruments,
    rooms: ToolRooms,
    policy: Arc<Mutex<Option<Digest>>>,
}

/// One request between its start and its answer, counted as in flight until dropped.
#[must_use = "the request counts as in flight only while this lives"]
pub struct InFlight {
    metrics: Metrics,
}

/// One watcher of the journal, counted until dropped.
#[must_use = "the watcher counts only while this lives"]
pub struct Watching {
    metrics: Metrics,
}

/// Why the journal failed a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalFailure {
    /// Writing or syncing failed.
    Failed,
    /// The queue was full.
    Full,
    /// An event was outside its closed set.
    Rejected,
    /// The wait for it was given up.
    Late,
}

/// What was asked of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerOperation {
    /// What is known of a call and its ticket.
    Look,
    /// To spend tickets and open records.
    Reserve,
    /// To give reservations back.
    Release,
    /// To end a call.
    Settle,
    /// To revoke a ticket.
    Revoke,
    /// To judge the clock.
    Observe,
    /// To forget what is over.
    Forget,
    /// To take over from gates that have died.
    TakeOver,
}

/// What a scrape reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exposition {
    /// The media type of the text.
    pub content_type: &'static str,
    /// Prometheus' text format, version 0.0.4.
    pub text: String,
}

/// The metrics could not be set up or read.
#[derive(Debug)]
pub enum MetricsError {
    /// The exporter did not accept its registry.
    Exporter(OTelSdkError),
    /// The families read could not be written as text.
    Encoding(prometheus::Error),
}

const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

impl Metrics {
    /// Sets up every instrument, with room for the tools registered now and for those that
    /// later reloads may bring (see [`Metrics::tools`]). `version` is the build's.
    ///
    /// # Errors
    ///
    /// [`MetricsError::Exporter`].
    pub fn new(version: &'static str, registered_tools: usize) -> Result<Self, MetricsError> {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .without_target_info()
            .build()
            .map_err(MetricsError::Exporter)?;
        let rooms = ToolRooms::new(registered_tools);
        let provider = SdkMeterProvider::builder()
            .with_reader(exporter)
            .with_view(instruments::series_limits(rooms.series()))
            .build();
        let policy = Arc::new(Mutex::new(None));
        let instruments =
            Instruments::new(&provider.meter("toolgate"), version, Arc::clone(&policy));
        Ok(Self { inner: Arc::new(Inner { registry, provider, instruments, rooms, policy }) })
    }

    /// The counters of one policy snapshot's tools, to be kept beside it.
    ///
    /// The series of a tool outlive a snapshot without it. A process has room for a number of
    /// names set at its start: twice the tools registered then, and at least 10,000; tools that
    /// find none left are counted as [`Event::UNKNOWN_TOOL`](crate::domain::audit::Event::UNKNOWN_TOOL).
    #[must_use]
    pub fn tools<'a>(&self, registered: impl IntoIterator<Item = &'a str>) -> ToolMetrics {
        ToolMetrics::new(
            self.inner.instruments.tool_calls.clone(),
            self.inner.instruments.tool_duration.clone(),
            self.inner.rooms.admit(registered),
        )
    }

    /// From now on `toolgate_ready` tells what `readiness` answers. For the composition root, once.
    pub fn watch_readiness(&self, readiness: Readiness) {
        instruments::observe_ready(&self.inner.provider.meter("toolgate"), readiness);
    }

    /// From now on the gauges of the journal tell what `ask` answers. For the composition root, once.
    pub fn watch_journal(&self, ask: impl Fn() -> Option<JournalGauges> + Send + Sync + 'static) {
        let ask: journal::Ask = Arc::new(ask);
        journal::observe(&self.inner.provider.meter("toolgate"), &ask);
    }

    /// From now on the sinks' metrics tell what `sinks` answers. For the composition root, once.
    pub fn watch_sinks(&self, sinks: &SinkStatuses) {
        sinks::observe(&self.inner.provider.meter("toolgate"), sinks);
    }

    /// A policy snapshot came into force.
    pub fn policy_loaded(&self, digest: Digest) {
        *self.inner.policy.lock().unwrap_or_else(PoisonError::into_inner) = Some(digest);
    }

    /// A request began; it is in flight until the guard is dropped.
    pub fn request_started(&self) -> InFlight {
        self.inner.instruments.in_flight.add(1);
        InFlight { metrics: self.clone() }
    }

    /// A watcher follows the journal until the guard is dropped.
    pub fn watcher_started(&self) -> Watching {
        self.inner.instruments.watchers.add(1);
        Watching { metrics: self.clone() }
    }

    /// A request was answered with a status other than OK.
    ///
    /// `rpc` is the method's name, `code` the status code's, `reason` the `ErrorInfo` reason's:
    /// all from fixed tables.
    pub fn request_refused(&self, rpc: &'static str, code: &'static str, reason: &'static str) {
        self.inner.instruments.refused.add(
            1,
            &[
                KeyValue::new("code", code),
                KeyValue::new("reason", reason),
                KeyValue::new("rpc", rpc),
            ],
        );
    }

    /// Nobody was recognised by what a request showed in this `way`: words of fixed tables.
    pub fn caller_unknown(&self, way: &'static str, result: &'static str) {
        let labels = [KeyValue::new("result", result), KeyValue::new("way", way)];
        self.inner.instruments.callers.add(1, &labels);
    }

    /// An issuer's keys were found changed, and taken or not.
    pub fn issuer_keys_read(&self, are_taken: bool) {
        let result = if are_taken { "taken" } else { "refused" };
        self.inner.instruments.issuer_keys.add(1, &[KeyValue::new("result", result)]);
    }

    /// A request was turned away because too many were in flight.
    pub fn request_shed(&self) {
        self.inner.instruments.shed.add(1);
    }

    /// An append was answered with stamps after `waited`; `head` is the last event's sequence.
    pub fn journal_appended(&self, waited: Duration, head: u64) {
        self.inner.instruments.append_duration.record(waited.as_secs_f64());
        self.inner.instruments.journal_head.record(head);
    }

    /// The journal was opened; `head` is the sequence of its last event.
    pub fn journal_opened(&self, head: u64) {
        self.inner.instruments.journal_head.record(head);
    }

    /// An append was not answered with stamps.
    pub fn journal_failed(&self, failure: JournalFailure) {
        self.inner.instruments.journal_failures.add(1, &[KeyValue::new("kind", failure.as_str())]);
    }

    /// An attempt ended without a result. `upstream` is a name from the configuration.
    pub fn upstream_failed(&self, upstream: &str, fault: UpstreamFault) {
        let kind = match fault {
            UpstreamFault::Status { .. } => "status",
            UpstreamFault::Unavailable { .. } => "unavailable",
            UpstreamFault::Malformed { .. } => "malformed",
        };
        self.inner
            .instruments
            .upstream_failures
            .add(1, &[KeyValue::new("kind", kind), KeyValue::new("upstream", upstream.to_owned())]);
    }

    /// A ticket was `issued`, `revoked` or `spent`, or did not let a call run for the reason of
    /// this code: all from fixed tables.
    pub fn confirmation(&self, result: &'static str) {
        self.inner.instruments.confirmations.add(1, &[KeyValue::new("result", result)]);
    }

    /// The files of a listener's TLS have changed, and were taken or not.
    pub fn tls_reloaded(&self, taken: bool) {
        let result = if taken { "taken" } else { "refused" };
        self.inner.instruments.tls_reloads.add(1, &[KeyValue::new("result", result)]);
    }

    /// The ledger answered after `waited`.
    pub fn ledger_answered(&self, operation: LedgerOperation, waited: Duration) {
        let labels = [KeyValue::new("operation", operation.as_str())];
        self.inner.instruments.ledger_duration.record(waited.as_secs_f64(), &labels);
    }

    /// The ledger did not answer.
    pub fn ledger_failed(&self, operation: LedgerOperation) {
        let labels = [KeyValue::new("operation", operation.as_str())];
        self.inner.instruments.ledger_failures.add(1, &labels);
    }

    /// A reload ended like this, at this time.
    pub fn reloaded(&self, result: ReloadResult, at: Timestamp) {
        let instruments = &self.inner.instruments;
        instruments.reloads.add(1, &[KeyValue::new("result", result.as_str())]);
        let is_good = result != ReloadResult::Failed;
        instruments.last_reload_successful.record(u64::from(is_good));
        if is_good {
            self.loaded_at(at);
        }
    }

    /// What is in force was found whole at this time: at the start, or by a reload.
    #[allow(clippy::cast_precision_loss, reason = "exact to the microsecond for 280 years")]
    pub fn loaded_at(&self, at: Timestamp) {
        let seconds = at.as_microsecond() as f64 / 1e6;
        self.inner.instruments.last_reload_success.record(seconds);
    }

    /// Everything as a scrape reads it. Takes time in proportion to the series in use.
    ///
    /// # Errors
    ///
    /// [`MetricsError::Encoding`].
    pub fn exposition(&self) -> Result<Exposition, MetricsError> {
        let text = TextEncoder::new()
            .encode_to_string(&self.inner.registry.gather())
            .map_err(MetricsError::Encoding)?;
        Ok(Exposition { content_type: CONTENT_TYPE, text })
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Watching {
    /// An event was handed to the watcher's stream.
    pub fn event_sent(&self) {
        self.metrics.inner.instruments.audit_events_sent.add(1);
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.metrics.inner.instruments.watchers.add(-1);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.metrics.inner.instruments.in_flight.add(-1);
    }
}

impl LedgerOperation {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Reserve => "reserve",
            Self::Release => "release",
            Self::Settle => "settle",
            Self::Revoke => "revoke",
            Self::Observe => "observe",
            Self::TakeOver => "take_over",
            Self::Forget => "forget",
        }
    }
}

impl JournalFailure {
    const ALL: [Self; 4] = [Self::Failed, Self::Full, Self::Rejected, Self::Late];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Full => "full",
            Self::Rejected => "rejected",
            Self::Late => "late",
        }
    }
}

impl From<JournalFault> for JournalFailure {
    fn from(fault: JournalFault) -> Self {
        match fault {
            JournalFault::Failed => Self::Failed,
            JournalFault::Full => Self::Full,
            JournalFault::Rejected(_) => Self::Rejected,
        }
    }
}

impl fmt::Display for MetricsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exporter(_) => "the metrics exporter could not be set up",
            Self::Encoding(_) => "the metrics could not be written as text",
        })
    }
}

impl std::error::Error for MetricsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Exporter(error) => Some(error),
            Self::Encoding(error) => Some(error),
        }
    }
}
