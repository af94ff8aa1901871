//! Tiers of objects: what the suite wants of all of them, and what can happen to each.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod directory;
mod faults;
mod log;
mod mounts;
mod object_store;
mod sealed;
mod tiers;
mod usrbio;
