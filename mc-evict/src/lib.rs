#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod fifo;
mod kind;
mod list;
mod lru;
mod policy;
mod watermark;

pub use fifo::Fifo;
pub use kind::{PolicyKind, UnknownPolicy};
pub use lru::Lru;
pub use policy::{EvictionPolicy, Handle, Item, MAX_HANDLE, Verdict};
pub use watermark::Watermark;
