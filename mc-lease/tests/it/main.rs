//! Tests of the timing wheel.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod wheel;
