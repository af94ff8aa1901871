//! Tests of publishers and subscribers, ours and those of others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod joining;
#[cfg(feature = "libzmq")]
mod libzmq;
#[cfg(target_os = "linux")]
mod names;
mod publisher;
mod python;
mod strangers;
mod subscriber;
