//! Ledgers: what remembers spent tickets and calls that must not happen twice.

mod embedded;
mod format;
mod postgres;
mod stored;

pub use embedded::{EmbeddedLedger, EmbeddedOptions, OpenError, StoreFault};
pub use postgres::{
    ConnectFault, Lost, Migrated, PostgresError, PostgresLedger, PostgresOptions, PostgresStore,
    PostgresTls, script,
};
