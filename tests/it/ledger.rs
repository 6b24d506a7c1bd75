//! What every ledger keeps to, run against each, and what is the embedded one's own.

mod batches;
mod calls;
mod embedded;
mod owners;
pub mod postgres;
mod records;
mod reopened;
mod tickets;
mod time;
mod went_back;

use std::sync::Arc;

use async_trait::async_trait;
use toolgate::ports::Ledger;

/// Where a ledger of one kind is kept.
#[async_trait]
pub trait Place: Send + Sync {
    /// Opens the ledger that is kept here. The one before was dropped.
    async fn open(&self) -> Arc<dyn Ledger>;
}

/// Runs the whole contract against one kind of ledger, each function with a new place.
macro_rules! keeps_the_contract {
    ($kind:ident, $place:expr) => {
        keeps_the_contract! { @ $kind, $place,
            batches: all_or_nothing, the_first_loser_is_named, one_call_twice_in_a_batch,
                an_empty_batch;
            records: every_row_through_the_port, a_settled_call_is_replayed,
                settling_twice, settling_what_is_not_held, released_calls_leave_no_trace,
                a_released_call_that_was_reopened_is_what_it_was, releasing_what_is_not_held,
                attempts_go_on_where_they_ended, running_calls_are_listed,
                different_tickets_for_one_call;
            tickets: one_ticket_is_redeemed_once, a_revoked_ticket, revoking_twice,
                a_spent_ticket_is_revoked, a_release_does_not_undo_a_revocation,
                expiry_is_judged_at_the_reservation, what_is_known_of_a_ticket;
            time: a_clock_that_went_back, the_mark_moves_with_reservations,
                a_jump_ahead_is_not_kept, an_accepted_clock, nothing_is_forgotten_early,
                a_revocation_outlives_what_a_clock_ahead_has_issued,
                a_forgotten_call_may_run_again, running_calls_are_never_forgotten,
                a_forgotten_ticket_stays_dead, forgetting_goes_in_batches;
            reopened: everything_answered_is_there, the_mark_is_there, an_identity_is_kept,
                a_new_identity, a_new_identity_is_as_new_as_the_present;
        }
    };
    (@ $kind:ident, $place:expr, $($group:ident: $($test:ident),+;)+) => {
        mod $kind {
            $(mod $group {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    crate::ledger::$group::$test(&$place).await;
                })+
            })+
        }
    };
}

keeps_the_contract!(embedded_ledger, crate::ledger::embedded::Directory::new());
keeps_the_contract!(
    postgres_ledger,
    match crate::ledger::postgres::OwnDatabase::new() {
        Some(place) => place,
        None => return,
    }
);
