//! ZeroMQ sockets: what this crate needs of PUB and ROUTER.
//!
//! Not the crate `zeromq` (0.7): a peer can end the process there with 73 bytes that announce a frame of a
//! made-up length, and its queues count messages, not bytes, with a limit that cannot be set.

mod accept;
mod endpoint;
mod publish;
mod replay;
mod wire;

pub(crate) use endpoint::Listener;
pub(crate) use publish::PubSocket;
pub(crate) use replay::{ReplayServer, ReplaySource, unix_micros};
