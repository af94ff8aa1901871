#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod dial;
mod holder;
mod listen;

pub use dial::{NEXT_AFTER, connect, connect_blocking, first_of, race};
pub use holder::Holder;
pub use listen::{LISTEN_PATIENCE, PortTaken, bind_patiently, listen};
