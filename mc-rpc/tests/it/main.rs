//! The control protocol as both sides see it: every call against a real master, clients that meet other
//! masters, servers that meet other clients, and what is left of a call when a side dies, lies or waits.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod blocking;
mod calls;
mod cluster_calls;
mod cold_calls;
mod common;
mod durability;
#[cfg(feature = "tls")]
mod encrypted;
mod failover;
mod forgotten;
mod handed_streams;
mod hostile_masters;
mod hostile_peers;
mod journal_streams;
#[cfg(target_os = "linux")]
mod local_socket;
#[cfg(target_os = "linux")]
mod names;
mod object_calls;
mod reconnect;
mod roles;
mod server;
mod standby;
#[cfg(unix)]
mod stopped_server;
mod terms;
mod versions;
