//! The requests of one queue pair that are under way, and the memory that they touch.

use std::collections::VecDeque;
use std::mem;
use std::ptr;
use std::sync::Arc;

use mc_transport::MemorySlice;
use rdma_sys::{ibv_post_send, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode, rdma_t};

use super::{MemoryRegion, QueuePair, VerbsError};

/// The direction of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Direction {
    Read,
    Write,
}

/// The local side of a request.
#[derive(Clone, Debug)]
pub(in super::super) enum Local {
    /// Bytes that go into the request itself. Writes only.
    Inline(Vec<u8>),
    /// Memory, each piece inside of its region.
    Pieces(Vec<(Arc<MemoryRegion>, MemorySlice)>),
}

/// A request, and a value `T` that is given back with its result.
#[derive(Debug)]
pub(in super::super) struct Work<T> {
    pub(in super::super) direction: Direction,
    pub(in super::super) local: Local,
    /// The address in the peer's process.
    pub(in super::super) remote: u64,
    pub(in super::super) remote_key: u32,
    pub(in super::super) value: T,
}

/// A request that is under way. Holds the memory that the device reads or fills.
#[derive(Debug)]
pub(in super::super) struct Posted<T> {
    number: u32,
    _local: Local,
    pub(in super::super) value: T,
}

/// A connected queue pair with its requests, in the order in which they were posted and complete.
///
/// Dropping it destroys the pair first: then the device touches their memory no more.
pub(in super::super) struct SendQueue<T> {
    // Declared first, hence dropped first.
    pair: QueuePair,
    posted: VecDeque<Posted<T>>,
    depth: usize,
    max_pieces: usize,
    /// The number of the next request.
    next: u32,
    /// The upper half of every request's number.
    tag: u32,
}

impl<T> SendQueue<T> {
    /// The queue of `pair`, for `depth` requests of at most `max_pieces` pieces. Completions carry
    /// `tag` in the upper half of their number.
    pub(in super::super) fn new(
        pair: QueuePair,
        depth: usize,
        max_pieces: usize,
        tag: u32,
    ) -> Self {
        Self { pair, posted: VecDeque::with_capacity(depth), depth, max_pieces, next: 0, tag }
    }

    /// Requests that can be posted now.
    pub(in super::super) fn room(&self) -> usize {
        self.depth.saturating_sub(self.posted.len())
    }

    /// Requests that are under way.
    pub(in super::super) fn len(&self) -> usize {
        self.posted.len()
    }

    /// Bytes that a write may carry inside of its request.
    pub(in super::super) fn max_inline(&self) -> usize {
        self.pair.max_inline()
    }

    pub(in super::super) fn values(&self) -> impl Iterator<Item = &T> {
        self.posted.iter().map(|posted| &posted.value)
    }

    /// Posts requests, all in one call. The last one is signalled; its completion covers those
    /// before, too.
    ///
    /// # Errors
    /// [`VerbsError::Failed`] when the device refused some: which of them it took is not known,
    /// and the queue must be dropped. [`take_all`](Self::take_all) has all of them.
    ///
    /// # Panics
    /// When there is no [`room`](Self::room), when a request has too many pieces, and when a piece
    /// does not lie inside of its region.
    pub(in super::super) fn post(&mut self, works: Vec<Work<T>>) -> Result<(), VerbsError> {
        assert!(works.len() <= self.room(), "the caller leaves room for what is under way");
        let Some(last) = works.len().checked_sub(1) else { return Ok(()) };
        let mut pieces: Vec<ibv_sge> = Vec::new();
        let mut counts = Vec::with_capacity(works.len());
        for work in &works {
            let before = pieces.len();
            match &work.local {
                Local::Inline(bytes) if bytes.is_empty() => {}
                Local::Inline(bytes) => {
                    assert!(work.direction == Direction::Write, "reads fill memory");
                    assert!(bytes.len() <= self.pair.max_inline(), "the caller asked the limit");
                    pieces.push(ibv_sge {
                        addr: bytes.as_ptr().expose_provenance() as u64,
                        length: bytes.len() as u32,
                        lkey: 0,
                    });
                }
                Local::Pieces(local) => pieces.extend(local.iter().map(|(region, slice)| {
                    let address = slice.address().expose_provenance();
                    assert!(region.covers(address, slice.len()), "a piece lies in its region");
                    ibv_sge {
                        addr: address as u64,
                        length: u32::try_from(slice.len()).expect("requests are cut to less"),
                        lkey: region.local_key(),
                    }
                })),
            }
            let count = pieces.len() - before;
            assert!(count <= self.max_pieces, "requests are cut to few pieces");
            counts.push(count);
        }
        let mut requests: Vec<ibv_send_wr> = Vec::with_capacity(works.len());
        let mut at = 0;
        for (index, (work, count)) in works.iter().zip(&counts).enumerate() {
            // SAFETY: all zeros are valid for a structure of numbers and pointers.
            let mut request: ibv_send_wr = unsafe { mem::zeroed() };
            let number = self.next.wrapping_add(index as u32);
            request.wr_id = u64::from(self.tag) << 32 | u64::from(number);
            request.sg_list = pieces[at..].as_mut_ptr();
            request.num_sge = *count as i32;
            request.opcode = match work.direction {
                Direction::Read => ibv_wr_opcode::IBV_WR_RDMA_READ,
                Direction::Write => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            };
            if index == last {
                request.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
            }
            if matches!(&work.local, Local::Inline(bytes) if !bytes.is_empty()) {
                request.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
            }
            request.wr.rdma = rdma_t { remote_addr: work.remote, rkey: work.remote_key };
            requests.push(request);
            at += count;
        }
        let first = requests.as_mut_ptr();
        for index in 0..last {
            // SAFETY: the entry exists, since `last` is the index of the last one.
            let request = unsafe { first.add(index) };
            // SAFETY: as above.
            let next = unsafe { first.add(index + 1) };
            // SAFETY: the entry is a request that was initialised above.
            unsafe { (*request).next = next };
        }
        // From here on the device may use the memory: it is held until the requests completed.
        for work in works {
            let number = self.next;
            self.next = self.next.wrapping_add(1);
            self.posted.push_back(Posted { number, _local: work.local, value: work.value });
        }
        let mut refused = ptr::null_mut();
        // SAFETY: the pair lives; the chain and its pieces live through the call; the memory of
        // each piece is mapped and registered, and `posted` keeps both until the request completed
        // or the pair is destroyed. Inline bytes are heap blocks that `posted` holds, which
        // moving did not move.
        let done = unsafe { ibv_post_send(self.pair.raw(), first, &raw mut refused) };
        self.pair.completions().device.check("ibv_post_send", done)
    }

    /// Posts a write of no bytes, which the peer's queue pair acknowledges and which touches no
    /// memory; returns the number of its completion. For a queue that carries nothing yet.
    ///
    /// # Errors
    /// [`VerbsError::Failed`].
    pub(in super::super) fn post_probe(&mut self) -> Result<u64, VerbsError> {
        // SAFETY: all zeros are valid for a structure of numbers and pointers.
        let mut request: ibv_send_wr = unsafe { mem::zeroed() };
        // No other request has it before four thousand million were posted.
        request.wr_id = u64::from(self.tag) << 32 | u64::from(u32::MAX);
        request.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        request.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        request.wr.rdma = rdma_t { remote_addr: 0, rkey: 0 };
        let mut refused = ptr::null_mut();
        // SAFETY: the pair lives, and the request names no memory.
        let done = unsafe { ibv_post_send(self.pair.raw(), &raw mut request, &raw mut refused) };
        self.pair.completions().device.check("ibv_post_send", done)?;
        Ok(request.wr_id)
    }

    /// Removes the requests up to the one whose completion has `number`, which are done in the
    /// order in which they were posted; nothing when the number is of another queue. The last one
    /// is the one that completed.
    pub(in super::super) fn complete(&mut self, number: u64) -> Vec<T> {
        if (number >> 32) as u32 != self.tag {
            return Vec::new();
        }
        let number = number as u32;
        let Some(front) = self.posted.front() else { return Vec::new() };
        let count = number.wrapping_sub(front.number) as usize;
        if count >= self.posted.len() {
            return Vec::new();
        }
        self.posted.drain(..=count).map(|posted| posted.value).collect()
    }

    /// Destroys the queue pair, and returns the values of the requests that had not completed.
    pub(in super::super) fn take_all(self) -> Vec<T> {
        let Self { pair, posted, .. } = self;
        // Before the memory of the requests is let go.
        drop(pair);
        posted.into_iter().map(|posted| posted.value).collect()
    }
}
