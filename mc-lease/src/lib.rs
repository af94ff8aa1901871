#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

mod protection;
mod reader;

pub use protection::{Protection, SoftPinFrom, Terms};
pub use reader::ReaderLease;
