#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod boot_time;
mod environment;
mod network;
mod system;

pub use boot_time::{BootClock, BootTime, TimeSource};
pub use environment::{Blocking, Environment, Work};
pub use network::{ByteStream, ClientEnvironment, Connecting};
pub use system::System;
