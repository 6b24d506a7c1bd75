//! What is told of a reload: report, log and metric.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Done, Inner};
use crate::config::{Fault, Faults};
use crate::domain::audit::{Digest, ReloadResult, ReloadTrigger};
use crate::gate::Gate;
use crate::ports::ReloadReport;

/// Faults that a report keeps, and characters of each of their texts.
const MAX_FAULTS: usize = 100;
const MAX_TEXT: usize = 1_024;

/// Faults that are logged; the status has more.
const MAX_LOGGED: usize = 10;

pub(super) fn of(
    outcome: &Result<Done, Faults>,
    trigger: ReloadTrigger,
    policy_digest_before: Digest,
    gate: &Arc<Gate>,
    at: Timestamp,
) -> ReloadReport {
    let (result, all) = match outcome {
        Ok(Done::Applied) => (ReloadResult::Applied, &[][..]),
        Ok(Done::Unchanged) => (ReloadResult::Unchanged, &[][..]),
        Err(faults) => (ReloadResult::Failed, faults.as_slice()),
    };
    ReloadReport {
        at,
        trigger,
        result,
        policy_digest_before,
        policy_digest: gate.policy().digest(),
        faults: all.iter().take(MAX_FAULTS).map(bounded).collect(),
        fault_count: all.len(),
    }
}

impl Inner {
    /// Tells metrics and log. Texts of faults stay out of the log: they quote the files.
    pub(super) fn tell(&self, report: &ReloadReport) {
        self.told.metrics.reloaded(report.result, report.at);
        let (trigger, policy_digest) = (report.trigger.as_str(), report.policy_digest);
        match report.result {
            ReloadResult::Applied => {
                tracing::info!(trigger, %policy_digest, "reload applied");
            }
            ReloadResult::Unchanged => {
                tracing::info!(trigger, %policy_digest, "reload changed nothing");
            }
            ReloadResult::Failed => {
                let count = report.fault_count;
                tracing::error!(
                    trigger,
                    %policy_digest,
                    count,
                    "reload failed; what was in force stays in force"
                );
                for fault in report.faults.iter().take(MAX_LOGGED) {
                    let Fault { file, pointer, .. } = fault;
                    tracing::error!(file, pointer, fault = fault.code.name(), "reload fault");
                }
            }
        }
    }
}

fn bounded(fault: &Fault) -> Fault {
    let cut = |text: &str| text.chars().take(MAX_TEXT).collect();
    Fault {
        file: cut(&fault.file),
        pointer: cut(&fault.pointer),
        code: fault.code,
        problem: cut(&fault.problem),
        mend: cut(&fault.mend),
    }
}
