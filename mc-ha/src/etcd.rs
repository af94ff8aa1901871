//! A small client of etcd, version 3: its settings, and the calls that the election needs.
//!
//! Why not the crate `etcd-client`: it generates its code with `protoc`, which then had to be
//! installed wherever this crate is built, and it hides which member answers, so that a call could
//! not turn to another member while one hangs. The part of etcd's API that an election needs is ten
//! calls. Their messages are generated from `proto/etcd.proto` in Rust alone.

mod client;
mod config;
mod failure;
pub(crate) mod messages;

pub use config::{EtcdConfig, EtcdConfigError, EtcdTls};

pub(crate) use client::Client;
pub(crate) use config::{MAX_LEASE, PREFIX};
