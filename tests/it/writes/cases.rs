//! Behaviours of confirmed writes as data: every file of `tests/cases/writes/`.
//!
//! A case holds rounds of one batch each, with tickets that the gate itself
//! issues, scripts for handlers, journal and ledger, and what must come of it:
//! results, audit events in order, what the ledger then knows, and what the
//! handlers saw. Every case runs in paused time on the ledger in memory and,
//! unless a script is about time or the ledger, in real time on the embedded one.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::{Instant, sleep};
use toolgate::adapters::ledger::{EmbeddedLedger, EmbeddedOptions};
use toolgate::domain::audit::{Event, EventKind};
use toolgate::domain::proposal::Proposal;
use toolgate::domain::record::CallKey;
use toolgate::domain::ticket::Issued;
use toolgate::domain::watermark::Reading;
use toolgate::gate::{AuditState, BatchReport, CallResult, RecordedEvent};
use toolgate::ports::{Clock as _, Durability};
use uuid::Uuid;

use super::stage::{Stage, context, proposal};
use crate::support::fakes::{Act, JournalAct, ScriptedJournal, ScriptedUpstream};
use crate::support::journal::endings_of;
use crate::support::ledger::{LedgerAct, MemoryLedger, Operation};
use crate::support::script::{self, Handler, JournalStep, Mode, compare};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    behaviour: String,
    /// Whether time must be paused for it.
    #[serde(default)]
    paused: bool,
    #[serde(default)]
    handlers: BTreeMap<String, Vec<Handler>>,
    #[serde(default)]
    journal: Vec<JournalStep>,
    rounds: Vec<Round>,
    #[serde(default)]
    seen: Vec<String>,
    /// The durability asked for, append by append.
    asked: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Round {
    #[serde(default)]
    mode: Mode,
    deadline_ms: Option<u64>,
    /// How far the clock is set ahead before it.
    #[serde(default)]
    after_s: i64,
    #[serde(default)]
    script: BTreeMap<Operated, Vec<LedgerStep>>,
    calls: Vec<Call>,
    /// Arrives alone once the first handler was entered.
    meanwhile: Option<Call>,
    results: Vec<String>,
    events: Vec<String>,
    /// What the ledger knows afterwards, by call.
    ledger: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    id: String,
    tool: String,
    #[serde(default = "letter")]
    text: String,
    attempt: Option<u32>,
    /// See [`Play::ticket`].
    #[serde(default)]
    ticket: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Operated {
    Look,
    Reserve,
    Release,
    Settle,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LedgerStep {
    Take,
    TakeAfterMs(u64),
    Fail,
    Hang,
}

fn letter() -> String {
    "a".to_owned()
}

#[test]
fn every_case_behaves_as_written_in_memory() {
    play_all(|case| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        Some(runtime.block_on(async {
            let ledger = Arc::new(MemoryLedger::default());
            Play::new(case, ledger.clone(), Some(ledger)).run().await
        }))
    });
}

#[test]
fn every_case_behaves_as_written_on_the_embedded_ledger() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    play_all(|case| {
        (!case.needs_paused_time()).then(|| {
            let directory = tempfile::tempdir().unwrap();
            let start = "2026-12-01T09:00:00Z".parse().unwrap();
            let options = EmbeddedOptions::new(directory.path().join("ledger"), start);
            let ledger = EmbeddedLedger::open(&options).unwrap();
            runtime.block_on(Play::new(case, Arc::new(ledger), None).run())
        })
    });
}

fn play_all(mut play: impl FnMut(Case) -> Option<Result<(), String>>) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/writes");
    let mut count = 0;
    let mut wrong = Vec::new();
    for (file, case) in script::read::<Case>(&directory) {
        let name = format!("{file}: {}", case.behaviour);
        match play(case) {
            None => continue,
            Some(Ok(())) => {}
            Some(Err(difference)) => wrong.push(format!("{name}\n{difference}")),
        }
        count += 1;
    }
    assert!(count >= 60, "only {count} cases were found");
    assert!(wrong.is_empty(), "{} of {count} cases\n\n{}", wrong.len(), wrong.join("\n\n"));
}

/// A case being played.
struct Play {
    stage: Stage,
    case: Case,
    scripted: Option<Arc<MemoryLedger>>,
    /// The ticket that each call came with last.
    used: HashMap<String, Arc<Issued>>,
    events: Vec<Event>,
    differences: String,
}

impl Play {
    fn new(
        case: Case,
        ledger: Arc<dyn toolgate::ports::Ledger>,
        scripted: Option<Arc<MemoryLedger>>,
    ) -> Self {
        let journal = ScriptedJournal::new(case.journal.iter().copied().map(JournalAct::from));
        let acts = case.handlers.clone().into_iter();
        let acts = acts.map(|(tool, acts)| (tool, acts.into_iter().map(Act::from).collect()));
        let stage = Stage::new(ledger, journal, ScriptedUpstream::new(acts));
        let (used, events, differences) = (HashMap::new(), Vec::new(), String::new());
        Self { stage, case, scripted, used, events, differences }
    }

    async fn run(mut self) -> Result<(), String> {
        // A call that has ended is not confirmed any more: all tickets are issued first.
        let mut tickets = Vec::new();
        for round in &self.case.rounds {
            for call in round.calls.iter().chain(&round.meanwhile) {
                tickets.push(self.ticket(call).await);
            }
        }
        let mut tickets = tickets.into_iter();
        for (number, round) in self.case.rounds.clone().into_iter().enumerate() {
            self.play(number, round, &mut tickets).await;
        }
        let seen = self.stage.upstream.seen();
        for seen in &seen {
            let key = CallKey::new(&context(), &seen.tool_call_id);
            assert_eq!(seen.idempotency_key, key.0.to_string());
        }
        let seen: Vec<_> = seen
            .iter()
            .map(|seen| {
                format!("{} {} {} {}", seen.tool_call_id, seen.tool, seen.attempt, text(seen))
            })
            .collect();
        compare(&mut self.differences, "seen", &self.case.seen, &seen);
        if let Some(wanted) = &self.case.asked {
            let asked = self.stage.journal.asked();
            let asked: Vec<_> = asked.into_iter().map(word).collect();
            compare(
                &mut self.differences,
                "asked",
                std::slice::from_ref(wanted),
                &[asked.join(" ")],
            );
        }
        // Fails where a pair is open.
        endings_of(&self.events);
        if self.differences.is_empty() { Ok(()) } else { Err(self.differences) }
    }

    async fn play(
        &mut self,
        number: usize,
        round: Round,
        tickets: &mut impl Iterator<Item = Option<Ticket>>,
    ) {
        self.stage.clock.move_by(round.after_s);
        let mut ids = Vec::new();
        let mut proposals = Vec::new();
        for call in round.calls.iter().chain(&round.meanwhile) {
            let ticket = self.shown(call, tickets.next().unwrap());
            proposals.push(Proposal { attempt: call.attempt, ticket, ..bare(call) });
            ids.push(call.id.clone());
        }
        let meanwhile = round.meanwhile.is_some().then(|| proposals.pop().unwrap());
        if let Some(ledger) = &self.scripted {
            ledger.script(round.script.into_iter().map(|(operated, steps)| {
                (operated.into(), steps.into_iter().map(LedgerAct::from).collect())
            }));
        }
        let deadline = round.deadline_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
        let stage = &self.stage;
        let execute = stage.execute(round.mode.into(), proposals, deadline);
        let (report, second) = tokio::join!(execute, async {
            let proposal = meanwhile?;
            while stage.upstream.seen().is_empty() {
                sleep(Duration::from_millis(1)).await;
            }
            Some(stage.execute(Mode::Continue.into(), vec![proposal], None).await.unwrap())
        });
        let reports = match report {
            Ok(report) => second.into_iter().chain([report]).collect(),
            Err(refused) => {
                let refused = vec![format!("{} {:?}", refused.row().reason, refused.row().code)];
                compare(&mut self.differences, "status", &round.results, &refused);
                Vec::new()
            }
        };
        if let Some(ledger) = &self.scripted {
            ledger.script([]);
        }
        let mut known = Vec::new();
        ids.dedup();
        for id in &ids {
            let ticket = self.used.get(id).map(|issued| &**issued);
            known.push(format!("{id} {}", self.stage.known(id, ticket).await));
        }
        self.tell(number, &round.results, &round.events, &reports);
        compare(&mut self.differences, &format!("{number} ledger"), &round.ledger, &known);
    }

    fn tell(
        &mut self,
        number: usize,
        results: &[String],
        events: &[String],
        reports: &[BatchReport],
    ) {
        let got = |what: fn(&BatchReport) -> Vec<String>| -> Vec<String> {
            reports.iter().flat_map(what).collect()
        };
        if !reports.is_empty() {
            let name = format!("{number} results");
            compare(&mut self.differences, &name, results, &got(result_lines));
        }
        compare(&mut self.differences, &format!("{number} events"), events, &got(event_lines));
        let all = reports.iter().flat_map(|report| &report.events);
        self.events.extend(all.map(|recorded| (*recorded.event).clone()));
    }

    /// What a call's `ticket` asks for before the first round: nothing, `fresh`,
    /// `again` (the one that the call came with last), `expired`, `future`,
    /// `revoked`, `garbage`, `other arguments`, `other user`, or `of ID`.
    async fn ticket(&self, call: &Call) -> Option<Ticket> {
        let issue = |context, proposal| self.stage.issue(context, proposal);
        let mut of = context();
        let mut proposal = bare(call);
        let moved = match &*call.ticket {
            "" => return None,
            "again" => return Some(Ticket::Again),
            "garbage" => return Some(Ticket::Text("e30.e30.e30".to_owned())),
            "expired" => -300,
            "future" => 31,
            "fresh" | "revoked" => 0,
            "other arguments" => {
                r#"{"text":"other"}"#.clone_into(&mut proposal.arguments_json);
                0
            }
            "other user" => {
                of.user_id = "user-2".into();
                0
            }
            other => {
                other.strip_prefix("of ").unwrap().clone_into(&mut proposal.tool_call_id);
                0
            }
        };
        self.set_clock(moved).await;
        let issued = issue(of, proposal).await;
        self.set_clock(-moved).await;
        if call.ticket == "revoked" {
            let id = Uuid::parse_str(&issued.claims.confirmation_id).unwrap();
            let revoked = self.stage.gate.revoke(&Arc::new(context()), id).await.unwrap();
            assert!(!revoked.was_spent);
        }
        Some(Ticket::Issued(Arc::new(issued)))
    }

    /// Moves the clock, and has the ledger believe it.
    async fn set_clock(&self, moved: i64) {
        self.stage.clock.move_by(moved);
        let at = Reading { now: self.stage.clock.now(), monotonic: Duration::ZERO };
        self.stage.ledger.accept_clock(at).await.unwrap();
    }

    /// The text of the ticket that a call comes with now.
    fn shown(&mut self, call: &Call, ticket: Option<Ticket>) -> Option<String> {
        match ticket? {
            Ticket::Text(text) => Some(text),
            Ticket::Again => Some(self.used[&call.id].ticket.clone()),
            Ticket::Issued(issued) => {
                let text = issued.ticket.clone();
                self.used.insert(call.id.clone(), issued);
                Some(text)
            }
        }
    }
}

enum Ticket {
    Issued(Arc<Issued>),
    Again,
    Text(String),
}

impl Case {
    fn needs_paused_time(&self) -> bool {
        let is_scripted = |round: &Round| !round.script.is_empty() || round.meanwhile.is_some();
        self.paused
            || self.handlers.values().flatten().any(|act| matches!(act, Handler::Hang))
            || self.journal.contains(&JournalStep::Hang)
            || self.rounds.iter().any(is_scripted)
    }
}

fn bare(call: &Call) -> Proposal {
    proposal(&call.id, &call.tool, &call.text)
}

fn text(seen: &crate::support::fakes::Seen) -> String {
    let value: serde_json::Value = serde_json::from_str(&seen.arguments_json).unwrap();
    value["text"].as_str().unwrap().to_owned()
}

fn word(durability: Durability) -> &'static str {
    match durability {
        Durability::Synced => "synced",
        Durability::Written => "written",
    }
}

/// `ID OUTCOME REASON EFFECT [attempt N] [retryable] [audit] [recorded …] [= result]`, or `ID not_run`.
fn result_lines(report: &BatchReport) -> Vec<String> {
    report.results.iter().map(result_line).collect()
}

fn result_line(result: &CallResult) -> String {
    let id = result.tool_call_id.as_deref().unwrap_or("-");
    let Some(end) = &result.end else { return format!("{id} not_run") };
    let mut line = format!("{id} {} {} {}", end.reason.outcome(), end.reason, end.effect.as_str());
    if let Some(attempt) = end.attempt {
        write!(line, " attempt {attempt}").unwrap();
    }
    if end.retryable {
        line.push_str(" retryable");
    }
    if end.audit != AuditState::Recorded {
        write!(line, " {:?}", end.audit).unwrap();
    }
    if let Some(recorded) = &end.recorded {
        write!(line, " recorded {} {}", recorded.reason, recorded.effect.as_str()).unwrap();
        if recorded.result_digest.is_some() {
            line.push_str(" with digest");
        }
    }
    if let Some(result) = &end.result_json {
        write!(line, " = {result}").unwrap();
    }
    line
}

/// `ID TOOL ATTEMPT started`, or `ID TOOL ATTEMPT OUTCOME REASON EFFECT`;
/// `(confirmed)` where it names a ticket, `(undelivered)` where it has no stamp.
fn event_lines(report: &BatchReport) -> Vec<String> {
    report.events.iter().map(event_line).collect()
}

fn event_line(recorded: &RecordedEvent) -> String {
    let Event { tool_call_id, tool, attempt, confirmation, .. } = &*recorded.event;
    let mut line = format!("{tool_call_id} {tool} {attempt} ");
    match recorded.event.kind {
        EventKind::Started => line.push_str("started"),
        EventKind::Completed { reason, effect, .. } => {
            write!(line, "{} {reason} {}", reason.outcome(), effect.as_str()).unwrap();
        }
    }
    if confirmation.is_some() {
        line.push_str(" (confirmed)");
    }
    if recorded.stamp.is_none() {
        line.push_str(" (undelivered)");
    }
    line
}

impl From<Operated> for Operation {
    fn from(operated: Operated) -> Self {
        match operated {
            Operated::Look => Self::Look,
            Operated::Reserve => Self::Reserve,
            Operated::Release => Self::Release,
            Operated::Settle => Self::Settle,
        }
    }
}

impl From<LedgerStep> for LedgerAct {
    fn from(step: LedgerStep) -> Self {
        match step {
            LedgerStep::Take => Self::Take,
            LedgerStep::TakeAfterMs(ms) => Self::TakeAfter(Duration::from_millis(ms)),
            LedgerStep::Fail => Self::Fail,
            LedgerStep::Hang => Self::Hang,
        }
    }
}
