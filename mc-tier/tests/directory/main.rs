//! A tier in a directory, and what can happen to it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod damage;
mod eviction;
mod medium;
#[path = "../common/mounts.rs"]
mod mounts;
mod names;
mod unfinished;
