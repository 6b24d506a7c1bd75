//! Gates in processes of their own on one database, before one handler that counts.
//!
//! - [`redeem`]: everybody redeems one ticket at once.
//! - [`network`]: the database stops, is killed, cut off or slow while a call is
//!   reserved or settled.
//! - [`takeover`]: one dies and does not come back.
//! - [`went_back`]: the database lacks what it has acknowledged.
//! - [`load`]: kill -9 of any of them at any moment under load.

mod load;
mod network;
mod redeem;
mod stage;
mod takeover;
mod went_back;
