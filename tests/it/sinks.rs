//! Audit sinks: what arrives, whatever happens to the receiver or the gate, and that calls never notice.

mod down;
mod process;
mod record;
mod retention;
mod secured;

use serde_json::Value;
use toolgate::proto::ToolCall;

use crate::support::collector::{Collector, Listening, sink};
use crate::support::running::{Options, World, call};

/// A gate whose one sink delivers to a collector.
async fn world(collector: &Collector) -> (World, Listening) {
    let listening = collector.listen().await;
    let audit = sink(&listening.address);
    (World::start_with(Options { audit: &audit, ..Options::default() }).await, listening)
}

/// The journal's records as JSON, in order.
fn journal(world: &World) -> Vec<Value> {
    world.journal().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A call that succeeds.
fn a_call(id: &str) -> ToolCall {
    call(id, "patient", "{}")
}
