//! Helpers that the cases share.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_memory::{Access, Memory, MemorySlice};
use mc_types::{Endpoint, Extent, RemoteKey};

use super::{CASE_DEADLINE, Pair};
use crate::completion::Outcome;
use crate::error::TransferError;
use crate::operation::{Operation, RemoteSpan};
use crate::region::Region;
use crate::transport::Link;

/// A registered memory and a link to it.
pub(super) struct Rig {
    pub(super) pair: Pair,
    pub(super) region: Region,
    pub(super) link: Arc<dyn Link>,
}

impl Rig {
    pub(super) async fn new(pair: Pair, len: usize, access: Access) -> Self {
        let memory = pair.owner.allocate(len).expect("the suite needs little memory");
        let region = pair.owner.register(&memory, access).expect("memory can be registered");
        let link = pair.peer.connect(endpoint(&pair)).await.expect("the owner can be reached");
        Self { pair, region, link }
    }

    pub(super) fn span(&self, offset: u64, len: u64) -> RemoteSpan {
        span(self.region.key(), offset, len)
    }

    pub(super) async fn one(&self, operation: Operation) -> Result<(), TransferError> {
        self.outcome(operation).await.map(|_| ())
    }

    pub(super) async fn outcome(&self, operation: Operation) -> Outcome {
        let mut results = self.link.submit(vec![operation]).await;
        assert_eq!(results.len(), 1, "one result per operation");
        results.pop().expect("there is one result")
    }

    pub(super) async fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), TransferError> {
        let span = self.span(offset, bytes.len() as u64);
        self.one(Operation::write(Bytes::copy_from_slice(bytes), span)).await
    }

    pub(super) async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, TransferError> {
        let memory = allocate(len);
        let span = self.span(offset, len as u64);
        self.one(Operation::read(span, memory.whole())).await?;
        Ok(memory.whole().to_vec())
    }

    /// Shows that the link still works.
    pub(super) async fn still_works(&self) {
        assert!(self.link.is_healthy(), "the link stays healthy");
        self.write(0, b"still here").await.expect("the link still writes");
        assert_eq!(self.read(0, 10).await.expect("the link still reads"), b"still here");
    }
}

pub(super) fn endpoint(pair: &Pair) -> &Endpoint {
    pair.owner.endpoint().expect("the owner of a pair has an endpoint")
}

pub(super) fn allocate(len: usize) -> Memory {
    Memory::allocate(len).expect("the suite needs little memory")
}

pub(super) fn span(key: RemoteKey, offset: u64, len: u64) -> RemoteSpan {
    RemoteSpan::new(key, Extent::new(offset, len).expect("the suite's extents do not overflow"))
}

/// Bytes that differ at every offset and for every seed.
pub(super) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A filled slice that begins at an odd address.
pub(super) fn filled(bytes: &[u8]) -> MemorySlice {
    let memory = allocate(bytes.len() + 1);
    let slice = memory.slice(1, bytes.len()).expect("the memory is one byte longer");
    slice.copy_from(0, bytes).expect("the slice has the length of the bytes");
    slice
}

/// Waits until `condition` holds.
pub(super) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + CASE_DEADLINE / 2;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Bytes around a [`Guarded`] slice on either side; odd, so that the slice begins at an
/// odd address.
const GUARD: usize = 61;

/// A slice in the middle of memory whose other bytes must stay as they are.
pub(super) struct Guarded {
    memory: Memory,
    before: Vec<u8>,
}

impl Guarded {
    /// Takes `len` bytes and fills them, and those around, with a pattern.
    pub(super) fn new(seed: u64, len: usize) -> Self {
        let before = pattern(seed, len + 2 * GUARD);
        let memory = allocate(before.len());
        memory.whole().copy_from(0, &before).expect("the memory is as long as the pattern");
        Self { memory, before }
    }

    /// The slice in the middle.
    pub(super) fn slice(&self) -> MemorySlice {
        let len = self.before.len() - 2 * GUARD;
        self.memory.slice(GUARD, len).expect("the slice lies between the guards")
    }

    /// The bytes of the slice; panics when one around it was changed.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let now = self.memory.whole().to_vec();
        let end = now.len() - GUARD;
        let intact = now[..GUARD] == self.before[..GUARD] && now[end..] == self.before[end..];
        assert!(intact, "the bytes around a slice of {} are left alone", end - GUARD);
        now[GUARD..end].to_vec()
    }
}

/// Waits until nothing but `memory` names its block any more.
pub(super) async fn released(memory: Memory) {
    let len = memory.len();
    // Freezing succeeds once ours is the last handle.
    let mut memory = Some(memory);
    eventually("what was in flight is released", || {
        memory = memory.take().and_then(|memory| memory.try_into_bytes(len).err());
        memory.is_none()
    })
    .await;
}
