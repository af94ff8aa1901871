//! Converts stored objects for other models, by the rules that the master passes on.
//!
//! A put that has stored an object to which a rule applies only notes its key in a bounded queue.
//! Workers read the objects back, convert them in threads of low priority, and store what comes out
//! under the key of the target model. A put is never delayed; what finds no room in the queue is
//! not converted, and counted.

mod error;
mod explicit;
mod worker;

pub use error::C2cError;
pub(super) use worker::start;
