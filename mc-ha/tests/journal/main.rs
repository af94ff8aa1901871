//! A master's journal from its changes to the next life: recovery, crashes, damage, full disks.

#![cfg(feature = "sled")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod crash;
mod damage;
mod life;
mod medium;
mod recovery;
