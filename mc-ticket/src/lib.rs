#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod put;
mod ticket;

pub use put::{GrantSecret, PutToken};
pub use ticket::{ClockEpoch, Rights, Ticket, TicketKey};

/// Ends every message that is hashed, so that a hash made for one use of a key is never
/// taken for another.
#[derive(Clone, Copy)]
enum Purpose {
    Ticket = 1,
    PutToken = 2,
}
