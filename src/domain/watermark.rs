//! Whether the wall clock may be believed (semantics, section 6).
//!
//! A clock that went back would bring expired tickets to life. The ledger
//! therefore keeps the latest time it has seen, its high-water mark; a clock
//! behind that by more than the skew is not believed. A clock that jumps ahead
//! must not push the mark there, or the gate would stop once it is set right:
//! what the monotonic clock contradicts is not kept.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Both clocks, read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The wall clock.
    pub now: Timestamp,
    /// Time since an arbitrary start, the same for all readings of a process.
    pub monotonic: Duration,
}

/// What is thought of the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockState {
    /// It agrees with the mark and with the monotonic clock.
    Trusted,
    /// It has stepped by more than the skew, and not behind the mark. Tickets
    /// are judged by it, the mark stays where it is.
    Stepped,
    /// It is behind the mark by more than the skew: nothing is reserved.
    Behind,
}

impl ClockState {
    /// The word in logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Trusted => "trusted",
            Self::Stepped => "stepped",
            Self::Behind => "behind",
        }
    }
}

/// The latest time that was believed, and what new readings are compared with.
#[derive(Debug, Clone)]
pub struct Watermark {
    mark: Option<Timestamp>,
    /// The last reading that nothing contradicted. None since the start.
    last: Option<Reading>,
    skew: SignedDuration,
}

impl Watermark {
    /// The mark that an earlier process left, if any. `skew` is how far clocks
    /// may be apart.
    #[must_use]
    pub fn new(mark: Option<Timestamp>, skew: Duration) -> Self {
        let skew = SignedDuration::try_from(skew).unwrap_or(SignedDuration::MAX);
        Self { mark, last: None, skew }
    }

    /// The latest time that was believed.
    #[must_use]
    pub const fn mark(&self) -> Option<Timestamp> {
        self.mark
    }

    /// Judges a reading, and moves the mark if nothing contradicts it.
    pub fn observe(&mut self, reading: Reading) -> ClockState {
        if self.mark.is_some_and(|mark| mark.duration_since(reading.now) > self.skew) {
            return ClockState::Behind;
        }
        if self.last.is_some_and(|last| reading.step_since(last).abs() > self.skew) {
            return ClockState::Stepped;
        }
        self.last = Some(reading);
        self.mark = self.mark.max(Some(reading.now));
        ClockState::Trusted
    }

    /// Goes by a mark that others have moved, or an operator has put back.
    pub const fn follow(&mut self, mark: Option<Timestamp>) {
        self.mark = mark;
    }

    /// Moves the mark on to a time that was not read by this process.
    pub fn advance(&mut self, now: Timestamp) {
        self.mark = self.mark.max(Some(now));
    }

    /// Takes this reading for right, whatever was believed before.
    pub const fn accept(&mut self, reading: Reading) {
        self.last = Some(reading);
        self.mark = Some(reading.now);
    }
}

impl Reading {
    /// How much further the wall clock went than the monotonic one.
    fn step_since(self, earlier: Self) -> SignedDuration {
        let elapsed = |duration| SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        self.now
            .duration_since(earlier.now)
            .saturating_sub(elapsed(self.monotonic).saturating_sub(elapsed(earlier.monotonic)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SKEW: Duration = Duration::from_secs(30);

    fn at(wall: i64, monotonic: u64) -> Reading {
        Reading {
            now: Timestamp::constant(1_800_000_000, 0)
                .saturating_add(SignedDuration::from_secs(wall))
                .unwrap_or(Timestamp::MAX),
            monotonic: Duration::from_secs(1_000 + monotonic),
        }
    }

    fn mark(of: &Watermark) -> Option<i64> {
        of.mark().map(|mark| mark.as_second() - 1_800_000_000)
    }

    #[test]
    fn the_mark_follows_a_clock_that_runs() {
        let mut clock = Watermark::new(None, SKEW);
        assert_eq!(clock.observe(at(0, 0)), ClockState::Trusted);
        assert_eq!(clock.observe(at(10, 10)), ClockState::Trusted);
        assert_eq!(mark(&clock), Some(10));
        // Back within the skew: believed, and the mark stays.
        assert_eq!(clock.observe(at(-10, 11)), ClockState::Trusted);
        assert_eq!(mark(&clock), Some(10));
    }

    #[test]
    fn behind_the_mark_by_more_than_the_skew_is_not_believed() {
        let mut clock = Watermark::new(Some(at(0, 0).now), SKEW);
        assert_eq!(clock.observe(at(-31, 0)), ClockState::Behind);
        assert_eq!(clock.observe(at(-30, 0)), ClockState::Trusted);
        assert_eq!(mark(&clock), Some(0));
    }

    #[test]
    fn a_jump_ahead_that_the_monotonic_clock_contradicts_is_not_kept() {
        let mut clock = Watermark::new(None, SKEW);
        clock.observe(at(0, 0));
        assert_eq!(clock.observe(at(86_400, 10)), ClockState::Stepped);
        assert_eq!(clock.observe(at(86_410, 20)), ClockState::Stepped, "it does not wear off");
        assert_eq!(mark(&clock), Some(0));
        assert_eq!(clock.observe(at(30, 30)), ClockState::Trusted, "set right again");
        assert_eq!(mark(&clock), Some(30));
        assert_eq!(clock.observe(at(90, 60)), ClockState::Trusted, "30 s ahead, not more");
        assert_eq!(clock.observe(at(151, 90)), ClockState::Stepped);
    }

    #[test]
    fn a_jump_back_and_forth_leaves_no_trace() {
        let mut clock = Watermark::new(None, SKEW);
        clock.observe(at(100, 0));
        assert_eq!(clock.observe(at(0, 10)), ClockState::Behind);
        assert_eq!(clock.observe(at(120, 20)), ClockState::Trusted);
    }

    #[test]
    fn a_mark_that_others_have_moved_is_gone_by() {
        let mut clock = Watermark::new(None, SKEW);
        assert_eq!(clock.observe(at(0, 0)), ClockState::Trusted);
        clock.follow(Some(at(100, 0).now));
        assert_eq!(clock.observe(at(10, 10)), ClockState::Behind);
        clock.follow(Some(at(5, 0).now));
        assert_eq!(clock.observe(at(20, 20)), ClockState::Trusted, "put back");
        assert_eq!(mark(&clock), Some(20));
    }

    #[test]
    fn an_operator_may_accept_what_is_behind_or_ahead() {
        let mut clock = Watermark::new(Some(at(1_000, 0).now), SKEW);
        assert_eq!(clock.observe(at(0, 0)), ClockState::Behind);
        clock.accept(at(0, 0));
        assert_eq!(mark(&clock), Some(0));
        assert_eq!(clock.observe(at(10, 10)), ClockState::Trusted);
        assert_eq!(clock.observe(at(5_000, 20)), ClockState::Stepped);
        clock.accept(at(5_000, 20));
        assert_eq!(clock.observe(at(5_010, 30)), ClockState::Trusted);
    }
}
