//! A receiver of OTLP logs, from the public protocol, that does what the test says.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{
    LogsService, LogsServiceServer,
};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::metadata::MetadataMap;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::running::until;

/// What becomes of a request.
#[derive(Clone)]
pub enum Does {
    Take,
    Answer(Status),
    /// Takes what is in it, and never answers.
    TakeAndHang,
    Hang,
    /// Rejects so many of its records.
    Reject(i64),
    /// Refuses requests that hold a record of this sequence, takes the others.
    RefuseSequence(u64),
    /// Refuses requests of more records.
    AtMost(usize),
}

/// A record as a test looks at it.
#[derive(Debug, Clone)]
pub struct Received {
    pub record: LogRecord,
    pub attributes: BTreeMap<String, Value>,
}

/// The receiver. Clones are the same one.
#[derive(Clone, Default)]
pub struct Collector {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    /// What becomes of the next requests, one each.
    next: VecDeque<Does>,
    /// What becomes of all others.
    does: Option<Does>,
    taken: Vec<Received>,
    resources: Vec<BTreeMap<String, Value>>,
    metadata: Vec<MetadataMap>,
    requests: usize,
}

/// Listens until it is dropped, which breaks every connection.
pub struct Listening {
    pub address: String,
    // Of its own, so that the connections end with it.
    runtime: Option<Runtime>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

impl Collector {
    /// What becomes of requests from now on.
    pub fn set(&self, does: Does) {
        self.lock().does = Some(does);
    }

    /// What becomes of the next requests.
    pub fn then(&self, next: impl IntoIterator<Item = Does>) {
        self.lock().next.extend(next);
    }

    /// Listens on a free port.
    pub async fn listen(&self) -> Listening {
        self.listen_at("127.0.0.1:0").await
    }

    /// The same where a test was before.
    pub async fn listen_at(&self, address: &str) -> Listening {
        let mut bound = None;
        until("the address is free again", async || {
            bound = std::net::TcpListener::bind(address).ok();
            bound.is_some()
        })
        .await;
        let listener = bound.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        listener.set_nonblocking(true).unwrap();
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let service = LogsServiceServer::new(self.clone());
        runtime.spawn(async move {
            let listener = TcpListenerStream::new(TcpListener::from_std(listener).unwrap());
            Server::builder().add_service(service).serve_with_incoming(listener).await.unwrap();
        });
        Listening { address, runtime: Some(runtime) }
    }

    /// What was taken, in the order in which it came.
    pub fn taken(&self) -> Vec<Received> {
        self.lock().taken.clone()
    }

    /// The sequences of the records that were taken.
    pub fn sequences(&self) -> Vec<u64> {
        self.taken().iter().filter_map(Received::sequence).collect()
    }

    pub fn resources(&self) -> Vec<BTreeMap<String, Value>> {
        self.lock().resources.clone()
    }

    pub fn metadata(&self) -> Vec<MetadataMap> {
        self.lock().metadata.clone()
    }

    /// Requests that came, whatever became of them.
    pub fn requests(&self) -> usize {
        self.lock().requests
    }

    /// Waits until the record of this sequence was taken.
    pub async fn until_taken(&self, sequence: u64) {
        until("the collector has it", async || self.sequences().contains(&sequence)).await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    fn take(&self, request: ExportLogsServiceRequest) {
        let mut inner = self.lock();
        for logs in request.resource_logs {
            inner.resources.push(attributes(&logs.resource.unwrap().attributes));
            for record in logs.scope_logs.into_iter().flat_map(|scope| scope.log_records) {
                let attributes = attributes(&record.attributes);
                inner.taken.push(Received { record, attributes });
            }
        }
    }
}

#[tonic::async_trait]
impl LogsService for Collector {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        let does = {
            let mut inner = self.lock();
            inner.requests += 1;
            inner.metadata.push(metadata);
            inner.next.pop_front().or_else(|| inner.does.clone()).unwrap_or(Does::Take)
        };
        let sequences: Vec<u64> = records(&message)
            .filter_map(|record| attributes(&record.attributes).get("toolgate.sequence")?.as_u64())
            .collect();
        let mut response = ExportLogsServiceResponse::default();
        match does {
            Does::Answer(status) => return Err(status),
            Does::Hang => std::future::pending().await,
            Does::TakeAndHang => {
                self.take(message);
                return std::future::pending().await;
            }
            Does::Reject(rejected_log_records) => {
                let error_message = "canary 8675309".to_owned();
                response.partial_success =
                    Some(ExportLogsPartialSuccess { rejected_log_records, error_message });
            }
            Does::RefuseSequence(sequence) if sequences.contains(&sequence) => {
                return Err(Status::invalid_argument("text of the receiver's"));
            }
            Does::AtMost(count) if sequences.len() > count => {
                return Err(Status::resource_exhausted("text of the receiver's"));
            }
            Does::Take | Does::RefuseSequence(_) | Does::AtMost(_) => {}
        }
        self.take(message);
        Ok(Response::new(response))
    }
}

impl Received {
    /// Which event of the journal it is; none is what stands for a gap.
    pub fn sequence(&self) -> Option<u64> {
        self.attributes.get("toolgate.sequence")?.as_u64()
    }
}

/// The configuration of a sink that delivers there.
pub fn sink(address: &str) -> String {
    format!(", sinks: [{{name: collector, otlp: {{endpoint: \"http://{address}\", timeout: 2s}}}}]")
}

fn records(request: &ExportLogsServiceRequest) -> impl Iterator<Item = &LogRecord> {
    let scopes = request.resource_logs.iter().flat_map(|logs| &logs.scope_logs);
    scopes.flat_map(|scope| &scope.log_records)
}

fn attributes(pairs: &[KeyValue]) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for KeyValue { key, value, .. } in pairs {
        let value = match value {
            Some(AnyValue { value: Some(Any::StringValue(text)) }) => json!(text),
            Some(AnyValue { value: Some(Any::IntValue(number)) }) => json!(number),
            Some(AnyValue { value: Some(Any::DoubleValue(number)) }) => json!(number),
            Some(AnyValue { value: Some(Any::BoolValue(value)) }) => json!(value),
            other => panic!("{key}: {other:?}"),
        };
        assert!(found.insert(key.clone(), value).is_none(), "{key} is there twice");
    }
    found
}

/// The journal's line of a record, put together again from its attributes.
pub fn line(received: &Received) -> Map<String, Value> {
    let mut line = Map::new();
    for (name, value) in &received.attributes {
        let name = name.strip_prefix("toolgate.").unwrap();
        match name.split_once('.') {
            None => drop(line.insert(name.to_owned(), value.clone())),
            Some((object, member)) => {
                let members = line.entry(object).or_insert_with(|| json!({}));
                members[member] = value.clone();
            }
        }
    }
    line
}
