//! What operators ask of a running gate.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::config::Fault;
use crate::domain::audit::{Digest, Head, KeyPurpose, ReloadResult, ReloadTrigger};
use crate::domain::policy::PolicySnapshot;
use crate::domain::refused::Refused;

/// The running gate, as its operators see it.
#[async_trait]
pub trait Administration: Send + Sync {
    /// What is in force, all of it at one moment; states of the outside world as they are now.
    ///
    /// # Errors
    ///
    /// [`Refused::Draining`] once the gate is gone.
    fn status(&self) -> Result<GateStatus, Refused>;

    /// Loads configuration and policy again and puts them in force if they are
    /// whole. One at a time; goes on where nobody waits for it any more.
    ///
    /// # Errors
    ///
    /// Where nothing was tried. A reload that failed is a report.
    async fn reload(&self, trigger: ReloadTrigger) -> Result<ReloadReport, Refused>;
}

/// What is in force.
#[derive(Debug, Clone)]
pub struct GateStatus {
    /// The build's version.
    pub version: &'static str,
    /// The policy.
    pub policy: Arc<PolicySnapshot>,
    /// Since when.
    pub policy_since: Timestamp,
    /// The keys; of each purpose the one that signs comes first.
    pub keys: Vec<KeyStatus>,
    /// The last reload.
    pub last_reload: Option<ReloadReport>,
    /// The last that failed.
    pub last_failed_reload: Option<ReloadReport>,
    /// The journal.
    pub journal: JournalStatus,
    /// The ledger, where there is one.
    pub ledger: Option<LedgerStatus>,
    /// The registered upstreams, in the order of their names.
    pub upstreams: Vec<UpstreamStatus>,
    /// The audit sinks, in the order of the configuration.
    pub sinks: Vec<SinkStatus>,
    /// Whether the data directory is declared to outlive the process.
    pub persistent: bool,
    /// Since when the gate serves.
    pub serving_since: Timestamp,
    /// What stands in the way of new calls.
    pub not_ready: Vec<&'static str>,
    /// Whether the gate is stopping.
    pub draining: bool,
}

/// A key in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyStatus {
    /// What it is for.
    pub purpose: KeyPurpose,
    /// Its id.
    pub id: Arc<str>,
    /// Whether it signs.
    pub signs: bool,
}

/// The journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalStatus {
    /// Its id.
    pub id: Arc<str>,
    /// Its last event.
    pub head: Head,
    /// Whether it takes events.
    pub ready: bool,
}

/// The ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerStatus {
    /// Its id.
    pub id: Arc<str>,
    /// Whether it works.
    pub ready: bool,
    /// Whether the clock is not behind its high-water mark.
    pub clock_trusted: bool,
}

/// An upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamStatus {
    /// Its name.
    pub name: String,
    /// Where it is reached. Endpoints hold no credentials.
    pub endpoint: String,
    /// Its connection: idle, connecting, connected or failed.
    pub connection: &'static str,
}

/// An audit sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkStatus {
    /// Its name in the configuration.
    pub name: Arc<str>,
    /// What it is: stdout or otlp.
    pub kind: &'static str,
    /// Where it delivers. Holds no credentials.
    pub address: String,
    /// The last event that the receiver has answered for; 0 before the first.
    pub sequence: u64,
    /// Events that no crash can take from the journal and that come after it.
    pub lag: u64,
    /// Events that the receiver has taken since the start, repeated ones again.
    pub delivered: u64,
    /// Events that it will never take.
    pub rejected: u64,
    /// Events that the journal no longer had.
    pub missed: u64,
    /// Failures by kind, each try counted.
    pub failures: Vec<(&'static str, u64)>,
    /// What stands in the way since the last success: a kind of failure.
    pub fault: Option<&'static str>,
    /// The name of the status that the receiver answers with; empty without one.
    pub code: &'static str,
    /// When the receiver last took something, since the start.
    pub last_success: Option<Timestamp>,
}

/// Tells of every audit sink now. Reads state alone.
pub type SinkStatuses = Arc<dyn Fn() -> Vec<SinkStatus> + Send + Sync>;

/// A sink that has this many events to deliver is behind, also where nothing stands in its way.
pub const MUCH_BEHIND: u64 = 10_000;

impl SinkStatus {
    /// Whether the sink has not taken what it should have by now.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.fault.is_some() || self.lag >= MUCH_BEHIND
    }
}

/// What a reload did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReloadReport {
    /// When it ended.
    pub at: Timestamp,
    /// Who or what asked for it.
    pub trigger: ReloadTrigger,
    /// What came of it.
    pub result: ReloadResult,
    /// The policy in force before.
    pub policy_digest_before: Digest,
    /// The policy in force after.
    pub policy_digest: Digest,
    /// Why it failed: the first faults, cut where they are long.
    pub faults: Vec<Fault>,
    /// How many there are in all.
    pub fault_count: usize,
}
