//! The calls of `MasterService` over gRPC, for clients in any language.
//!
//! A connection is HTTP/2. Its calls go to the same [`Service`](crate::Service) as those of
//! the native protocol, message for message as their bytes are; reflection and the standard
//! health service are there as well. `docs/protocol.md` says what a client may rely on.

mod body;
mod call;
mod connection;
mod health;
mod memory_budget;
mod message;
mod metadata;
mod reflection;
mod rewind;
mod status;
#[cfg(test)]
mod tests;

pub(super) use connection::{PREFACE, serve_connection};
pub(super) use reflection::Reflection;
