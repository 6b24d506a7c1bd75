//! What the upstream adapter makes of handlers, sound and hostile.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod hostile;
mod sound;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use toolgate::adapters::upstream::{GrpcUpstreams, UpstreamConfig};
use toolgate::domain::admission::admit;
use toolgate::domain::audit::{AuditKey, Digest, Scope, Stamp};
use toolgate::domain::authorisation::Judged;
use toolgate::domain::proposal::{Context, Proposal};
use toolgate::domain::record::TicketUse;
use toolgate::domain::stages::{Delivery, Reserved, TraceContext};
use toolgate::ports::{Upstream, UpstreamFault};

use crate::support::policies;

const MAX_RESULT_BYTES: usize = 2_000;

/// What a delivery borrows: a call that went through every stage.
struct Call {
    context: Context,
    reserved: Reserved,
    started: Stamp,
    timeout: Duration,
    trace: Option<TraceContext>,
}

impl Call {
    fn new() -> Self {
        Self::to("tools")
    }

    /// A call of a tool of this upstream.
    fn to(upstream: &str) -> Self {
        let context = Context {
            request_id: "request-1".into(),
            user_id: "user-1".into(),
            tenant_id: "Zürich 租户".into(),
            conversation_id: "conversation-1".into(),
        };
        let started = Stamp { journal_id: "journal".into(), sequence: 1, mac: Digest([0; 32]) };
        let reserved = reserve(upstream, &context);
        Self { context, reserved, started, timeout: Duration::from_secs(2), trace: None }
    }

    fn delivery(&self) -> Delivery<'_> {
        let trace = self.trace.as_ref();
        self.reserved.deliver(&self.context, 3, self.timeout, trace, &self.started)
    }
}

fn reserve(upstream: &str, context: &Context) -> Reserved {
    let policy = policies::single(&format!(
        "{{apiVersion: toolgate.dev/v1, kind: Tool, name: get_document_status, description: d, effect: read,
          upstream: {upstream}, limits: {{max_result_bytes: {MAX_RESULT_BYTES}}},
          arguments_schema: {{type: object, additionalProperties: false,
            properties: {{document_id: {{type: string, maxLength: 9}}}}}}}}",
    ), upstream);
    let scope = Scope {
        context: Arc::new(context.clone()),
        policy_digest: policy.digest(),
        key: AuditKey::new("audit-1".into(), &[9; 32]),
        trace_id: None,
    };
    let proposal = Proposal {
        tool_call_id: "call-1".to_owned(),
        name: "get_document_status".to_owned(),
        arguments_json: r#"{"document_id":"ä"}"#.to_owned(),
        attempt: Some(3),
        ticket: None,
    };
    let admitted = admit(&scope, &policy, &proposal).unwrap();
    let judged = Judged::plain(admitted, None).unwrap();
    let authorised = judged.authorise(None, TicketUse::Unused, Timestamp::UNIX_EPOCH).unwrap();
    authorised.reserved(context, None).unwrap()
}

/// One upstream, named `tools`.
fn upstreams(endpoint: &str) -> GrpcUpstreams {
    let config = UpstreamConfig::new(endpoint.parse().unwrap());
    GrpcUpstreams::new([(Arc::from("tools"), config)])
}

/// One call, which must end by itself.
async fn invoke(upstreams: &GrpcUpstreams) -> Result<String, UpstreamFault> {
    let call = Call::new();
    within(upstreams.invoke(&call.delivery())).await
}

/// Turns a hang into a failure.
async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("it hangs")
}
