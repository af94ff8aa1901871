//! Questions of administrators. They grant no lease and count as no access.
//!
//! [`admin`]: lists of keys, one object, totals. [`explain`]: why a key is as it is, from a short
//! history of each shard.

pub(crate) mod admin;
pub(crate) mod explain;
pub(crate) mod report;
