#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod deadlines;
mod protection;
mod reader;

pub use deadlines::DeadlineQueue;
pub use protection::{Protection, Terms};
pub use reader::ReaderLease;
