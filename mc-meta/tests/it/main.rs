//! Tests of the master: its rules, a slow model of it, and many threads on it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod concurrency;
mod eviction_cost;
mod mixed_sizes;
mod model;
mod quotas;
mod rules;
mod tenants;
mod transfers_concurrent;
mod upserts;
