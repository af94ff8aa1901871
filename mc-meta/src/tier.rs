//! Replicas beside memory: a file on a shared tier, and the clients' own disks.
//!
//! [`files`]: the state of each object's file. [`adopt`]: objects that clients find. [`disk`]: one
//! client's disk, and [`local_disk`] all of them. [`offload`] writes objects from memory to those
//! disks and [`promote`] brings them back; what is waiting and under way is in [`offload_queue`] and
//! [`promotion_queue`]. [`runs`] says which objects share a file. Nothing here is used by a master without a second tier.

pub(crate) mod adopt;
pub(crate) mod disk;
pub(crate) mod files;
pub(crate) mod kinds;
pub(crate) mod local_disk;
pub(crate) mod offload;
pub(crate) mod offload_queue;
pub(crate) mod promote;
pub(crate) mod promotion_queue;
pub(crate) mod room;
pub(crate) mod runs;
