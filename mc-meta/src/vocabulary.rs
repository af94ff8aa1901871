//! Words that all rooms share: states, kinds of replicas, slots, hashes, patterns, requests, and locks
//! with their order. Nothing here knows the master's tables.

pub(crate) mod grant;
pub(crate) mod hash;
pub(crate) mod kinds;
pub(crate) mod lock;
pub(crate) mod metrics;
pub(crate) mod pattern;
pub(crate) mod removal;
pub(crate) mod request;
pub(crate) mod slot;
pub(crate) mod states;
