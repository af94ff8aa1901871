//! Eviction: [`reclaim`] decides how much and of whose objects, [`search`] finds victims whose space
//! lies together, and [`victims`] takes them out of their shard.

pub(crate) mod group;
pub(crate) mod reclaim;
pub(crate) mod search;
pub(crate) mod victims;
