#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod put;
mod ticket;

pub use put::{GrantSecret, PutToken};
pub use ticket::{ClockEpoch, Rights, Ticket, TicketKey};

use core::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};

/// Separates the uses of a key, so that a hash made for one is never taken for another.
#[derive(Clone, Copy)]
enum Purpose {
    Ticket = 1,
    PutToken = 2,
}

/// The keyed hash of `message`.
fn keyed_hash(key: &[u8; 16], purpose: Purpose, message: &[u8]) -> u128 {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(&[purpose as u8]);
    hasher.write(message);
    hasher.finish128().as_u128()
}
