//! The tests that need more than one room, as one binary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    unreachable_pub,
    reason = "tests"
)]

mod bfcl;
mod cases;
mod contracts;
mod dialect;
mod journal;
mod json;
mod logs;
mod metrics;
mod support;
mod upstream;
mod vectors;
