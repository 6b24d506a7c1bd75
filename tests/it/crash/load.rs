//! kill -9 at any moment under load, and what all those gates together have done.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use toolgate::domain::audit::EventKind;
use toolgate::domain::reason::{Effect, Outcome, Reason};
use toolgate::proto::{self, ExecuteResponse, ToolCall};

use super::after::{DONE, LOST, Left, left_by};
use super::world::{Client, World};
use crate::support::journal;
use crate::support::running::until;

const CLIENTS: usize = 4;
const KILLS: u32 = 20;

/// A call, and whether its client was told that it is done.
struct Asked {
    call: ToolCall,
    answered: bool,
}

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
async fn a_gate_that_is_killed_at_any_moment_has_at_most_one_effect_a_call() {
    let kills = std::env::var("TOOLGATE_KILLS").map_or(KILLS, |text| text.parse().unwrap());
    let begun = Instant::now();
    let world = World::new().await;
    let mut moments = Moments::new();
    let mut tally = Tally::default();
    let mut unanswered: Vec<Asked> = Vec::new();
    let mut answered: Vec<Asked> = Vec::new();
    for round in 0..kills {
        let (mut process, client) = world.serve(None).await;
        for asked in std::mem::take(&mut unanswered) {
            answered.push(ask_again(&world, &client, asked, &mut tally).await);
        }
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            clients.spawn(work(client.clone(), format!("call-{round}-{number}")));
        }
        let target = world.effects.len() + 1 + moments.next(12);
        until("the gate is at work", async || world.effects.len() >= target).await;
        // Anywhere in what the clients do next: nothing waits for this.
        tokio::time::sleep(Duration::from_micros(moments.next(8_000) as u64)).await;
        process.kill();
        for asked in clients.join_all().await.into_iter().flatten() {
            if asked.answered { answered.push(asked) } else { unanswered.push(asked) }
        }
        world.check_effects(&format!("after kill {}", round + 1));
    }
    let (process, client) = world.serve(None).await;
    for asked in unanswered {
        answered.push(ask_again(&world, &client, asked, &mut tally).await);
    }
    for asked in answered.iter().filter(|asked| asked.answered) {
        let left = ask(&client, &asked.call).await;
        assert_eq!(left, DONE, "{} was acknowledged", asked.call.tool_call_id);
    }
    world.stop(process).await;

    world.check_effects("at the end");
    check_ends(&world, &answered);
    let (calls, effects) = (answered.len(), world.effects.by_key().len());
    let took = begun.elapsed().as_secs_f32();
    println!("{kills} kills, {calls} calls, {effects} effects in {took:.1} s; calls hit: {tally}");
    assert!(tally.done + tally.lost + tally.spent + tally.unspent > 0, "no kill hit a call");
}

/// Confirms and executes one call after the other until the gate is gone. The
/// last one, at most, has no answer. Each is sent twice at a time, as by a
/// backend that is impatient: one request runs it, whichever comes first.
async fn work(client: Client, name: String) -> Vec<Asked> {
    let mut asked = Vec::new();
    for number in 0.. {
        let Ok(call) = client.confirmed(&format!("{name}-{number}"), "write").await else { break };
        let calls = std::slice::from_ref(&call);
        let (first, second) = tokio::join!(
            client.execute_as("request-1", calls),
            client.execute_as("request-2", calls)
        );
        let is_gone = first.is_err() || second.is_err();
        let answered = [first, second].into_iter().flatten().filter(tells_success).count() > 0;
        asked.push(Asked { call, answered });
        if is_gone {
            break;
        }
    }
    asked
}

/// Whether an answer acknowledges the call: as done now, or by the other request.
fn tells_success(response: &ExecuteResponse) -> bool {
    let result = &response.results[0];
    match result.reason() {
        proto::Reason::Ok => true,
        proto::Reason::CallReplayed => left_by(result, "under load") == DONE,
        proto::Reason::CallInProgress => false,
        _ => panic!("{result:?}"),
    }
}

/// The same call with the same ticket, of the gate after the one that was killed.
async fn ask_again(world: &World, client: &Client, asked: Asked, tally: &mut Tally) -> Asked {
    let id = &asked.call.tool_call_id;
    let before = world.effects.attempts(id).len();
    let left = ask(client, &asked.call).await;
    let after = world.effects.attempts(id).len();
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

async fn ask(client: &Client, call: &ToolCall) -> Left {
    let response = client.execute(std::slice::from_ref(call)).await.unwrap();
    left_by(&response.results[0], &call.tool_call_id)
}

/// Every pair is closed once, and no call that reached the handler has only
/// pairs that deny any effect.
fn check_ends(world: &World, calls: &[Asked]) {
    let events = journal::events(world.directory.path());
    journal::endings_of(&events);
    let mut ends: BTreeMap<&str, (Effect, usize)> = BTreeMap::new();
    for event in &events {
        let EventKind::Completed { reason, effect, .. } = event.kind else { continue };
        // A refusal repeats what is recorded, and tells nothing itself.
        if reason.outcome() != Outcome::Denied {
            let (changed, successes) = ends.entry(&event.tool_call_id).or_insert((Effect::None, 0));
            *changed = changed.and(effect);
            *successes += usize::from(reason == Reason::Ok);
        }
    }
    for Asked { call, answered } in calls {
        let id = call.tool_call_id.as_str();
        let (effect, successes) = ends.get(id).copied().unwrap_or((Effect::None, 0));
        assert_eq!(successes, usize::from(*answered), "{id}");
        let reached = !world.effects.attempts(id).is_empty();
        assert!(!reached || effect != Effect::None, "{id} reached the handler: {effect:?}");
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { done, lost, spent, unspent } = self;
        write!(f, "{done} done, {lost} lost, {spent} spent, {unspent} not begun")
    }
}

/// Numbers that look like chance and are the same in every run (xorshift).
pub struct Moments(u64);

impl Moments {
    pub const fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    pub fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % below as u64).unwrap()
    }
}
