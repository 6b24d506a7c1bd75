//! Decisions, and nothing else: pure, synchronous, given `now`.
//!
//! This is where the security argument is checked. Nothing here names a
//! transport, a runtime, a file, a socket or a clock; what a decision needs from
//! outside comes in as an argument, and what it causes goes out through
//! [`crate::ports`].

pub mod admission;
pub mod attempts;
pub mod audit;
pub mod authorisation;
pub mod caller;
pub mod canonical;
pub mod contract;
pub mod generation;
pub mod identity;
pub mod json;
pub mod jwt;
pub mod keyed;
pub mod policy;
pub mod policy_diff;
pub mod prompt;
pub mod proposal;
pub mod reason;
pub mod record;
pub mod recovery;
pub mod refusal;
pub mod refused;
pub mod result;
pub mod schema;
pub mod stages;
pub mod ticket;
pub mod watermark;
