//! kill -9 while a handler runs: what any build can show.

use toolgate::domain::reason::{Effect, Reason};
use toolgate::proto;

use super::after::{DONE, LOST, Left, ask, check_journal};
use super::world::World;
use crate::support::running::until;

/// Kills the gate once the handler has been called this often, and looks at what is left.
async fn kill_in_handler(tools: &[&str], called: usize, wanted: &[&[Left]]) {
    let world = World::new().await;
    let (mut process, client) = world.serve(None).await;
    let mut calls = Vec::new();
    for (number, tool) in tools.iter().enumerate() {
        calls.push(client.confirmed(&format!("call-{number}"), tool).await.unwrap());
    }
    let running = tokio::spawn({
        let (client, calls) = (client.clone(), calls.clone());
        async move { client.execute(&calls).await }
    });
    until("the handler is called", async || world.effects.len() == called).await;
    process.kill();
    running.await.unwrap().unwrap_err();
    let what = format!("{tools:?} killed in call {called}");
    world.check_effects(&what);

    // Twice: what the first start has settled, the second leaves alone.
    let (process, _) = world.serve(None).await;
    world.stop(process).await;
    check_journal(&world, &calls, wanted, &what);
    let (process, client) = world.serve(None).await;
    assert!(!process.log().contains("killed process"), "{}", process.log());
    ask(&world, &client, &calls, wanted, &what).await;
    world.stop(process).await;
    check_journal(&world, &calls, wanted, &what);
}

#[tokio::test]
async fn a_write_whose_handler_runs_is_lost_and_never_run_again() {
    kill_in_handler(&["stuck"], 1, &[&[LOST]]).await;
}

#[tokio::test]
async fn a_batch_ends_where_it_was() {
    kill_in_handler(&["write", "stuck", "write"], 2, &[&[DONE], &[LOST], &[Left::Spent]]).await;
}

#[tokio::test]
async fn a_write_with_a_retry_left_is_not_tried_again() {
    kill_in_handler(&["again"], 1, &[&[LOST]]).await;
}

#[tokio::test]
async fn a_reopened_call_does_not_forget_what_its_first_reservation_may_have_done() {
    let world = World::new().await;
    let (mut process, client) = world.serve(None).await;
    let call = client.confirmed("call-0", "again").await.unwrap();
    let running = tokio::spawn(async move { client.execute(&[call]).await });
    until("the handler is called", async || world.effects.len() == 1).await;
    process.kill();
    running.await.unwrap().unwrap_err();

    // Its handler deduplicates, so that a fresh ticket runs it again: to no effect at all.
    world.lose_handler();
    let (process, client) = world.serve(None).await;
    let fresh = client.confirmed("call-0", "again").await.unwrap();
    let response = client.execute(std::slice::from_ref(&fresh)).await.unwrap();
    let result = &response.results[0];
    assert_eq!(
        (result.reason(), result.effect(), result.attempt),
        (proto::Reason::UpstreamUnavailable, proto::Effect::Unknown, 2),
        "attempt 1 may have had the call's effect"
    );
    let unknown = Left::Ended(Reason::UpstreamUnavailable, Effect::Unknown);
    ask(&world, &client, &[fresh], &[&[unknown]], "reopened").await;
    world.stop(process).await;
}
