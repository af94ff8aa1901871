//! Tests of the HTTP server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(feature = "server")]
mod port;
