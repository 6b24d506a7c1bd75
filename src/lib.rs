//! ToolGate decides which tool calls proposed by a language model may take effect.
//!
//! # Code map
//!
//! Read [`gate`] first: one file, top to bottom, from an authenticated request to
//! the last audit event. It orders what two rooms do:
//!
//! - [`domain`] decides. Pure, synchronous, given `now`; names no transport, file or clock.
//! - [`ports`] are the effects as traits; [`adapters`] stand behind them.
//!
//! Around them: [`grpc`] turns wire types into the domain's and back, and
//! authenticates; [`config`] turns files into an immutable snapshot, or into all
//! of their faults; [`telemetry`] holds metrics, logs and the admin address;
//! [`cli`] is the command line; [`app`] alone knows every room.
//!
//! # What holds everywhere
//!
//! - A call carries proof from stage to stage ([`domain::stages`]): a skipped stage does not compile.
//! - Every pair is closed in one place, whatever happened, cancellation and panic included.
//! - One call sees one policy snapshot from its first check to its last event.
//! - Every queue, body, wait and retry has a bound with a name.
//! - Any doubt denies.

pub mod adapters;
pub mod app;
pub mod cli;
pub mod config;
pub mod domain;
mod failpoint;
pub mod gate;
pub mod grpc;
pub mod ports;
pub mod proto;
pub mod telemetry;
