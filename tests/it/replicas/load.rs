//! kill -9 of any of three replicas at any moment under load, and what all those
//! gates together have done.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use toolgate::domain::audit::EventKind;
use toolgate::domain::reason::{Effect, Outcome, Reason};
use toolgate::proto::{self, ToolCall, ToolResult};

use super::stage::{Replica, Stage};
use crate::crash::after::{DONE, LOST, Left, left_by};
use crate::crash::load::Moments;
use crate::crash::world::Client;
use crate::support::running::until;
use crate::support::{journal, postgres};

const REPLICAS: usize = 3;
const CLIENTS: usize = 4;
const KILLS: u32 = 10;

/// A call, and whether its client was told that it is done.
struct Asked {
    call: ToolCall,
    answered: bool,
}

/// The replicas that serve now, as their clients find them.
type Serving = Arc<Mutex<Vec<Client>>>;

/// What the calls that had no answer were left as.
#[derive(Default)]
struct Tally {
    done: usize,
    lost: usize,
    spent: usize,
    /// Ran only when they were asked for again.
    unspent: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_are_killed_at_any_moment_have_at_most_one_effect_a_call() {
    let Some(server) = postgres::server() else { return };
    let kills = std::env::var("TOOLGATE_KILLS").map_or(KILLS, |text| text.parse().unwrap());
    let begun = Instant::now();
    let stage = Stage::new(server, server.port, REPLICAS).await;
    let mut replicas = stage.serve_all().await;
    let serving: Serving = Arc::default();
    let mut moments = Moments::new();
    let (mut tally, mut answered) = (Tally::default(), Vec::new());
    for round in 0..kills {
        *serving.lock().unwrap() = replicas.iter().map(|replica| replica.client.clone()).collect();
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let name = format!("call-{round}-{number}");
            clients.spawn(work(Arc::clone(&serving), name, number));
        }
        let target = stage.effects.len() + 1 + moments.next(12);
        until("the gates are at work", async || stage.effects.len() >= target).await;
        // Anywhere in what the clients do next: nothing waits for this.
        tokio::time::sleep(Duration::from_micros(moments.next(8_000) as u64)).await;
        let killed = moments.next(REPLICAS);
        replicas[killed].process.kill();
        // The others go on for a while, with calls of which it knew.
        let target = stage.effects.len() + 1 + moments.next(4);
        until("the others are at work", async || {
            stage.effects.len() >= target || clients.is_empty()
        })
        .await;
        serving.lock().unwrap().clear();
        replicas[killed] = stage.serve(killed).await;
        for asked in clients.join_all().await.into_iter().flatten() {
            if asked.answered {
                answered.push(asked);
            } else {
                // Anybody is asked, the killed one's successor or another.
                let replica = &replicas[moments.next(REPLICAS)];
                answered.push(ask_again(&stage, replica, asked, &mut tally).await);
            }
        }
        stage.check_effects(&format!("after kill {}", round + 1));
    }
    let mut lost = 0;
    for asked in answered.iter().filter(|asked| asked.answered) {
        let replica = &replicas[moments.next(REPLICAS)];
        if ask(replica, &asked.call).await != Some(DONE) {
            eprintln!("{} was acknowledged, and is lost", asked.call.tool_call_id);
            lost += 1;
        }
    }
    for replica in replicas {
        replica.stop().await;
    }

    stage.check_effects("at the end");
    check_ends(&stage, &answered);
    let (calls, effects) = (answered.len(), stage.effects.by_key().len());
    let took = begun.elapsed().as_secs_f32();
    println!(
        "{kills} kills of {REPLICAS} replicas, {calls} calls, {effects} effects, {lost} losses in \
         {took:.1} s; calls hit: {tally}"
    );
    assert_eq!(lost, 0);
}

/// Confirms and executes one call after the other until somebody does not answer or
/// nobody serves. Each is sent to two replicas at a time: one request runs it,
/// whichever comes first.
async fn work(serving: Serving, name: String, number: usize) -> Vec<Asked> {
    let mut asked = Vec::new();
    for turn in 0.. {
        let (first, second) = {
            let serving = serving.lock().unwrap();
            if serving.is_empty() {
                break;
            }
            let at = |place: usize| serving[place % serving.len()].clone();
            (at(number + turn), at(number + turn + 1))
        };
        let Ok(call) = first.confirmed(&format!("{name}-{turn}"), "write").await else { continue };
        let calls = std::slice::from_ref(&call);
        let (one, other) = tokio::join!(
            first.execute_as("request-1", calls),
            second.execute_as("request-2", calls)
        );
        let results = [one, other].into_iter().flatten();
        let answered = results.filter(|response| tells_success(&response.results[0])).count() > 0;
        asked.push(Asked { call, answered });
    }
    asked
}

/// Whether an answer acknowledges the call: as done now, or by the other request.
fn tells_success(result: &ToolResult) -> bool {
    match result.reason() {
        proto::Reason::Ok => true,
        proto::Reason::CallReplayed => left_by(result, "under load") == DONE,
        // It runs elsewhere; or a machine is too slow for all of this, and the commit
        // of the one that was first came too late for it.
        proto::Reason::CallInProgress
        | proto::Reason::LedgerFailed
        | proto::Reason::ConfirmationConsumed => false,
        _ => panic!("{result:?}"),
    }
}

/// The same call with the same ticket, of any replica, until it is known what
/// became of it: a killed one's calls run on until its successor closes them.
async fn ask_again(stage: &Stage<'_>, replica: &Replica, asked: Asked, tally: &mut Tally) -> Asked {
    let id = &asked.call.tool_call_id;
    let mut left = None;
    let mut before = 0;
    until("somebody knows", async || {
        before = stage.effects.attempts(id).len();
        left = ask(replica, &asked.call).await;
        left.is_some()
    })
    .await;
    let after = stage.effects.attempts(id).len();
    let left = left.unwrap();
    let (count, effects) = match left {
        DONE => (&mut tally.done, before == 1 && after == 1),
        LOST => (&mut tally.lost, before <= 1 && after == before),
        Left::Spent => (&mut tally.spent, before == 0 && after == 0),
        Left::Unspent => (&mut tally.unspent, before == 0 && after == 1),
        Left::Ended(..) => panic!("{id} left {left:?}"),
    };
    *count += 1;
    assert!(effects, "{id} left {left:?}, with {before} effects and then {after}");
    let answered = matches!(left, DONE | Left::Unspent);
    Asked { answered, ..asked }
}

/// What is known of a call; None where nobody can tell yet.
async fn ask(replica: &Replica, call: &ToolCall) -> Option<Left> {
    let response = replica.client.execute(std::slice::from_ref(call)).await.ok()?;
    let result = &response.results[0];
    match result.reason() {
        proto::Reason::CallInProgress | proto::Reason::LedgerFailed => None,
        _ => Some(left_by(result, &call.tool_call_id)),
    }
}

/// Every pair of every journal is closed once, and no call that reached the
/// handler has only pairs that deny any effect.
fn check_ends(stage: &Stage<'_>, calls: &[Asked]) {
    let mut ends: BTreeMap<String, (Effect, usize)> = BTreeMap::new();
    for number in 0..REPLICAS {
        let events = journal::events(stage.directory(number));
        journal::endings_of(&events);
        for event in events {
            let EventKind::Completed { reason, effect, .. } = event.kind else { continue };
            // A refusal repeats what is recorded, and tells nothing itself.
            if reason.outcome() != Outcome::Denied {
                let id = event.tool_call_id.to_string();
                let (changed, successes) = ends.entry(id).or_insert((Effect::None, 0));
                *changed = changed.and(effect);
                *successes += usize::from(reason == Reason::Ok);
            }
        }
    }
    for Asked { call, answered } in calls {
        let id = &call.tool_call_id;
        let (effect, successes) = ends.get(id).copied().unwrap_or((Effect::None, 0));
        assert_eq!(successes, usize::from(*answered), "{id}");
        let reached = !stage.effects.attempts(id).is_empty();
        assert!(!reached || effect != Effect::None, "{id} reached the handler: {effect:?}");
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { done, lost, spent, unspent } = self;
        write!(f, "{done} done, {lost} not known, {spent} spent, {unspent} not begun")
    }
}
