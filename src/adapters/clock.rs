//! The system's wall clock.

use jiff::Timestamp;

use crate::ports::Clock;

/// Reads the system's wall clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}
