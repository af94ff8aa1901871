//! The messages of `proto/mc/store/v1/master.proto`, as prost generates them.
//!
//! They are the contract, also for programs that speak the protocol by other means than
//! this crate's client. The calls of every put and get are written and read by hand, without
//! copies; all others by prost, after their items have been counted, because prost allocates
//! whatever a message claims to hold.

#![allow(clippy::all, missing_docs)]
#![allow(rustdoc::all)]

/// The `.proto` as its compiler understands it, with its comments: an encoded `FileDescriptorSet`.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

include!(concat!(env!("OUT_DIR"), "/mc.store.v1.rs"));
