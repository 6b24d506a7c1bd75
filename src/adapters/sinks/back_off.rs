//! How long a sink waits before it tries again.

use std::time::Duration;

/// The longest wait after a first failure.
const FIRST: Duration = Duration::from_millis(100);
/// The longest wait of all that the gate chooses itself.
pub(super) const LONGEST: Duration = Duration::from_secs(30);
/// The longest wait that a receiver may ask for.
pub(super) const LONGEST_ASKED: Duration = Duration::from_mins(5);

/// Doubles from failure to failure, up to [`LONGEST`], and spreads each wait over
/// its upper half, so that many gates do not come back as one.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    failures: u32,
}

impl BackOff {
    /// The wait after one more failure; what the receiver asks for if that is longer.
    pub(super) fn next(&mut self, asked: Option<Duration>) -> Duration {
        let most = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let own = most / 2 + (most / 2).mul_f64(fraction());
        own.max(asked.unwrap_or_default().min(LONGEST_ASKED))
    }

    /// Something was taken.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// From 0 to 1. Without randomness the wait is the longest: it only spreads.
fn fraction() -> f64 {
    getrandom::u32().map_or(1.0, |random| f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_are_spread() {
        let mut back_off = BackOff::default();
        let mut most = FIRST;
        for _ in 0..40 {
            let wait = back_off.next(None);
            assert!(wait >= most / 2 && wait <= most, "{wait:?} of {most:?}");
            most = (most * 2).min(LONGEST);
        }
        back_off.reset();
        assert!(back_off.next(None) <= FIRST);
        let spread: std::collections::HashSet<_> =
            (0..32).map(|_| BackOff { failures: 16 }.next(None)).collect();
        assert!(spread.len() > 16, "{spread:?}");
    }

    #[test]
    fn a_receiver_may_ask_for_more_and_not_for_ever() {
        let minute = Duration::from_mins(1);
        assert_eq!(BackOff::default().next(Some(minute)), minute);
        assert!(BackOff { failures: 16 }.next(Some(Duration::ZERO)) >= LONGEST / 2);
        assert_eq!(BackOff::default().next(Some(Duration::MAX)), LONGEST_ASKED);
    }
}
