//! A tier of segments, and what can happen to it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod damage;
mod faults;
mod medium;
mod power;
mod space;
