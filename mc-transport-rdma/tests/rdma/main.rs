//! The RDMA transport on real devices. `./test rdma` runs this in a guest with RDMA in software,
//! where RDMA_GUEST_DEVICES is set. On a host with a device set it to its name:
//! `RDMA_GUEST_DEVICES=mlx5_0 cargo test -p mc-transport-rdma --features rdma --test rdma`.
//! Without that variable the tests say that they are skipped; with it, each fails without a device.

#![cfg(all(feature = "rdma", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

mod cable;
mod faults;
mod marks;
mod node;
mod rig;
mod suite;
mod transfers;
