//! One ticket, redeemed by everybody at once.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use futures_util::{StreamExt as _, stream};
use toolgate::domain::audit::{Event, EventKind};
use toolgate::domain::reason::Reason as Ended;

use super::stage::{Replica, Stage};
use crate::support::running::until;
use crate::support::{journal, postgres};

const REDEEMS: usize = 1_000;
/// Of those that ask again.
const AT_ONCE: usize = 24;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_redeems_of_one_ticket_on_three_processes_make_one_call() {
    let Some(server) = postgres::server() else { return };
    let stage = Stage::new(server, server.port, 3).await;
    let replicas = stage.serve_all().await;
    // Where the commit of the one that was first comes too late for it, nobody's
    // runs: so slow a machine is not always.
    for call in ["c1", "c2", "c3"] {
        if redeem_at_once(&stage, &replicas, call).await {
            break;
        }
    }
    assert_eq!(stage.effects.len(), 1);
    join_all(replicas.into_iter().map(Replica::stop)).await;

    // One of all those pairs tells of a call, whoever was asked.
    let events: Vec<_> = (0..3).map(|number| journal::events(stage.directory(number))).collect();
    for events in &events {
        drop(journal::endings_of(events));
    }
    let is_ok =
        |event: &&Event| matches!(event.kind, EventKind::Completed { reason: Ended::Ok, .. });
    assert_eq!(events.iter().flatten().filter(is_ok).count(), 1);
    stage.check_effects("at the end");
}

/// Redeems one ticket a thousand times at once; whether somebody's call ran.
async fn redeem_at_once(stage: &Stage<'_>, replicas: &[Replica], id: &str) -> bool {
    let call = replicas[0].client.confirmed(id, "write").await.unwrap();
    let redeem = |number: usize| replicas[number % 3].reason(&call);
    let mut told = join_all((0..REDEEMS).map(redeem)).await;
    println!("{REDEEMS} redeems at once, {} calls: {:?}", stage.effects.len(), counts(&told));

    // Where a machine was too slow for so many at once nothing has run, and who
    // was told so asks again, as all do who are told that it runs.
    let unsure = ["LEDGER_FAILED", "LEDGER_UNAVAILABLE", "CALL_IN_PROGRESS"];
    let again = (0..REDEEMS).filter(|number| unsure.contains(&&*told[*number]));
    let again: Vec<_> = stream::iter(again)
        .map(|number| async move {
            let mut reason = String::new();
            until("an answer", async || {
                reason = redeem(number).await;
                !unsure.contains(&&*reason)
            })
            .await;
            (number, reason)
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    for (number, reason) in again {
        told[number] = reason;
    }
    let mut counts = counts(&told);
    println!("at the end: {counts:?}");
    if counts.remove("CONFIRMATION_CONSUMED").is_some() {
        assert_eq!((stage.effects.len(), counts.len()), (0, 0), "{counts:?}");
        return false;
    }
    assert_eq!((stage.effects.len(), counts.remove("OK")), (1, Some(1)), "{counts:?}");
    assert_eq!(counts.into_keys().collect::<Vec<_>>(), ["CALL_REPLAYED"]);
    true
}

fn counts(told: &[String]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for reason in told {
        *counts.entry(&**reason).or_default() += 1;
    }
    counts
}

/// Each with a ticket of its own, for one call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tickets_of_one_call_redeemed_at_once_make_one_call() {
    let Some(server) = postgres::server() else { return };
    let stage = Stage::new(server, server.port, 3).await;
    let replicas = stage.serve_all().await;
    let mut calls = Vec::new();
    for number in 0..30 {
        calls.push(replicas[number % 3].client.confirmed("c1", "write").await.unwrap());
    }
    let redeems = calls.iter().enumerate().map(|(number, call)| {
        // Not where it was issued.
        replicas[(number + 1) % 3].reason(call)
    });
    let reasons = join_all(redeems).await;
    let calls = stage.effects.len();
    assert_eq!(reasons.iter().filter(|reason| *reason == "OK").count(), calls, "{reasons:?}");
    assert_eq!(calls, 1);
    stage.check_effects("at the end");
}
