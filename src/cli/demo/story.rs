//! Tells the demo: what was proposed, what happened, why, and whether it should have.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::time::Duration;

use serde_json::Value;
use tonic::Status;
use tonic_types::StatusExt as _;

use super::scenes::{SECRETS, Scene, Wanted};
use super::stage::Stage;
use crate::proto::{ConfirmationPreview, Effect, ExecuteResponse, ToolResult};

/// The teller. Remembers whether anything went wrong.
pub(super) struct Story {
    number: usize,
    pairs: usize,
    series: BTreeMap<String, f64>,
    wrong: Vec<String>,
}

const CALLS: &str = "toolgate_tool_calls_total";
const DURATIONS: &str = "toolgate_tool_duration_seconds_sum";

impl Story {
    pub(super) const fn new() -> Self {
        Self { number: 0, pairs: 0, series: BTreeMap::new(), wrong: Vec::new() }
    }

    pub(super) fn opening(stage: &Stage) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "ToolGate demo")?;
        writeln!(
            out,
            "  sample upstream   {} (gRPC, toolgate.v1.ToolHandler)",
            stage.upstream_address()
        )?;
        writeln!(out, "  gate              {} (gRPC, toolgate.v1.ToolGate)", stage.gate_address())?;
        writeln!(out, "  admin             http://{}/metrics", stage.admin_address()?)?;
        writeln!(out, "  journal and log   {}", stage.directory().display())?;
        writeln!(out, "  caller            tenant-north, user-anna, conversation-1; role proposer")
    }

    pub(super) fn scene(
        &mut self,
        scene: &Scene,
        answer: &ExecuteResponse,
        handler_calls: u64,
    ) -> io::Result<()> {
        self.number += 1;
        self.pairs += answer.events.len() / 2;
        let mut out = io::stdout().lock();
        writeln!(out, "\n{}. {}", self.number, scene.title)?;
        for call in scene.calls.iter().take(2) {
            writeln!(
                out,
                "   proposed  {} {} {}",
                call.tool_call_id, call.name, call.arguments_json
            )?;
        }
        if scene.calls.len() > 2 {
            writeln!(out, "   proposed  … and {} more", scene.calls.len() - 2)?;
        }
        for (call, result) in scene.calls.iter().zip(&answer.results) {
            if result.outcome() != crate::proto::Outcome::NotRun {
                tell_result(&mut out, &call.tool_call_id, result)?;
            }
        }
        let not_run = answer
            .results
            .iter()
            .filter(|result| result.outcome() == crate::proto::Outcome::NotRun);
        match not_run.count() {
            0 => {}
            count => writeln!(out, "   answered  {count} more: NOT_RUN")?,
        }
        writeln!(out, "   handler   called {handler_calls} times")?;
        writeln!(out, "   because   {}", scene.why)?;
        let as_wanted = answer.results.len() == scene.wanted.len()
            && answer
                .results
                .iter()
                .zip(&scene.wanted)
                .all(|(result, wanted)| is_as(result, *wanted));
        let text = format!("{answer:?}");
        let leaked = SECRETS.iter().any(|secret| text.contains(secret));
        let good = as_wanted && handler_calls == scene.handler_calls && !leaked;
        writeln!(out, "   {}", if good { "✓ as it should be" } else { "✗ NOT as it should be" })?;
        if !good {
            self.wrong.push(format!("scene {}: {}", self.number, scene.title));
        }
        Ok(())
    }

    /// What a person is asked to confirm.
    pub(super) fn preview(&mut self, preview: &ConfirmationPreview) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "\n   A confirmation page asks for the preview of it, and shows:")?;
        for line in preview.prompt.lines() {
            writeln!(out, "   | {line}")?;
        }
        if !preview.prompt.contains("The invoice of May") {
            self.wrong.push("the preview does not show what would be sent".to_owned());
        }
        Ok(())
    }

    /// A ticket that the gate did not issue.
    pub(super) fn refused_to_issue(
        &mut self,
        what: &str,
        status: Option<Status>,
        wanted: &str,
    ) -> io::Result<()> {
        let reason = status
            .and_then(|status| status.get_details_error_info())
            .map_or_else(|| "a ticket".to_owned(), |info| info.reason);
        let good = reason == wanted;
        let mark = if good { "✓" } else { "✗" };
        writeln!(
            io::stdout().lock(),
            "   {mark} asked to issue a ticket for {what}, the gate answers {reason}"
        )?;
        if !good {
            self.wrong.push(format!("issuing for {what}"));
        }
        Ok(())
    }

    pub(super) fn waiting(time: Duration) -> io::Result<()> {
        writeln!(io::stdout().lock(), "\n   … waiting {} s for a ticket to expire", time.as_secs())
    }

    /// What the handler has really done.
    pub(super) fn drafts(&mut self, written: usize, wanted: usize) -> io::Result<()> {
        let mark = if written == wanted { "✓" } else { "✗" };
        writeln!(
            io::stdout().lock(),
            "\n   {mark} the upstream holds {written} drafts, one for each confirmed call"
        )?;
        if written != wanted {
            self.wrong
                .push("the upstream does not hold one draft for each confirmed call".to_owned());
        }
        Ok(())
    }

    /// The pairs of all this, from the journal's own files.
    pub(super) fn audit(&mut self, journal: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(
            out,
            "\nThe audit: {} records, two for each attempt or refusal, one for each ticket issued or revoked",
            journal.lines().count()
        )?;
        writeln!(
            out,
            "   seq event                tool                  call         try outcome    reason               ms        arguments digest"
        )?;
        for line in journal.lines() {
            let record: Value = serde_json::from_str(line)?;
            let text = |name: &str| record[name].as_str().unwrap_or("").to_owned();
            writeln!(
                out,
                "   {:>3} {:<20} {:<21} {:<12} {:>3} {:<10} {:<20} {:<9} {}…",
                record["sequence"],
                text("event").trim_start_matches("tool_call_"),
                text("tool"),
                text("tool_call_id"),
                record["attempt"],
                text("outcome"),
                text("reason"),
                record.get("duration_ms").map(ToString::to_string).unwrap_or_default(),
                text("arguments_digest").get(..12).unwrap_or(""),
            )?;
        }
        let of_calls =
            journal.lines().filter(|line| line.starts_with("{\"event\":\"tool_call_")).count();
        if of_calls != 2 * self.pairs {
            self.wrong
                .push("the journal does not hold exactly the pairs that were answered".to_owned());
        }
        let last = journal.lines().last().unwrap_or("");
        writeln!(out, "   the last record in full:\n   {last}")?;
        let leaked = SECRETS.iter().any(|secret| journal.contains(secret))
            || journal.contains("who may confirm");
        let verdict = if leaked {
            "✗ the journal holds raw data"
        } else {
            "✓ no argument, result or handler message is in it"
        };
        writeln!(out, "   {verdict}")?;
        if leaked {
            self.wrong.push("the journal holds raw data".to_owned());
        }
        Ok(())
    }

    /// What a scrape reads before the gate restarts, and counts from nothing again.
    pub(super) fn note_metrics(&mut self, exposition: &str) {
        for (series, value) in shown_series(exposition) {
            *self.series.entry(series.to_owned()).or_default() += value;
        }
    }

    /// The lines that scrapes read of all this, over both runs of the gate.
    pub(super) fn metrics(&mut self, exposition: &str) -> io::Result<()> {
        self.note_metrics(exposition);
        let mut out = io::stdout().lock();
        writeln!(out, "\nThe metrics, over both runs of the gate")?;
        for (series, value) in &self.series {
            let digits = if series.starts_with(CALLS) { 0 } else { 6 };
            writeln!(out, "   {series} {value:.digits$}")?;
        }
        let of_calls = |(series, _): &(&String, &f64)| series.starts_with(CALLS);
        let counted: f64 = self.series.iter().filter(of_calls).map(|(_, value)| value).sum();
        #[allow(clippy::cast_precision_loss, reason = "a handful of pairs")]
        if (counted - self.pairs as f64).abs() > 0.5 {
            self.wrong.push("the metrics do not count exactly the pairs".to_owned());
        }
        Ok(())
    }

    /// Whether everything happened as it should.
    pub(super) fn ending(&self) -> io::Result<bool> {
        let mut out = io::stdout().lock();
        if self.wrong.is_empty() {
            writeln!(out, "\nEverything happened as it should.")?;
        } else {
            writeln!(out, "\nNot as it should be:")?;
            for wrong in &self.wrong {
                writeln!(out, "   {wrong}")?;
            }
        }
        Ok(self.wrong.is_empty())
    }

    /// Lines to try while both servers run.
    pub(super) fn keep(stage: &Stage) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let (gate, directory) = (stage.gate_address(), stage.directory().display());
        writeln!(out, "\nBoth servers stay up; Ctrl-C stops them. Try:")?;
        writeln!(out, "  grpcurl -plaintext {gate} list")?;
        writeln!(out, "  grpcurl -plaintext {gate} describe toolgate.v1.ToolGate")?;
        writeln!(out, "  grpcurl -plaintext {gate} grpc.health.v1.Health/Check")?;
        let header = format!("-H \"authorization: Bearer $(cat {directory}/proposer)\"");
        let context = r#""context":{"request_id":"r1","user_id":"user-anna","tenant_id":"tenant-north","conversation_id":"c1"}"#;
        writeln!(
            out,
            "  grpcurl -plaintext {header} \\\n    -d '{{{context}}}' {gate} toolgate.v1.ToolGate/ListTools"
        )?;
        let calls = r#""calls":[{"tool_call_id":"call-1","name":"search_knowledge_base","arguments_json":"{\"query\":\"tickets\",\"knowledge_base_id\":\"handbook\"}"}]"#;
        writeln!(
            out,
            "  grpcurl -plaintext {header} \\\n    -d '{{{context},{calls}}}' {gate} toolgate.v1.ToolGate/Execute"
        )?;
        writeln!(out, "  curl -s http://{}/readyz", stage.admin_address()?)
    }
}

fn shown_series(exposition: &str) -> impl Iterator<Item = (&str, f64)> {
    let is_shown = |line: &&str| line.starts_with(CALLS) || line.starts_with(DURATIONS);
    exposition.lines().filter(is_shown).filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        Some((series, value.parse().ok()?))
    })
}

fn tell_result(out: &mut impl io::Write, id: &str, result: &ToolResult) -> io::Result<()> {
    write!(
        out,
        "   answered  {id} {} {}",
        short(result.outcome().as_str_name()),
        short(result.reason().as_str_name())
    )?;
    if result.attempt > 0 {
        write!(out, ", attempt {}", result.attempt)?;
    }
    if result.effect() != Effect::Unspecified {
        write!(out, ", effect {}", short(result.effect().as_str_name()))?;
    }
    writeln!(out)?;
    writeln!(out, "   to model  {}", result.message)?;
    for fault in &result.faults {
        let place = if fault.pointer.is_empty() { "the arguments" } else { &fault.pointer };
        writeln!(out, "             {place}: {}", fault.keyword)?;
    }
    if !result.result_json.is_empty() {
        let shown: String = result.result_json.chars().take(240).collect();
        let cut = if shown.len() < result.result_json.len() { "…" } else { "" };
        writeln!(out, "   result    {shown}{cut}")?;
    }
    Ok(())
}

fn is_as(result: &ToolResult, wanted: Wanted) -> bool {
    result.outcome() == wanted.outcome
        && result.reason() == wanted.reason
        && result.attempt == wanted.attempt
}

/// `OUTCOME_SUCCESS` → `SUCCESS`.
fn short(name: &str) -> &str {
    name.split_once('_').map_or(name, |(_, short)| short)
}
