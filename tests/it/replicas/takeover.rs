//! A replica that dies and does not come back: another ends what it has left.

use toolgate::domain::audit::EventKind;
use toolgate::domain::reason::{Effect as Changed, Reason as Ended};
use toolgate::proto::{Effect, Reason};

use super::stage::Stage;
use crate::support::running::until;
use crate::support::{journal, postgres};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_ends_the_call_of_one_that_died_and_runs_nothing_again() {
    let Some(server) = postgres::server() else { return };
    let stage = Stage::new(server, server.port, 2).await;
    let (mut dead, survivor) = (stage.serve(0).await, stage.serve(1).await);
    let call = dead.client.confirmed("c1", "write").await.unwrap();
    stage.effects.hold();
    let (client, running) = (dead.client.clone(), call.clone());
    tokio::spawn(async move { client.execute(&[running]).await });
    until("the handler is entered", async || stage.effects.len() == 1).await;
    assert_eq!(survivor.reason(&call).await, "CALL_IN_PROGRESS");
    assert!(survivor.recorded("c1").await.unwrap().running);
    dead.process.kill();
    stage.effects.go_on();

    until("somebody has taken over", async || !survivor.recorded("c1").await.unwrap().running)
        .await;
    let recorded = survivor.recorded("c1").await.unwrap();
    assert_eq!((recorded.reason(), recorded.effect()), (Reason::ProcessLost, Effect::Unknown));
    let told = survivor.run(&call).await;
    assert_eq!((told.reason(), told.effect()), (Reason::CallReplayed, Effect::Unknown));

    // It comes back at last, closes its own pair and knows as much.
    let dead = stage.serve(0).await;
    assert_eq!(dead.run(&call).await.reason(), Reason::CallReplayed);
    dead.stop().await;
    survivor.stop().await;
    for number in 0..2 {
        assert_eq!(told_as_lost(&stage, number), 1, "the journal of replica {number}");
    }
    assert_eq!(stage.effects.len(), 1);
}

/// How often a replica's journal says that the call was lost.
fn told_as_lost(stage: &Stage<'_>, number: usize) -> usize {
    let events = journal::events(stage.directory(number));
    let lost = events.iter().filter(|event| {
        *event.tool_call_id == *"c1"
            && matches!(
                event.kind,
                EventKind::Completed { reason: Ended::ProcessLost, effect: Changed::Unknown, .. }
            )
    });
    lost.count()
}

/// Its successor finds the event, and does not write it again.
#[cfg(feature = "failpoints")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_dies_while_it_takes_over_has_told_it_once() {
    let Some(server) = postgres::server() else { return };
    let stage = Stage::new(server, server.port, 2).await;
    let mut dead = stage.serve(0).await;
    let mut survivor = stage.serve_to(1, "taken-over-not-settled");
    let call = dead.client.confirmed("c1", "write").await.unwrap();
    stage.effects.hold();
    let (client, running) = (dead.client.clone(), call.clone());
    tokio::spawn(async move { client.execute(&[running]).await });
    until("the handler is entered", async || stage.effects.len() == 1).await;
    survivor.addresses().await;
    dead.process.kill();
    stage.effects.go_on();
    assert_eq!(survivor.exit_code().await, None, "{}", survivor.log());

    let survivor = stage.serve(1).await;
    let recorded = survivor.recorded("c1").await.unwrap();
    assert!(!recorded.running);
    assert_eq!((recorded.reason(), recorded.effect()), (Reason::ProcessLost, Effect::Unknown));
    assert_eq!(survivor.run(&call).await.reason(), Reason::CallReplayed);
    survivor.stop().await;
    assert_eq!(told_as_lost(&stage, 1), 1);
    assert_eq!(stage.effects.len(), 1);
}
