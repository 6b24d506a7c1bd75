//! A collector of audit events.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use toolgate::proto::audit_client::AuditClient;
use toolgate::proto::watch_response::Step;
use toolgate::proto::{AuditEventType, WatchRequest, WatchResponse};

use super::journal::records;
use super::running::{AUDITOR, with_bearer};

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_mins(1);

/// One stream, as the auditor opens it.
pub struct Watching(pub Streaming<WatchResponse>);

/// From a place on, everything.
pub fn from(sequence: u64) -> WatchRequest {
    WatchRequest { sequence, ..WatchRequest::default() }
}

impl Watching {
    pub async fn start(channel: &Channel, message: WatchRequest) -> Result<Self, Status> {
        let request = with_bearer(Request::new(message), AUDITOR);
        let answer = AuditClient::new(channel.clone()).watch(request).await?;
        Ok(Self(answer.into_inner()))
    }

    /// The next step, the status that ends the stream, or `None` at its good end.
    pub async fn next(&mut self) -> Result<Option<Step>, Status> {
        let message = tokio::time::timeout(PATIENCE, self.0.message()).await;
        Ok(message.expect("nothing came")?.map(|message| message.step.expect("a step")))
    }

    /// The steps up to the one that names this sequence.
    pub async fn to(&mut self, sequence: u64) -> Vec<Step> {
        let mut steps = Vec::new();
        while steps.last().is_none_or(|step| place(step) < sequence) {
            steps.push(self.next().await.unwrap().expect("the stream goes on"));
        }
        steps
    }

    /// All steps of a stream that ends well.
    pub async fn drain(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        while let Some(step) = self.next().await.unwrap() {
            steps.push(step);
        }
        steps
    }
}

/// The last sequence that a step names: a watcher goes on after it.
pub fn place(step: &Step) -> u64 {
    match step {
        Step::Event(event) => event.sequence,
        Step::AdministrativeEvent(event) => event.sequence,
        Step::Gap(gap) => gap.last_sequence,
        Step::Progress(progress) => progress.sequence,
    }
}

/// An event by the fields that the journal's record must have too.
pub fn event(step: &Step) -> Option<Vec<String>> {
    let texts: Vec<String> = match step {
        Step::Event(event) => vec![
            match event.event() {
                AuditEventType::ToolCallStarted => "tool_call_started".to_owned(),
                AuditEventType::ToolCallCompleted => "tool_call_completed".to_owned(),
                AuditEventType::Unspecified => panic!("{event:?}"),
            },
            event.journal_id.clone(),
            event.sequence.to_string(),
            event.tenant_id.clone(),
            event.tool.clone(),
            event.mac.clone(),
        ],
        Step::AdministrativeEvent(event) => {
            let name = event.event().as_str_name().trim_start_matches("ADMINISTRATIVE_EVENT_TYPE_");
            vec![
                name.to_lowercase(),
                event.journal_id.clone(),
                event.sequence.to_string(),
                event.tenant_id.clone(),
                event.tool.clone(),
                event.mac.clone(),
            ]
        }
        Step::Gap(_) | Step::Progress(_) => return None,
    };
    Some(texts)
}

/// The events among some steps.
pub fn events(steps: &[Step]) -> Vec<Vec<String>> {
    steps.iter().filter_map(event).collect()
}

/// The same of every record of the journal's files.
pub fn written(directory: &Path) -> Vec<Vec<String>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let record = |record: Value| {
        vec![
            text(&record["event"]),
            text(&record["journal_id"]),
            record["sequence"].to_string(),
            text(&record["tenant_id"]),
            text(&record["tool"]),
            text(&record["mac"]),
        ]
    };
    records(directory).into_iter().map(record).collect()
}
