//! `toolgate confirm`: a confirmation page on the command line, for tests and trials.

use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::Args;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic_types::StatusExt as _;

use super::{Failure, runtime};
use crate::proto::confirmations_client::ConfirmationsClient;
use crate::proto::tool_gate_client::ToolGateClient;
use crate::proto::{
    CallContext, CheckRequest, ConfirmationPreview, IssueRequest, Reason, ToolCall,
};

/// Shows what a person is asked to confirm and, with --yes, prints the ticket.
#[derive(Debug, Args)]
pub struct Confirm {
    /// The gate's address
    #[arg(long, default_value = "127.0.0.1:7443", value_name = "HOST:PORT")]
    gate: String,
    /// The secret of a caller of role confirmer
    #[arg(long, value_name = "FILE")]
    secret_file: PathBuf,
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
            let secret = std::fs::read_to_string(&self.secret_file).map_err(|error| {
                Failure::new(format!("{}: {error}", self.secret_file.display()))
            })?;
            let bearer: MetadataValue<Ascii> = format!("Bearer {secret}").parse().map_err(|_| {
                Failure::new(format!(
                    "{}: no caller's secret: it holds a line break or another control character",
                    self.secret_file.display()
                ))
            })?;
            let channel = Channel::from_shared(format!("http://{}", self.gate))?.connect().await?;
            let Some(preview) = self.preview(&channel, &bearer).await? else { return Ok(false) };
            // The ticket alone goes to standard output, so that it can be piped.
            let mut told = io::stderr().lock();
            writeln!(told, "{}", preview.prompt)?;
            if !self.yes {
                writeln!(told, "\nNot confirmed: add --yes to confirm and print the ticket.")?;
                return Ok(true);
            }
            drop(told);
            let ticket = self.issue(channel, bearer, preview).await?;
            writeln!(io::stdout().lock(), "{ticket}")?;
            Ok(true)
        })
    }

    async fn preview(
        &self,
        channel: &Channel,
        bearer: &MetadataValue<Ascii>,
    ) -> Result<Option<ConfirmationPreview>, Failure> {
        let message = CheckRequest { context: Some(self.context()), calls: vec![self.tool_call()] };
        let request = authorised(message, bearer);
        let answer = ToolGateClient::new(channel.clone()).check(request).await.map_err(told)?;
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
        channel: Channel,
        bearer: MetadataValue<Ascii>,
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
        let request = authorised(message, &bearer);
        let issued = ConfirmationsClient::new(channel).issue(request).await.map_err(told)?;
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

fn authorised<T>(message: T, bearer: &MetadataValue<Ascii>) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", bearer.clone());
    request
}

/// By value, as a closure of `map_err` takes it.
#[allow(clippy::needless_pass_by_value, reason = "map_err hands the status over")]
fn told(status: tonic::Status) -> Failure {
    let reason = status.get_details_error_info().map(|info| info.reason).unwrap_or_default();
    Failure::new(format!("the gate answered {:?} {reason}: {}", status.code(), status.message()))
}
