//! `mc-index`, run beside real masters.

mod master;
