#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod check;
mod clock;
mod log;
mod operation;
mod violation;

pub use check::{LATE, Rules, check};
pub use clock::now;
pub use log::{Answer, Call, History, LINE_LIMIT, LineFault, LogError, LogWriter, VERSION};
pub use operation::{Action, Moment, Operation, Outcome, ValueId, Window, longest_outage};
pub use violation::{Violation, ViolationKind};
