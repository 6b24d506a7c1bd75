//! What the gate causes outside itself, as traits.
//!
//! Adapters implement these; tests put fakes behind them.

mod administration;
mod audit_log;
mod holds;
mod ledger;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::domain::audit::{ClosedSetFault, Entry, Stamp};
use crate::domain::stages::Delivery;

pub use crate::domain::record::Reservation;
pub use administration::{
    Administration, GateStatus, JournalStatus, KeyStatus, LedgerStatus, MUCH_BEHIND, ReloadReport,
    SinkStatus, SinkStatuses, UpstreamStatus,
};
pub use audit_log::{AuditLog, AuditReader, Step, Unreadable};
pub use holds::{Held, Hold, Holds};
pub use ledger::{Ledger, LedgerFault, ReserveFault, Revocation, Revoked, Settlement};

/// The wall clock. Waiting and measuring use the runtime's monotonic time.
pub trait Clock: Send + Sync {
    /// The present time.
    fn now(&self) -> Timestamp;
}

/// The durable, ordered, chained record of audit events.
///
/// The journal owes every event it was handed: one whose append failed or was
/// not awaited to its end is still written, before anything later, once the
/// journal works again. Only [`JournalFault::Full`] and
/// [`JournalFault::Rejected`] mean that nothing was taken.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Appends entries in order and returns once all are as durable as asked.
    ///
    /// # Errors
    ///
    /// See [`JournalFault`].
    async fn append(
        &self,
        entries: Vec<Entry>,
        durability: Durability,
    ) -> Result<Vec<Stamp>, JournalFault>;

    /// Whether new work may rely on the journal: it works and owes nothing.
    fn is_ready(&self) -> bool;
}

/// How durable an append must be before it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// In the page cache: survives a killed process, not a lost machine.
    Written,
    /// Synced to the disk.
    Synced,
}

/// Why an append was not answered with stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalFault {
    /// Writing or syncing failed. The events are owed.
    Failed,
    /// The queue is full. Nothing was taken.
    Full,
    /// An event is outside its closed set. Nothing was taken.
    Rejected(ClosedSetFault),
}

/// The registered handlers.
#[async_trait]
pub trait Upstream: Send + Sync {
    /// Delivers one attempt and reads its result in full. Dropping the future
    /// cancels the call upstream.
    ///
    /// # Errors
    ///
    /// See [`UpstreamFault`].
    async fn invoke(&self, delivery: &Delivery<'_>) -> Result<String, UpstreamFault>;
}

/// Why an attempt has no result. Holds no text of the handler's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamFault {
    /// The handler answered with this status, which is not OK.
    Status {
        /// The code's name, as gRPC spells it.
        code: &'static str,
    },
    /// No status came: no connection, a reset, GOAWAY, or a truncated answer.
    Unavailable {
        /// Whether the request was ever put on a connection.
        sent: bool,
    },
    /// The answer is larger than the contract allows, or is no answer of this method.
    Malformed {
        /// Whether the handler's status was OK: it did what it was asked to.
        ok: bool,
    },
}
