//! Against a stand-in for the driver: each test runs in a process of its own, which finds it as `libcuda.so.1`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod buffers;
mod copies;
mod failures;
mod ipc;
mod order;
mod pointers;
mod registered;
mod standin;
