//! What operators see: metrics, logs, and the admin listener that serves probes.
//!
//! Nothing here decides anything, and nothing a caller or a model wrote leaves
//! through it: labels are registered names and fixed words, log fields an
//! allowlist, readiness texts fixed.

pub mod admin;
pub mod logs;
pub mod metrics;
pub mod readiness;
