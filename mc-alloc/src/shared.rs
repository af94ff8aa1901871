//! An allocator for many threads, whose space comes back by itself.

use alloc::vec::Vec;
use core::error::Error;
use core::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mc_types::Extent;

use crate::{
    AllocateError, Allocation, Allocator, FreeError, OffsetAllocator, Report, ResizeError,
};

/// An [`Allocator`] behind a lock, as a handle that is cheap to clone.
///
/// It allocates [`AllocatedBuffer`]s, which return their space when they are
/// dropped, on whatever thread, and which keep the allocator alive. The lock is held for
/// one call of the allocator at a time and never while code of the caller runs.
///
/// Needs the feature `std`.
///
/// ```
/// use std::thread;
///
/// use mc_alloc::{BufferStatus, OffsetAllocator, SharedAllocator};
///
/// let space = SharedAllocator::new(OffsetAllocator::new(1 << 30));
/// let mut buffer = space.allocate(65_536, 4096)?;
/// assert_eq!(buffer.status(), BufferStatus::Init);
/// // ... write to base + buffer.extent().offset() ...
/// buffer.complete()?;
/// let reader = thread::spawn(move || buffer.extent().len());
/// assert_eq!(reader.join().unwrap(), 65_536);
/// // The thread has dropped the buffer.
/// assert_eq!(space.used(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// An allocator chosen at run time is a `SharedAllocator<Box<dyn Allocator + Send>>`.
pub struct SharedAllocator<A: Allocator = OffsetAllocator> {
    shared: Arc<Shared<A>>,
}

struct Shared<A> {
    /// `None` once the allocator is retired.
    allocator: Mutex<Option<A>>,
    /// Set, with the lock held, once `allocator` is `None`; a buffer's status is read
    /// without the lock.
    retired: AtomicBool,
}

impl<A> Shared<A> {
    fn lock(&self) -> MutexGuard<'_, Option<A>> {
        // A panic with the lock held can only come out of the allocator, whose state is
        // whole between calls; whatever thread it was that panicked, others can go on.
        self.allocator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }
}

impl<A: Allocator> SharedAllocator<A> {
    /// Shares an allocator, which may have live allocations: [`adopt`](Self::adopt) makes
    /// buffers of those.
    #[must_use]
    pub fn new(allocator: A) -> Self {
        let allocator = Mutex::new(Some(allocator));
        Self { shared: Arc::new(Shared { allocator, retired: AtomicBool::new(false) }) }
    }

    /// Takes `size` bytes whose first offset is a multiple of `align`, a power of two.
    ///
    /// # Errors
    ///
    /// As [`Allocator::allocate`], and [`AllocateError::Retired`] once the allocator is
    /// [retired](Self::retire). Nothing is changed then.
    pub fn allocate(&self, size: u64, align: u64) -> Result<AllocatedBuffer<A>, AllocateError> {
        let mut guard = self.shared.lock();
        let allocator = guard.as_mut().ok_or(AllocateError::Retired)?;
        let allocation = allocator.allocate(size, align)?;
        let usable_size = allocator.usable_size(&allocation).unwrap_or(size);
        drop(guard);
        Ok(self.buffer(allocation, usable_size))
    }

    /// Makes a buffer, in the state [`Init`](BufferStatus::Init), of a live allocation of
    /// the allocator that is shared: one that a `restore` returned.
    ///
    /// # Errors
    ///
    /// Gives the allocation back when it is not a live one of this allocator, or the
    /// allocator is retired.
    pub fn adopt(&self, allocation: Allocation) -> Result<AllocatedBuffer<A>, FreeError> {
        let usable_size =
            self.shared.lock().as_ref().and_then(|allocator| allocator.usable_size(&allocation));
        match usable_size {
            Some(usable_size) => Ok(self.buffer(allocation, usable_size)),
            None => Err(FreeError::new(allocation)),
        }
    }

    /// Ends the allocator's work, because what it divides is going away: the segment is
    /// unmounted. Returns it, with all that was live still in use in its books, or `None`
    /// when it was retired before.
    ///
    /// From then on nothing can be allocated, every buffer is
    /// [`Unregistered`](BufferStatus::Unregistered), and dropping one changes nothing.
    ///
    /// ```
    /// use mc_alloc::{AllocateError, BufferStatus, OffsetAllocator, SharedAllocator};
    ///
    /// let space = SharedAllocator::new(OffsetAllocator::new(4096));
    /// let buffer = space.allocate(100, 1)?;
    /// let books = space.retire().expect("it was not retired yet");
    /// assert_eq!(books.used(), 100);
    /// assert_eq!(buffer.status(), BufferStatus::Unregistered);
    /// assert_eq!(space.allocate(100, 1).unwrap_err(), AllocateError::Retired);
    /// # Ok::<(), AllocateError>(())
    /// ```
    pub fn retire(&self) -> Option<A> {
        let mut guard = self.shared.lock();
        self.shared.retired.store(true, Ordering::Release);
        guard.take()
    }

    /// Returns whether the allocator was [retired](Self::retire).
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.shared.is_retired()
    }

    /// Bytes managed; 0 once retired.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.shared.lock().as_ref().map_or(0, A::capacity)
    }

    /// Bytes that live allocations keep from others; 0 once retired.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.shared.lock().as_ref().map_or(0, A::used)
    }

    /// Bytes not in use; 0 once retired.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.shared.lock().as_ref().map_or(0, A::available)
    }

    /// Live allocations; 0 once retired.
    #[must_use]
    pub fn live(&self) -> usize {
        self.shared.lock().as_ref().map_or(0, A::live)
    }

    /// As [`Allocator::largest_free`]; 0 once retired.
    #[must_use]
    pub fn largest_free(&self) -> u64 {
        self.shared.lock().as_ref().map_or(0, A::largest_free)
    }

    /// As [`Allocator::max_allocation`]; 0 once retired.
    #[must_use]
    pub fn max_allocation(&self) -> u64 {
        self.shared.lock().as_ref().map_or(0, A::max_allocation)
    }

    /// As [`Allocator::report`], with all figures of one moment; `None` once retired.
    /// Others wait while it is made.
    #[must_use]
    pub fn report(&self) -> Option<Report> {
        self.shared.lock().as_ref().map(A::report)
    }

    /// As [`Allocator::snapshot`]; empty once retired. Others wait while it is made.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Extent> {
        self.shared.lock().as_ref().map_or_else(Vec::new, A::snapshot)
    }

    /// As [`Allocator::resize`].
    ///
    /// # Errors
    ///
    /// As [`Allocator::resize`], and [`ResizeError::Retired`] once the allocator is
    /// retired. Nothing is changed then.
    pub fn resize(&self, capacity: u64) -> Result<(), ResizeError> {
        self.shared.lock().as_mut().ok_or(ResizeError::Retired)?.resize(capacity)
    }

    fn buffer(&self, allocation: Allocation, usable_size: u64) -> AllocatedBuffer<A> {
        AllocatedBuffer {
            extent: allocation.extent(),
            usable_size,
            allocation: Some(allocation),
            progress: BufferStatus::Init,
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<A: Allocator> Clone for SharedAllocator<A> {
    /// Another handle to the same allocator.
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<A: Allocator> From<A> for SharedAllocator<A> {
    fn from(allocator: A) -> Self {
        Self::new(allocator)
    }
}

impl<A: Allocator> fmt::Debug for SharedAllocator<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedAllocator")
            .field("capacity", &self.capacity())
            .field("used", &self.used())
            .field("retired", &self.is_retired())
            .finish_non_exhaustive()
    }
}

/// The state of the bytes of an [`AllocatedBuffer`].
///
/// | from | to | by |
/// |---|---|---|
/// | `Init` | `Complete` | [`AllocatedBuffer::complete`] |
/// | `Init` | `Failed` | [`AllocatedBuffer::fail`] |
/// | `Init`, `Complete`, `Failed` | `Unregistered` | [`SharedAllocator::retire`] |
///
/// Nothing else is possible: bytes that are complete may be being read and do not fail
/// any more, and after a failure the content is unknown, so the space is given
/// back and taken anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BufferStatus {
    /// The space is reserved; what it holds means nothing yet.
    Init,
    /// The bytes were written.
    Complete,
    /// Writing the bytes failed; what they are is unknown.
    Failed,
    /// The allocator was retired, so the space is no longer there.
    Unregistered,
}

impl BufferStatus {
    /// Returns whether a buffer in this state can come to be in the state `next`.
    #[must_use]
    pub const fn can_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Init, Self::Complete | Self::Failed)
                | (Self::Init | Self::Complete | Self::Failed, Self::Unregistered)
        )
    }
}

impl fmt::Display for BufferStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Init => "INIT",
            Self::Complete => "COMPLETE",
            Self::Failed => "FAILED",
            Self::Unregistered => "UNREGISTERED",
        })
    }
}

/// A change of state that a buffer cannot make. The buffer is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BufferStatusError {
    /// The state that the buffer is in.
    pub from: BufferStatus,
    /// The state asked for.
    pub to: BufferStatus,
}

impl fmt::Display for BufferStatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to } = self;
        write!(f, "a buffer that is {from} cannot become {to}; ")?;
        f.write_str(match from {
            BufferStatus::Unregistered => "its allocator is retired, so drop it",
            _ => "its outcome is settled, so drop it and allocate another for other bytes",
        })
    }
}

impl Error for BufferStatusError {}

/// Space taken from a [`SharedAllocator`]. Dropping it gives the space back.
///
/// To give space back is to let others overwrite it, whether or not someone still reads
/// it: hold the buffer until no reader is left.
#[must_use = "dropping the buffer gives its space back at once"]
pub struct AllocatedBuffer<A: Allocator = OffsetAllocator> {
    extent: Extent,
    usable_size: u64,
    /// Taken when the buffer is dropped.
    allocation: Option<Allocation>,
    /// The state, unless the allocator was retired.
    progress: BufferStatus,
    shared: Arc<Shared<A>>,
}

impl<A: Allocator> AllocatedBuffer<A> {
    /// Where the bytes are, as many as were asked for.
    #[must_use]
    pub const fn extent(&self) -> Extent {
        self.extent
    }

    /// Bytes that may be used from the first offset on: at least those asked for.
    #[must_use]
    pub const fn usable_size(&self) -> u64 {
        self.usable_size
    }

    /// The state. Another thread can retire the allocator at any time, so any state may
    /// be [`Unregistered`](BufferStatus::Unregistered) a moment later.
    #[must_use]
    pub fn status(&self) -> BufferStatus {
        if self.shared.is_retired() { BufferStatus::Unregistered } else { self.progress }
    }

    /// Marks the bytes as written.
    ///
    /// # Errors
    ///
    /// [`BufferStatusError`] unless the buffer is [`Init`](BufferStatus::Init); it stays
    /// as it was.
    pub fn complete(&mut self) -> Result<(), BufferStatusError> {
        self.become_status(BufferStatus::Complete)
    }

    /// Marks the writing of the bytes as failed.
    ///
    /// # Errors
    ///
    /// [`BufferStatusError`] unless the buffer is [`Init`](BufferStatus::Init); it stays
    /// as it was.
    pub fn fail(&mut self) -> Result<(), BufferStatusError> {
        self.become_status(BufferStatus::Failed)
    }

    fn become_status(&mut self, to: BufferStatus) -> Result<(), BufferStatusError> {
        let from = self.status();
        if !from.can_become(to) {
            return Err(BufferStatusError { from, to });
        }
        self.progress = to;
        Ok(())
    }
}

impl<A: Allocator> Drop for AllocatedBuffer<A> {
    fn drop(&mut self) {
        let Some(allocation) = self.allocation.take() else { return };
        if let Some(allocator) = self.shared.lock().as_mut() {
            // It is live: this buffer alone held it, and only `retire` gives anyone
            // else the allocator. Were it refused all the same, its bytes would stay
            // taken, which is no reason to panic in a drop.
            let _ = allocator.free(allocation);
        }
    }
}

impl<A: Allocator> fmt::Debug for AllocatedBuffer<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllocatedBuffer")
            .field("extent", &self.extent)
            .field("usable_size", &self.usable_size)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
