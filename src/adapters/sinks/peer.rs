//! Who takes events, as what follows the journal for it sees it.

use std::time::Duration;

use async_trait::async_trait;

use crate::domain::audit::{Entry, Stamp};

/// What is handed over, in the journal's order.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Item {
    /// A record.
    Record(Entry, Stamp),
    /// Records that are no longer kept, from the first to the last of them.
    Gap {
        /// The first.
        first: u64,
        /// The last.
        last: u64,
    },
}

/// Takes events.
#[async_trait]
pub(super) trait Peer: Send {
    /// Hands items over, at least one, and returns once they have been taken.
    ///
    /// After [`NotTaken::Later`], and where the future was dropped, the same items
    /// come next, whatever of them has arrived.
    ///
    /// # Errors
    ///
    /// See [`NotTaken`].
    async fn deliver(&mut self, items: &[Item]) -> Result<Taken, NotTaken>;
}

/// The peer has answered for every item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Taken {
    /// Items that it will not have, and does not name.
    pub(super) rejected: u64,
}

/// Why items were not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// For nothing that is in them: they can be handed over again.
    Later {
        /// What went wrong.
        fault: SinkFault,
        /// How long the peer asks to be left alone.
        wait: Option<Duration>,
    },
    /// They may be too many at once.
    TooMany(SinkFault),
    /// For what is in at least one of them. It will never be taken.
    Refused,
}

/// Why a sink does not get on, in fixed words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkFault {
    /// There is no connection to the receiver, or it broke.
    Unreachable,
    /// The receiver did not answer in time.
    TimedOut,
    /// The receiver answered with this status.
    Status(&'static str),
    /// A file that the connection needs cannot be used.
    Files,
    /// The journal cannot be read back.
    Journal,
    /// How far the sink is cannot be written down.
    Cursor,
}

impl SinkFault {
    /// The label of each kind.
    pub const KINDS: [&'static str; 6] =
        ["unreachable", "timeout", "status", "files", "journal", "cursor"];

    /// The label in metrics, and the word in log and status.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        Self::KINDS[self.place()]
    }

    /// The place of the label in [`SinkFault::KINDS`].
    pub(super) const fn place(self) -> usize {
        match self {
            Self::Unreachable => 0,
            Self::TimedOut => 1,
            Self::Status(_) => 2,
            Self::Files => 3,
            Self::Journal => 4,
            Self::Cursor => 5,
        }
    }

    /// The name of the receiver's status, as gRPC spells it; empty without one.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Status(code) => code,
            _ => "",
        }
    }
}

impl Item {
    /// The last record that it stands for.
    pub(super) const fn sequence(&self) -> u64 {
        match self {
            Self::Record(_, stamp) => stamp.sequence,
            Self::Gap { last, .. } => *last,
        }
    }
}
