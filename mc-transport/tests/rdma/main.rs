//! The RDMA transport on real devices. `./test rdma` runs this in a guest with RDMA in software;
//! on a host with a device it runs by itself:
//! `cargo test -p mc-transport --features rdma --test rdma`.
//!
//! Without a device every test fails, so that none passes without having tested anything.

#![cfg(all(feature = "rdma", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

mod cable;
mod faults;
mod rig;
mod suite;
mod transfers;
