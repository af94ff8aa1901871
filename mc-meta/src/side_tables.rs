//! State that few objects have, or that belongs to no object: tables beside the objects.
//!
//! A master whose settings turn a feature off has an empty table of it, and its commands do not pass by here.
//! The functions of these tables know slots, generations and clients; the commands on them are in
//! [`commands`](crate::commands).

pub(crate) mod clients;
pub(crate) mod credits;
pub(crate) mod damage;
pub(crate) mod drain;
pub(crate) mod expiry;
pub(crate) mod files;
pub(crate) mod history;
pub(crate) mod local_disk;
pub(crate) mod offload_queue;
pub(crate) mod open_files;
pub(crate) mod promotion;
pub(crate) mod promotion_queue;
pub(crate) mod readers;
pub(crate) mod runs;
pub(crate) mod suspicion;
pub(crate) mod tasks;
pub(crate) mod transfer;
