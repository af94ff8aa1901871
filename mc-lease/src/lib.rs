#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

mod protection;
mod reader;

pub use protection::{Protection, Terms};
pub use reader::ReaderLease;
