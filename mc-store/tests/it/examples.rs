//! The examples run to their ends.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../examples/own_parts.rs"]
mod own_parts;
#[path = "../../examples/own_transport.rs"]
mod own_transport;
#[path = "../../examples/prompt_cache.rs"]
mod prompt_cache;

#[test]
fn a_master_with_parts_of_your_own() {
    own_parts::main().unwrap();
}

#[test]
fn a_client_with_a_transport_of_your_own() {
    own_transport::main().unwrap();
}

#[test]
fn an_application_that_runs_with_any_store() {
    prompt_cache::main().unwrap();
}
