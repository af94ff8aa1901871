//! A master's journal from its changes to the next life: recovery, crashes, damage, full disks.

mod crash;
mod damage;
mod life;
mod medium;
mod recovery;
