//! What tests share.

pub mod fakes;
pub mod hostile;
pub mod policies;
pub mod running;
