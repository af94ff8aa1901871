//! The messages of `proto/mc/store/v1/master.proto`, as prost generates them.
//!
//! They are the contract, for whoever speaks the protocol by other means than
//! this crate's client. This crate writes them with prost and reads what a peer
//! sends with its own bounded reader, because prost allocates whatever a message
//! claims to hold before anybody can count it.

#![allow(clippy::all, missing_docs)]
#![allow(rustdoc::all)]

include!(concat!(env!("OUT_DIR"), "/mc.store.v1.rs"));
