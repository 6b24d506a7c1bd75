//! Confirmed writes: what is reserved, spent, run, settled and told, and how often.

mod cases;
mod down;
mod gone;
mod recovery;
pub mod stage;
pub mod wire;
