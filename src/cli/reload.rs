//! `toolgate reload`: have a running gate load its configuration and policy again.

use std::io::{self, Write as _};

use clap::Args;

use super::client::{GateAddress, told};
use super::status::{Output, faults, report_json};
use super::{Failure, runtime};
use crate::proto::admin_client::AdminClient;
use crate::proto::{ReloadRequest, ReloadResult};

/// Reloads, and says what came of it. The secret must be that of a caller of role operator.
#[derive(Debug, Args)]
pub struct Reload {
    #[command(flatten)]
    gate: GateAddress,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Output::Human)]
    output: Output,
}

impl Reload {
    /// Whether what the files say is in force.
    ///
    /// # Errors
    ///
    /// What the gate answers instead, or why it cannot be reached.
    pub fn run(self) -> Result<bool, Failure> {
        let answer = runtime()?.block_on(async {
            let gate = self.gate.connect().await?;
            let request = gate.request(ReloadRequest {});
            let answer = AdminClient::new(gate.channel()).reload(request).await;
            answer.map(tonic::Response::into_inner).map_err(told)
        })?;
        let report = answer.report.unwrap_or_default();
        let mut out = io::stdout().lock();
        if self.output == Output::Json {
            writeln!(out, "{}", report_json(&report))?;
            return Ok(answer.applied);
        }
        let (before, now) = (&report.policy_digest_before, &report.policy_digest);
        match report.result() {
            ReloadResult::Applied if before == now => {
                writeln!(out, "applied: the policy is the same, {now}")?;
            }
            ReloadResult::Applied => writeln!(out, "applied: policy {before} -> {now}")?,
            ReloadResult::Unchanged => writeln!(out, "nothing has changed: policy {now}")?,
            ReloadResult::Failed | ReloadResult::Unspecified => {
                write!(out, "{}", faults(&report))?;
                writeln!(out, "failed: what was in force stays in force, policy {now}")?;
            }
        }
        Ok(answer.applied)
    }
}
