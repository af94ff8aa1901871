//! Tests of journals, of what comes of them, and of elections.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod election;
mod election_chaos;
mod election_faults;
mod encoding;
#[cfg(feature = "sled")]
mod journal;
mod journals;
mod one_thread;
mod replication;
