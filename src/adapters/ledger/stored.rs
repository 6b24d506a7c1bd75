//! What any ledger keeps of a ticket, and for how long.

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use crate::domain::record::TicketUse;

/// A ticket that was spent, revoked, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredTicket {
    /// Unix seconds from which on it may be forgotten.
    pub(super) forget_at: i64,
    pub(super) revoked: bool,
    /// The reservation.
    pub(super) spent_by: Option<Uuid>,
}

/// What is known of a ticket: what is stored, if anything is, else whether it may
/// have been forgotten.
pub(super) fn ticket_use(
    stored: Option<StoredTicket>,
    forgotten: i64,
    forget_at: i64,
) -> TicketUse {
    match stored {
        Some(ticket) if ticket.revoked => TicketUse::Revoked,
        Some(ticket) if ticket.spent_by.is_some() => TicketUse::Spent,
        _ if forget_at <= forgotten => TicketUse::Forgotten,
        _ => TicketUse::Unused,
    }
}

/// When a ticket may be forgotten, in Unix seconds: once no clock within the skew
/// holds it for valid.
pub(super) fn forget_at(expires_at: Timestamp, skew: Duration) -> i64 {
    let margin = i64::try_from(skew.as_secs()).unwrap_or(i64::MAX).saturating_mul(2);
    expires_at
        .as_second()
        .saturating_add(margin)
        .saturating_add(i64::from(skew.subsec_nanos() > 0) * 2)
}

/// The first whole second that is not before a time.
pub(super) fn ceiling(time: Timestamp) -> i64 {
    time.as_second() + i64::from(time.subsec_nanosecond() > 0)
}
