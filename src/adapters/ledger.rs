//! Ledgers: what remembers spent tickets and calls that must not happen twice.

mod embedded;
mod format;

pub use embedded::{EmbeddedLedger, EmbeddedOptions, OpenError, StoreFault};
