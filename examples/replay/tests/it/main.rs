//! `mc-replay`, run as its users run it.

mod bad_input;
mod common;
mod replay;
