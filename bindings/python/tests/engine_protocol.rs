//! Tests of the transfer engine's modules that need no interpreter; they stand in the modules.

#![allow(dead_code, unreachable_pub, reason = "the engine uses the rest of the modules")]

#[path = "../src/engine/protocol.rs"]
mod protocol;
#[path = "../src/engine/ranges.rs"]
mod ranges;
