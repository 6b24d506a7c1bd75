//! From a delivery to the HTTP/2 request that carries it.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE, USER_AGENT};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Uri};
use http_body_util::Full;
use prost::Message;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};

use super::answer::PREFIX_BYTES;
use crate::domain::stages::{Delivery, TraceContext};
use crate::proto::InvokeRequest;

/// Time beyond the attempt's own that the handler is told it has.
///
/// Told the exact time, a nearby handler's own `DEADLINE_EXCEEDED` could overtake the
/// gate's timer and turn a retryable time-out into a failure. A gate at its CPU limit
/// may be stopped for one scheduling period, 100 ms by default. The gate resets the
/// stream at its own deadline, so the handler gains nothing from these.
const DEADLINE_SLACK: Duration = Duration::from_millis(100);

const PATH: PathAndQuery = PathAndQuery::from_static("/toolgate.v1.ToolHandler/Invoke");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");
const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("toolgate/", env!("CARGO_PKG_VERSION")));
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The request for one attempt. Its headers come from the delivery alone: nothing
/// of the inbound request's metadata can be in it.
pub(super) fn invoke(uri: &Uri, delivery: &Delivery<'_>) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(frame(&message(delivery))));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri.clone();
    let headers = request.headers_mut();
    *headers = identity(delivery);
    headers.insert(CONTENT_TYPE, GRPC);
    headers.insert(TE, TRAILERS);
    headers.insert(USER_AGENT, AGENT);
    headers.insert(GRPC_TIMEOUT, grpc_timeout(delivery.timeout));
    if let Some(trace) = delivery.trace {
        insert_trace(headers, trace);
    }
    request
}

/// Where every request to this authority goes.
pub(super) fn uri(authority: Authority) -> Uri {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(authority);
    parts.path_and_query = Some(PATH);
    // Only a missing part is refused.
    Uri::from_parts(parts).unwrap_or_default()
}

fn message(delivery: &Delivery<'_>) -> InvokeRequest {
    let context = delivery.context;
    InvokeRequest {
        tool: delivery.call.contract().name.to_string(),
        tenant_id: context.tenant_id.as_ref().to_owned(),
        user_id: context.user_id.as_ref().to_owned(),
        conversation_id: context.conversation_id.as_ref().to_owned(),
        request_id: context.request_id.as_ref().to_owned(),
        tool_call_id: delivery.call.subject().tool_call_id.to_string(),
        idempotency_key: delivery.call.idempotency_key().to_owned(),
        attempt: delivery.attempt,
        arguments_json: delivery.call.arguments_json().to_owned(),
    }
}

/// The message behind its prefix: not compressed, its length in four bytes.
fn frame(message: &InvokeRequest) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + length);
    framed.put_u8(0);
    // Arguments are bounded far below 4 GiB before a delivery exists.
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    framed.put_slice(&message.encode_to_vec());
    framed.freeze()
}

/// Binary metadata, since identities may hold any text.
fn identity(delivery: &Delivery<'_>) -> HeaderMap {
    let context = delivery.context;
    let mut metadata = MetadataMap::with_capacity(12);
    for (key, text) in [
        ("x-toolgate-tenant-id-bin", &context.tenant_id),
        ("x-toolgate-user-id-bin", &context.user_id),
        ("x-toolgate-conversation-id-bin", &context.conversation_id),
        ("x-toolgate-request-id-bin", &context.request_id),
    ] {
        metadata.insert_bin(key, BinaryMetadataValue::from_bytes(text.as_bytes()));
    }
    metadata.into_headers()
}

fn insert_trace(headers: &mut HeaderMap, trace: &TraceContext) {
    let Ok(parent) = HeaderValue::from_str(&trace.traceparent) else { return };
    headers.insert(TRACEPARENT, parent);
    // W3C: tracestate means nothing without its traceparent.
    if let Some(Ok(state)) = trace.tracestate.as_deref().map(HeaderValue::from_str) {
        headers.insert(TRACESTATE, state);
    }
}

/// `timeout` and the slack, never less: milliseconds where they fit in the eight
/// digits that the protocol allows, else seconds, both rounded up.
fn grpc_timeout(timeout: Duration) -> HeaderValue {
    const MAX: u128 = 99_999_999;
    let millis = timeout.saturating_add(DEADLINE_SLACK).as_nanos().div_ceil(1_000_000);
    let text = if millis <= MAX {
        format!("{millis}m")
    } else {
        // Beyond three years the largest value stands for "no deadline".
        format!("{}S", millis.div_ceil(1_000).min(MAX))
    };
    // Digits and a letter are always a header value.
    HeaderValue::try_from(text).unwrap_or(const { HeaderValue::from_static("99999999S") })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_handlers_deadline_is_never_before_the_gates() {
        for (timeout, header) in [
            (Duration::ZERO, "100m"),
            (Duration::from_nanos(1), "101m"),
            (Duration::from_micros(99_500), "200m"),
            (Duration::from_secs(2), "2100m"),
            (Duration::from_millis(99_999_899), "99999999m"),
            (Duration::from_millis(99_999_900), "100000S"),
            (Duration::MAX, "99999999S"),
        ] {
            assert_eq!(grpc_timeout(timeout), header, "{timeout:?}");
        }
    }

    #[test]
    fn the_prefix_holds_the_length() {
        let message = InvokeRequest { arguments_json: "x".repeat(300), ..Default::default() };
        let framed = frame(&message);
        assert_eq!(framed[0], 0);
        let length = u32::from_be_bytes(framed[1..PREFIX_BYTES].try_into().unwrap());
        assert_eq!(length as usize, framed.len() - PREFIX_BYTES);
        assert_eq!(InvokeRequest::decode(framed.slice(PREFIX_BYTES..)).unwrap(), message);
    }
}
