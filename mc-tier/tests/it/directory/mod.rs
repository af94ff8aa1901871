//! A tier in a directory, and what can happen to it.

mod common;
mod damage;
mod eviction;
mod marker;
mod medium;
mod names;
mod packs;
mod ranges;
mod unfinished;
