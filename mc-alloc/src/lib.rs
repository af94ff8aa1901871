#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod allocator;
mod bin;
mod error;
mod free_index;
mod neighbours;
mod offset;
mod regions;
mod report;
#[cfg(feature = "std")]
mod shared;
mod slab;
pub mod strategy;

pub use allocator::Allocator;
pub use error::{AllocateAtError, AllocateError, FreeError, ResizeError, RestoreError};
pub use neighbours::{Content, Direction, Label, Neighbour, Place, Room};
pub use offset::{Allocation, OffsetAllocator, OffsetAllocatorBuilder, Region, Regions};
pub use report::{BinReport, Report};
#[cfg(feature = "std")]
pub use shared::{AllocatedBuffer, BufferStatus, BufferStatusError, SharedAllocator};
pub use slab::{ClassReport, SizeClassError, SizeClasses, SlabAllocator, SlabAllocatorBuilder};
