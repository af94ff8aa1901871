//! Questions of administrators. They grant no lease and count as no access.
//!
//! [`admin`]: lists of keys, one object, totals. [`explain`]: why a key is as it is, from a short
//! history of each shard. [`walk`]: walks over all objects.

pub(crate) mod admin;
pub(crate) mod explain;
pub(crate) mod report;
mod walk;
