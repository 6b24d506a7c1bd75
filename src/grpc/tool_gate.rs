//! `toolgate.v1.ToolGate`.

use std::sync::Arc;

use futures_util::StreamExt as _;
use tokio::time::Instant;
use tonic::codegen::BoxStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::callers::{context_for, require};
use super::{from_wire, to_wire};
use crate::domain::audit::is_call_id;
use crate::domain::caller::Rpc;
use crate::domain::proposal::{Context, Proposal};
use crate::domain::refused::Refused;
use crate::gate::{ExecuteRequest, Gate};
use crate::proto;

/// What a chatbot backend calls with the proposals of its model.
pub(super) struct ToolGateService {
    gate: Arc<Gate>,
}

impl ToolGateService {
    pub(super) const fn new(gate: Arc<Gate>) -> Self {
        Self { gate }
    }
}

#[tonic::async_trait]
impl proto::tool_gate_server::ToolGate for ToolGateService {
    async fn execute(
        &self,
        request: Request<proto::ExecuteRequest>,
    ) -> Result<Response<proto::ExecuteResponse>, Status> {
        let received = Instant::now();
        let (metadata, extensions, message) = request.into_parts();
        let context = context_for(&extensions, Rpc::Execute, message.context)?;
        let request = batch(&metadata, context, message.calls, message.mode, received)?;
        let report = self.gate.execute(request).await?;
        Ok(Response::new(to_wire::execute_response(report)))
    }

    async fn execute_stream(
        &self,
        request: Request<proto::ExecuteStreamRequest>,
    ) -> Result<Response<BoxStream<proto::ExecuteStreamResponse>>, Status> {
        let received = Instant::now();
        let (metadata, extensions, message) = request.into_parts();
        let context = context_for(&extensions, Rpc::ExecuteStream, message.context)?;
        let request = batch(&metadata, context, message.calls, message.mode, received)?;
        let steps = self.gate.execute_stream(request)?;
        let steps = steps.map(|step| step.map(to_wire::execute_step).map_err(Status::from));
        Ok(Response::new(Box::pin(steps)))
    }

    async fn check(
        &self,
        request: Request<proto::CheckRequest>,
    ) -> Result<Response<proto::CheckResponse>, Status> {
        let (_, extensions, message) = request.into_parts();
        let context = context_for(&extensions, Rpc::Check, message.context)?;
        let proposals = proposals(message.calls);
        let checked = self.gate.check(&context, &proposals).await?;
        let ids = proposals.into_iter().map(|proposal| match proposal.tool_call_id {
            id if is_call_id(&id) => id,
            _ => String::new(),
        });
        Ok(Response::new(to_wire::check_response(ids, checked)))
    }

    async fn list_tools(
        &self,
        request: Request<proto::ListToolsRequest>,
    ) -> Result<Response<proto::ListToolsResponse>, Status> {
        let (_, extensions, message) = request.into_parts();
        context_for(&extensions, Rpc::ListTools, message.context)?;
        Ok(Response::new(to_wire::list_tools_response(&self.gate.policy())))
    }

    async fn get_call(
        &self,
        request: Request<proto::GetCallRequest>,
    ) -> Result<Response<proto::GetCallResponse>, Status> {
        let (_, extensions, message) = request.into_parts();
        let context = context_for(&extensions, Rpc::GetCall, message.context)?;
        let tool_call_id = message.tool_call_id;
        if !is_call_id(&tool_call_id) {
            return Err(Refused::CallIdInvalid.into());
        }
        let whose = require(&extensions, Rpc::GetCall)?.asks_for(&context);
        let told = self.gate.recorded_call(&context, &tool_call_id, whose).await?;
        Ok(Response::new(to_wire::get_call_response(tool_call_id, told)))
    }
}

fn batch(
    metadata: &MetadataMap,
    context: Arc<Context>,
    calls: Vec<proto::ToolCall>,
    mode: i32,
    received: Instant,
) -> Result<ExecuteRequest, Refused> {
    Ok(ExecuteRequest {
        context,
        mode: from_wire::mode(mode)?,
        proposals: proposals(calls),
        deadline: from_wire::time_allowed(metadata).and_then(|time| received.checked_add(time)),
        trace: from_wire::trace(metadata),
    })
}

fn proposals(calls: Vec<proto::ToolCall>) -> Vec<Proposal> {
    calls.into_iter().map(Proposal::from).collect()
}
