//! From wire types and metadata to the domain.

use std::sync::Arc;
use std::time::Duration;

use tonic::metadata::MetadataMap;

use crate::domain::audit::TraceId;
use crate::domain::proposal::{BatchMode, Context, Proposal};
use crate::domain::refused::Refused;
use crate::domain::stages::TraceContext;
use crate::proto;

/// W3C Trace Context, 3.3.1.5: at least 512 characters of `tracestate` should travel.
const MAX_TRACESTATE: usize = 512;

/// The caller's context.
pub(super) fn context(context: Option<proto::CallContext>) -> Result<Arc<Context>, Refused> {
    let context = context.ok_or(Refused::ContextInvalid("context"))?;
    let context = Context {
        request_id: context.request_id.into(),
        user_id: context.user_id.into(),
        tenant_id: context.tenant_id.into(),
        conversation_id: context.conversation_id.into(),
    };
    match context.check() {
        Ok(()) => Ok(Arc::new(context)),
        Err(fault) => Err(Refused::ContextInvalid(fault.field)),
    }
}

/// The batch's mode.
pub(super) fn mode(mode: i32) -> Result<BatchMode, Refused> {
    match proto::BatchMode::try_from(mode) {
        Ok(proto::BatchMode::Unspecified | proto::BatchMode::StopOnFailure) => {
            Ok(BatchMode::StopOnFailure)
        }
        Ok(proto::BatchMode::Continue) => Ok(BatchMode::Continue),
        Err(_) => Err(Refused::RequestInvalid("mode")),
    }
}

impl From<proto::ToolCall> for Proposal {
    fn from(call: proto::ToolCall) -> Self {
        Self {
            tool_call_id: call.tool_call_id,
            name: call.name,
            arguments_json: call.arguments_json,
            attempt: call.attempt,
            ticket: Some(call.confirmation_ticket).filter(|ticket| !ticket.is_empty()),
        }
    }
}

/// The caller's `grpc-timeout` (gRPC over HTTP/2: at most eight digits and a unit).
///
/// `None` where it is absent, repeated or malformed: the batch total bounds the batch then.
pub(super) fn time_allowed(metadata: &MetadataMap) -> Option<Duration> {
    let text = only(metadata, "grpc-timeout")?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

/// The request's W3C trace context, if it carries exactly one valid `traceparent`.
pub(super) fn trace(metadata: &MetadataMap) -> Option<TraceContext> {
    let traceparent = only(metadata, "traceparent")?;
    let trace_id = trace_id(traceparent)?;
    let tracestate = only(metadata, "tracestate").filter(|text| {
        text.len() <= MAX_TRACESTATE && text.bytes().all(|byte| matches!(byte, 0x20..=0x7e))
    });
    Some(TraceContext {
        traceparent: traceparent.to_owned(),
        tracestate: tracestate.map(str::to_owned),
        trace_id,
    })
}

/// The trace id of a version 00 `traceparent` (W3C Trace Context, 3.2.2).
fn trace_id(traceparent: &str) -> Option<TraceId> {
    let mut parts = traceparent.split('-');
    let (version, trace, parent, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || version != "00" {
        return None;
    }
    let parent: [u8; 8] = hex(parent)?;
    let _flags: [u8; 1] = hex(flags)?;
    (parent != [0; 8]).then(|| TraceId::new(hex(trace)?)).flatten()
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// The value of an entry that stands there exactly once.
fn only<'a>(metadata: &'a MetadataMap, name: &str) -> Option<&'a str> {
    let mut entries = metadata.get_all(name).iter();
    let (Some(entry), None) = (entries.next(), entries.next()) else {
        return None;
    };
    entry.to_str().ok()
}
