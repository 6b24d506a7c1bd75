//! Callers that show a JWT.

mod gate;
mod keys;
mod people;
pub mod signer;
mod stage;
mod verify;
