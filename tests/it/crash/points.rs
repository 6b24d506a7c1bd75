//! The gate ends at each place between admission and response, and in recovery.

use toolgate::domain::reason::{Effect, Reason};
use toolgate::proto::ToolCall;

use super::after::{DONE, LOST, Left, ask, check_journal};
use super::world::World;
use crate::support::process::Process;
use crate::support::running::until;

const UNSPENT: Left = Left::Unspent;
const SPENT: Left = Left::Spent;
const FAILED: Left = Left::Ended(Reason::HandlerFailed, Effect::Unknown);
const TIMED_OUT: Left = Left::Ended(Reason::AttemptDeadline, Effect::Unknown);

/// Where the gate ends, and what each call may then have been left as.
type Case<'a> = (&'a str, &'a [&'a [Left]]);

const ONE: &[Case<'_>] = &[
    ("admitted-not-reserved", &[&[UNSPENT]]),
    ("reserving-not-committed", &[&[UNSPENT]]),
    ("reserved-not-started", &[&[SPENT]]),
    ("started-not-reserved", &[&[UNSPENT]]),
    // The reservation is on its way at the same time.
    ("written-not-synced:1", &[&[UNSPENT, LOST]]),
    ("started-not-called", &[&[LOST]]),
    ("called-not-completed", &[&[LOST]]),
    ("written-not-synced:2", &[&[DONE]]),
    ("completed-not-settled", &[&[DONE]]),
    ("settled-not-completed", &[&[DONE]]),
    // The completed event is on its way at the same time.
    ("settling-not-committed", &[&[DONE, LOST]]),
    ("ended-not-answered", &[&[DONE]]),
];

const RETRIED: &[Case<'_>] = &[
    ("reserved-not-started", &[&[SPENT]]),
    ("started-not-called:1", &[&[LOST]]),
    ("written-not-synced:2", &[&[TIMED_OUT]]),
    ("completed-not-settled:1", &[&[TIMED_OUT]]),
    // The first completed event is late, so that no second attempt is made.
    ("settled-not-completed", &[&[TIMED_OUT]]),
    ("between-attempts", &[&[TIMED_OUT]]),
    ("written-not-synced:3", &[&[LOST]]),
    ("started-not-called:2", &[&[LOST]]),
    ("called-not-completed", &[&[LOST]]),
    ("written-not-synced:4", &[&[DONE]]),
    ("completed-not-settled:2", &[&[DONE]]),
    ("ended-not-answered", &[&[DONE]]),
];

const BATCH: &[Case<'_>] = &[
    ("admitted-not-reserved", &[&[UNSPENT], &[UNSPENT], &[UNSPENT]]),
    ("reserving-not-committed:2", &[&[UNSPENT], &[UNSPENT], &[UNSPENT]]),
    ("reserved-not-started", &[&[SPENT], &[SPENT], &[SPENT]]),
    ("written-not-synced:1", &[&[LOST], &[SPENT], &[SPENT]]),
    ("started-not-called:1", &[&[LOST], &[SPENT], &[SPENT]]),
    ("called-not-completed:1", &[&[LOST], &[SPENT], &[SPENT]]),
    ("completed-not-settled:1", &[&[DONE], &[SPENT], &[SPENT]]),
    ("settled-not-completed:1", &[&[DONE], &[SPENT], &[SPENT]]),
    ("written-not-synced:3", &[&[DONE], &[LOST], &[SPENT]]),
    ("started-not-called:2", &[&[DONE], &[LOST], &[SPENT]]),
    ("called-not-completed:3", &[&[DONE], &[DONE], &[LOST]]),
    // The first settlement is late, and the batch goes on without it.
    ("completed-not-settled:2", &[&[DONE], &[DONE], &[SPENT]]),
    ("ended-not-answered", &[&[DONE], &[DONE], &[DONE]]),
];

const FAILING: &[Case<'_>] = &[
    ("release-not-begun", &[&[DONE], &[FAILED], &[SPENT]]),
    ("releasing-not-committed", &[&[DONE], &[FAILED], &[SPENT]]),
    ("released-not-answered", &[&[DONE], &[FAILED], &[UNSPENT]]),
    ("ended-not-answered", &[&[DONE], &[FAILED], &[UNSPENT]]),
];

/// Where a start ends that finds [`called-not-completed:2`] of [`BATCH`].
const RECOVERING: &[&str] = &[
    "journal-not-opened",
    "pairs-not-closed",
    "written-not-synced",
    "some-pairs-closed",
    "pairs-closed-not-settled",
    "settling-not-committed",
    "some-calls-settled:1",
    "some-calls-settled:2",
    "settled-not-counted",
    "counted-not-told",
];

#[tokio::test]
async fn one_write() {
    for case in ONE {
        crash(&["write"], *case).await;
    }
}

#[tokio::test]
async fn one_write_with_a_retry() {
    for case in RETRIED {
        crash(&["again"], *case).await;
    }
}

#[tokio::test]
async fn a_batch_of_writes() {
    for case in BATCH {
        crash(&["write", "write", "write"], *case).await;
    }
}

#[tokio::test]
async fn a_batch_that_fails_in_the_middle() {
    for case in FAILING {
        crash(&["write", "fails", "write"], *case).await;
    }
}

#[tokio::test]
async fn recovery_that_is_cut_short_is_taken_up_again() {
    let wanted: &[&[Left]] = &[&[DONE], &[LOST], &[SPENT]];
    for point in RECOVERING {
        let (world, calls) = crashed(&["write", "write", "write"], "called-not-completed:2").await;
        die_at_start(&world, point).await;
        look(&world, &calls, wanted, &format!("recovery at {point}")).await;
    }
}

#[tokio::test]
async fn recovery_that_is_cut_short_between_two_appends_closes_every_pair_once() {
    const MANY: usize = 40;
    let world = World::new().await;
    let (mut process, client) = world.serve(None).await;
    let mut calls = Vec::new();
    for number in 0..MANY {
        let call = client.confirmed(&format!("call-{number}"), "stuck").await.unwrap();
        calls.push(call.clone());
        let client = client.clone();
        tokio::spawn(async move { client.execute(&[call]).await });
    }
    until("all handlers are called", async || world.effects.len() == MANY).await;
    process.kill();
    die_at_start(&world, "some-pairs-closed").await;
    look(&world, &calls, &[&[LOST] as &[Left]; MANY], "recovery between two appends").await;
}

#[tokio::test]
async fn the_second_reservation_of_a_call_that_was_lost_is_lost_as_well() {
    for point in ["reserved-not-started", "started-not-called"] {
        let (world, _) = crashed(&["again"], "started-not-called").await;
        let (process, client) = world.serve(None).await;
        let fresh = client.confirmed("call-0", "again").await.unwrap();
        world.stop(process).await;
        let (mut process, client) = world.serve(Some(point)).await;
        client.execute(std::slice::from_ref(&fresh)).await.unwrap_err();
        assert_eq!(process.exit_code().await, None, "{}", process.log());
        look(&world, &[fresh], &[&[LOST]], &format!("reopened, {point}")).await;
    }
}

/// One batch, and a gate that ends at the case's place in it.
async fn crash(tools: &[&str], (point, wanted): Case<'_>) {
    let (world, calls) = crashed(tools, point).await;
    look(&world, &calls, wanted, &format!("{tools:?} at {point}")).await;
}

async fn crashed(tools: &[&str], point: &str) -> (World, Vec<ToolCall>) {
    let world = World::new().await;
    // Tickets come from a gate before, so that only the batch is counted.
    let (process, client) = world.serve(None).await;
    let mut calls = Vec::new();
    for (number, tool) in tools.iter().enumerate() {
        let call = client.confirmed(&format!("call-{number}"), tool).await.unwrap();
        // A backend asks once before it knows that a person must confirm.
        let bare = ToolCall { confirmation_ticket: String::new(), ..call.clone() };
        client.execute(&[bare]).await.unwrap();
        calls.push(call);
    }
    world.stop(process).await;

    let (mut process, client) = world.serve(Some(point)).await;
    let answer = client.execute(&calls).await;
    assert!(answer.is_err(), "{tools:?} did not end at {point}: {answer:?}");
    assert_eq!(process.exit_code().await, None, "{point}: {}", process.log());
    world.check_effects(point);
    (world, calls)
}

async fn die_at_start(world: &World, point: &str) {
    let mut process = Process::serve_to(&world.config, Some(point));
    assert_eq!(process.exit_code().await, None, "{point} was not reached: {}", process.log());
}

/// What the next gate makes of it.
async fn look(world: &World, calls: &[ToolCall], wanted: &[&[Left]], what: &str) {
    let (process, client) = world.serve(None).await;
    check_journal(world, calls, wanted, what);
    ask(world, &client, calls, wanted, what).await;
    world.stop(process).await;
    check_journal(world, &[], &[], what);
}
