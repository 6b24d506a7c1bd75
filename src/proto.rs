//! The wire types of `proto/toolgate/v1`, as prost and tonic generate them.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated code; its documentation is the comments of proto/"
)]

tonic::include_proto!("toolgate.v1");

/// The encoded `FileDescriptorSet` of what this version serves, comments included: for reflection.
pub const SERVED_DESCRIPTORS: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/served.descriptors.binpb"));
