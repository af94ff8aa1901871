//! Segments: the memory that clients contribute.

use core::fmt;
use core::time::Duration;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use mc_alloc::{
    AllocateAtError, AllocateError, Allocation, Allocator, Direction, Label, Neighbour,
    OffsetAllocator, OffsetAllocatorBuilder, Place, RestoreError, Room, SlabAllocator,
    SlabAllocatorBuilder,
};
use mc_ticket::TicketKey;
use mc_types::{ClientId, Endpoint, Extent, MediaType, RemoteKey, SegmentId};

use crate::space::allocator::MemoryAllocator;
use crate::vocabulary::lock::{Mutex, rank};
use crate::vocabulary::states::SegmentStatus;

/// Longest segment name, in bytes.
pub const MAX_SEGMENT_NAME_LEN: usize = 256;

/// The description of a segment that its client mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentSpec {
    /// The segment's identity, drawn at random by the client.
    pub id: SegmentId,
    /// The name that puts can prefer; unique in the cluster.
    pub name: Box<str>,
    /// Its address in the client's memory; kept for diagnosis, never used as a
    /// pointer. Extents count from the segment's first byte.
    pub base: u64,
    /// Its size in bytes.
    pub size: u64,
    /// The endpoint that serves its bytes.
    pub endpoint: Endpoint,
    /// The key that opens it.
    pub remote_key: RemoteKey,
    /// With which the master signs what opens parts of it; `None` when `remote_key` opens
    /// all of it. Drawn at random by the client for each mount.
    pub ticket_key: Option<TicketKey>,
    /// The medium of its memory. Puts that ask for a medium go to segments of that medium only.
    pub medium: MediaType,
}

/// A mounted segment, shared by every replica in it.
pub struct Segment {
    spec: SegmentSpec,
    client: ClientId,
    status: AtomicU8,
    /// The status that it has whenever its client is there.
    status_on_return: AtomicU8,
    /// The grace of its unmounting in milliseconds, once it is being unmounted.
    grace: AtomicU64,
    /// Clients could not reach it lately.
    suspect: AtomicBool,
    /// Free bytes, to pass over a full segment without locking it.
    free: AtomicU64,
    /// Bytes of the largest object that fits while nothing else is there.
    largest_object: u64,
    allocator: Mutex<Box<dyn Allocator + Send>, { rank::ALLOCATOR }>,
}

impl Segment {
    pub(crate) fn new(spec: SegmentSpec, client: ClientId, memory: MemoryAllocator) -> Self {
        let allocator: Box<dyn Allocator + Send> = match memory {
            MemoryAllocator::Offset => Box::new(by_offset(&spec).build()),
            MemoryAllocator::Slab => Box::new(by_slab(&spec).build()),
        };
        Self::divided(spec, client, Purpose::NEW, SegmentStatus::Ok, allocator)
    }

    /// A segment of before a restart, whose client has yet to come back with it, to this `purpose`.
    /// `live` is what lies in it, in the order of the offsets, with the labels of the objects; `made`
    /// is given the allocations, in the same order.
    ///
    /// # Errors
    /// [`RestoreError`] when no such segment can have been.
    pub(crate) fn restored(
        spec: SegmentSpec,
        client: ClientId,
        purpose: Purpose,
        memory: MemoryAllocator,
        live: impl IntoIterator<Item = (Extent, Option<Label>)>,
        made: impl FnMut(Allocation),
    ) -> Result<Self, RestoreError> {
        let allocator: Box<dyn Allocator + Send> = match memory {
            MemoryAllocator::Offset => Box::new(by_offset(&spec).restore_in_order(live, made)?),
            MemoryAllocator::Slab => Box::new(by_slab(&spec).restore_in_order(live, made)?),
        };
        Ok(Self::divided(spec, client, purpose, SegmentStatus::Suspended, allocator))
    }

    fn divided(
        spec: SegmentSpec,
        client: ClientId,
        purpose: Purpose,
        status: SegmentStatus,
        allocator: Box<dyn Allocator + Send>,
    ) -> Self {
        Self {
            client,
            status: AtomicU8::new(status as u8),
            status_on_return: AtomicU8::new(purpose.status as u8),
            grace: AtomicU64::new(millis(purpose.grace.unwrap_or(Duration::MAX))),
            suspect: AtomicBool::new(false),
            free: AtomicU64::new(allocator.available()),
            largest_object: allocator.max_allocation(),
            allocator: Mutex::new(allocator),
            spec,
        }
    }

    /// The description that its client gave.
    #[must_use]
    pub fn spec(&self) -> &SegmentSpec {
        &self.spec
    }

    /// The client that contributes it.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Its status. Once unmounted it stays so: a segment that comes
    /// back after that is mounted as a new one.
    #[must_use]
    pub fn status(&self) -> SegmentStatus {
        SegmentStatus::from_u8(self.status.load(Ordering::Acquire))
    }

    /// The medium of its memory.
    pub(crate) const fn medium(&self) -> MediaType {
        self.spec.medium
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.status() == SegmentStatus::Unmounted
    }

    pub(crate) fn is_readable(&self) -> bool {
        self.status().is_readable()
    }

    pub(crate) fn is_allocatable(&self) -> bool {
        self.status().is_allocatable() && !self.is_suspect()
    }

    /// Returns whether clients could not reach it since its node was last heard of: what it holds
    /// is read last, and nothing new is put there.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }

    /// Called under the segment table's lock.
    pub(crate) fn set_suspect(&self, is_suspect: bool) {
        self.suspect.store(is_suspect, Ordering::Relaxed);
    }

    /// The state that outlasts its client's silence and the master's restart.
    pub(crate) fn purpose(&self) -> Purpose {
        let status = SegmentStatus::from_u8(self.status_on_return.load(Ordering::Acquire));
        let grace = Duration::from_millis(self.grace.load(Ordering::Relaxed));
        let grace = (status == SegmentStatus::GracefullyUnmounting).then_some(grace);
        Purpose { status, grace }
    }

    /// Changes the status, if `next` may follow. Called under the segment table's lock.
    pub(crate) fn set_status(&self, next: SegmentStatus) -> bool {
        let may = self.status().can_become(next);
        if may {
            if next != SegmentStatus::Suspended {
                self.status_on_return.store(next as u8, Ordering::Release);
            }
            self.status.store(next as u8, Ordering::Release);
        }
        may
    }

    /// Changes the status that it will have when its client is back, if that may follow the one which
    /// it would have. Called under the segment table's lock.
    pub(crate) fn set_status_on_return(&self, next: SegmentStatus) -> bool {
        let may = next.is_attached() && self.purpose().status.can_become(next);
        if may {
            self.status_on_return.store(next as u8, Ordering::Release);
        }
        may
    }

    /// Sets what it is there for when its client is back, as a record tells.
    pub(crate) fn set_purpose(&self, Purpose { status, grace }: Purpose) {
        self.status_on_return.store(status as u8, Ordering::Release);
        self.grace.store(millis(grace.unwrap_or(Duration::MAX)), Ordering::Relaxed);
    }

    /// Sets the grace of an unmounting that is about to begin. Called under the segment table's lock.
    pub(crate) fn set_grace(&self, grace: Duration) {
        self.grace.store(millis(grace), Ordering::Relaxed);
    }

    /// Takes space for the object that `label` stands for.
    pub(crate) fn allocate(
        &self,
        size: u64,
        label: Option<Label>,
    ) -> Result<Allocation, AllocateError> {
        let mut allocator = self.allocator.lock();
        let allocation = allocator.allocate(size, 1);
        if let (Ok(allocation), Some(label)) = (&allocation, label) {
            allocator.set_label(allocation, label);
        }
        self.free.store(allocator.available(), Ordering::Relaxed);
        allocation
    }

    /// Takes exactly this space, for the object that `label` stands for.
    pub(crate) fn allocate_at(
        &self,
        extent: Extent,
        label: Option<Label>,
    ) -> Result<Allocation, AllocateAtError> {
        let mut allocator = self.allocator.lock();
        let allocation = allocator.allocate_at(extent);
        if let (Ok(allocation), Some(label)) = (&allocation, label) {
            allocator.set_label(allocation, label);
        }
        self.free.store(allocator.available(), Ordering::Relaxed);
        allocation
    }

    /// Has a label stand for another object from now on.
    pub(crate) fn relabel(&self, allocation: &Allocation, label: Label) {
        self.allocator.lock().set_label(allocation, label);
    }

    /// Returns whether an object of `size` bytes would fit if this allocation alone were freed.
    pub(crate) fn makes_room(&self, allocation: &Allocation, size: u64) -> bool {
        self.allocator.lock().makes_room(allocation, size)
    }

    /// Returns the bytes that have to be free for an object of `size` bytes to fit at this place.
    pub(crate) fn room_at(&self, place: Place, size: u64) -> Room {
        self.allocator.lock().room_at(place, size)
    }

    /// Shows what lies at a place and beyond, with the allocator's lock held.
    pub(crate) fn walk(
        &self,
        place: Place,
        direction: Direction,
        mut show: impl FnMut(Neighbour) -> bool,
    ) {
        self.allocator.lock().walk(place, direction, &mut show);
    }

    /// Somewhere in the segment, by a random number.
    pub(crate) fn place_near(&self, number: u64) -> Option<Place> {
        self.allocator.lock().place_near(number)
    }

    /// Takes space back. In an unmounted segment nothing is left to account for.
    pub(crate) fn release(&self, allocation: Allocation) {
        if !self.is_gone() {
            let mut allocator = self.allocator.lock();
            let freed = allocator.free(allocation);
            debug_assert!(freed.is_ok(), "a replica's allocation belongs to its segment");
            self.free.store(allocator.available(), Ordering::Relaxed);
        }
    }

    /// Free bytes, in however many pieces.
    pub(crate) fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// The longest free run of bytes, at least. Waits for the allocator's lock.
    pub(crate) fn largest_free(&self) -> u64 {
        self.allocator.lock().largest_free()
    }

    /// The host that serves it: its endpoint's address without the port.
    pub(crate) fn host(&self) -> &str {
        host_of(self.spec.endpoint.address())
    }

    /// Bytes that cannot be given to another object: allocated, or of no use to the
    /// allocator.
    pub(crate) fn used(&self) -> u64 {
        self.spec.size - self.free()
    }

    pub(crate) const fn largest_object(&self) -> u64 {
        self.largest_object
    }

    pub(crate) fn info(&self) -> SegmentInfo {
        let allocator = self.allocator.lock();
        SegmentInfo {
            spec: self.spec.clone(),
            client: self.client,
            status: self.status(),
            is_suspect: self.is_suspect(),
            used: allocator.used(),
            largest_free: allocator.largest_free(),
            allocations: allocator.live() as u64,
        }
    }
}

/// The service of a segment while its client is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Purpose {
    /// Neither suspended nor unmounted.
    pub(crate) status: SegmentStatus,
    /// The grace of its unmounting, which is known while it is being unmounted.
    pub(crate) grace: Option<Duration>,
}

impl Purpose {
    /// The purpose of a segment that has just been mounted.
    pub(crate) const NEW: Self = Self { status: SegmentStatus::Ok, grace: None };

    /// Returns the service that a record of the segment names; `None` when it names none.
    pub(crate) fn recorded(status: SegmentStatus, grace: Option<Duration>) -> Option<Self> {
        match status {
            SegmentStatus::Suspended | SegmentStatus::Unmounted => None,
            SegmentStatus::GracefullyUnmounting => Some(Self { status, grace }),
            SegmentStatus::Ok | SegmentStatus::Draining | SegmentStatus::Drained => {
                Some(Self { status, grace: None })
            }
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn by_offset(spec: &SegmentSpec) -> OffsetAllocatorBuilder {
    OffsetAllocator::builder(spec.size).identity(identity(spec))
}

fn by_slab(spec: &SegmentSpec) -> SlabAllocatorBuilder {
    SlabAllocator::builder(spec.size).identity(identity(spec))
}

/// Allocations outlive segments that go: none may pass for a later one's.
const fn identity(spec: &SegmentSpec) -> u64 {
    spec.id.as_u128() as u64
}

/// The host in `host:port` or `[host]:port`. Any other address is one of a transport
/// that names its peers otherwise, and is taken as a whole.
fn host_of(address: &str) -> &str {
    match address.rsplit_once(':') {
        Some((host, port))
            if !host.is_empty()
                && port.bytes().all(|byte| byte.is_ascii_digit())
                && (!host.contains(':') || host.ends_with(']')) =>
        {
            host
        }
        _ => address,
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("spec", &self.spec)
            .field("client", &self.client)
            .field("status", &self.status())
            .field("free", &self.free())
            .finish_non_exhaustive()
    }
}

/// One segment, as an administrator sees it.
#[derive(Clone, Debug)]
pub struct SegmentInfo {
    /// The description that its client gave.
    pub spec: SegmentSpec,
    /// The client.
    pub client: ClientId,
    /// Whether the segment serves reads and takes new objects.
    pub status: SegmentStatus,
    /// Whether clients could not reach it since its client was last heard of: nothing new is
    /// put there.
    pub is_suspect: bool,
    /// Bytes allocated.
    pub used: u64,
    /// The longest free run of bytes, at least.
    pub largest_free: u64,
    /// Live allocations.
    pub allocations: u64,
}

#[cfg(test)]
mod tests {
    use super::host_of;

    #[test]
    fn a_host_is_an_address_without_its_port() {
        for (address, host) in [
            ("10.0.0.7:50052", "10.0.0.7"),
            ("node-3.rack-1:1", "node-3.rack-1"),
            ("[::1]:50052", "[::1]"),
            ("::1", "::1"),
            ("node-3", "node-3"),
            (":7", ":7"),
            ("node:name", "node:name"),
            ("/dev/shm/a", "/dev/shm/a"),
        ] {
            assert_eq!(host_of(address), host);
        }
    }
}
