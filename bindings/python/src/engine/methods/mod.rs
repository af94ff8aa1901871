//! The methods of `TransferEngine` beside its start: arguments from Python, and numbers back.

mod memory;
mod peers;
mod transfers;
