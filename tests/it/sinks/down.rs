//! Receivers that are down, slow or unwilling: nothing is lost, and calls never notice.

use std::time::Duration;

use tonic::Status;
use tonic_types::{ErrorDetails, StatusExt};

use super::{a_call, world};
use crate::support::collector::{Collector, Does, sink};
use crate::support::running::{Options, World, execute, until};

/// Each call leaves two events.
async fn calls(world: &World, from: u64, to: u64) {
    for number in from..=to {
        let mut client = world.client.clone();
        let answer = client.execute(execute(vec![a_call(&format!("c{number}"))])).await;
        assert_eq!(answer.unwrap().into_inner().results[0].result_json, "{}");
    }
}

/// Every sequence up to this one, in order, repeated ones left out.
fn assert_all_in_order(collector: &Collector, last: u64) {
    let mut seen = Vec::new();
    for sequence in collector.sequences() {
        if seen.last().is_none_or(|last| sequence > *last) {
            seen.push(sequence);
        }
    }
    assert_eq!(seen, (1..=last).collect::<Vec<_>>());
}

/// The sink's line of the metrics.
async fn of_sink(world: &World, name: &str) -> i64 {
    world.metric(&format!("toolgate_sink_{name}"), &[("sink", "collector")]).await
}

async fn until_lag(world: &World, lag: i64) {
    until("the lag is that", async || of_sink(world, "lag_events").await == lag).await;
}

/// Whether the probe says that a sink is behind. It is 200 all the while.
async fn is_told(world: &World) -> bool {
    let answer = world.admin("/readyz").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let body = answer.rsplit("\r\n\r\n").next().unwrap();
    assert!(body.starts_with("ready\n"), "{answer}");
    body != "ready\n"
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_unavailable_for_a_while_gets_everything_then() {
    let collector = Collector::default();
    collector.set(Does::Answer(Status::unavailable("text of the receiver's")));
    let (mut world, _listening) = world(&collector).await;
    calls(&world, 1, 20).await;
    until_lag(&world, 40).await;
    until("it was tried", async || of_sink(&world, "failures_total").await > 2).await;
    assert!(is_told(&world).await);
    collector.set(Does::Take);
    collector.until_taken(40).await;
    calls(&world, 21, 25).await;
    collector.until_taken(50).await;
    assert_all_in_order(&collector, 50);
    until_lag(&world, 0).await;
    assert!(!is_told(&world).await);
    assert_eq!(of_sink(&world, "events_delivered_total").await, 50);
    assert_eq!(of_sink(&world, "events_rejected_total").await, 0);
    world.stop().await;
}

/// Refused connections, then a receiver, then one that resets, then it comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_comes_and_goes_gets_everything() {
    let collector = Collector::default();
    let (mut world, listening) = world(&collector).await;
    let address = listening.address.clone();
    drop(listening);
    calls(&world, 1, 5).await;
    until("it was tried", async || of_sink(&world, "failures_total").await > 1).await;
    for round in 1..=3 {
        let listening = collector.listen_at(&address).await;
        calls(&world, 10 * round, 10 * round + 4).await;
        collector.until_taken(20 * round).await;
        // With its connections, and whatever runs on them.
        drop(listening);
        calls(&world, 10 * round + 5, 10 * round + 9).await;
        until("it is missed", async || is_told(&world).await).await;
    }
    let _listening = collector.listen_at(&address).await;
    collector.until_taken(70).await;
    assert_all_in_order(&collector, 70);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_hangs_costs_calls_nothing_and_is_sent_the_same_again() {
    let collector = Collector::default();
    collector.then([Does::TakeAndHang, Does::Hang]);
    let listening = collector.listen().await;
    let audit = sink(&listening.address).replace("timeout: 2s", "timeout: 200ms");
    let mut world = World::start_with(Options { audit: &audit, ..Options::default() }).await;
    calls(&world, 1, 10).await;
    collector.until_taken(20).await;
    until("it took both", async || collector.requests() > 2).await;
    until_lag(&world, 0).await;
    assert_all_in_order(&collector, 20);
    let of = |kind| [("sink", "collector"), ("kind", kind)];
    assert_eq!(world.metric("toolgate_sink_failures_total", &of("timeout")).await, 2);
    // What was taken and not answered came twice.
    assert!(collector.sequences().len() > 20, "{:?}", collector.sequences());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_refused_is_found_told_and_passed() {
    let collector = Collector::default();
    collector.set(Does::Answer(Status::unavailable("")));
    let (mut world, _listening) = world(&collector).await;
    calls(&world, 1, 20).await;
    collector.set(Does::RefuseSequence(23));
    collector.until_taken(40).await;
    until_lag(&world, 0).await;
    let mut sequences = collector.sequences();
    sequences.dedup();
    assert_eq!(sequences, (1..=40).filter(|sequence| *sequence != 23).collect::<Vec<_>>());
    assert_eq!(of_sink(&world, "events_rejected_total").await, 1);
    assert_eq!(of_sink(&world, "events_delivered_total").await, 39);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_only_a_few_at_once_gets_a_few_at_once() {
    let collector = Collector::default();
    collector.set(Does::Answer(Status::unavailable("")));
    let (mut world, _listening) = world(&collector).await;
    calls(&world, 1, 20).await;
    collector.set(Does::AtMost(3));
    collector.until_taken(40).await;
    assert_eq!(collector.sequences(), (1..=40).collect::<Vec<_>>());
    assert_eq!(of_sink(&world, "events_rejected_total").await, 0);
    world.stop().await;
}

/// What expired credentials and a receiver's own faults answer costs no event.
#[tokio::test(flavor = "multi_thread")]
async fn no_other_status_costs_an_event() {
    let collector = Collector::default();
    let wait = ErrorDetails::with_retry_info(Some(Duration::from_millis(300)));
    let busy = Status::with_error_details(tonic::Code::ResourceExhausted, "", wait);
    collector.then(
        [
            Status::unauthenticated(""),
            Status::permission_denied(""),
            Status::unimplemented(""),
            Status::internal(""),
            Status::unknown(""),
            busy,
        ]
        .map(Does::Answer),
    );
    let (mut world, _listening) = world(&collector).await;
    calls(&world, 1, 3).await;
    collector.until_taken(6).await;
    assert_all_in_order(&collector, 6);
    let of = |kind| [("sink", "collector"), ("kind", kind)];
    assert_eq!(world.metric("toolgate_sink_failures_total", &of("status")).await, 6);
    assert_eq!(of_sink(&world, "events_rejected_total").await, 0);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_partial_success_rejects_is_counted_and_not_sent_again() {
    let collector = Collector::default();
    collector.set(Does::Answer(Status::unavailable("")));
    let (mut world, _listening) = world(&collector).await;
    calls(&world, 1, 5).await;
    collector.then([Does::Reject(1)]);
    collector.set(Does::Take);
    collector.until_taken(10).await;
    until_lag(&world, 0).await;
    assert_eq!(collector.sequences(), (1..=10).collect::<Vec<_>>());
    assert_eq!(of_sink(&world, "events_rejected_total").await, 1);
    assert_eq!(of_sink(&world, "events_delivered_total").await, 9);
    world.stop().await;
}
