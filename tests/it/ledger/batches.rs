//! Several calls in one reservation.

use toolgate::domain::reason::Reason;
use toolgate::domain::record::{Claim, TicketShown, TicketUse};
use toolgate::ports::ReserveFault;
use uuid::Uuid;

use super::Place;
use super::calls::{at, claim, refusal, reserve, ticket, time};

fn three() -> Vec<Claim> {
    (1..=3).map(|number| claim(&format!("call-{number}"), ticket(number))).collect()
}

pub async fn all_or_nothing(place: &dyn Place) {
    let ledger = place.open().await;
    for loser in 0..3 {
        let mut claims = three();
        claims[loser].ticket = TicketShown::Missing;
        let fault = ledger.reserve(claims.clone(), at(0)).await.unwrap_err();
        assert!(matches!(fault, ReserveFault::Turned { index, .. } if index == loser));
        for (number, claim) in (1..).zip(&claims) {
            assert_eq!(ledger.look(claim.key).await, Ok(None), "loser {loser}, call {number}");
            let known = ledger.ticket(Uuid::from_u128(number), time(300)).await;
            assert_eq!(known, Ok(TicketUse::Unused), "loser {loser}, ticket {number}");
        }
        assert_eq!(ledger.running().await, Ok(Vec::new()));
    }
    let reservations = ledger.reserve(three(), at(0)).await.unwrap();
    let keys: Vec<_> = reservations.iter().map(|reservation| reservation.key).collect();
    assert_eq!(keys, three().iter().map(|claim| claim.key).collect::<Vec<_>>());
    assert_eq!(ledger.running().await.unwrap().len(), 3);
}

pub async fn the_first_loser_is_named(place: &dyn Place) {
    let ledger = place.open().await;
    reserve(&ledger, claim("call-2", ticket(2)), 0).await.unwrap();
    let mut claims = three();
    claims[2].ticket = TicketShown::Missing;
    match ledger.reserve(claims, at(0)).await {
        Err(ReserveFault::Turned { index: 1, turned }) => {
            assert_eq!(turned.reason, Reason::CallInProgress);
        }
        other => panic!("{other:?}"),
    }
}

pub async fn one_call_twice_in_a_batch(place: &dyn Place) {
    let ledger = place.open().await;
    let twice = vec![claim("call-1", ticket(1)), claim("call-1", ticket(2))];
    match ledger.reserve(twice, at(0)).await {
        Err(ReserveFault::Turned { index: 1, turned }) => {
            assert_eq!(turned.reason, Reason::CallInProgress);
        }
        other => panic!("{other:?}"),
    }
    let one_ticket = vec![claim("call-1", ticket(1)), claim("call-2", ticket(1))];
    match ledger.reserve(one_ticket, at(0)).await {
        Err(ReserveFault::Turned { index: 1, turned }) => {
            assert_eq!(turned.reason, Reason::ConfirmationConsumed);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(refusal(&ledger, claim("call-1", ticket(1)), 0).await, None);
}

pub async fn an_empty_batch(place: &dyn Place) {
    let ledger = place.open().await;
    assert_eq!(ledger.reserve(Vec::new(), at(0)).await, Ok(Vec::new()));
}
