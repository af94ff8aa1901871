#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod described;
mod dummy;
mod error;
mod greeting;
mod server;
mod socket;
mod wire;

pub use dummy::{DummyClient, DummyClientBuilder};
pub use error::{CallFailure, DummyError, ServeError};
pub use server::{DEFAULT_PORT, Server, ServerBuilder, ServerReport};

/// Whether a process of `user` can do to this one whatever it likes anyway: one of the same
/// user, or of root.
fn is_ours(user: u32) -> bool {
    const ROOT: u32 = 0;
    user == ROOT || user == rustix::process::geteuid().as_raw()
}
