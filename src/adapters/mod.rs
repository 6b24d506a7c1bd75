//! What stands behind the ports: files, sockets and clocks.

pub mod clock;
mod code;
pub mod journal;
pub mod ledger;
mod lock;
mod manifest;
pub mod sinks;
pub mod upstream;
pub mod watched;
