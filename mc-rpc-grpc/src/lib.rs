#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

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

use bytes::Bytes;
use mc_rpc::{ByteStream, CloseReason, Guest, GuestProtocol};
use mc_types::BoxFuture;

use connection::{PREFACE, serve_connection};
use reflection::Reflection;

/// gRPC on the port of a server, as its [guest](mc_rpc::Server::with_guest). Servers that have
/// the same one share its limit on streams of reflection.
#[derive(Clone, Debug)]
pub struct Grpc {
    reflection: Reflection,
}

impl Grpc {
    /// The calls, reflection and the health service.
    #[must_use]
    pub fn new() -> Self {
        Self { reflection: Reflection::new() }
    }
}

impl Default for Grpc {
    fn default() -> Self {
        Self::new()
    }
}

impl GuestProtocol for Grpc {
    fn first_byte(&self) -> u8 {
        PREFACE[0]
    }

    fn serve(
        &self,
        stream: Box<dyn ByteStream>,
        begun: Bytes,
        guest: Guest,
    ) -> BoxFuture<'static, Result<(), CloseReason>> {
        Box::pin(serve_connection(begun, stream, guest, self.reflection.clone()))
    }
}
