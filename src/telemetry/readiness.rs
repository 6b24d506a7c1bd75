//! Why the gate would refuse new work, and what is wrong although it would not, in fixed words.

use std::sync::Arc;

/// Answers what stands in the way of new work now; nothing means ready.
///
/// Called for every probe and scrape: it reads state, and neither waits nor tries anything.
pub type Readiness = Arc<dyn Fn() -> Vec<NotReady> + Send + Sync>;

/// Answers what somebody should look at although it stands in nobody's way.
///
/// Called as [`Readiness`] is.
pub type Notices = Arc<dyn Fn() -> Vec<Notice> + Send + Sync>;

/// One thing that somebody should look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Notice {
    /// An audit sink has not taken what the journal has.
    SinkBehind,
}

impl Notice {
    /// Every one.
    pub const ALL: [Self; 1] = [Self::SinkBehind];

    /// The line that a probe reads.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::SinkBehind => {
                "sink behind: an audit sink has not taken what the journal has; toolgate status names it"
            }
        }
    }
}

/// One thing that stands in the way of new work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotReady {
    /// The gate has not finished starting.
    Starting,
    /// The gate is draining and takes no new work.
    Draining,
    /// No policy snapshot is loaded.
    PolicyMissing,
    /// The journal does not work, or still owes events.
    JournalDown,
    /// The journal's disk is almost full.
    JournalFull,
    /// The same, while records are kept for a sink that is behind.
    JournalHeld,
    /// The ledger does not work.
    LedgerDown,
    /// The clock is behind the ledger's high-water mark.
    ClockUntrusted,
}

impl NotReady {
    /// Every reason, in the order of the enum.
    pub const ALL: [Self; 8] = [
        Self::Starting,
        Self::Draining,
        Self::PolicyMissing,
        Self::JournalDown,
        Self::JournalFull,
        Self::JournalHeld,
        Self::LedgerDown,
        Self::ClockUntrusted,
    ];

    /// The line that a probe reads.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Starting => "starting: the gate has not finished starting",
            Self::Draining => "draining: the gate is stopping and takes no new calls",
            Self::PolicyMissing => "policy missing: no policy is loaded",
            Self::JournalDown => {
                "journal down: audit events cannot be made durable; look at the data directory"
            }
            Self::JournalFull => {
                "journal full: less than audit.min_free_bytes is free on its disk; make room"
            }
            Self::JournalHeld => {
                "journal full: segments that retention would delete are kept for an audit sink \
                 that is behind; the log names it"
            }
            Self::LedgerDown => "ledger down: the ledger cannot be read or written",
            Self::ClockUntrusted => {
                "clock untrusted: the clock is behind the ledger's high-water mark"
            }
        }
    }
}
