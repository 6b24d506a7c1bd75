//! The public contract on the wire: one file a service, conversions in named files.
//!
//! Wire types keep their `proto::` prefix and stop in this room.

mod admin;
pub mod audit;
pub mod callers;
mod confirmations;
mod from_wire;
pub mod listeners;
mod refusals;
mod request_body;
pub mod server;
mod status;
pub mod tls;
mod to_wire;
mod tool_gate;
