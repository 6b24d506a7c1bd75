//! A request's message, which must be there in time: who opens streams and sends
//! nothing, or a byte now and then, holds none of them for long.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

use crate::domain::refused::Refused;

/// From the request's head to the end of its message.
pub(super) const MESSAGE_TIME: Duration = Duration::from_secs(30);

/// Ends the request's body with a refusal once its time is over.
pub(super) fn in_time(request: Request<Body>) -> Request<Body> {
    request.map(|inner| Body::new(InTime { inner, until: Box::pin(sleep(MESSAGE_TIME)) }))
}

struct InTime {
    inner: Body,
    until: Pin<Box<Sleep>>,
}

impl http_body::Body for InTime {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        // Before what has arrived: a byte now and then does not put it off.
        let is_late = Instant::now() >= self.until.deadline() && !self.inner.is_end_stream();
        if !is_late && let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        // Most messages are there at once, and start no timer.
        self.until.as_mut().poll(cx).map(|()| Some(Err(Refused::RequestLate.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use futures_util::stream;
    use http_body_util::{BodyExt as _, StreamBody};

    /// Sends a byte each this often, for a hundred times.
    fn drip(pause: Duration) -> Request<Body> {
        let bytes = stream::unfold(0, move |sent| async move {
            sleep(pause).await;
            (sent < 100)
                .then_some((Ok::<_, Status>(Frame::data(Bytes::from_static(b"x"))), sent + 1))
        });
        in_time(Request::new(Body::new(StreamBody::new(Box::pin(bytes)))))
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_drips_is_cut_off() {
        let begun = Instant::now();
        let error = drip(Duration::from_secs(1)).into_body().collect().await.unwrap_err();
        assert_eq!(begun.elapsed(), MESSAGE_TIME);
        assert_eq!(error.code(), tonic::Code::Unavailable);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_there_in_time_is_whole() {
        let body = drip(Duration::from_millis(290)).into_body().collect().await.unwrap();
        assert_eq!(body.to_bytes().len(), 100);
    }
}
