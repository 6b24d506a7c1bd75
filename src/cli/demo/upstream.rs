//! The demo's sample upstream: a handler that really searches real documents.
//!
//! It stands where a team's own service would: a gRPC server that implements
//! `toolgate.v1.ToolHandler` and trusts what the gate sends. Some of its documents
//! misbehave on purpose, so that the demo can show what the gate makes of it.

mod drafts;
mod knowledge;
mod search;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::proto::tool_handler_server::{ToolHandler, ToolHandlerServer};
use crate::proto::{InvokeRequest, InvokeResponse};
use drafts::{Draft, Drafts};
pub use knowledge::LoadFault;
use knowledge::{Document, Knowledge};

/// Finds sections of documents.
pub const SEARCH: &str = "search_knowledge_base";
/// Tells how a document stands.
pub const STATUS: &str = "get_document_status";
/// Writes a draft to the support team.
pub const DRAFT: &str = "create_support_draft";

/// The sample handler.
pub struct SampleUpstream {
    knowledge: Knowledge,
    drafts: Drafts,
    calls: Arc<CallCounts>,
}

/// How often handlers ran, by tool. Shows that a refused call reached none.
#[derive(Debug, Default)]
pub struct CallCounts {
    search: AtomicU64,
    status: AtomicU64,
    draft: AtomicU64,
    other: AtomicU64,
}

const MAX_MATCHES: usize = 5;
const MAX_CONCURRENT_STREAMS: u32 = 256;

impl SampleUpstream {
    /// Reads the knowledge file and every document it lists, and indexes them.
    /// Drafts go to a directory of their own.
    ///
    /// # Errors
    ///
    /// The first file or field that is missing or wrong.
    pub fn load(knowledge: &Path, drafts: PathBuf) -> Result<Self, LoadFault> {
        let knowledge = Knowledge::load(knowledge)?;
        Ok(Self { knowledge, drafts: Drafts::new(drafts), calls: Arc::default() })
    }

    /// The counts, which stay readable while the server runs.
    #[must_use]
    pub fn calls(&self) -> Arc<CallCounts> {
        Arc::clone(&self.calls)
    }

    /// Serves until `stop`, then finishes what runs.
    ///
    /// # Errors
    ///
    /// What the transport reports.
    pub async fn serve(
        self,
        listener: TcpListener,
        stop: CancellationToken,
    ) -> Result<(), tonic::transport::Error> {
        Server::builder()
            .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
            .tcp_nodelay(true)
            .add_service(ToolHandlerServer::new(self))
            .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop.cancelled_owned())
            .await
    }

    fn search(&self, call: &InvokeRequest) -> Result<String, Status> {
        let SearchArguments { query, knowledge_base_id } = arguments(call)?;
        let matches = self
            .knowledge
            .base(&call.tenant_id, &knowledge_base_id)
            .map(|base| base.search(&query, MAX_MATCHES))
            .unwrap_or_default();
        result(&SearchResult { matches })
    }

    /// Writes first and is slow afterwards: a retry finds the draft there already.
    async fn draft(&self, call: &InvokeRequest) -> Result<String, Status> {
        let DraftArguments { question } = arguments(call)?;
        let draft = Draft {
            tenant_id: &call.tenant_id,
            user_id: &call.user_id,
            conversation_id: &call.conversation_id,
            question: &question,
        };
        let draft_id = self
            .drafts
            .write_once(&call.idempotency_key, &draft)
            .map_err(|_| Status::unavailable("the draft cannot be written"))?;
        if let Some(delay) = self.knowledge.draft_delay(&question).filter(|_| call.attempt == 1) {
            tokio::time::sleep(delay).await;
        }
        result(&DraftResult { draft_id, status: "drafted" })
    }

    async fn status(&self, call: &InvokeRequest) -> Result<String, Status> {
        let StatusArguments { document_id } = arguments(call)?;
        let document = self
            .knowledge
            .document(&call.tenant_id, &document_id)
            .ok_or_else(|| Status::not_found("no such document"))?;
        misbehave(document, call.attempt).await?;
        result(&StatusResult {
            document_id: &document.id,
            title: &document.title,
            status: &document.status,
            bytes: document.bytes,
            sections: document.sections,
        })
    }
}

#[tonic::async_trait]
impl ToolHandler for SampleUpstream {
    async fn invoke(
        &self,
        request: Request<InvokeRequest>,
    ) -> Result<Response<InvokeResponse>, Status> {
        let call = request.into_inner();
        self.calls.counter(&call.tool).fetch_add(1, Ordering::Relaxed);
        let result_json = match call.tool.as_str() {
            SEARCH => self.search(&call)?,
            STATUS => self.status(&call).await?,
            DRAFT => self.draft(&call).await?,
            _ => return Err(Status::unimplemented("no such tool")),
        };
        Ok(Response::new(InvokeResponse { result_json }))
    }
}

impl CallCounts {
    /// How often the handler of this tool ran; any other name counts as one tool.
    #[must_use]
    pub fn of(&self, tool: &str) -> u64 {
        self.counter(tool).load(Ordering::Relaxed)
    }

    /// How often any handler ran.
    #[must_use]
    pub fn total(&self) -> u64 {
        [&self.search, &self.status, &self.draft, &self.other]
            .map(|count| count.load(Ordering::Relaxed))
            .iter()
            .sum()
    }

    fn counter(&self, tool: &str) -> &AtomicU64 {
        match tool {
            SEARCH => &self.search,
            STATUS => &self.status,
            DRAFT => &self.draft,
            _ => &self.other,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SearchArguments {
    query: String,
    knowledge_base_id: String,
}

#[derive(Serialize)]
struct SearchResult<'a> {
    matches: Vec<search::Match<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StatusArguments {
    document_id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DraftArguments {
    question: String,
}

#[derive(Serialize)]
struct DraftResult {
    draft_id: String,
    status: &'static str,
}

#[derive(Serialize)]
struct StatusResult<'a> {
    document_id: &'a str,
    title: &'a str,
    status: &'a str,
    bytes: usize,
    sections: usize,
}

/// Does what the knowledge file says under `faults`.
async fn misbehave(document: &Document, attempt: u32) -> Result<(), Status> {
    if let Some(delay) = document.first_attempt_delay.filter(|_| attempt == 1) {
        tokio::time::sleep(delay).await;
    }
    match &document.internal_error {
        Some(message) => Err(Status::internal(message)),
        None => Ok(()),
    }
}

fn arguments<'a, T: Deserialize<'a>>(call: &'a InvokeRequest) -> Result<T, Status> {
    serde_json::from_str(&call.arguments_json)
        .map_err(|_| Status::invalid_argument("arguments_json does not fit the tool"))
}

fn result(value: &impl Serialize) -> Result<String, Status> {
    serde_json::to_string(value).map_err(|_| Status::internal("the result cannot be written"))
}

#[cfg(test)]
mod tests;
