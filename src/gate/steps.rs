//! A batch as it runs, for who wants each event and result as it happens.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use tokio::sync::mpsc;
use tokio_util::sync::DropGuard;

use super::{CallResult, RecordedEvent};
use crate::domain::refused::Refused;

/// One step of a running batch.
#[derive(Debug)]
pub enum Step {
    /// An event, once the journal has it or has failed to take it.
    Event(RecordedEvent),
    /// The final result of the call with this index.
    Result(usize, Box<CallResult>),
}

/// The steps of a batch, in the order in which they happened: the events of a call
/// before its result, and one result for each call. Ends after the last of them; an
/// error means that the gate went down before it. Dropping it means that the
/// caller has gone.
#[derive(Debug)]
pub struct Steps {
    told: mpsc::Receiver<Step>,
    /// Results that are still to come.
    owed: usize,
    _caller: DropGuard,
}

/// Whom a batch tells its steps. Nobody, where the whole report is waited for.
#[derive(Debug, Clone, Default)]
pub(super) struct Observer(Option<mpsc::Sender<Step>>);

impl Observer {
    /// One with room for every step that a batch of so many calls can take, so
    /// that it never waits for whoever reads them.
    pub(super) fn of(calls: usize, max_steps: usize) -> (Self, mpsc::Receiver<Step>) {
        // Two events a step or refusal, of which a batch has one more at most, or one
        // for each call; and a result for each call.
        let steps = max_steps.saturating_add(calls);
        let most = steps.saturating_mul(2).saturating_add(calls).saturating_add(2);
        let (sender, receiver) = mpsc::channel(most);
        (Self(Some(sender)), receiver)
    }

    pub(super) fn tell(&self, step: impl FnOnce() -> Step) {
        if let Some(sender) = &self.0 {
            // Nobody reads any more, which the batch hears of by itself.
            drop(sender.try_send(step()));
        }
    }
}

impl Steps {
    pub(super) const fn new(told: mpsc::Receiver<Step>, calls: usize, caller: DropGuard) -> Self {
        Self { told, owed: calls, _caller: caller }
    }
}

impl Stream for Steps {
    type Item = Result<Step, Refused>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(match ready!(self.told.poll_recv(cx)) {
            Some(step) => {
                if let Step::Result(..) = step {
                    self.owed = self.owed.saturating_sub(1);
                }
                Some(Ok(step))
            }
            None if self.owed > 0 => {
                self.owed = 0;
                Some(Err(Refused::Internal))
            }
            None => None,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use futures_util::StreamExt as _;
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test]
    async fn steps_end_well_only_after_the_last_result() {
        for told in 0..=2 {
            let (observer, steps) = Observer::of(2, 8);
            let gone = CancellationToken::new();
            let mut steps = Steps::new(steps, 2, gone.clone().drop_guard());
            for index in 0..told {
                let result = CallResult { tool_call_id: None, end: None };
                observer.tell(|| Step::Result(index, Box::new(result)));
            }
            drop(observer);
            for _ in 0..told {
                steps.next().await.unwrap().unwrap();
            }
            let end = steps.next().await.map(|step| step.unwrap_err());
            assert_eq!(end, (told < 2).then_some(Refused::Internal));
            assert!(steps.next().await.is_none());
            assert!(!gone.is_cancelled());
            drop(steps);
            assert!(gone.is_cancelled(), "the caller has gone");
        }
    }
}
