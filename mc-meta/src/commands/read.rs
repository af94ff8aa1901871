//! Reads: the places of one object or of all that match a pattern, and the renewal of a lease.

pub(crate) mod by_pattern;
pub(crate) mod get;
pub(crate) mod renew;
