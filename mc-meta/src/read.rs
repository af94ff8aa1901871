//! Commands that read objects and change no more than leases.
//!
//! [`get`]: replica lists, existence, longest prefixes. [`readers`]: which reads are over. [`renew`]: leases of reads that take long.
//! [`by_pattern`]: all objects whose keys match a [`pattern`], whose cost is bounded before it
//! runs.

pub(crate) mod by_pattern;
pub(crate) mod get;
pub(crate) mod pattern;
pub(crate) mod readers;
pub(crate) mod renew;
