//! The metrics as operators see them: names, labels, replay, and their queries in a real Prometheus.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod prometheus;
mod replayed;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use toolgate::domain::audit::{Digest, Event, EventKind, PayloadSummary};
use toolgate::domain::proposal::Context;
use toolgate::domain::reason::{Effect, Outcome, Reason};
use toolgate::ports::{SinkStatus, SinkStatuses, UpstreamFault};
use toolgate::telemetry::metrics::{JournalFailure, JournalGauges, LedgerOperation, Metrics};

const KEPT: JournalGauges = JournalGauges {
    kept_bytes: 868_000_000,
    oldest: 41,
    free_bytes: Some(9_000_000_000),
    is_full: false,
    is_held: true,
    deleted_segments: 3,
    writes_failed: 2,
};
const DOCUMENT: &str = include_str!("../../docs/metrics.md");

/// One metric as the exposition or the documentation shows it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shown {
    name: String,
    kind: String,
    labels: BTreeSet<String>,
    help: String,
}

fn event(tool: &str, kind: EventKind) -> Event {
    let text = Arc::<str>::from("x");
    Event {
        kind,
        time: Timestamp::UNIX_EPOCH,
        context: Arc::new(Context {
            request_id: Arc::clone(&text),
            user_id: Arc::clone(&text),
            tenant_id: Arc::clone(&text),
            conversation_id: text,
        }),
        tool_call_id: Arc::from("call-1"),
        tool: Arc::from(tool),
        suggested_tool_hash: Digest([0; 32]),
        attempt: 1,
        arguments_summary: PayloadSummary::default(),
        arguments_digest: Digest([0; 32]),
        policy_digest: Digest([0; 32]),
        audit_key_id: Arc::from("k1"),
        confirmation: None,
        trace_id: None,
    }
}

fn completed(tool: &str, reason: Reason, duration: Duration) -> Event {
    let kind = EventKind::Completed {
        reason,
        duration_us: u64::try_from(duration.as_micros()).unwrap(),
        result_summary: None,
        result_digest: None,
        effect: Effect::None,
    };
    event(tool, kind)
}

fn millis(tool: &str, reason: Reason, millis: u64) -> Event {
    completed(tool, reason, Duration::from_millis(millis))
}

/// Every sample of the exposition, by its name and labels.
fn samples(metrics: &Metrics) -> BTreeMap<String, f64> {
    let text = metrics.exposition().unwrap().text;
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(series, value)| (series.to_owned(), value.parse().unwrap()))
        .collect()
}

fn assert_close(samples: &BTreeMap<String, f64>, series: &str, wanted: f64) {
    let got = samples.get(series).unwrap_or_else(|| panic!("no {series} in {samples:#?}"));
    assert!((got - wanted).abs() < 1e-9, "{series} is {got}, not {wanted}");
}

fn sink() -> SinkStatus {
    SinkStatus {
        name: Arc::from("collector"),
        kind: "otlp",
        address: "http://127.0.0.1:4317".to_owned(),
        sequence: 40,
        lag: 2,
        delivered: 38,
        rejected: 3,
        missed: 4,
        failures: vec![("timeout", 5), ("status", 0)],
        fault: Some("timeout"),
        code: "",
        last_success: Some(Timestamp::new(1_700_000_000, 500_000_000).unwrap()),
    }
}

/// Metrics of which every series was fed once.
fn fed() -> Metrics {
    let metrics = Metrics::new("1.2.3", 1).unwrap();
    metrics.watch_readiness(Arc::new(Vec::new));
    metrics.watch_journal(|| Some(KEPT));
    metrics.watch_sinks(&(Arc::new(|| vec![sink()]) as SinkStatuses));
    metrics.policy_loaded(Digest([7; 32]));
    metrics.request_refused("Execute", "UNAUTHENTICATED", "CREDENTIALS_MISSING");
    metrics.request_shed();
    metrics.caller_unknown("jwt", "expired");
    metrics.issuer_keys_read(true);
    metrics.journal_appended(Duration::from_millis(3), 41);
    metrics.journal_failed(JournalFailure::Full);
    metrics.confirmation("issued");
    metrics.reloaded(toolgate::domain::audit::ReloadResult::Applied, Timestamp::UNIX_EPOCH);
    metrics.ledger_answered(LedgerOperation::Reserve, Duration::from_millis(2));
    metrics.ledger_failed(LedgerOperation::Settle);
    metrics.tls_reloaded(true);
    metrics.watcher_started().event_sent();
    metrics.upstream_failed("documents", UpstreamFault::Status { code: "INTERNAL" });
    metrics.tools(["order.lookup"]).completed(&millis("order.lookup", Reason::Ok, 82));
    metrics
}

#[test]
fn what_is_shown_is_what_is_documented() {
    let shown = shown(&fed().exposition().unwrap().text);
    let documented = documented();
    assert_eq!(shown, documented);
    assert_eq!(shown.len(), 36);
}

#[test]
fn every_event_has_its_sample() {
    let metrics = fed();
    let in_flight = metrics.request_started();
    let first = samples(&metrics);
    assert_close(&first, "toolgate_requests_in_flight", 1.0);
    assert_close(&first, "toolgate_requests_shed_total", 1.0);
    assert_close(
        &first,
        "toolgate_requests_refused_total{code=\"UNAUTHENTICATED\",reason=\"CREDENTIALS_MISSING\",rpc=\"Execute\"}",
        1.0,
    );
    assert_close(&first, "toolgate_journal_append_duration_seconds_sum", 0.003);
    assert_close(&first, "toolgate_journal_head_sequence", 41.0);
    assert_close(&first, "toolgate_journal_failures_total{kind=\"full\"}", 1.0);
    assert_close(&first, "toolgate_journal_failures_total{kind=\"late\"}", 0.0);
    assert_close(
        &first,
        "toolgate_upstream_failures_total{kind=\"status\",upstream=\"documents\"}",
        1.0,
    );
    for (metric, wanted) in [
        ("events_delivered_total{", 38.0),
        ("events_rejected_total{", 3.0),
        ("events_missed_total{", 4.0),
        ("failures_total{kind=\"timeout\",", 5.0),
        ("failures_total{kind=\"status\",", 0.0),
        ("lag_events{", 2.0),
        ("last_success_timestamp_seconds{", 1_700_000_000.5),
    ] {
        let series = format!("toolgate_sink_{metric}sink=\"collector\"}}");
        assert_close(&first, &series, wanted);
    }
    assert_close(&first, "toolgate_confirmations_total{result=\"issued\"}", 1.0);
    let waited = "toolgate_ledger_operation_duration_seconds_sum{operation=\"reserve\"}";
    assert_close(&first, waited, 0.002);
    assert_close(&first, "toolgate_ledger_failures_total{operation=\"settle\"}", 1.0);
    assert_close(&first, "toolgate_build_info{version=\"1.2.3\"}", 1.0);
    assert_close(&first, "toolgate_ready", 1.0);

    drop(in_flight);
    metrics.policy_loaded(Digest([8; 32]));
    let second = samples(&metrics);
    assert_close(&second, "toolgate_requests_in_flight", 0.0);
    let policies: Vec<_> = second.keys().filter(|name| name.contains("policy_info")).collect();
    let digest = "08".repeat(32);
    assert_eq!(policies, [&format!("toolgate_policy_info{{policy_digest=\"{digest}\"}}")]);
}

#[test]
fn replay_counts_against_the_current_registry() {
    let metrics = Metrics::new("1.2.3", 1).unwrap();
    let events = [
        millis("order.lookup", Reason::Ok, 82),
        millis("refund.create", Reason::AttemptDeadline, 2_001),
        millis("refund.create", Reason::Ok, 311),
        event("order.lookup", EventKind::Started),
    ];

    metrics.tools(["search_knowledge_base"]).replay(&events);

    let samples = samples(&metrics);
    for (outcome, calls, seconds) in [("success", 2.0, 0.393), ("timeout", 1.0, 2.001)] {
        let labels = format!("{{outcome=\"{outcome}\",tool=\"unknown\"}}");
        assert_close(&samples, &format!("toolgate_tool_calls_total{labels}"), calls);
        assert_close(&samples, &format!("toolgate_tool_duration_seconds_count{labels}"), calls);
        assert_close(&samples, &format!("toolgate_tool_duration_seconds_sum{labels}"), seconds);
    }
    assert_eq!(samples.keys().filter(|name| name.contains("tool_calls_total")).count(), 2);
}

#[test]
fn the_recorded_duration_falls_into_its_bucket() {
    let metrics = Metrics::new("1.2.3", 1).unwrap();
    let tools = metrics.tools(["t"]);
    for micros in [80, 900, 1_000, 1_001, 2_000_000, 31_000_000] {
        tools.completed(&completed("t", Reason::Ok, Duration::from_micros(micros)));
    }

    let samples = samples(&metrics);
    for (bound, count) in
        [("0.0001", 1.0), ("0.001", 3.0), ("0.0025", 4.0), ("2", 5.0), ("30", 5.0), ("+Inf", 6.0)]
    {
        let series = format!(
            "toolgate_tool_duration_seconds_bucket{{outcome=\"success\",tool=\"t\",le=\"{bound}\"}}"
        );
        assert_close(&samples, &series, count);
    }
}

#[test]
fn a_reload_swaps_the_tools_and_keeps_the_counts() {
    let metrics = Metrics::new("1.2.3", 1).unwrap();
    let before = metrics.tools(["a", "b"]);
    before.completed(&millis("a", Reason::Ok, 1));
    before.completed(&millis("b", Reason::Ok, 1));

    let after = metrics.tools(["b", "c"]);
    after.completed(&millis("a", Reason::Ok, 1));
    after.completed(&millis("b", Reason::Ok, 1));
    after.completed(&millis("c", Reason::Ok, 1));
    // A call admitted before the reload ends under the snapshot that it holds.
    before.completed(&millis("a", Reason::Ok, 1));

    let samples = samples(&metrics);
    for (tool, calls) in [("a", 2.0), ("b", 2.0), ("c", 1.0), ("unknown", 1.0)] {
        let series = format!("toolgate_tool_calls_total{{outcome=\"success\",tool=\"{tool}\"}}");
        assert_close(&samples, &series, calls);
    }
}

#[test]
fn ten_thousand_tools_show_what_was_called_and_never_overflow() {
    const REASONS: [Reason; 5] = [
        Reason::ArgumentsInvalid,
        Reason::RuleDenied,
        Reason::AttemptDeadline,
        Reason::Ok,
        Reason::HandlerFailed,
    ];
    assert_eq!(REASONS.map(Reason::outcome), Outcome::ALL);
    let names: Vec<_> = (0..10_000).map(|n| format!("tool-{n}")).collect();
    let metrics = Metrics::new("1.2.3", names.len()).unwrap();
    let tools = metrics.tools(names.iter().map(String::as_str));
    let series = || {
        let samples = samples(&metrics);
        assert!(!samples.keys().any(|name| name.contains("overflow")));
        samples.keys().filter(|name| name.starts_with("toolgate_tool_calls_total")).count()
    };
    assert_eq!(series(), 0);

    for name in names.iter().take(1_000) {
        for reason in REASONS {
            tools.completed(&millis(name, reason, 1));
        }
    }
    assert_eq!(series(), 5_000);
}

#[test]
fn tools_without_room_are_unknown() {
    let metrics = Metrics::new("1.2.3", 1).unwrap();
    let names: Vec<_> = (0..10_001).map(|n| format!("tool-{n}")).collect();
    let tools = metrics.tools(names.iter().map(String::as_str));

    tools.completed(&millis("tool-9999", Reason::Ok, 1));
    tools.completed(&millis("tool-10000", Reason::Ok, 1));

    let samples = samples(&metrics);
    for tool in ["tool-9999", "unknown"] {
        let series = format!("toolgate_tool_calls_total{{outcome=\"success\",tool=\"{tool}\"}}");
        assert_close(&samples, &series, 1.0);
    }
}

/// Reads `# HELP`, `# TYPE` and the label names of the samples below them.
fn shown(text: &str) -> Vec<Shown> {
    let mut shown: Vec<Shown> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            shown.push(Shown {
                name: name.to_owned(),
                kind: String::new(),
                labels: BTreeSet::new(),
                help: help.to_owned(),
            });
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let metric = shown.last_mut().unwrap();
            rest.strip_prefix(&*metric.name).unwrap().trim().clone_into(&mut metric.kind);
        } else if let Some((_, labels)) = line.split_once('{') {
            let names = labels.split(',').map(|label| label.split_once('=').unwrap().0);
            let names = names.filter(|name| *name != "le").map(str::to_owned);
            shown.last_mut().unwrap().labels.extend(names);
        }
    }
    shown.sort();
    shown
}

/// Reads the table of metrics.
fn documented() -> Vec<Shown> {
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').map(|cell| cell.trim().replace('`', "")).collect();
        let [_, name, kind, labels, _unit, help, _] = &cells[..] else { panic!("{line}") };
        Shown {
            name: name.clone(),
            kind: kind.clone(),
            labels: labels.split(", ").filter(|l| !l.is_empty()).map(str::to_owned).collect(),
            help: help.clone(),
        }
    };
    let mut documented: Vec<_> =
        DOCUMENT.lines().filter(|line| line.starts_with("| `toolgate_")).map(row).collect();
    documented.sort();
    documented
}
