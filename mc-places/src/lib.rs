#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod places;
mod source;

pub use places::{OpenCall, Place, Places, Seat, Stage};
pub use source::{Source, host};
