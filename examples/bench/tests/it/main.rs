//! `mc-bench`, run as its users run it.

mod figures;
