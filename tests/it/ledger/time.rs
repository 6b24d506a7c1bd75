//! The high-water mark, and what is forgotten.

use std::time::Duration;

use toolgate::domain::reason::{Effect, Reason};
use toolgate::domain::record::{TicketShown, TicketUse};
use toolgate::domain::watermark::{ClockState, Reading};
use toolgate::ports::{Revocation, Settlement};
use uuid::Uuid;

use super::Place;
use super::calls::{
    KEPT, LIFETIME, REMEMBERED, at, claim, refusal, reserve, run, settlement, ticket, time,
};

/// The wall clock at this second, long after another second by the monotonic one.
fn stepped(second: i64, monotonic: i64) -> Reading {
    Reading { now: time(second), ..at(monotonic) }
}

fn end(second: i64) -> Settlement {
    settlement(Reason::Ok, Effect::Applied, second)
}

pub async fn a_clock_that_went_back(place: &dyn Place) {
    let ledger = place.open().await;
    assert_eq!(ledger.observe(at(1_000)).await, Ok(ClockState::Trusted));
    let write = || claim("call-1", TicketShown::NotNeeded);
    assert_eq!(refusal(&ledger, write(), 969).await, Some(Reason::ClockUntrusted));
    assert_eq!(ledger.look(write().key).await, Ok(None));
    assert_eq!(ledger.observe(at(969)).await, Ok(ClockState::Behind));
    assert_eq!(refusal(&ledger, write(), 970).await, None, "within the skew");
}

pub async fn the_mark_moves_with_reservations(place: &dyn Place) {
    let ledger = place.open().await;
    reserve(&ledger, claim("call-1", ticket(1)), 100).await.unwrap();
    let refused = refusal(&ledger, claim("call-2", ticket(2)), 69).await;
    assert_eq!(refused, Some(Reason::ClockUntrusted));
}

pub async fn a_jump_ahead_is_not_kept(place: &dyn Place) {
    let ledger = place.open().await;
    ledger.observe(at(0)).await.unwrap();
    assert_eq!(ledger.observe(stepped(KEPT, 10)).await, Ok(ClockState::Stepped));
    run(&ledger, claim("call-1", ticket(1)), end(0)).await;
    assert_eq!(ledger.observe(stepped(KEPT * 2, 20)).await, Ok(ClockState::Stepped));
    assert_eq!(ledger.forget_expired().await, Ok(0), "nor does it make forget");
    assert_eq!(ledger.observe(at(30)).await, Ok(ClockState::Trusted));
}

pub async fn an_accepted_clock(place: &dyn Place) {
    let ledger = place.open().await;
    ledger.observe(at(1_000)).await.unwrap();
    ledger.accept_clock(at(0)).await.unwrap();
    assert_eq!(refusal(&ledger, claim("call-1", ticket(1)), 0).await, None);
    assert_eq!(ledger.observe(at(10)).await, Ok(ClockState::Trusted));
}

pub async fn nothing_is_forgotten_early(place: &dyn Place) {
    let ledger = place.open().await;
    run(&ledger, claim("call-1", ticket(1)), end(10)).await;
    let revocation =
        Revocation { confirmation_id: Uuid::from_u128(2), revoked_at: time(0), lifetime: LIFETIME };
    ledger.revoke(revocation).await.unwrap();
    let known = |number| ledger.ticket(Uuid::from_u128(number), time(300));

    ledger.observe(at(REMEMBERED - 1)).await.unwrap();
    assert_eq!(ledger.forget_expired().await, Ok(0));
    assert_eq!(known(1).await, Ok(TicketUse::Spent));
    assert_eq!(known(2).await, Ok(TicketUse::Revoked));
    ledger.observe(at(REMEMBERED)).await.unwrap();
    assert_eq!(ledger.forget_expired().await, Ok(1), "the spent one");
    // It was revoked by a ledger that had seen ten seconds more.
    ledger.observe(at(10 + REMEMBERED - 1)).await.unwrap();
    assert_eq!(ledger.forget_expired().await, Ok(0));
    ledger.observe(at(10 + REMEMBERED)).await.unwrap();
    assert_eq!(ledger.forget_expired().await, Ok(1), "the revoked one");

    ledger.observe(at(10 + KEPT - 1)).await.unwrap();
    assert_eq!(ledger.forget_expired().await, Ok(0));
    let refused = refusal(&ledger, claim("call-1", TicketShown::Missing), 10 + KEPT - 1).await;
    assert_eq!(refused, Some(Reason::CallReplayed));
    ledger.observe(at(10 + KEPT)).await.unwrap();
    assert_eq!(ledger.forget_expired().await, Ok(1), "the record, from its end on");
}

/// A ticket was issued by a clock that was ahead, revoked once that had been set
/// right, and comes to life later.
pub async fn a_revocation_outlives_what_a_clock_ahead_has_issued(place: &dyn Place) {
    let ledger = place.open().await;
    ledger.observe(at(0)).await.unwrap();
    assert_eq!(ledger.observe(stepped(5_000, 10)).await, Ok(ClockState::Stepped));
    assert_eq!(ledger.observe(at(20)).await, Ok(ClockState::Trusted));
    let revocation = |number, second| Revocation {
        confirmation_id: Uuid::from_u128(number),
        revoked_at: time(second),
        lifetime: LIFETIME,
    };
    ledger.revoke(revocation(1, 30)).await.unwrap();
    // Likewise where an operator has accepted the clock that was set right.
    ledger.accept_clock(at(-10_000)).await.unwrap();
    ledger.revoke(revocation(2, -10_000)).await.unwrap();
    ledger.observe(at(5_000 + REMEMBERED - 1)).await.unwrap();
    ledger.accept_clock(at(5_000 + REMEMBERED - 1)).await.unwrap();
    assert_eq!(ledger.forget_expired().await, Ok(0));
    for number in [1, 2] {
        let known = ledger.ticket(Uuid::from_u128(number), time(5_300)).await;
        assert_eq!(known, Ok(TicketUse::Revoked), "{number}");
    }
}

pub async fn a_forgotten_call_may_run_again(place: &dyn Place) {
    let ledger = place.open().await;
    run(&ledger, claim("call-1", TicketShown::NotNeeded), end(0)).await;
    ledger.observe(at(KEPT)).await.unwrap();
    let again = || claim("call-1", TicketShown::NotNeeded);
    assert_eq!(refusal(&ledger, again(), KEPT).await, Some(Reason::CallReplayed));
    while ledger.forget_expired().await.unwrap() > 0 {}
    let reservation = reserve(&ledger, again(), KEPT).await.unwrap();
    assert_eq!(reservation.first_attempt, 1);
}

pub async fn running_calls_are_never_forgotten(place: &dyn Place) {
    let ledger = place.open().await;
    let held = reserve(&ledger, claim("call-1", TicketShown::NotNeeded), 0).await.unwrap();
    ledger.observe(at(KEPT * 10)).await.unwrap();
    assert_eq!(ledger.forget_expired().await, Ok(0));
    // A reopened record was to be forgotten before, and is not any more.
    let none = settlement(Reason::HandlerFailed, Effect::None, 0);
    ledger.settle(held.id, held.key, none).await.unwrap();
    reserve(&ledger, claim("call-1", TicketShown::NotNeeded), KEPT * 10).await.unwrap();
    assert_eq!(ledger.forget_expired().await, Ok(0));
    assert_eq!(ledger.running().await.unwrap().len(), 1);
}

/// The clock ran ahead, the use of the ticket was forgotten, and an operator
/// then accepted the clock that was set right.
pub async fn a_forgotten_ticket_stays_dead(place: &dyn Place) {
    let ledger = place.open().await;
    run(&ledger, claim("call-1", ticket(1)), end(0)).await;
    ledger.observe(at(KEPT * 2)).await.unwrap();
    while ledger.forget_expired().await.unwrap() > 0 {}
    ledger.accept_clock(at(10)).await.unwrap();
    assert_eq!(ledger.ticket(Uuid::from_u128(1), time(300)).await, Ok(TicketUse::Forgotten));
    let refused = refusal(&ledger, claim("call-1", ticket(1)), 10).await;
    assert_eq!(refused, Some(Reason::ConfirmationExpired));
    let newer =
        TicketShown::Verified { confirmation_id: Uuid::from_u128(2), expires_at: time(301) };
    assert_eq!(refusal(&ledger, claim("call-1", newer), 10).await, None);
}

pub async fn forgetting_goes_in_batches(place: &dyn Place) {
    let ledger = place.open().await;
    let claims = (0..700).map(|number| claim(&format!("call-{number}"), ticket(number))).collect();
    let reservations = ledger.reserve(claims, at(0)).await.unwrap();
    for reservation in &reservations[..10] {
        ledger.settle(reservation.id, reservation.key, end(0)).await.unwrap();
    }
    let late = Reading { monotonic: Duration::from_secs(2_000_000), ..at(1_000_000) };
    ledger.observe(late).await.unwrap();
    let mut batches = Vec::new();
    loop {
        match ledger.forget_expired().await.unwrap() {
            0 => break,
            count => batches.push(count),
        }
    }
    assert_eq!(batches.iter().sum::<usize>(), 710);
    assert!(batches.len() > 1, "one batch is bounded");
}
