//! What is still there when the ledger is opened again.

use toolgate::domain::reason::{Effect, Reason};
use toolgate::domain::record::TicketUse;
use toolgate::domain::watermark::ClockState;
use toolgate::ports::Revocation;
use uuid::Uuid;

use super::Place;
use super::calls::{LIFETIME, START, at, claim, reserve, run, settlement, ticket, time};

pub async fn everything_answered_is_there(place: &dyn Place) {
    let ledger = place.open().await;
    let end = settlement(Reason::Ok, Effect::Applied, 1);
    let settled = run(&ledger, claim("call-1", ticket(1)), end).await.key;
    let held = reserve(&ledger, claim("call-2", ticket(2)), 0).await.unwrap().key;
    let released = reserve(&ledger, claim("call-3", ticket(3)), 0).await.unwrap();
    ledger.release(vec![released.clone()]).await.unwrap();
    let revocation =
        Revocation { confirmation_id: Uuid::from_u128(4), revoked_at: time(0), lifetime: LIFETIME };
    ledger.revoke(revocation).await.unwrap();
    let records = (ledger.look(settled).await.unwrap(), ledger.running().await.unwrap());
    drop(ledger);

    let ledger = place.open().await;
    assert_eq!(ledger.look(settled).await.unwrap(), records.0);
    assert_eq!(ledger.running().await.unwrap(), records.1);
    assert_eq!(records.1.len(), 1);
    assert_eq!(records.1[0].0, held);
    assert_eq!(ledger.look(released.key).await, Ok(None));
    let wanted = [TicketUse::Spent, TicketUse::Spent, TicketUse::Unused, TicketUse::Revoked];
    for (number, wanted) in (1..).zip(wanted) {
        let known = ledger.ticket(Uuid::from_u128(number), time(300)).await;
        assert_eq!(known, Ok(wanted), "ticket {number}");
    }
    // Recovery settles what it finds.
    let (key, record) = &records.1[0];
    let lost = settlement(Reason::ProcessLost, Effect::Unknown, 9);
    ledger.settle(record.reservation_id, *key, lost).await.unwrap();
    let turned = reserve(&ledger, claim("call-2", ticket(2)), 9).await.unwrap_err();
    assert_eq!(turned.replay.unwrap().reason, Reason::ProcessLost);
}

pub async fn the_mark_is_there(place: &dyn Place) {
    let ledger = place.open().await;
    ledger.observe(at(1_000)).await.unwrap();
    drop(ledger);
    let ledger = place.open().await;
    assert_eq!(ledger.observe(at(969)).await, Ok(ClockState::Behind));
    ledger.accept_clock(at(0)).await.unwrap();
    drop(ledger);
    let ledger = place.open().await;
    assert_eq!(ledger.observe(at(1)).await, Ok(ClockState::Trusted));
}

pub async fn an_identity_is_kept(place: &dyn Place) {
    let ledger = place.open().await;
    let id = ledger.id();
    assert_eq!(Uuid::try_parse(&id).unwrap().get_version_num(), 4);
    drop(ledger);
    assert_eq!(place.open().await.id(), id);
}

pub async fn a_new_identity(place: &dyn Place) {
    let ledger = place.open().await;
    let old = ledger.id();
    reserve(&ledger, claim("call-1", ticket(1)), 0).await.unwrap();
    let new = ledger.new_identity(START).await.unwrap();
    assert_ne!(new, old);
    assert_eq!(ledger.id(), new);
    drop(ledger);
    let ledger = place.open().await;
    assert_eq!(ledger.id(), new);
    assert_eq!(ledger.running().await.unwrap().len(), 1, "records stay");
}

pub async fn a_new_identity_is_as_new_as_the_present(place: &dyn Place) {
    let ledger = place.open().await;
    ledger.observe(at(0)).await.unwrap();
    ledger.new_identity(at(1_000).now).await.unwrap();
    drop(ledger);
    let ledger = place.open().await;
    assert_eq!(ledger.observe(at(969)).await, Ok(ClockState::Behind));
    ledger.new_identity(at(0).now).await.unwrap();
    assert_eq!(ledger.observe(at(969)).await, Ok(ClockState::Behind), "the mark goes on only");
    assert_eq!(ledger.observe(at(970)).await, Ok(ClockState::Trusted));
}
