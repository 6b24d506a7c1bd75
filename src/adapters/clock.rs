//! The system's wall clock.

use jiff::Timestamp;

use crate::ports::Clock;

/// Reads the system's wall clock, in whole microseconds: no sink of events keeps
/// more, so an event has the same time in each of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let now = Timestamp::now();
        Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
    }
}
