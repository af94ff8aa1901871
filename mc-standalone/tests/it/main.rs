//! Thin clients and the node agent that serves them: real sockets, real memory, real
//! processes.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod calls;
mod conformance;
mod hostile;
mod names;
mod processes;
mod support;
