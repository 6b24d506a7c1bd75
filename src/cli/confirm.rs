//! `toolgate confirm`: a confirmation page on the command line, for tests and trials.

use std::io::{self, Write as _};

use clap::Args;

use super::client::{Connected, GateAddress, told};
use super::{Failure, runtime};
use crate::proto::confirmations_client::ConfirmationsClient;
use crate::proto::tool_gate_client::ToolGateClient;
use crate::proto::{
    CallContext, CheckRequest, ConfirmationPreview, IssueRequest, Reason, ToolCall,
};

/// Shows what a person is asked to confirm and, with --yes, prints the ticket.
#[derive(Debug, Args)]
pub struct Confirm {
    #[command(flatten)]
    gate: GateAddress,
    /// The call's tenant
    #[arg(long)]
    tenant: String,
    /// The user whose conversation it is, who confirms unless --confirmed-by says otherwise
    #[arg(long)]
    user: String,
    /// The conversation
    #[arg(long)]
    conversation: String,
    /// The call's id
    #[arg(long)]
    call: String,
    /// The tool
    #[arg(long)]
    tool: String,
    /// The arguments, one JSON object
    #[arg(long, value_name = "JSON")]
    arguments: String,
    /// Who confirms
    #[arg(long, value_name = "USER")]
    confirmed_by: Option<String>,
    /// A role of who confirms; may be given several times
    #[arg(long = "role", value_name = "ROLE")]
    roles: Vec<String>,
    /// Confirm; without it only the preview is shown
    #[arg(long)]
    yes: bool,
}

impl Confirm {
    /// Previews the call and, if told to, issues its ticket to standard output.
    ///
    /// # Errors
    ///
    /// What the gate answers, or why it cannot be reached.
    pub fn run(self) -> Result<bool, Failure> {
        runtime()?.block_on(async {
            let gate = self.gate.connect().await?;
            let Some(preview) = self.preview(&gate).await? else { return Ok(false) };
            // The ticket alone goes to standard output, so that it can be piped.
            let mut told = io::stderr().lock();
            writeln!(told, "{}", preview.prompt)?;
            if !self.yes {
                writeln!(told, "\nNot confirmed: add --yes to confirm and print the ticket.")?;
                return Ok(true);
            }
            drop(told);
            let ticket = self.issue(&gate, preview).await?;
            writeln!(io::stdout().lock(), "{ticket}")?;
            Ok(true)
        })
    }

    async fn preview(&self, gate: &Connected) -> Result<Option<ConfirmationPreview>, Failure> {
        let message = CheckRequest { context: Some(self.context()), calls: vec![self.tool_call()] };
        let request = gate.request(message);
        let answer = ToolGateClient::new(gate.channel()).check(request).await.map_err(told)?;
        let Some(verdict) = answer.into_inner().verdicts.into_iter().next() else {
            return Err(Failure::new("the gate gave no verdict"));
        };
        let mut told = io::stderr().lock();
        if verdict.admitted && verdict.preview.is_none() {
            writeln!(told, "nothing to confirm: the call runs without a ticket")?;
        } else if verdict.reason() != Reason::ConfirmationRequired {
            let reason = verdict.reason().as_str_name().trim_start_matches("REASON_");
            writeln!(told, "{reason}: {}", verdict.message)?;
            for fault in &verdict.faults {
                writeln!(told, "  {}: {}", fault.pointer, fault.keyword)?;
            }
        }
        Ok(verdict.preview)
    }

    async fn issue(
        &self,
        gate: &Connected,
        preview: ConfirmationPreview,
    ) -> Result<String, Failure> {
        let message = IssueRequest {
            context: Some(self.context()),
            call: Some(self.tool_call()),
            confirming_user_id: self.confirmed_by.clone().unwrap_or_else(|| self.user.clone()),
            confirming_user_roles: self.roles.clone(),
            arguments_hash: preview.arguments_hash,
            key_id: preview.key_id,
            contract_digest: preview.contract_digest,
        };
        let request = gate.request(message);
        let client = &mut ConfirmationsClient::new(gate.channel());
        let issued = client.issue(request).await.map_err(told)?;
        Ok(issued.into_inner().ticket)
    }

    fn context(&self) -> CallContext {
        CallContext {
            request_id: "toolgate-confirm".to_owned(),
            user_id: self.user.clone(),
            tenant_id: self.tenant.clone(),
            conversation_id: self.conversation.clone(),
        }
    }

    fn tool_call(&self) -> ToolCall {
        ToolCall {
            tool_call_id: self.call.clone(),
            name: self.tool.clone(),
            arguments_json: self.arguments.clone(),
            ..ToolCall::default()
        }
    }
}
