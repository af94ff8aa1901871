#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod lru;
mod policy;
mod watermark;

pub use lru::Lru;
pub use policy::{EvictionPolicy, Handle, Verdict};
pub use watermark::Watermark;
