//! ZeroMQ sockets: what this crate needs of PUB and ROUTER.

mod accept;
mod endpoint;
mod publish;
mod replay;
mod wire;

pub(crate) use endpoint::Listener;
pub(crate) use publish::PubSocket;
pub(crate) use replay::{ReplayServer, ReplaySource, unix_micros};
