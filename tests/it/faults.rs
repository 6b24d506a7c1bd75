//! What a caller gets when the machine fails the gate.
//!
//! - [`disk`]: no room is left, nothing can be written.
//! - [`calls`]: the system's calls fail, are slow or do not return.
//! - [`clock`]: the clock goes back or on by a day.
//!
//! Beside them: `tests/cases/writes/faults.yaml` has every operation of journal and ledger
//! fail and hang at the gate's ports, in paused time.

mod calls;
mod clock;
mod disk;
pub mod stage;
