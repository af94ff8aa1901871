//! Storage below memory: the client's [own disk](own_disk), and the [shared](shared) tier.
//!
//! Gets read from them what memory does not have: [`super::read`].

mod breaker;
mod leaving;
mod metrics;
mod objects;
pub(super) mod own_disk;
mod peer_disks;
mod reads;
mod sealing;
pub(super) mod shared;
mod untold;
mod work;

pub(super) use metrics::TierCounters;
pub use metrics::TierMetrics;
pub(super) use own_disk::DiskLook;
pub(super) use peer_disks::{DiskTurn, PeerDisks};
pub(super) use reads::{MAX_READ, NotRead, TierReads};
pub(super) use sealing::Sealing;
