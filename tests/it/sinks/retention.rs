//! What retention and sinks owe each other.

use std::fs;

use tonic::Status;

use super::a_call;
use crate::support::collector::{Collector, Does, Received, sink};
use crate::support::running::{Options, World, execute, until};

/// A journal that keeps 1 MiB, in many segments.
const SMALL: &str = ", sync: all, segment_bytes: 65536, retention: {bytes: 1048576}";

/// Leaves this many events, four calls a request.
async fn leave(world: &World, events: u64) {
    for number in 0..events / 8 {
        let calls = (0..4).map(|call| a_call(&format!("c{number}-{call}"))).collect();
        let answer = world.client.clone().execute(execute(calls)).await.unwrap().into_inner();
        assert!(answer.results.iter().all(|result| result.result_json == "{}"));
    }
}

async fn oldest(world: &World) -> u64 {
    let oldest = world.metric("toolgate_journal_oldest_sequence", &[]).await;
    u64::try_from(oldest).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_sink_has_not_taken_is_kept_and_goes_once_it_has() {
    let collector = Collector::default();
    collector.set(Does::Answer(Status::unavailable("")));
    let listening = collector.listen().await;
    let audit = format!("{SMALL}{}", sink(&listening.address));
    let mut world = World::start_with(Options { audit: &audit, ..Options::default() }).await;
    leave(&world, 2_000).await;
    until("retention waits", async || {
        world.metric("toolgate_journal_retention_held", &[]).await == 1
    })
    .await;
    assert_eq!(oldest(&world).await, 1);
    collector.set(Does::Take);
    collector.until_taken(2_000).await;
    assert_eq!(collector.sequences(), (1..=2_000).collect::<Vec<_>>());
    until("what was taken goes", async || oldest(&world).await > 1).await;
    world.stop().await;
}

/// A sink that was off the configuration for a while holds nothing, and is told what it missed.
#[tokio::test(flavor = "multi_thread")]
async fn what_went_while_a_sink_was_not_there_is_told_as_a_gap() {
    let collector = Collector::default();
    let listening = collector.listen().await;
    let audit = format!("{SMALL}{}", sink(&listening.address));
    let mut world = World::start_with(Options { audit: &audit, ..Options::default() }).await;
    leave(&world, 16).await;
    collector.until_taken(16).await;
    world.stop().await;
    let file = world.directory.path().join("toolgate.yaml");
    let with = fs::read_to_string(&file).unwrap();
    fs::write(&file, with.replace(&sink(&listening.address), "")).unwrap();
    world.restart().await;
    leave(&world, 2_000).await;
    until("some are gone", async || oldest(&world).await > 17).await;
    world.stop().await;

    fs::write(&file, with).unwrap();
    world.restart().await;
    collector.until_taken(2_016).await;
    let taken = collector.taken();
    let at = taken.iter().position(|one| one.sequence().is_none()).unwrap();
    let gap = &taken[at];
    assert_eq!(gap.record.event_name, "toolgate.audit_gap");
    assert_eq!(gap.record.severity_text, "ERROR");
    assert_eq!(
        gap.attributes["toolgate.gap.journal_id"],
        taken[0].attributes["toolgate.journal_id"]
    );
    let bounds = ["first", "last"].map(|end| format!("toolgate.gap.{end}_sequence"));
    let [first, last] = bounds.map(|name| gap.attributes[&name].as_u64().unwrap());
    assert_eq!(first, 17);
    let after: Vec<_> = taken[at + 1..].iter().filter_map(Received::sequence).collect();
    assert_eq!(after, (last + 1..=2_016).collect::<Vec<_>>());
    let missed = world.metric("toolgate_sink_events_missed_total", &[]).await;
    assert_eq!(u64::try_from(missed).unwrap(), last - first + 1);
    world.stop().await;
}
