//! How long an attempt may take, and whether another may follow (semantics, section 7).

use std::time::Duration;

use super::contract::Contract;
use super::reason::Reason;

/// What is kept back of the remaining time, so that the answer still reaches the caller.
pub const ANSWER_MARGIN: Duration = Duration::from_millis(20);

/// The time of one attempt, and what it means when it runs out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// How long the handler has.
    pub timeout: Duration,
    /// `ATTEMPT_DEADLINE`, or `CALLER_DEADLINE` where the caller's deadline or
    /// the batch total cut the contract's own time.
    pub on_timeout: Reason,
}

/// The attempts that a batch may make in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepBudget {
    max: usize,
    made: usize,
}

/// The window of an attempt, or `None` with less than `min_attempt` left.
#[must_use]
pub fn window(
    attempt_timeout: Duration,
    remaining: Duration,
    min_attempt: Duration,
) -> Option<Window> {
    if remaining < min_attempt {
        return None;
    }
    Some(cut(attempt_timeout, remaining))
}

/// The window of an attempt that may no longer be refused: its started event is written.
#[must_use]
pub fn cut(attempt_timeout: Duration, remaining: Duration) -> Window {
    let left = remaining.saturating_sub(ANSWER_MARGIN);
    if attempt_timeout <= left {
        Window { timeout: attempt_timeout, on_timeout: Reason::AttemptDeadline }
    } else {
        Window { timeout: left, on_timeout: Reason::CallerDeadline }
    }
}

/// Whether an attempt that ended for this reason is made again by the gate itself.
///
/// Only the gate's own attempt deadline is, and an unavailable upstream where a
/// read asks for it: in every other case the handler has spoken, or nobody waits
/// for the answer any more.
#[must_use]
pub fn retries_on(reason: Reason, contract: &Contract) -> bool {
    match reason {
        Reason::AttemptDeadline => true,
        Reason::UpstreamUnavailable => contract.retry_unavailable && !contract.needs_record(),
        _ => false,
    }
}

/// How long the gate waits before it makes the `retries`-th retry, from 1.
///
/// After its own deadline it has waited long enough. An upstream that cannot be
/// reached is given a moment, twice as long each time, up to a second.
#[must_use]
pub fn pause(reason: Reason, retries: u32) -> Duration {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(1);
    match reason {
        Reason::UpstreamUnavailable => {
            FIRST.saturating_mul(1 << retries.saturating_sub(1).min(8)).min(LONGEST)
        }
        _ => Duration::ZERO,
    }
}

impl StepBudget {
    /// At most `max` attempts.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self { max, made: 0 }
    }

    /// Counts an attempt.
    pub const fn spend(&mut self) {
        self.made += 1;
    }

    /// Whether a retry leaves one step to each of the calls that come after.
    #[must_use]
    pub const fn allows_retry(&self, calls_after: usize) -> bool {
        self.made + calls_after < self.max
    }
}
