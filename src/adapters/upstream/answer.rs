//! What came back, told apart exactly.
//!
//! A status counts only if the peer sent one: in the trailers, or in the head of
//! an answer without a body. Whatever else goes wrong on the way is no status.
//! Only its code is ever read; message, details and other metadata are dropped
//! with the frames that hold them.

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use tonic::Code;

use crate::adapters::code::code_name;
use crate::ports::UpstreamFault;

/// Bytes before a gRPC message: the compressed flag and the length.
pub(super) const PREFIX_BYTES: usize = 5;

const NO_STATUS: UpstreamFault = UpstreamFault::Unavailable { sent: true };

/// Reads one unary answer to its end and returns its message.
///
/// Holds at most `max_message_bytes`, the prefix and one DATA frame. An answer that breaks its
/// form is dropped at the byte that does, without waiting for a status behind it.
///
/// # Errors
///
/// `Status` for a status other than OK, `Malformed` for an OK without exactly one
/// plain message within the limit, `Unavailable` where no status came.
pub(super) async fn read<B>(
    response: Response<B>,
    max_message_bytes: usize,
) -> Result<Bytes, UpstreamFault>
where
    B: Body<Data = Bytes> + Unpin,
{
    if response.status() != StatusCode::OK || !is_grpc(response.headers()) {
        return Err(NO_STATUS);
    }
    let (head, mut body) = response.into_parts();
    let mut message = UnaryMessage::new(max_message_bytes);
    let mut code = None;
    while let Some(frame) = body.frame().await {
        match frame.map_err(|_| NO_STATUS)?.into_data() {
            Ok(data) => message.push(&data)?,
            Err(other) => code = other.trailers_ref().and_then(status_code),
        }
    }
    if code.is_none() && message.is_untouched() {
        code = status_code(&head.headers);
    }
    match code {
        None => Err(NO_STATUS),
        Some(Code::Ok) => message.finish(),
        Some(other) => Err(UpstreamFault::Status { code: code_name(other) }),
    }
}

/// One length-prefixed message, collected from DATA frames.
struct UnaryMessage {
    received: BytesMut,
    max_bytes: usize,
}

impl UnaryMessage {
    fn new(max_bytes: usize) -> Self {
        Self { received: BytesMut::new(), max_bytes }
    }

    fn is_untouched(&self) -> bool {
        self.received.is_empty()
    }

    /// Takes the next bytes, unless they make the message compressed, too large,
    /// or the first of several.
    fn push(&mut self, data: &[u8]) -> Result<(), UpstreamFault> {
        self.received.extend_from_slice(data);
        // The request offered no compression, so any flag but 0 is a breach.
        if self.received.first().is_some_and(|flag| *flag != 0) {
            return Err(UpstreamFault::Malformed { ok: false });
        }
        match self.announced() {
            Some(length) if length > self.max_bytes => Err(UpstreamFault::Malformed { ok: false }),
            Some(length) if self.received.len() - PREFIX_BYTES > length => {
                Err(UpstreamFault::Malformed { ok: false })
            }
            _ => Ok(()),
        }
    }

    fn finish(mut self) -> Result<Bytes, UpstreamFault> {
        match self.announced() {
            Some(length) if self.received.len() == PREFIX_BYTES + length => {
                Ok(self.received.split_off(PREFIX_BYTES).freeze())
            }
            _ => Err(UpstreamFault::Malformed { ok: true }),
        }
    }

    /// The message's length, once its prefix is here.
    fn announced(&self) -> Option<usize> {
        let length = self.received.get(1..PREFIX_BYTES)?.first_chunk()?;
        usize::try_from(u32::from_be_bytes(*length)).ok()
    }
}

/// `application/grpc`, `application/grpc+proto`, either with parameters.
fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes) else { return false };
    let media_type = value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii_end();
    media_type.eq_ignore_ascii_case(b"application/grpc")
        || media_type.eq_ignore_ascii_case(b"application/grpc+proto")
}

/// The status that these headers carry. One that cannot be read, and one said
/// twice, is still a status, and not OK.
fn status_code(headers: &HeaderMap) -> Option<Code> {
    let mut values = headers.get_all("grpc-status").iter();
    let first = values.next()?;
    Some(if values.next().is_some() { Code::Unknown } else { Code::from_bytes(first.as_bytes()) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::convert::Infallible;

    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    const MAX: usize = 16;

    async fn read_parts(
        head: &[(&'static str, &'static str)],
        data: &[&[u8]],
        trailers: Option<&[(&'static str, &'static str)]>,
    ) -> Result<Bytes, UpstreamFault> {
        let frames: Vec<Result<_, Infallible>> = data
            .iter()
            .map(|part| Frame::data(Bytes::copy_from_slice(part)))
            .chain(trailers.map(|fields| Frame::trailers(header_map(fields))))
            .map(Ok)
            .collect();
        let mut response = Response::new(StreamBody::new(futures_util::stream::iter(frames)));
        *response.headers_mut() = header_map(head);
        read(response, MAX).await
    }

    fn header_map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    const HEAD: &[(&str, &str)] = &[("content-type", "application/grpc")];
    const OK: Option<&[(&str, &str)]> = Some(&[("grpc-status", "0")]);

    #[tokio::test]
    async fn a_message_comes_whole_however_it_was_cut() {
        let framed = b"\0\0\0\0\x03abc";
        for cut in 0..=framed.len() {
            let (first, rest) = framed.split_at(cut);
            assert_eq!(read_parts(HEAD, &[first, rest], OK).await.unwrap(), "abc");
        }
        assert_eq!(read_parts(HEAD, &[b"\0\0\0\0\0"], OK).await.unwrap(), "");
    }

    #[tokio::test]
    async fn the_limit_holds_to_the_byte() {
        let exact = [b"\0\0\0\0\x10".as_slice(), &[7; MAX]].concat();
        assert_eq!(read_parts(HEAD, &[&exact], OK).await.unwrap().len(), MAX);
        let over = [b"\0\0\0\0\x11".as_slice(), &[7; MAX + 1]].concat();
        let malformed = Err(UpstreamFault::Malformed { ok: false });
        assert_eq!(read_parts(HEAD, &[&over], OK).await, malformed);
        // The announcement alone is enough, and no status behind it is waited for.
        assert_eq!(read_parts(HEAD, &[b"\0\0\0\0\x11"], None).await, malformed);
        assert_eq!(read_parts(HEAD, &[b"\0\xff\xff\xff\xff"], None).await, malformed);
    }

    #[tokio::test]
    async fn an_ok_without_exactly_one_plain_message_is_malformed() {
        // Whether the handler said OK matters to a write. What is cut off at the
        // byte that breaks its form ends before the status.
        for (data, ok) in [
            (b"".as_slice(), true),
            (b"\0\0", true),
            (b"\0\0\0\0\x03ab", true),
            (b"\0\0\0\0\x03abcd", false),
            (b"\0\0\0\0\x01a\0\0\0\0\x01b", false),
            (b"\x01\0\0\0\x03abc", false),
            (b"\x80", false),
        ] {
            let answer = read_parts(HEAD, &[data], OK).await;
            assert_eq!(answer, Err(UpstreamFault::Malformed { ok }), "{data:?}");
        }
    }

    #[tokio::test]
    async fn a_status_counts_only_where_the_protocol_puts_it() {
        let grpc = ("content-type", "application/grpc");
        let internal = Err(UpstreamFault::Status { code: "INTERNAL" });
        let message: &[u8] = b"\0\0\0\0\x01a";
        assert_eq!(read_parts(&[grpc, ("grpc-status", "13")], &[], None).await, internal);
        assert_eq!(read_parts(HEAD, &[message], Some(&[("grpc-status", "13")])).await, internal);
        // A message cut short by the handler's own status.
        assert_eq!(
            read_parts(HEAD, &[&message[..3]], Some(&[("grpc-status", "13")])).await,
            internal
        );
        // The trailers speak last.
        assert_eq!(
            read_parts(&[grpc, ("grpc-status", "0")], &[message], Some(&[("grpc-status", "13")]))
                .await,
            internal
        );
        // A head cannot vouch for a body that has not come yet.
        assert_eq!(
            read_parts(&[grpc, ("grpc-status", "0")], &[message], None).await,
            Err(NO_STATUS)
        );
        assert_eq!(read_parts(HEAD, &[message], None).await, Err(NO_STATUS));
        assert_eq!(read_parts(HEAD, &[message], Some(&[("x", "0")])).await, Err(NO_STATUS));
        assert_eq!(read_parts(HEAD, &[], None).await, Err(NO_STATUS));
    }

    #[tokio::test]
    async fn a_status_that_cannot_be_read_is_not_ok() {
        let unknown = Err(UpstreamFault::Status { code: "UNKNOWN" });
        let message: &[u8] = b"\0\0\0\0\x01a";
        for value in ["", "17", "00", "-1", "zero", "0 "] {
            let trailers = [("grpc-status", value)];
            assert_eq!(read_parts(HEAD, &[message], Some(&trailers)).await, unknown, "{value:?}");
        }
        let twice = [("grpc-status", "0"), ("grpc-status", "0")];
        assert_eq!(read_parts(HEAD, &[message], Some(&twice)).await, unknown);
    }

    #[tokio::test]
    async fn another_content_type_is_no_answer() {
        let message: &[u8] = b"\0\0\0\0\x01a";
        for (value, fits) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("Application/GRPC ; charset=utf-8", true),
            ("application/grpc+json", false),
            ("application/grpc-web", false),
            ("application/grpc-web+proto", false),
            ("text/html", false),
            ("", false),
        ] {
            let answer = read_parts(&[("content-type", value)], &[message], OK).await;
            assert_eq!(answer.is_ok(), fits, "{value}");
        }
        assert_eq!(read_parts(&[], &[message], OK).await, Err(NO_STATUS));
    }
}
