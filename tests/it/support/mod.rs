//! What tests share.

pub mod certificates;
pub mod fakes;
pub mod frames;
pub mod hostile;
pub mod journal;
pub mod ledger;
pub mod policies;
pub mod process;
pub mod raw;
pub mod running;
pub mod script;
pub mod watching;
