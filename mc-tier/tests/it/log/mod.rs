//! A tier of segments, and what can happen to it.

mod common;
mod damage;
mod faults;
mod files;
mod full;
mod medium;
mod order;
mod power;
mod segments;
mod space;
mod together;
