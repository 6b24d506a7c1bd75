//! Ports with scripts: what a test wants to happen outside the gate.

use std::collections::{HashMap, VecDeque};
use std::future;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use tokio::time::{Instant, sleep};
use toolgate::domain::audit::{AuditKey, ClosedSetFault, Digest, Entry, Event, Stamp};
use toolgate::domain::policy::PolicySnapshot;
use toolgate::domain::stages::Delivery;
use toolgate::gate::{Gate, GateOptions, Ports, Recorder};
use toolgate::ports::{Clock, Durability, Journal, JournalFault, Upstream, UpstreamFault};
use toolgate::telemetry::metrics::Metrics;

/// A gate before fakes, and what it counts.
pub fn gate(
    policy: Arc<PolicySnapshot>,
    in_flight: usize,
    recorder: Option<Recorder>,
    ports: Ports,
) -> (Arc<Gate>, Metrics) {
    let metrics = Metrics::new("test", policy.contracts().len()).unwrap();
    let options = GateOptions {
        policy,
        key: AuditKey::new("audit-1".into(), &[9; 32]),
        read_durability: Durability::Written,
        in_flight,
        recorder,
    };
    (Gate::new(options, ports, metrics.clone()), metrics)
}

/// A wall clock that follows the runtime's time, which tests pause and step.
pub struct SteppedClock {
    start: Timestamp,
    since: Instant,
    moved: AtomicI64,
}

impl SteppedClock {
    pub fn new() -> Self {
        Self {
            start: "2026-12-01T09:00:00Z".parse().unwrap(),
            since: Instant::now(),
            moved: AtomicI64::new(0),
        }
    }

    /// Sets the clock ahead of the runtime's time, or back behind it.
    pub fn move_by(&self, seconds: i64) {
        self.moved.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for SteppedClock {
    fn now(&self) -> Timestamp {
        self.start
            + SignedDuration::try_from(self.since.elapsed()).unwrap()
            + SignedDuration::from_secs(self.moved.load(Ordering::SeqCst))
    }
}

/// What the journal does with one append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalAct {
    Take,
    /// Takes after this long.
    TakeAfter(Duration),
    Fail,
    Full,
    Reject,
    Hang,
    /// Meets a fault of its own.
    Panic,
}

/// A journal in memory. Appends without an act left are taken. Administrative
/// events follow no act.
#[derive(Default)]
pub struct ScriptedJournal {
    acts: Mutex<VecDeque<JournalAct>>,
    taken: Mutex<Vec<Arc<Event>>>,
    owed: Mutex<Vec<Arc<Event>>>,
    asked: Mutex<Vec<Durability>>,
    not_ready: std::sync::atomic::AtomicBool,
}

impl ScriptedJournal {
    pub fn new(acts: impl IntoIterator<Item = JournalAct>) -> Self {
        Self { acts: Mutex::new(acts.into_iter().collect()), ..Self::default() }
    }

    /// Events that were acknowledged.
    pub fn taken(&self) -> Vec<Arc<Event>> {
        self.taken.lock().unwrap().clone()
    }

    /// Events that were taken over but not acknowledged.
    pub fn owed(&self) -> Vec<Arc<Event>> {
        self.owed.lock().unwrap().clone()
    }

    /// The durability asked for, append by append.
    pub fn asked(&self) -> Vec<Durability> {
        self.asked.lock().unwrap().clone()
    }

    pub fn break_down(&self) {
        self.not_ready.store(true, Ordering::SeqCst);
    }
}

#[async_trait]
impl Journal for ScriptedJournal {
    async fn append(
        &self,
        entries: Vec<Entry>,
        durability: Durability,
    ) -> Result<Vec<Stamp>, JournalFault> {
        let mut events = Vec::new();
        for entry in entries {
            match entry {
                Entry::Call(event) => events.push(event),
                Entry::Admin(_) => return Ok(vec![stamp(0)]),
            }
        }
        self.asked.lock().unwrap().push(durability);
        let act = self.acts.lock().unwrap().pop_front().unwrap_or(JournalAct::Take);
        if let JournalAct::TakeAfter(time) = act {
            sleep(time).await;
        }
        match act {
            JournalAct::Take | JournalAct::TakeAfter(_) => {
                let mut taken = self.taken.lock().unwrap();
                let stamps = events.iter().zip(taken.len() as u64 + 1..);
                let stamps = stamps.map(|(_, sequence)| stamp(sequence)).collect();
                taken.extend(events);
                Ok(stamps)
            }
            JournalAct::Fail => {
                self.owed.lock().unwrap().extend(events);
                Err(JournalFault::Failed)
            }
            JournalAct::Full => Err(JournalFault::Full),
            JournalAct::Reject => Err(JournalFault::Rejected(ClosedSetFault { field: "tool" })),
            JournalAct::Panic => panic!("as the script says"),
            JournalAct::Hang => {
                self.owed.lock().unwrap().extend(events);
                future::pending().await
            }
        }
    }

    fn is_ready(&self) -> bool {
        !self.not_ready.load(Ordering::SeqCst)
    }
}

fn stamp(sequence: u64) -> Stamp {
    Stamp { journal_id: "journal".into(), sequence, mac: Digest([0; 32]) }
}

/// What a handler does with one attempt.
#[derive(Debug, Clone)]
pub enum Act {
    Answer(String),
    AnswerAfter(Duration, String),
    Status(&'static str),
    Unavailable,
    /// The connection ends once the request is on it.
    Lost,
    Malformed,
    Hang,
    Panic,
}

/// One delivery as the handler saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub tool: String,
    pub tenant_id: String,
    pub user_id: String,
    pub tool_call_id: String,
    pub idempotency_key: String,
    pub attempt: u32,
    pub arguments_json: String,
    pub timeout: Duration,
}

/// Handlers by tool: the n-th delivery of a tool follows its n-th act, the last act repeats.
#[derive(Default)]
pub struct ScriptedUpstream {
    acts: HashMap<String, Vec<Act>>,
    seen: Mutex<Vec<Seen>>,
    cancelled: AtomicUsize,
}

impl ScriptedUpstream {
    pub fn new(acts: impl IntoIterator<Item = (String, Vec<Act>)>) -> Self {
        Self { acts: acts.into_iter().collect(), ..Self::default() }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// How many deliveries were dropped before they had an answer.
    pub fn cancelled(&self) -> usize {
        self.cancelled.load(Ordering::SeqCst)
    }

    fn next_act(&self, delivery: &Delivery<'_>) -> Act {
        let tool = delivery.call.contract().name.to_string();
        let mut seen = self.seen.lock().unwrap();
        let before = seen.iter().filter(|seen| seen.tool == tool).count();
        let act = self.acts.get(&tool).map(|acts| acts[before.min(acts.len() - 1)].clone());
        seen.push(Seen {
            tool,
            tenant_id: delivery.context.tenant_id.to_string(),
            user_id: delivery.context.user_id.to_string(),
            tool_call_id: delivery.call.subject().tool_call_id.to_string(),
            idempotency_key: delivery.call.idempotency_key().to_owned(),
            attempt: delivery.attempt,
            arguments_json: delivery.call.arguments_json().to_owned(),
            timeout: delivery.timeout,
        });
        act.unwrap_or_else(|| Act::Answer("{}".to_owned()))
    }
}

#[async_trait]
impl Upstream for ScriptedUpstream {
    async fn invoke(&self, delivery: &Delivery<'_>) -> Result<String, UpstreamFault> {
        let act = self.next_act(delivery);
        let mut waiting = Waiting { upstream: self, answered: false };
        let answer = match act {
            Act::Answer(text) => Ok(text),
            Act::AnswerAfter(time, text) => {
                sleep(time).await;
                Ok(text)
            }
            Act::Status(code) => Err(UpstreamFault::Status { code }),
            Act::Unavailable => Err(UpstreamFault::Unavailable { sent: false }),
            Act::Lost => Err(UpstreamFault::Unavailable { sent: true }),
            Act::Malformed => Err(UpstreamFault::Malformed { ok: true }),
            Act::Hang => future::pending().await,
            Act::Panic => panic!("a fault inside an adapter"),
        };
        waiting.answered = true;
        answer
    }
}

struct Waiting<'a> {
    upstream: &'a ScriptedUpstream,
    answered: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.upstream.cancelled.fetch_add(1, Ordering::SeqCst);
        }
    }
}
