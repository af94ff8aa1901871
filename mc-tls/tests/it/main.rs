//! Tests of TLS settings.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(feature = "rustls")]
mod handshakes;
