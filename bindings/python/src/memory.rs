//! Memory of callers, by address.
