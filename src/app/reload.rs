//! Loading configuration and policy again while the gate serves.
//!
//! A reload loads everything aside, holds it against what runs, records what it
//! is about to do, and puts it in force with one swap. Whatever does not go
//! well before that leaves all as it was.

mod next;
mod poll;
mod report;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::OwnedMutexGuard;

use super::keys::KnownKey;
use crate::adapters::journal::JournalFiles;
use crate::adapters::upstream::GrpcUpstreams;
use crate::config::{self, Config, Fault, Faults};
use crate::domain::audit::{AdminEvent, AdminKind, Digest, Entry, ReloadResult, ReloadTrigger};
use crate::domain::policy::PolicySnapshot;
use crate::domain::refusal::{Code, Finding};
use crate::domain::refused::Refused;
use crate::gate::{Gate, Terms};
use crate::ports::{
    Administration, Clock, Durability, GateStatus, Journal as _, JournalFault, JournalStatus,
    KeyStatus, LedgerStatus, ReloadReport, SinkStatuses, UpstreamStatus,
};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::readiness::{NotReady, Readiness};
use next::{Next, changed_keys};

/// How long a reload waits for the one before it.
const TURN_WAIT: Duration = Duration::from_secs(30);

/// How long the journal gets to record a reload, as for any event.
const RECORD_WAIT: Duration = Duration::from_secs(2);

/// Loads again whatever a running gate may change. A clone is another handle to the same.
#[derive(Clone)]
pub struct Reloader {
    inner: Arc<Inner>,
}

/// What the reloader is told once.
pub(super) struct Told {
    pub(super) file: PathBuf,
    pub(super) persistent: bool,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Metrics,
    pub(super) readiness: Readiness,
    pub(super) sinks: SinkStatuses,
}

/// What was loaded at the start, beside what the gate was given.
pub(super) struct Loaded {
    pub(super) source: config::Source,
    pub(super) caller_secrets: Vec<Digest>,
    pub(super) keys: Vec<KnownKey>,
    pub(super) upstreams: Arc<GrpcUpstreams>,
}

struct Inner {
    told: Told,
    /// Weak: the last of both is closed by whoever stops the gate.
    gate: Weak<Gate>,
    journal: Weak<JournalFiles>,
    serving_since: Timestamp,
    /// Held by the reload that runs.
    turn: Arc<tokio::sync::Mutex<Turn>>,
    shown: Mutex<Shown>,
}

/// What a reload compares with.
struct Turn {
    source: config::Source,
    caller_secrets: Vec<Digest>,
    is_closed: bool,
}

/// What the status shows. Changed together with what is in force.
struct Shown {
    policy: Arc<PolicySnapshot>,
    policy_since: Timestamp,
    keys: Vec<KnownKey>,
    upstreams: Arc<GrpcUpstreams>,
    last: Option<ReloadReport>,
    last_failed: Option<ReloadReport>,
}

/// Whether other terms came into force.
enum Done {
    Applied,
    Unchanged,
}

impl Reloader {
    pub(super) fn new(
        told: Told,
        loaded: Loaded,
        gate: &Arc<Gate>,
        journal: &Arc<JournalFiles>,
    ) -> Self {
        let now = told.clock.now();
        told.metrics.loaded_at(now);
        let shown = Shown {
            policy: gate.policy(),
            policy_since: now,
            keys: loaded.keys,
            upstreams: loaded.upstreams,
            last: None,
            last_failed: None,
        };
        let turn =
            Turn { source: loaded.source, caller_secrets: loaded.caller_secrets, is_closed: false };
        let inner = Inner {
            told,
            gate: Arc::downgrade(gate),
            journal: Arc::downgrade(journal),
            serving_since: now,
            turn: Arc::new(tokio::sync::Mutex::new(turn)),
            shown: Mutex::new(shown),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Waits for the reload that runs, and lets no other begin.
    pub(super) async fn close(&self) {
        self.inner.turn.lock().await.is_closed = true;
    }
}

#[async_trait]
impl Administration for Reloader {
    fn status(&self) -> Result<GateStatus, Refused> {
        self.inner.status()
    }

    async fn reload(&self, trigger: ReloadTrigger) -> Result<ReloadReport, Refused> {
        let waiting = Arc::clone(&self.inner.turn).lock_owned();
        let turn =
            tokio::time::timeout(TURN_WAIT, waiting).await.map_err(|_| Refused::ReloadRunning)?;
        let inner = Arc::clone(&self.inner);
        // A task of its own: what has begun ends, whoever still waits for it.
        let task = tokio::spawn(async move { inner.reload(turn, trigger).await });
        task.await.map_err(|_| Refused::Internal)?
    }
}

impl Inner {
    async fn reload(
        &self,
        mut turn: OwnedMutexGuard<Turn>,
        trigger: ReloadTrigger,
    ) -> Result<ReloadReport, Refused> {
        let (Some(gate), Some(journal)) = (self.gate.upgrade(), self.journal.upgrade()) else {
            return Err(Refused::Draining);
        };
        if turn.is_closed || gate.is_draining() {
            return Err(Refused::Draining);
        }
        let before = gate.policy().digest();
        let file = self.told.file.clone();
        let load = tokio::task::spawn_blocking(move || config::load_recorded(&file));
        let (loaded, reads) = load.await.map_err(|_| Refused::Internal)?;
        // Also where it has faults: the same files are not tried again by themselves.
        turn.source.reads = reads;
        let outcome = match loaded {
            Ok(config) => self.apply(config, &mut turn, &gate, &journal, trigger).await,
            Err(faults) => Err(faults),
        };
        let report = report::of(&outcome, trigger, before, &gate, self.told.clock.now());
        if outcome.is_err() {
            // What is in force stands, recorded or not.
            let kind = reload_kind(&report);
            let entries = vec![self.entry(kind, &gate.terms())];
            if record(&journal, entries).await.is_err() {
                tracing::error!("a failed reload could not be recorded");
            }
        }
        self.tell(&report);
        let mut shown = self.shown();
        shown.last = Some(report.clone());
        if report.result == ReloadResult::Failed {
            shown.last_failed = Some(report.clone());
        }
        Ok(report)
    }

    /// Everything that can go wrong comes before the first thing that is changed.
    async fn apply(
        &self,
        config: Config,
        turn: &mut Turn,
        gate: &Gate,
        journal: &JournalFiles,
        trigger: ReloadTrigger,
    ) -> Result<Done, Faults> {
        let (keys, upstreams, policy) = {
            let shown = self.shown();
            (shown.keys.clone(), Arc::clone(&shown.upstreams), Arc::clone(&shown.policy))
        };
        let next = Next::build(config, turn, &keys, &upstreams)?;
        if journal.check_keys(&next.journal_keys).is_err() {
            return Err(self.fault("/audit/keys", Code::SignerMissing, "a key is missing that has signed records of the journal: the next start could not verify them", "list it again behind the one that signs; take it off at a restart, once the journal holds none of its records"));
        }
        let terms = next.terms();
        let changes = changed_keys(&keys, &next.keys);
        let is_same = terms.policy.digest() == policy.digest()
            && next.keys == keys
            && next.upstreams.is_same_as(&upstreams);
        let result = if is_same { ReloadResult::Unchanged } else { ReloadResult::Applied };
        let before = policy.digest();
        let kinds = [AdminKind::Reload { result, trigger, policy_digest_before: before }]
            .into_iter()
            .chain(changes.iter().map(|(change, purpose, key_id)| AdminKind::Key {
                change: *change,
                purpose: *purpose,
                key_id: Arc::clone(key_id),
            }));
        let entries = kinds.map(|kind| self.entry(kind, &terms)).collect();
        if record(journal, entries).await.is_err() {
            return Err(self.fault(
                "",
                Code::NotDurable,
                "the journal cannot record the reload",
                "look at the data directory's disk, then reload again",
            ));
        }
        turn.source = next.source;
        if is_same {
            return Ok(Done::Unchanged);
        }
        // Checked above, and nobody else changes them: it cannot fail any more.
        if journal.change_keys(next.journal_keys).is_err() {
            tracing::error!("the journal keeps its former keys until a restart");
        }
        let mut shown = self.shown();
        gate.put_in_force(terms);
        shown.policy = gate.policy();
        if shown.policy.digest() != before {
            shown.policy_since = self.told.clock.now();
        }
        shown.keys = next.keys;
        shown.upstreams = next.upstreams;
        Ok(Done::Applied)
    }

    fn entry(&self, kind: AdminKind, terms: &Terms) -> Entry {
        Entry::Admin(Arc::new(AdminEvent {
            kind,
            time: self.told.clock.now(),
            context: None,
            confirmation_id: None,
            policy_digest: terms.policy.digest(),
            audit_key_id: Arc::clone(terms.key.id()),
            trace_id: None,
        }))
    }

    fn fault(&self, pointer: &str, code: Code, problem: &str, mend: &str) -> Faults {
        let finding = Finding::new(pointer, code, problem, mend);
        Faults::one(Fault::new(&self.told.file.to_string_lossy(), finding))
    }

    fn status(&self) -> Result<GateStatus, Refused> {
        let (Some(gate), Some(journal)) = (self.gate.upgrade(), self.journal.upgrade()) else {
            return Err(Refused::Draining);
        };
        let shown = self.shown();
        let key = |key: &KnownKey| KeyStatus {
            purpose: key.purpose,
            id: Arc::clone(&key.id),
            signs: key.signs,
        };
        let upstream =
            |(name, state): (&str, crate::adapters::upstream::LinkState)| UpstreamStatus {
                name: name.to_owned(),
                endpoint: shown
                    .upstreams
                    .endpoint(name)
                    .map(ToString::to_string)
                    .unwrap_or_default(),
                connection: state.as_str(),
            };
        Ok(GateStatus {
            version: env!("CARGO_PKG_VERSION"),
            policy: Arc::clone(&shown.policy),
            policy_since: shown.policy_since,
            keys: shown.keys.iter().map(key).collect(),
            last_reload: shown.last.clone(),
            last_failed_reload: shown.last_failed.clone(),
            journal: JournalStatus {
                id: Arc::clone(journal.id()),
                head: journal.head(),
                ready: journal.is_ready(),
            },
            ledger: gate.ledger_id().map(|id| LedgerStatus {
                id,
                ready: gate.is_ledger_ready(),
                clock_trusted: gate.is_clock_trusted(),
            }),
            upstreams: shown.upstreams.states().map(upstream).collect(),
            sinks: (self.told.sinks)(),
            persistent: self.told.persistent,
            serving_since: self.serving_since,
            not_ready: (self.told.readiness)().into_iter().map(NotReady::text).collect(),
            draining: gate.is_draining(),
        })
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn reload_kind(report: &ReloadReport) -> AdminKind {
    AdminKind::Reload {
        result: report.result,
        trigger: report.trigger,
        policy_digest_before: report.policy_digest_before,
    }
}

/// Records what is about to be in force.
///
/// # Errors
///
/// Where nothing was taken. An append that is late or failed is owed, and written
/// before anything later: what it says must come true.
async fn record(journal: &JournalFiles, entries: Vec<Entry>) -> Result<(), JournalFault> {
    if !journal.is_ready() {
        return Err(JournalFault::Failed);
    }
    let append = journal.append(entries, Durability::Synced);
    match tokio::time::timeout(RECORD_WAIT, append).await {
        Ok(Err(fault @ (JournalFault::Full | JournalFault::Rejected(_)))) => Err(fault),
        Ok(Ok(_) | Err(JournalFault::Failed)) | Err(_) => Ok(()),
    }
}
