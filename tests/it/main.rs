//! The tests that need more than one room, as one binary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    unreachable_pub,
    reason = "tests"
)]

mod abuse;
mod bfcl;
mod callers;
mod canary;
mod cancellation;
mod cases;
mod client;
mod configuration;
mod contracts;
mod crash;
mod dialect;
mod diff;
mod docs;
mod drain;
mod faults;
mod get_call;
mod grpc;
mod journal;
mod json;
mod jwt;
mod ledger;
mod logs;
mod metrics;
mod postgres;
mod python;
mod reasons;
mod recovery;
mod reload;
mod replicas;
mod restored;
mod sinks;
mod support;
mod tidy;
mod trail;
mod upstream;
mod vectors;
mod watch;
mod writes;
