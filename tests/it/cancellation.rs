//! A caller that goes away, at every point: each pair ends closed, reads are
//! cancelled upstream, and nothing more starts.

mod paused;
mod wire;
