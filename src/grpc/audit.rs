//! `toolgate.v1.Audit`.
//!
//! A stream reads only when its client takes more: at most one step of the
//! journal is held for each watcher, and nothing runs for one that is slow.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::callers::require;
use super::to_wire;
use crate::domain::audit::{AdminEvent, AdminKind, Entry, Stamp, is_tool_name};
use crate::domain::caller::{Caller, Rpc};
use crate::domain::proposal::is_context_text;
use crate::domain::refused::Refused;
use crate::gate::{Gate, RecordedEvent};
use crate::ports::{AuditLog, AuditReader, Step};
use crate::proto;
use crate::proto::watch_response::Step as WireStep;
use crate::telemetry::metrics::{Metrics, Watching};

/// Names in one filter.
const MAX_FILTER: usize = 256;

/// What watchers are given.
#[derive(Clone)]
pub struct AuditOptions {
    /// The journal.
    pub log: Arc<dyn AuditLog>,
    /// Watchers at once.
    pub watchers: usize,
    /// Ends every stream, once the last call of a drain has been recorded.
    pub ended: CancellationToken,
}

/// What a collector of audit events calls.
pub(super) struct AuditService {
    gate: Arc<Gate>,
    log: Arc<dyn AuditLog>,
    permits: Arc<Semaphore>,
    ended: CancellationToken,
    metrics: Metrics,
}

/// One stream.
struct Watcher {
    reader: Box<dyn AuditReader>,
    journal_id: Arc<str>,
    filter: Filter,
    /// The last sequence to be sent; `None`: follow.
    until: Option<u64>,
    /// The last sequence that was read, or what comes before the first.
    read: u64,
    /// Steps of the last read that are not sent yet.
    waiting: VecDeque<WireStep>,
    ended: CancellationToken,
    has_ended: bool,
    counted: Watching,
    _permit: OwnedSemaphorePermit,
}

/// What one watcher is sent.
struct Filter {
    caller: Caller,
    tenant_ids: HashSet<String>,
    tools: HashSet<String>,
}

impl AuditService {
    pub(super) fn new(gate: Arc<Gate>, options: AuditOptions, metrics: Metrics) -> Self {
        let AuditOptions { log, watchers, ended } = options;
        Self { gate, log, permits: Arc::new(Semaphore::new(watchers)), ended, metrics }
    }

    fn watcher(&self, caller: Caller, message: proto::WatchRequest) -> Result<Watcher, Refused> {
        let journal_id = Arc::clone(self.log.id());
        if !message.journal_id.is_empty() && *message.journal_id != *journal_id {
            return Err(Refused::JournalUnknown);
        }
        let filter = Filter {
            caller,
            tenant_ids: names(message.tenant_ids, "tenant_ids", is_context_text)?,
            tools: names(message.tools, "tools", is_tool_name)?,
        };
        if self.gate.is_draining() {
            return Err(Refused::Draining);
        }
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        Ok(Watcher {
            reader: self.log.read_from(message.sequence),
            journal_id,
            filter,
            until: message.stop_at_head.then(|| self.log.head()),
            read: message.sequence.saturating_sub(1),
            waiting: VecDeque::new(),
            ended: self.ended.clone(),
            has_ended: false,
            _permit: permit.map_err(|_| Refused::TooManyWatchers)?,
            counted: self.metrics.watcher_started(),
        })
    }
}

#[tonic::async_trait]
impl proto::audit_server::Audit for AuditService {
    async fn watch(
        &self,
        request: Request<proto::WatchRequest>,
    ) -> Result<Response<BoxStream<proto::WatchResponse>>, Status> {
        let (_, extensions, message) = request.into_parts();
        let caller = require(&extensions, Rpc::Watch)?;
        let watcher = self.watcher(caller.clone(), message)?;
        Ok(Response::new(Box::pin(stream::unfold(watcher, |mut watcher| async move {
            let step = watcher.next().await?;
            Some((step, watcher))
        }))))
    }
}

impl Watcher {
    /// The next message, a last status, or `None` at the end.
    async fn next(&mut self) -> Option<Result<proto::WatchResponse, Status>> {
        while !self.has_ended {
            if let Some(step) = self.waiting.pop_front() {
                if matches!(step, WireStep::Event(_) | WireStep::AdministrativeEvent(_)) {
                    self.counted.event_sent();
                }
                return Some(Ok(proto::WatchResponse { step: Some(step) }));
            }
            if self.until.is_some_and(|until| self.read >= until) {
                return None;
            }
            let step = tokio::select! {
                biased;
                () = self.ended.cancelled() => Err(Refused::Draining),
                step = self.reader.next() => step.map_err(|_| Refused::JournalUnreadable),
            };
            match step {
                Ok(step) => self.take(step),
                Err(refused) => {
                    self.has_ended = true;
                    return Some(Err(refused.into()));
                }
            }
        }
        None
    }

    /// Puts in line what of a step passes; where nothing does, how far it went.
    fn take(&mut self, step: Step) {
        let journal_id = || self.journal_id.to_string();
        match step {
            Step::Gap { first: first_sequence, last: last_sequence } => {
                let journal_id = journal_id();
                let gap = proto::AuditGap { journal_id, first_sequence, last_sequence };
                self.waiting.push_back(WireStep::Gap(gap));
                self.read = last_sequence;
            }
            Step::Records(records) => {
                let until = self.until.unwrap_or(u64::MAX);
                for (entry, stamp) in records.into_iter().filter(|(_, at)| at.sequence <= until) {
                    self.read = stamp.sequence;
                    if self.filter.passes(&entry) {
                        self.waiting.push_back(wire_step(entry, stamp));
                    }
                }
                if self.waiting.is_empty() {
                    let (journal_id, sequence) = (journal_id(), self.read);
                    let progress = proto::AuditProgress { journal_id, sequence };
                    self.waiting.push_back(WireStep::Progress(progress));
                }
            }
        }
    }
}

impl Filter {
    fn passes(&self, entry: &Entry) -> bool {
        let (context, tool) = match entry {
            Entry::Call(event) => (Some(&event.context), Some(&event.tool)),
            Entry::Admin(event) => (event.context.as_ref(), tool_of(event)),
        };
        let is_of_a_tenant = match context.map(|context| &*context.tenant_id) {
            Some(tenant_id) => {
                self.caller.sees(tenant_id)
                    && (self.tenant_ids.is_empty() || self.tenant_ids.contains(tenant_id))
            }
            // Of the gate as a whole: for who sees every tenant and asks for no one's.
            None => self.caller.sees_everything() && self.tenant_ids.is_empty(),
        };
        is_of_a_tenant
            && (self.tools.is_empty() || tool.is_some_and(|tool| self.tools.contains(&**tool)))
    }
}

fn tool_of(event: &AdminEvent) -> Option<&Arc<str>> {
    match &event.kind {
        AdminKind::ConfirmationIssued { tool, .. } => Some(tool),
        AdminKind::ConfirmationRevoked | AdminKind::Reload { .. } | AdminKind::Key { .. } => None,
    }
}

fn wire_step(entry: Entry, stamp: Stamp) -> WireStep {
    match entry {
        Entry::Call(event) => {
            let recorded = RecordedEvent { event, stamp: Some(stamp) };
            WireStep::Event(to_wire::audit_event(&recorded))
        }
        Entry::Admin(event) => {
            WireStep::AdministrativeEvent(to_wire::administrative_event(&event, &stamp))
        }
    }
}

/// A filter's names, each in its form: another could match nothing.
fn names(
    given: Vec<String>,
    field: &'static str,
    is_in_form: impl Fn(&str) -> bool,
) -> Result<HashSet<String>, Refused> {
    if given.len() > MAX_FILTER || !given.iter().all(|name| is_in_form(name)) {
        return Err(Refused::RequestInvalid(field));
    }
    Ok(given.into_iter().collect())
}
