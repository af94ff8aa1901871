//! Tests of the allocators and of the strategies of placement.

mod follow;
mod neighbours;
mod properties;
#[cfg(feature = "std")]
mod shared;
mod slab;
mod strategy;
mod utilisation;
