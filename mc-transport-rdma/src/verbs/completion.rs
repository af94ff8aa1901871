//! Completion queues, and the channel that reports their events.

use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::{ibv_comp_channel, ibv_cq, ibv_poll_cq, ibv_req_notify_cq, ibv_wc};

use super::{Device, VerbsError, WorkError, WorkStatus};

/// Completions taken by one call.
const TAKE: usize = 32;

/// A channel that tells which completion queues have something.
pub(in super::super) struct Channel {
    channel: NonNull<ibv_comp_channel>,
    device: Arc<Device>,
}

// SAFETY: as for `Device`.
unsafe impl Send for Channel {}
// SAFETY: as for `Device`.
unsafe impl Sync for Channel {}

impl Channel {
    /// A channel of `device`.
    ///
    /// # Errors
    /// [`VerbsError::Failed`].
    pub(in super::super) fn new(device: &Arc<Device>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open.
        let channel = unsafe { (device.library.ibv_create_comp_channel)(device.context.as_ptr()) };
        let channel = device.made("ibv_create_comp_channel", channel)?;
        let channel = Self { channel, device: Arc::clone(device) };
        device.set_nonblocking(channel.fd())?;
        Ok(Arc::new(channel))
    }

    fn fd(&self) -> i32 {
        // SAFETY: the channel lives, and the field never changes.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    /// Takes the next event: the number that the queue was made with. `None` when there is none.
    pub(in super::super) fn next(&self) -> Option<u64> {
        let (mut queue, mut number) = (ptr::null_mut(), ptr::null_mut());
        let library = self.device.library;
        // SAFETY: the channel lives; the call stores two pointers where it is told, and the
        // descriptor does not block.
        let taken = unsafe {
            (library.ibv_get_cq_event)(self.channel.as_ptr(), &raw mut queue, &raw mut number)
        };
        if taken != 0 {
            return None;
        }
        // SAFETY: the event is of this queue, which cannot be destroyed before it is acknowledged.
        unsafe { (library.ibv_ack_cq_events)(queue, 1) };
        Some(number.addr() as u64)
    }
}

/// The descriptor that is readable when a queue that was armed has something.
impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open until the channel is destroyed, in `drop`.
        unsafe { BorrowedFd::borrow_raw(self.fd()) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: each of its queues holds the channel, so none is left.
        unsafe { (self.device.library.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
    }
}

/// A queue of completions.
pub(in super::super) struct CompletionQueue {
    queue: NonNull<ibv_cq>,
    pub(super) device: Arc<Device>,
    /// Destroyed after the queue.
    _channel: Option<Arc<Channel>>,
}

// SAFETY: as for `Device`.
unsafe impl Send for CompletionQueue {}
// SAFETY: as for `Device`.
unsafe impl Sync for CompletionQueue {}

/// A request that is done or failed.
#[derive(Clone, Debug)]
pub(in super::super) struct Done {
    /// The number that the request was posted with.
    pub(in super::super) number: u64,
    pub(in super::super) result: Result<(), WorkError>,
}

impl CompletionQueue {
    /// A queue with room for `len` completions. With a channel, that reports it by `number`.
    ///
    /// # Errors
    /// [`VerbsError::Failed`].
    pub(in super::super) fn new(
        device: &Arc<Device>,
        len: u32,
        channel: Option<(&Arc<Channel>, u64)>,
    ) -> Result<Arc<Self>, VerbsError> {
        let number = channel.map_or(0, |(_, number)| number);
        let number = usize::try_from(number).expect("RDMA needs 64-bit addresses");
        let raw = channel.map_or(ptr::null_mut(), |(channel, _)| channel.channel.as_ptr());
        let len = i32::try_from(len).unwrap_or(i32::MAX);
        // SAFETY: the context is open; the channel is null or lives. The number is never used as
        // a pointer.
        let queue = unsafe {
            (device.library.ibv_create_cq)(
                device.context.as_ptr(),
                len,
                ptr::without_provenance_mut(number),
                raw,
                0,
            )
        };
        let queue = device.made("ibv_create_cq", queue)?;
        let (device, channel) = (Arc::clone(device), channel.map(|(it, _)| Arc::clone(it)));
        Ok(Arc::new(Self { queue, device, _channel: channel }))
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.queue.as_ptr()
    }

    /// Has the channel report the next completion. One that came in before is not reported: take
    /// once more afterwards.
    ///
    /// # Errors
    /// [`VerbsError::Failed`].
    pub(in super::super) fn arm(&self) -> Result<(), VerbsError> {
        // SAFETY: the queue lives.
        let done = unsafe { ibv_req_notify_cq(self.queue.as_ptr(), 0) };
        self.device.check("ibv_req_notify_cq", done)
    }

    /// Takes completions that are there, at most 32, and appends them to `done`; returns whether
    /// there were any.
    ///
    /// # Errors
    /// [`VerbsError::Failed`] when the queue is broken.
    pub(in super::super) fn take(&self, done: &mut Vec<Done>) -> Result<bool, VerbsError> {
        // SAFETY: all zeros are valid for a structure of numbers.
        let mut taken: [ibv_wc; TAKE] = unsafe { mem::zeroed() };
        // SAFETY: the queue lives, and the array has as many entries as are asked for.
        let count = unsafe { ibv_poll_cq(self.queue.as_ptr(), TAKE as i32, taken.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else {
            self.device.check("ibv_poll_cq", count)?;
            return Ok(false);
        };
        done.extend(taken.iter().take(count).map(|one| {
            let result = match WorkStatus::of(one.status) {
                None => Ok(()),
                Some(status) => Err(WorkError {
                    device: Arc::clone(self.device.name()),
                    status,
                    vendor: one.vendor_err,
                }),
            };
            Done { number: one.wr_id, result }
        }));
        Ok(count > 0)
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: every queue pair that uses it holds it, so none is left; all events were
        // acknowledged when they were taken.
        unsafe { (self.device.library.ibv_destroy_cq)(self.queue.as_ptr()) };
    }
}
