//! Tests of the store's modules that need no interpreter; they stand in the modules.

#![allow(dead_code, unreachable_pub, reason = "the store uses the rest of the modules")]

#[path = "../src/store/ports.rs"]
mod ports;
#[path = "../src/repeats.rs"]
mod repeats;
