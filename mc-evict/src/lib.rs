#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod adaptive;
mod fifo;
mod frequency;
mod kind;
mod list;
mod lru;
mod pages;
mod policy;
mod prefix;
mod s3_fifo;
mod sieve;
mod w_tiny_lfu;
mod watermark;

pub use adaptive::Adaptive;
pub use fifo::Fifo;
pub use frequency::FrequencySketch;
pub use kind::{PolicyKind, UnknownPolicy};
pub use lru::Lru;
pub use policy::{EvictionPolicy, Handle, Item, MAX_HANDLE, Verdict};
pub use prefix::Prefix;
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;
pub use w_tiny_lfu::WTinyLfu;
pub use watermark::Watermark;
