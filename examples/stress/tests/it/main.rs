//! `mc-stress`, run as its users run it.

mod roles;
