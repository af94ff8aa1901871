//! Tests of projectors, conversions and rules, and of where weights come from.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_input;
mod common;
#[cfg(feature = "fetch")]
mod fetch;
mod golden;
mod numpy;
mod rules;
#[cfg(feature = "torch")]
mod torch;
#[cfg(feature = "torch")]
mod torch_python;
