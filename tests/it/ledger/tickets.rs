//! Spending and revoking.

use std::sync::Arc;

use toolgate::domain::reason::{Effect, Reason};
use toolgate::domain::record::TicketUse;
use toolgate::ports::{Revocation, Revoked};
use uuid::Uuid;

use super::Place;
use super::calls::{LIFETIME, claim, refusal, reserve, run, settlement, ticket, time};

fn revocation(number: u128) -> Revocation {
    Revocation { confirmation_id: Uuid::from_u128(number), revoked_at: time(0), lifetime: LIFETIME }
}

/// A thousand calls at once, of as many ids, so that only the ticket decides.
pub async fn one_ticket_is_redeemed_once(place: &dyn Place) {
    let ledger = place.open().await;
    let tasks: Vec<_> = (0..1_000)
        .map(|number| {
            let ledger = Arc::clone(&ledger);
            let claim = claim(&format!("call-{number}"), ticket(1));
            tokio::spawn(async move { reserve(&ledger, claim, 0).await })
        })
        .collect();
    let mut granted = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(_) => granted += 1,
            Err(turned) => assert_eq!(turned.reason, Reason::ConfirmationConsumed),
        }
    }
    assert_eq!(granted, 1);
    assert_eq!(ledger.running().await.unwrap().len(), 1);
}

pub async fn a_revoked_ticket(place: &dyn Place) {
    let ledger = place.open().await;
    assert_eq!(ledger.revoke(revocation(1)).await, Ok(Revoked::InTime));
    let refused = refusal(&ledger, claim("call-1", ticket(1)), 0).await;
    assert_eq!(refused, Some(Reason::ConfirmationRevoked));
    assert_eq!(refusal(&ledger, claim("call-1", ticket(2)), 0).await, None);
}

pub async fn revoking_twice(place: &dyn Place) {
    let ledger = place.open().await;
    for _ in 0..2 {
        assert_eq!(ledger.revoke(revocation(1)).await, Ok(Revoked::InTime));
    }
    assert_eq!(ledger.ticket(Uuid::from_u128(1), time(300)).await, Ok(TicketUse::Revoked));
}

pub async fn a_spent_ticket_is_revoked(place: &dyn Place) {
    let ledger = place.open().await;
    run(&ledger, claim("call-1", ticket(1)), settlement(Reason::HandlerFailed, Effect::None, 0))
        .await;
    for _ in 0..2 {
        assert_eq!(ledger.revoke(revocation(1)).await, Ok(Revoked::Spent));
    }
    let refused = refusal(&ledger, claim("call-1", ticket(1)), 0).await;
    assert_eq!(refused, Some(Reason::ConfirmationRevoked));
}

pub async fn a_release_does_not_undo_a_revocation(place: &dyn Place) {
    let ledger = place.open().await;
    let reservation = reserve(&ledger, claim("call-1", ticket(1)), 0).await.unwrap();
    assert_eq!(ledger.revoke(revocation(1)).await, Ok(Revoked::Spent));
    ledger.release(vec![reservation]).await.unwrap();
    let refused = refusal(&ledger, claim("call-1", ticket(1)), 0).await;
    assert_eq!(refused, Some(Reason::ConfirmationRevoked));
    assert_eq!(ledger.revoke(revocation(1)).await, Ok(Revoked::InTime));
}

/// Admission may have verified it a moment ago.
pub async fn expiry_is_judged_at_the_reservation(place: &dyn Place) {
    let ledger = place.open().await;
    let expired = Some(Reason::ConfirmationExpired);
    assert_eq!(refusal(&ledger, claim("call-1", ticket(1)), 299).await, None);
    assert_eq!(refusal(&ledger, claim("call-2", ticket(2)), 300).await, expired);
    assert_eq!(refusal(&ledger, claim("call-2", ticket(2)), 301).await, expired);
    assert_eq!(ledger.ticket(Uuid::from_u128(2), time(300)).await, Ok(TicketUse::Unused));
}

pub async fn what_is_known_of_a_ticket(place: &dyn Place) {
    let ledger = place.open().await;
    let known = |number| ledger.ticket(Uuid::from_u128(number), time(300));
    assert_eq!(known(1).await, Ok(TicketUse::Unused));
    reserve(&ledger, claim("call-1", ticket(1)), 0).await.unwrap();
    assert_eq!(known(1).await, Ok(TicketUse::Spent));
    assert_eq!(known(2).await, Ok(TicketUse::Unused));
    ledger.revoke(revocation(1)).await.unwrap();
    assert_eq!(known(1).await, Ok(TicketUse::Revoked));
}
