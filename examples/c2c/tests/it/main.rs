//! `mc-c2c` and the examples, run as their users run them.

mod tool;
mod two_models;
