//! A protocol of requests and responses over any byte stream, defined in `docs/tcp-wire.md`:
//! what TCP, TLS and the streams of shared memory have in common.
//!
//! A stream comes from elsewhere, connected. [`greeting`] and [`server`] exchange prefaces over
//! it, [`link`] and [`receiver`] are the side that asks, [`server`] the side that owns memory.
//! [`frames`] moves bytes between
//! memory and the [`socket`]s.

mod frames;
pub(crate) mod greeting;
pub(crate) mod link;
pub(crate) mod plain;
pub(crate) mod progress;
pub(crate) mod raw_io;
mod receiver;
pub(crate) mod server;
pub(crate) mod socket;
#[cfg(feature = "tls")]
pub(crate) mod tls;
mod traced;
pub(crate) mod wire;
