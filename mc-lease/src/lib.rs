#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod protection;
mod reader;
mod soft_pin;
mod timers;
mod wheel;

pub use protection::{LONGEST_READ, Protection, SoftPinFrom, Terms};
pub use reader::ReaderLease;
pub use soft_pin::SoftPin;
pub use timers::TimerKey;
pub use wheel::TimerWheel;
