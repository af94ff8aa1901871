//! A client as a process of its own.
//!
//! An application embeds a [`DummyClient`], which is light: it forwards every operation to
//! the *real* client of its host, a [`Client`](crate::Client) that another process serves
//! with a [`Server`]. The two exchange values through shared memory, so that none passes a
//! socket and a read puts a peer's bytes right where the application wants them. The real
//! client, with all that it contributes to the pool, outlives its applications.
//!
//! `mc-client` is a program that serves dummy clients. The protocol is described in
//! `docs/standalone.md`.
//!
//! Needs the feature `standalone`, and Linux.

mod described;
mod dummy;
mod error;
mod greeting;
mod secret;
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
