//! `toolgate.v1.Admin`.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::callers::require;
use super::to_wire::timestamp;
use crate::config::Fault;
use crate::domain::audit::{KeyPurpose, ReloadResult, ReloadTrigger};
use crate::domain::caller::Rpc;
use crate::domain::contract::{Contract, Exception};
use crate::ports::{Administration, GateStatus, KeyStatus, ReloadReport, SinkStatus};
use crate::proto;

/// What operators call.
pub(super) struct AdminService {
    administration: Arc<dyn Administration>,
}

impl AdminService {
    pub(super) const fn new(administration: Arc<dyn Administration>) -> Self {
        Self { administration }
    }
}

#[tonic::async_trait]
impl proto::admin_server::Admin for AdminService {
    async fn get_status(
        &self,
        request: Request<proto::GetStatusRequest>,
    ) -> Result<Response<proto::GetStatusResponse>, Status> {
        require(request.extensions(), Rpc::GetStatus)?;
        Ok(Response::new(status_response(self.administration.status()?)))
    }

    async fn reload(
        &self,
        request: Request<proto::ReloadRequest>,
    ) -> Result<Response<proto::ReloadResponse>, Status> {
        require(request.extensions(), Rpc::Reload)?;
        let report = self.administration.reload(ReloadTrigger::Request).await?;
        Ok(Response::new(proto::ReloadResponse {
            applied: report.result != ReloadResult::Failed,
            policy_digest: report.policy_digest.to_string(),
            report: Some(reload_report(report)),
        }))
    }
}

fn status_response(status: GateStatus) -> proto::GetStatusResponse {
    proto::GetStatusResponse {
        version: status.version.to_owned(),
        policy_digest: status.policy.digest().to_string(),
        journal_id: status.journal.id.to_string(),
        journal_sequence: status.journal.head.sequence,
        serving_since: Some(timestamp(status.serving_since)),
        policy_since: Some(timestamp(status.policy_since)),
        contracts: status.policy.contracts().map(|contract| contract_status(contract)).collect(),
        keys: status.keys.iter().map(key_status).collect(),
        last_reload: status.last_reload.map(reload_report),
        last_failed_reload: status.last_failed_reload.map(reload_report),
        journal_mac: status.journal.head.mac.to_string(),
        journal_ready: status.journal.ready,
        ledger: status.ledger.map(|ledger| proto::LedgerStatus {
            id: ledger.id.to_string(),
            ready: ledger.ready,
            clock_trusted: ledger.clock_trusted,
        }),
        upstreams: status
            .upstreams
            .into_iter()
            .map(|upstream| proto::UpstreamStatus {
                name: upstream.name,
                endpoint: upstream.endpoint,
                connection: upstream.connection.to_owned(),
            })
            .collect(),
        persistent: status.persistent,
        not_ready: status.not_ready.into_iter().map(str::to_owned).collect(),
        draining: status.draining,
        sinks: status.sinks.into_iter().map(sink_status).collect(),
    }
}

fn sink_status(sink: SinkStatus) -> proto::SinkStatus {
    proto::SinkStatus {
        name: sink.name.to_string(),
        kind: sink.kind.to_owned(),
        address: sink.address,
        sequence: sink.sequence,
        lag: sink.lag,
        fault: sink.fault.unwrap_or_default().to_owned(),
        code: sink.code.to_owned(),
        last_success: sink.last_success.map(timestamp),
        rejected: sink.rejected,
        missed: sink.missed,
    }
}

fn contract_status(contract: &Contract) -> proto::ContractStatus {
    let exception = |exception: &Exception| proto::ExceptionStatus {
        code: exception.code.clone(),
        at: exception.at.clone(),
        reason: exception.reason.clone(),
    };
    proto::ContractStatus {
        name: contract.name.to_string(),
        contract_digest: contract.digest.to_string(),
        exceptions: contract.exceptions.iter().map(exception).collect(),
    }
}

fn key_status(key: &KeyStatus) -> proto::KeyStatus {
    proto::KeyStatus {
        purpose: key_purpose(key.purpose).into(),
        id: key.id.to_string(),
        signs: key.signs,
    }
}

fn reload_report(report: ReloadReport) -> proto::ReloadReport {
    proto::ReloadReport {
        time: Some(timestamp(report.at)),
        trigger: reload_trigger(report.trigger).into(),
        result: reload_result(report.result).into(),
        policy_digest_before: report.policy_digest_before.to_string(),
        policy_digest: report.policy_digest.to_string(),
        faults: report.faults.into_iter().map(load_fault).collect(),
        fault_count: u32::try_from(report.fault_count).unwrap_or(u32::MAX),
    }
}

fn load_fault(fault: Fault) -> proto::LoadFault {
    proto::LoadFault {
        file: fault.file,
        pointer: fault.pointer,
        code: fault.code.name().to_owned(),
        problem: fault.problem,
        mend: fault.mend,
    }
}

pub(super) const fn key_purpose(purpose: KeyPurpose) -> proto::KeyPurpose {
    match purpose {
        KeyPurpose::Audit => proto::KeyPurpose::Audit,
        KeyPurpose::Confirmation => proto::KeyPurpose::Confirmation,
    }
}

pub(super) const fn reload_trigger(trigger: ReloadTrigger) -> proto::ReloadTrigger {
    match trigger {
        ReloadTrigger::Request => proto::ReloadTrigger::Request,
        ReloadTrigger::Signal => proto::ReloadTrigger::Signal,
        ReloadTrigger::Files => proto::ReloadTrigger::Files,
    }
}

pub(super) const fn reload_result(result: ReloadResult) -> proto::ReloadResult {
    match result {
        ReloadResult::Applied => proto::ReloadResult::Applied,
        ReloadResult::Unchanged => proto::ReloadResult::Unchanged,
        ReloadResult::Failed => proto::ReloadResult::Failed,
    }
}
