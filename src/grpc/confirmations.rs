//! `toolgate.v1.Confirmations`.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use uuid::Uuid;

use super::callers::{context_for, require};
use super::{from_wire, to_wire};
use crate::domain::audit::is_confirmation_id;
use crate::domain::caller::Rpc;
use crate::domain::proposal::{Proposal, is_context_text};
use crate::domain::refused::Refused;
use crate::gate::{Gate, IssueRequest};
use crate::proto;

/// What a confirmation page calls once a person has agreed.
pub(super) struct ConfirmationsService {
    gate: Arc<Gate>,
}

/// More roles than anybody has.
const MAX_ROLES: usize = 64;

impl ConfirmationsService {
    pub(super) const fn new(gate: Arc<Gate>) -> Self {
        Self { gate }
    }
}

#[tonic::async_trait]
impl proto::confirmations_server::Confirmations for ConfirmationsService {
    async fn issue(
        &self,
        request: Request<proto::IssueRequest>,
    ) -> Result<Response<proto::IssueResponse>, Status> {
        let (metadata, extensions, message) = request.into_parts();
        let caller = require(&extensions, Rpc::Issue)?;
        let context = context_for(&extensions, Rpc::Issue, message.context)?;
        let call = message.call.ok_or(Refused::RequestInvalid("call"))?;
        if message.confirming_user_roles.len() > MAX_ROLES {
            return Err(Refused::RequestInvalid("confirming_user_roles").into());
        }
        let (confirming_user_id, confirming_user_roles) =
            caller.confirming(message.confirming_user_id, message.confirming_user_roles)?;
        if !is_context_text(&confirming_user_id) {
            return Err(Refused::RequestInvalid("confirming_user_id").into());
        }
        let issued = self
            .gate
            .issue(IssueRequest {
                context,
                proposal: Proposal::from(call),
                confirming_user_id,
                confirming_user_roles,
                arguments_hash: message.arguments_hash,
                key_id: message.key_id,
                contract_digest: message.contract_digest,
                trace: from_wire::trace(&metadata),
            })
            .await?;
        Ok(Response::new(to_wire::issue_response(issued)))
    }

    async fn revoke(
        &self,
        request: Request<proto::RevokeRequest>,
    ) -> Result<Response<proto::RevokeResponse>, Status> {
        let (_, extensions, message) = request.into_parts();
        let context = context_for(&extensions, Rpc::Revoke, message.context)?;
        let confirmation_id = Some(message.confirmation_id)
            .filter(|text| is_confirmation_id(text))
            .and_then(|text| Uuid::parse_str(&text).ok())
            .ok_or(Refused::RequestInvalid("confirmation_id"))?;
        let revocation = self.gate.revoke(&context, confirmation_id).await?;
        Ok(Response::new(to_wire::revoke_response(revocation)))
    }
}
