//! Errors of the store as numbers and as exceptions.
