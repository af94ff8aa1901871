#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod check;
mod operation;
mod violation;

pub use check::{LATE, Rules, check};
pub use operation::{Action, Moment, Operation, Outcome, ValueId, Window, longest_outage};
pub use violation::{Violation, ViolationKind};
