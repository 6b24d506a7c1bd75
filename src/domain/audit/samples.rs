//! Events for tests.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Digest, Entry, Event, EventKind, PayloadSummary};
use crate::domain::proposal::Context;
use crate::domain::reason::{Effect, Reason};

/// An event as the journal takes it.
pub(crate) fn entry(event: Event) -> Entry {
    Entry::Call(Arc::new(event))
}

/// A started event of this call id.
pub(crate) fn started(tool_call_id: &str) -> Event {
    Event {
        kind: EventKind::Started,
        time: Timestamp::constant(1_800_000_000, 123_456_000),
        context: Arc::new(Context {
            request_id: "req-1".into(),
            user_id: "user-1".into(),
            tenant_id: "tenant-1".into(),
            conversation_id: "conversation-1".into(),
        }),
        tool_call_id: tool_call_id.into(),
        tool: "search".into(),
        suggested_tool_hash: Digest([1; 32]),
        attempt: 1,
        arguments_summary: PayloadSummary { field_count: 2, scalar_count: 2, ..<_>::default() },
        arguments_digest: Digest([2; 32]),
        policy_digest: Digest([3; 32]),
        audit_key_id: "k1".into(),
        confirmation: None,
        trace_id: None,
    }
}

/// The successful end of the pair that [`started`] opened.
pub(crate) fn completed(tool_call_id: &str) -> Event {
    let kind = EventKind::Completed {
        reason: Reason::Ok,
        duration_us: 82_500,
        result_summary: Some(PayloadSummary { field_count: 1, ..<_>::default() }),
        result_digest: Some(Digest([4; 32])),
        effect: Effect::None,
    };
    let started = started(tool_call_id);
    started.completed(started.time, kind)
}
