//! `toolgate status`: what is in force in a running gate.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::client::{GateAddress, told};
use super::{Failure, runtime};
use crate::proto::admin_client::AdminClient;
use crate::proto::{
    GetStatusRequest, GetStatusResponse, KeyStatus, LoadFault, ReloadReport, SinkStatus,
};

/// Shows what is in force. The secret must be that of a caller of role operator.
#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    gate: GateAddress,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Output::Human)]
    output: Output,
}

/// How an answer is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// For people
    Human,
    /// One JSON object, for programs
    Json,
}

/// More than the status of the largest policy.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

impl Status {
    /// Whether the gate is ready, once its status is printed.
    ///
    /// # Errors
    ///
    /// What the gate answers instead, or why it cannot be reached.
    pub fn run(self) -> Result<bool, Failure> {
        let status = runtime()?.block_on(async {
            let gate = self.gate.connect().await?;
            let request = gate.request(GetStatusRequest {});
            // A status names every contract, of which there may be many thousands.
            let mut client =
                AdminClient::new(gate.channel()).max_decoding_message_size(MAX_ANSWER_BYTES);
            let answer = client.get_status(request).await;
            answer.map(tonic::Response::into_inner).map_err(told)
        })?;
        let mut out = io::stdout().lock();
        match self.output {
            Output::Human => write!(out, "{}", human(&status))?,
            Output::Json => writeln!(out, "{}", as_json(&status))?,
        }
        Ok(status.not_ready.is_empty())
    }
}

fn human(status: &GetStatusResponse) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<14} {value}");
    };
    line("version", status.version.clone());
    line("serving since", time(status.serving_since.as_ref()));
    if status.not_ready.is_empty() {
        line("ready", "yes".to_owned());
    }
    for reason in &status.not_ready {
        line("not ready", reason.clone());
    }
    line("policy", status.policy_digest.clone());
    let count = status.contracts.len();
    line("", format!("{count} tools, since {}", time(status.policy_since.as_ref())));
    for contract in &status.contracts {
        line("tool", format!("{}  {}", contract.contract_digest, contract.name));
        for exception in &contract.exceptions {
            let [code, at, reason] = [&exception.code, &exception.at, &exception.reason];
            line("  exception", format!("{code} at {at}: {reason}"));
        }
    }
    for key in &status.keys {
        let use_of = if key.signs { "signs" } else { "verifies" };
        line("key", format!("{} {} {use_of}", purpose(key), key.id));
    }
    let works = |ready| if ready { "ready" } else { "not ready" };
    let journal = works(status.journal_ready);
    line("journal", format!("{} {journal}", status.journal_id));
    line("", format!("head {}:{}", status.journal_sequence, status.journal_mac));
    if let Some(ledger) = &status.ledger {
        let clock = if ledger.clock_trusted { "clock trusted" } else { "clock not trusted" };
        line("ledger", format!("{} {}, {clock}", ledger.id, works(ledger.ready)));
    }
    line("persistence", if status.persistent { "persistent" } else { "ephemeral" }.to_owned());
    for upstream in &status.upstreams {
        let [name, endpoint] = [&upstream.name, &upstream.endpoint];
        line("upstream", format!("{name} {endpoint} {}", upstream.connection));
    }
    for sink in &status.sinks {
        line("sink", sink_line(sink));
    }
    if let Some(report) = &status.last_reload {
        line("last reload", reload_line(report));
    }
    if let Some(report) = &status.last_failed_reload {
        line("last failure", reload_line(report));
        text.push_str(&faults(report));
    }
    text
}

/// Which, how far, and what stands in its way.
fn sink_line(sink: &SinkStatus) -> String {
    let SinkStatus { name, kind, address, sequence, lag, fault, code, .. } = sink;
    let mut text = format!("{name} {kind} {address}, at {sequence}, {lag} behind");
    for (count, what) in [(sink.rejected, "rejected"), (sink.missed, "missed")] {
        if count > 0 {
            // Writing to a String cannot fail.
            let _ = write!(text, ", {count} {what}");
        }
    }
    if !fault.is_empty() {
        let _ = write!(text, ", does not get on: {fault} {code}");
    }
    text.trim_end().to_owned()
}

/// When, what and by whom, in one line.
fn reload_line(report: &ReloadReport) -> String {
    format!(
        "{} {}, asked for by {}",
        time(report.time.as_ref()),
        word(report.result().as_str_name(), "RELOAD_RESULT_"),
        word(report.trigger().as_str_name(), "RELOAD_TRIGGER_"),
    )
}

/// The faults of a reload, as `toolgate check` prints them.
pub(super) fn faults(report: &ReloadReport) -> String {
    let mut text = String::new();
    for LoadFault { file, pointer, code, problem, mend } in &report.faults {
        for part in [file, pointer] {
            if !part.is_empty() {
                let _ = write!(text, "{}: ", part.escape_debug());
            }
        }
        let _ = writeln!(text, "{code}: {problem}\n  mend: {mend}");
    }
    let more = (report.fault_count as usize).saturating_sub(report.faults.len());
    if more > 0 {
        let _ = writeln!(text, "and {more} more: toolgate check shows all");
    }
    text
}

fn as_json(status: &GetStatusResponse) -> Value {
    let contracts = status.contracts.iter().map(|contract| {
        let exceptions = contract.exceptions.iter();
        json!({
            "name": contract.name,
            "contract_digest": contract.contract_digest,
            "exceptions": exceptions
                .map(|one| json!({"code": one.code, "at": one.at, "reason": one.reason}))
                .collect::<Vec<_>>(),
        })
    });
    let keys = status.keys.iter();
    let keys = keys.map(|key| json!({"purpose": purpose(key), "id": key.id, "signs": key.signs}));
    let upstreams = status.upstreams.iter().map(|upstream| {
        json!({
            "name": upstream.name,
            "endpoint": upstream.endpoint,
            "connection": upstream.connection,
        })
    });
    json!({
        "version": status.version,
        "serving_since": time(status.serving_since.as_ref()),
        "ready": status.not_ready.is_empty(),
        "not_ready": status.not_ready,
        "draining": status.draining,
        "policy_digest": status.policy_digest,
        "policy_since": time(status.policy_since.as_ref()),
        "contracts": contracts.collect::<Vec<_>>(),
        "keys": keys.collect::<Vec<_>>(),
        "journal": {
            "id": status.journal_id,
            "sequence": status.journal_sequence,
            "mac": status.journal_mac,
            "head": format!("{}:{}", status.journal_sequence, status.journal_mac),
            "ready": status.journal_ready,
        },
        "ledger": status.ledger.as_ref().map(|ledger| json!({
            "id": ledger.id,
            "ready": ledger.ready,
            "clock_trusted": ledger.clock_trusted,
        })),
        "persistent": status.persistent,
        "upstreams": upstreams.collect::<Vec<_>>(),
        "sinks": status.sinks.iter().map(sink_json).collect::<Vec<_>>(),
        "last_reload": status.last_reload.as_ref().map(report_json),
        "last_failed_reload": status.last_failed_reload.as_ref().map(report_json),
    })
}

fn sink_json(sink: &SinkStatus) -> Value {
    json!({
        "name": sink.name,
        "kind": sink.kind,
        "address": sink.address,
        "sequence": sink.sequence,
        "lag": sink.lag,
        "fault": sink.fault,
        "code": sink.code,
        "last_success": time(sink.last_success.as_ref()),
        "rejected": sink.rejected,
        "missed": sink.missed,
    })
}

/// A report as programs read it.
pub(super) fn report_json(report: &ReloadReport) -> Value {
    let fault = |fault: &LoadFault| {
        json!({
            "file": fault.file,
            "pointer": fault.pointer,
            "code": fault.code,
            "problem": fault.problem,
            "mend": fault.mend,
        })
    };
    json!({
        "time": time(report.time.as_ref()),
        "trigger": word(report.trigger().as_str_name(), "RELOAD_TRIGGER_"),
        "result": word(report.result().as_str_name(), "RELOAD_RESULT_"),
        "policy_digest_before": report.policy_digest_before,
        "policy_digest": report.policy_digest,
        "faults": report.faults.iter().map(fault).collect::<Vec<_>>(),
        "fault_count": report.fault_count,
    })
}

fn purpose(key: &KeyStatus) -> String {
    word(key.purpose().as_str_name(), "KEY_PURPOSE_")
}

/// The word of a wire enum, as the journal writes it.
fn word(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_lowercase()
}

/// RFC 3339, whole seconds.
fn time(time: Option<&prost_types::Timestamp>) -> String {
    let at = time.and_then(|time| Timestamp::new(time.seconds, time.nanos).ok());
    at.map(|at| format!("{at:.0}")).unwrap_or_default()
}
