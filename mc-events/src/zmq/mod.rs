//! ZeroMQ sockets: what this crate needs of PUB and ROUTER, and of SUB and DEALER.
//!
//! Not the crate `zeromq` (0.7): a peer can end the process there with 73 bytes that announce a frame of a
//! made-up length, and its queues count messages, not bytes, with a limit that cannot be set.

mod accept;
mod endpoint;
mod pages;
mod peer;
mod publish;
mod replay;
mod wire;

pub(crate) use endpoint::Listener;
pub(crate) use peer::{Messages, PeerSocket, Sender};
pub(crate) use publish::PubSocket;
pub(crate) use replay::{ReplayServer, ReplaySource, unix_micros};
