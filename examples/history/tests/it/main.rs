//! `mc-history`, run as its users run it. Programs that are killed are in `tests/chaos/main.rs`.

mod bad_input;
