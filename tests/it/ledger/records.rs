//! Section 7's table, settling and giving back.

use std::sync::Arc;

use toolgate::domain::audit::Digest;
use toolgate::domain::reason::{Effect, Reason};
use toolgate::domain::record::{
    ArgumentsHashes, Claim, Ended, Record, State, TicketShown, TicketUse,
};
use toolgate::ports::{Ledger, LedgerFault, Reservation, Revocation, Settlement};
use uuid::Uuid;

use super::Place;
use super::calls::{LIFETIME, at, claim, refusal, reserve, run, settlement, ticket, time};

/// How the first call of an id ended, if it did.
#[derive(Debug, Clone, Copy)]
enum First {
    None,
    Running,
    Ended(Effect),
}

/// What the second call of the id brings.
#[derive(Debug, Clone, Copy)]
enum Second {
    Fresh,
    NotNeeded,
    Missing,
    Spent,
    Revoked,
    Mismatch,
    OtherArguments,
    OtherUser,
    KeyGone,
}

pub async fn every_row_through_the_port(place: &dyn Place) {
    use Reason::{
        CallIdConflict as Conflict, CallInProgress as Running, CallReplayed as Replayed,
        ConfirmationConsumed as Consumed, ConfirmationMismatch as Mismatch,
        ConfirmationRequired as Required, ConfirmationRevoked as Revoked,
    };
    let columns = [
        Second::Fresh,
        Second::NotNeeded,
        Second::Missing,
        Second::Spent,
        Second::Revoked,
        Second::Mismatch,
        Second::OtherArguments,
        Second::OtherUser,
        Second::KeyGone,
    ];
    let rest = [Some(Conflict); 3];
    let row = |by_ticket: [Option<Reason>; 6], rest: [Option<Reason>; 3]| {
        [&by_ticket[..], &rest[..]].concat()
    };
    let by_ticket = [None, None, Some(Required), Some(Consumed), Some(Revoked), Some(Mismatch)];
    let fresh_only = [None, None, Some(Replayed), Some(Replayed), Some(Replayed), Some(Replayed)];
    let rows = [
        (First::None, false, row(by_ticket, [None; 3])),
        (First::Running, true, row([Some(Running); 6], rest)),
        (First::Ended(Effect::None), false, row(by_ticket, rest)),
        (First::Ended(Effect::Unknown), false, row([Some(Replayed); 6], rest)),
        (First::Ended(Effect::Unknown), true, row(fresh_only, rest)),
        (First::Ended(Effect::Applied), true, row([Some(Replayed); 6], rest)),
    ];
    let ledger = place.open().await;
    let mut number = 0;
    for (first, deduplicates, wanted) in rows {
        for (second, wanted) in columns.into_iter().zip(wanted) {
            number += 10;
            let mut claim = arrive(&ledger, first, second, number).await;
            claim.handler_deduplicates = deduplicates;
            let context = format!("{first:?}, {second:?}, deduplicates: {deduplicates}");
            let answer = reserve(&ledger, claim, 1).await;
            let replay = answer.as_ref().err().and_then(|turned| turned.replay.clone());
            assert_eq!(answer.err().map(|turned| turned.reason), wanted, "{context}");
            assert_eq!(replay.is_some(), wanted == Some(Replayed), "{context}");
        }
    }
}

/// Makes the first call and its ticket what the row says, and builds the second.
async fn arrive(ledger: &Arc<dyn Ledger>, first: First, second: Second, number: u128) -> Claim {
    let id = format!("call-{number}");
    let (spent, fresh) = (ticket(number), ticket(number + 1));
    match first {
        // A ticket that another call has spent stands for the spent one.
        First::None => drop(reserve(ledger, claim(&format!("{id}-other"), spent), 0).await),
        First::Running => drop(reserve(ledger, claim(&id, spent), 0).await),
        First::Ended(effect) => {
            run(ledger, claim(&id, spent), settlement(Reason::HandlerFailed, effect, 1)).await;
        }
    }
    let mut again = claim(&id, fresh);
    match second {
        Second::Fresh => {}
        Second::NotNeeded => again.ticket = TicketShown::NotNeeded,
        Second::Missing => again.ticket = TicketShown::Missing,
        Second::Spent => again.ticket = spent,
        Second::Revoked => {
            let confirmation_id = fresh.confirmation_id().unwrap();
            let revocation =
                Revocation { confirmation_id, revoked_at: time(0), lifetime: LIFETIME };
            ledger.revoke(revocation).await.unwrap();
        }
        Second::Mismatch => again.ticket = TicketShown::Refused(Reason::ConfirmationMismatch),
        Second::OtherArguments => {
            again.hashes = ArgumentsHashes::new(("a1".into(), Digest([9; 32])), Vec::new());
        }
        Second::OtherUser => {
            let started = Arc::make_mut(&mut again.started);
            Arc::make_mut(&mut started.context).user_id = "user-2".into();
        }
        Second::KeyGone => {
            again.hashes = ArgumentsHashes::new(("a2".into(), Digest([4; 32])), Vec::new());
        }
    }
    again
}

pub async fn a_settled_call_is_replayed(place: &dyn Place) {
    let ledger = place.open().await;
    let ended = Ended {
        reason: Reason::Ok,
        effect: Effect::Applied,
        at: time(2),
        result_digest: Some(Digest([6; 32])),
    };
    let settlement = Settlement { ended: ended.clone(), last_attempt: 1 };
    run(&ledger, claim("call-1", ticket(1)), settlement).await;
    for shown in [ticket(1), ticket(2), TicketShown::Missing] {
        let turned = reserve(&ledger, claim("call-1", shown), 3).await.unwrap_err();
        assert_eq!((turned.reason, turned.replay), (Reason::CallReplayed, Some(ended.clone())));
    }
    assert_eq!(ledger.running().await, Ok(Vec::new()));
}

pub async fn settling_twice(place: &dyn Place) {
    let ledger = place.open().await;
    let first = settlement(Reason::HandlerFailed, Effect::Unknown, 1);
    let Reservation { id, key, .. } = run(&ledger, claim("call-1", ticket(1)), first.clone()).await;
    assert_eq!(ledger.settle(id, key, first).await, Ok(()));
    let other = settlement(Reason::Ok, Effect::Applied, 1);
    assert_eq!(ledger.settle(id, key, other).await, Err(LedgerFault::NotHeld));
    let turned = reserve(&ledger, claim("call-1", ticket(1)), 1).await.unwrap_err();
    assert_eq!(turned.replay.unwrap().effect, Effect::Unknown, "the first stands");
}

pub async fn settling_what_is_not_held(place: &dyn Place) {
    let ledger = place.open().await;
    let end = || settlement(Reason::Ok, Effect::Applied, 1);
    let old = run(
        &ledger,
        claim("call-1", ticket(1)),
        settlement(Reason::HandlerFailed, Effect::None, 1),
    )
    .await;
    let new = reserve(&ledger, claim("call-1", ticket(2)), 1).await.unwrap();
    assert_eq!(ledger.settle(old.id, old.key, end()).await, Err(LedgerFault::NotHeld));
    assert_eq!(refusal(&ledger, claim("call-1", ticket(3)), 1).await, Some(Reason::CallInProgress));
    ledger.release(vec![new.clone()]).await.unwrap();
    assert_eq!(ledger.settle(new.id, new.key, end()).await, Err(LedgerFault::NotHeld));
    let unknown = claim("call-9", TicketShown::NotNeeded).key;
    assert_eq!(ledger.settle(new.id, unknown, end()).await, Err(LedgerFault::NotHeld));
}

pub async fn released_calls_leave_no_trace(place: &dyn Place) {
    let ledger = place.open().await;
    let claims = vec![claim("call-1", ticket(1)), claim("call-2", ticket(2))];
    let reservations = ledger.reserve(claims.clone(), at(0)).await.unwrap();
    ledger.release(reservations).await.unwrap();
    assert_eq!(ledger.look(claims[0].key).await, Ok(None));
    assert_eq!(ledger.ticket(Uuid::from_u128(1), time(300)).await, Ok(TicketUse::Unused));
    assert_eq!(ledger.running().await, Ok(Vec::new()));
    assert_eq!(ledger.reserve(claims, at(1)).await.unwrap().len(), 2);
}

pub async fn a_released_call_that_was_reopened_is_what_it_was(place: &dyn Place) {
    let ledger = place.open().await;
    let end = settlement(Reason::HandlerFailed, Effect::None, 1);
    let key = run(&ledger, claim("call-1", ticket(1)), end).await.key;
    let before = ledger.look(key).await.unwrap();
    let again = reserve(&ledger, claim("call-1", ticket(2)), 1).await.unwrap();
    assert_ne!(ledger.look(key).await.unwrap(), before);
    ledger.release(vec![again]).await.unwrap();
    assert_eq!(ledger.look(key).await.unwrap(), before);
    assert_eq!(
        refusal(&ledger, claim("call-1", ticket(1)), 1).await,
        Some(Reason::ConfirmationConsumed),
        "what the call before has spent stays spent"
    );
    assert_eq!(refusal(&ledger, claim("call-1", ticket(2)), 1).await, None);
}

pub async fn releasing_what_is_not_held(place: &dyn Place) {
    let ledger = place.open().await;
    let end = settlement(Reason::Ok, Effect::Applied, 1);
    let settled = run(&ledger, claim("call-1", ticket(1)), end).await;
    ledger.release(vec![settled]).await.unwrap();
    assert_eq!(refusal(&ledger, claim("call-1", ticket(1)), 1).await, Some(Reason::CallReplayed));

    let first = reserve(&ledger, claim("call-2", ticket(2)), 1).await.unwrap();
    ledger.release(vec![first.clone()]).await.unwrap();
    reserve(&ledger, claim("call-2", ticket(2)), 1).await.unwrap();
    ledger.release(vec![first]).await.unwrap();
    assert_eq!(refusal(&ledger, claim("call-2", ticket(2)), 1).await, Some(Reason::CallInProgress));
    assert_eq!(ledger.ticket(Uuid::from_u128(2), time(300)).await, Ok(TicketUse::Spent));
}

pub async fn attempts_go_on_where_they_ended(place: &dyn Place) {
    let ledger = place.open().await;
    let with = |number, max_attempts| Claim { max_attempts, ..claim("call-1", ticket(number)) };
    let end = |last_attempt| Settlement {
        last_attempt,
        ..settlement(Reason::AttemptDeadline, Effect::None, 1)
    };
    let first = reserve(&ledger, with(1, 3), 0).await.unwrap();
    assert_eq!(first.first_attempt, 1);
    let record = ledger.look(first.key).await.unwrap().unwrap();
    assert_eq!(record.last_attempt, 3, "not settled: up to there they may have gone");
    ledger.settle(first.id, first.key, end(2)).await.unwrap();
    let second = reserve(&ledger, with(2, 3), 0).await.unwrap();
    assert_eq!(second.first_attempt, 3);
    assert_eq!(ledger.look(second.key).await.unwrap().unwrap().started.attempt, 3);
    ledger.settle(second.id, second.key, end(98)).await.unwrap();
    assert_eq!(refusal(&ledger, with(3, 3), 0).await, Some(Reason::CallReplayed));
    let known = ledger.ticket(Uuid::from_u128(3), time(300)).await;
    assert_eq!(known, Ok(TicketUse::Unused), "a replay spends nothing");
    assert_eq!(reserve(&ledger, with(3, 2), 0).await.unwrap().first_attempt, 99);
}

pub async fn running_calls_are_listed(place: &dyn Place) {
    let ledger = place.open().await;
    let reservation = reserve(&ledger, claim("call-1", ticket(1)), 5).await.unwrap();
    run(&ledger, claim("call-2", ticket(2)), settlement(Reason::Ok, Effect::Applied, 6)).await;
    let running = ledger.running().await.unwrap();
    let [(key, Record { reservation_id, reserved_at, confirmation_id, started, state, .. })] =
        &running[..]
    else {
        panic!("{running:?}")
    };
    assert_eq!((*key, *reservation_id), (reservation.key, reservation.id));
    assert_eq!((*reserved_at, state), (time(5), &State::Running));
    assert_eq!(*confirmation_id, Some(Uuid::from_u128(1)));
    assert_eq!(*started, claim("call-1", ticket(1)).started, "what closes its pair");
}

pub async fn different_tickets_for_one_call(place: &dyn Place) {
    let ledger = place.open().await;
    let tasks: Vec<_> = (1..=100)
        .map(|number| {
            let ledger = Arc::clone(&ledger);
            tokio::spawn(async move { reserve(&ledger, claim("call-1", ticket(number)), 0).await })
        })
        .collect();
    let mut granted = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(_) => granted += 1,
            Err(turned) => assert_eq!(turned.reason, Reason::CallInProgress),
        }
    }
    assert_eq!(granted, 1);
    let mut spent = 0;
    for number in 1..=100 {
        let known = ledger.ticket(Uuid::from_u128(number), time(300)).await.unwrap();
        spent += usize::from(known == TicketUse::Spent);
    }
    assert_eq!(spent, 1, "who lost keeps the ticket");
}
