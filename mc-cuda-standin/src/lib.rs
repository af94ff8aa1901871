#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]

mod api;
mod arguments;
mod codes;
mod driver;
mod exports;
mod schedule;
mod settings;
mod state;
mod store;
mod stream;

pub use arguments::{
    AccessDescription, AllocationProperties, Copy2d, CopyAttributes, HostFunction, IpcHandle,
    Location,
};
pub use exports::*;
