//! libibverbs behind types that cannot be misused: the only unsafe code of the RDMA transport.
//!
//! Every object holds the one that it was made from, so that the system's objects are destroyed in
//! the right order, whatever is dropped first. A [`MemoryRegion`] exists as long as a posted
//! request names it, and so does the memory: a [`SendQueue`] keeps both until the request
//! completed or the queue pair was destroyed.

mod completion;
mod device;
mod error;
mod events;
mod library;
mod memory;
mod queue_pair;
mod route;
mod send_queue;

pub(super) use self::completion::{Channel, CompletionQueue, Done};
pub(super) use self::device::{Device, Port, devices};
pub use self::error::{VerbsError, WorkError, WorkStatus};
pub(super) use self::events::DeviceEvent;
pub(super) use self::memory::MemoryRegion;
pub(super) use self::queue_pair::{QueuePair, Timing};
pub(super) use self::route::{Marks, Path, PathAddress};
pub(super) use self::send_queue::{Direction, Local, SendQueue, Work};
