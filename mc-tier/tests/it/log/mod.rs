//! A tier of segments, and what can happen to it.

mod beside;
mod common;
mod damage;
mod faults;
mod files;
mod full;
mod medium;
mod order;
mod power;
mod second_chance;
mod segments;
mod space;
mod together;
