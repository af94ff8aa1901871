//! `mc-check`, run as its users run it.

mod check;
