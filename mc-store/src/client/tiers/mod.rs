//! Storage below memory: the client's [local disk](local_disk), and the [shared](shared) tier.
//!
//! Gets read from them what memory does not have: [`super::read`].

mod breaker;
mod leaving;
pub(super) mod local_disk;
mod objects;
mod peer_disks;
mod reads;
mod sealing;
pub(super) mod shared;
mod untold;
mod work;

pub(super) use peer_disks::{DiskTurn, PeerDisks};
pub(super) use reads::{MAX_READ, NotRead, TierReads};
pub(super) use sealing::Sealing;
