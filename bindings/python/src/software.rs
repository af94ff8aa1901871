//! The name of this package for the operators of masters.

/// Name and version, as [`mc_store::ClientBuilder::software`] takes them.
pub(crate) const SOFTWARE: &str = concat!("mc-store-python/", env!("CARGO_PKG_VERSION"));
