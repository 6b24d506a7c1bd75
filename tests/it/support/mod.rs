//! What tests share.

pub mod certificates;
pub mod collector;
pub mod fakes;
pub mod frames;
pub mod hostile;
pub mod journal;
pub mod ledger;
pub mod mounts;
pub mod policies;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod raw;
pub mod running;
pub mod script;
pub mod strace;
pub mod watching;
