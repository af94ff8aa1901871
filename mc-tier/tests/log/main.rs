//! A tier of segments, and what can happen to it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod damage;
mod faults;
mod files;
mod medium;
#[path = "../common/mounts.rs"]
mod mounts;
mod power;
mod segments;
mod space;
mod together;
