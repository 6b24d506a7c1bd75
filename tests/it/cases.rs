//! Behaviours of the gate as data: every file of `tests/cases/gate/`.
//!
//! A case holds a batch, scripts for handlers and journal, and what must come of
//! it: results, audit events in order, and what the handlers saw. Time is
//! paused, so durations are exact.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use serde::Deserialize;
use tokio::time::Instant;
use toolgate::domain::audit::{Event, EventKind};
use toolgate::domain::proposal::{Context, Proposal};
use toolgate::domain::refused::Refused;
use toolgate::gate::{
    AuditState, BatchReport, CallResult, ExecuteRequest, Ports, RecordedEvent, Step, Steps,
};

use crate::support::fakes::{
    Act, JournalAct, ScriptedJournal, ScriptedUpstream, SteppedClock, gate,
};
use crate::support::policies;
use crate::support::script::{self, Handler, JournalStep, Mode, compare};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    behaviour: String,
    #[serde(default)]
    mode: Mode,
    deadline_ms: Option<u64>,
    calls: Vec<Call>,
    #[serde(default)]
    handlers: BTreeMap<String, Vec<Handler>>,
    #[serde(default)]
    journal: Vec<JournalStep>,
    results: Vec<String>,
    events: Vec<String>,
    #[serde(default)]
    seen: Vec<String>,
    #[serde(default)]
    cancelled: usize,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    id: String,
    tool: String,
    #[serde(default = "empty_object")]
    arguments: String,
    attempt: Option<u32>,
    ticket: Option<String>,
}

fn empty_object() -> String {
    "{}".to_owned()
}

#[test]
fn every_case_behaves_as_written() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/gate");
    let mut count = 0;
    let mut wrong = Vec::new();
    for (file, case) in script::read::<Case>(&directory) {
        count += 1;
        let name = format!("{file}: {}", case.behaviour);
        for (way, is_streamed) in [("Execute", false), ("ExecuteStream", true)] {
            if let Err(difference) = play(case.clone(), is_streamed) {
                wrong.push(format!("{name}: {way}\n{difference}"));
            }
        }
    }
    assert!(count >= 40, "only {count} cases were found");
    assert!(wrong.is_empty(), "{} of {count} cases\n\n{}", wrong.len(), wrong.join("\n\n"));
}

fn play(case: Case, is_streamed: bool) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async move {
        let journal =
            Arc::new(ScriptedJournal::new(case.journal.iter().copied().map(JournalAct::from)));
        let upstream = Arc::new(ScriptedUpstream::new(
            case.handlers
                .into_iter()
                .map(|(tool, acts)| (tool, acts.into_iter().map(Act::from).collect())),
        ));
        let policy = policies::cases();
        let ports = Ports {
            journal: journal.clone(),
            upstream: upstream.clone(),
            clock: Arc::new(SteppedClock::new()),
        };
        let (gate, _) = gate(policy, 4, None, ports);
        let request = ExecuteRequest {
            context: Arc::new(Context {
                request_id: "request-1".into(),
                user_id: "user-1".into(),
                tenant_id: "tenant-1".into(),
                conversation_id: "conversation-1".into(),
            }),
            mode: case.mode.into(),
            proposals: case.calls.into_iter().map(Proposal::from).collect(),
            deadline: case.deadline_ms.map(|ms| Instant::now() + Duration::from_millis(ms)),
            trace: None,
        };
        let report = if is_streamed {
            gather(gate.execute_stream(request)).await
        } else {
            gate.execute(request).await
        };
        let report = report.map_err(|refused| format!("  refused: {refused:?}"))?;
        let seen = upstream.seen();
        let seen = seen.iter().map(|seen| {
            let ms = seen.timeout.as_millis();
            format!(
                "{} {} {} {} {ms}ms",
                seen.tool_call_id, seen.tool, seen.attempt, seen.arguments_json
            )
        });
        let mut differences = String::new();
        compare(&mut differences, "results", &case.results, &results(&report));
        compare(&mut differences, "events", &case.events, &events(&report));
        compare(&mut differences, "seen", &case.seen, &seen.collect::<Vec<_>>());
        if upstream.cancelled() != case.cancelled {
            let (wanted, got) = (case.cancelled, upstream.cancelled());
            writeln!(differences, "  cancelled: wanted {wanted}, got {got}").unwrap();
        }
        if differences.is_empty() { Ok(()) } else { Err(differences) }
    })
}

/// The report that the steps of a stream add up to.
async fn gather(steps: Result<Steps, Refused>) -> Result<BatchReport, Refused> {
    let mut steps = steps?;
    let (mut results, mut events) = (BTreeMap::new(), Vec::new());
    while let Some(step) = steps.next().await {
        match step? {
            Step::Event(event) => {
                let id = Some(&*event.event.tool_call_id);
                let mut ended = results.values().filter_map(|result: &CallResult| {
                    result.end.as_ref().and(result.tool_call_id.as_deref())
                });
                assert!(!ended.any(|ended| Some(ended) == id), "{id:?} had its result before");
                events.push(event);
            }
            Step::Result(index, result) => assert!(results.insert(index, *result).is_none()),
        }
    }
    let digest = policies::cases().digest();
    Ok(BatchReport { results: results.into_values().collect(), events, policy_digest: digest })
}

/// `ID OUTCOME REASON [attempt N] [audit] [faults] [= result]`, or `ID not_run`.
fn results(report: &BatchReport) -> Vec<String> {
    report.results.iter().map(result).collect()
}

fn result(result: &CallResult) -> String {
    let id = result.tool_call_id.as_deref().unwrap_or("-");
    let Some(end) = &result.end else { return format!("{id} not_run") };
    let mut line = format!("{id} {} {}", end.reason.outcome(), end.reason);
    if let Some(attempt) = end.attempt {
        write!(line, " attempt {attempt}").unwrap();
    }
    if end.audit != AuditState::Recorded {
        write!(line, " {:?}", end.audit).unwrap();
    }
    for fault in &end.faults {
        write!(line, " [{} {}", fault.pointer, fault.keyword).unwrap();
        if let Some(name) = &fault.missing {
            write!(line, " {name}").unwrap();
        }
        line.push(']');
    }
    if let Some(result) = &end.result_json {
        write!(line, " = {result}").unwrap();
    }
    line
}

/// `ID TOOL ATTEMPT started`, or `ID TOOL ATTEMPT OUTCOME REASON MS`; `(undelivered)` behind one without a stamp.
fn events(report: &BatchReport) -> Vec<String> {
    report.events.iter().map(event).collect()
}

fn event(recorded: &RecordedEvent) -> String {
    let Event { tool_call_id, tool, attempt, .. } = &*recorded.event;
    let mut line = format!("{tool_call_id} {tool} {attempt} ");
    match recorded.event.kind {
        EventKind::Started => line.push_str("started"),
        EventKind::Completed { reason, duration_us, .. } => {
            let ms = duration_us / 1000;
            write!(line, "{} {reason} {ms}ms", reason.outcome()).unwrap();
        }
    }
    if recorded.stamp.is_none() {
        line.push_str(" (undelivered)");
    }
    line
}

impl From<Call> for Proposal {
    fn from(call: Call) -> Self {
        Self {
            tool_call_id: call.id,
            name: call.tool,
            arguments_json: call.arguments,
            attempt: call.attempt,
            ticket: call.ticket,
        }
    }
}
