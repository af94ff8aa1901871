//! The suite that every implementation of [`Transport`](crate::Transport) must pass, faults
//! included. Ours run it in `tests/conformance.rs`; run it on yours.
//!
//! ```
//! use std::sync::Arc;
//! use mc_transport::{MemFabric, conformance};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
//! runtime.block_on(conformance::run_all(async || {
//!     let fabric = MemFabric::new();
//!     conformance::Pair {
//!         owner: Arc::new(fabric.transport("owner").expect("the name is free")),
//!         peer: Arc::new(fabric.transport("peer").expect("the name is free")),
//!     }
//! }));
//! # Ok(())
//! # }
//! ```
//!
//! A case panics, naming itself, when the implementation breaks the contract or
//! takes more than [`CASE_DEADLINE`].
//!
#![doc = include_str!("../docs/your-own-transport.md")]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_types::{Endpoint, Extent, RemoteKey};

use crate::checksum::checksum;
use crate::completion::Outcome;
use crate::error::TransferError;
use crate::memory::{Memory, MemorySlice};
use crate::operation::{Operation, RemoteSpan, Source};
use crate::region::{Access, Region};
use crate::transport::{DynTransport, Link};

/// How long one case may take, on a machine that is busy with other things.
pub const CASE_DEADLINE: Duration = Duration::from_secs(60);

/// Two nodes that can reach each other.
pub struct Pair {
    /// Owns the memory; has an endpoint.
    pub owner: Arc<dyn DynTransport>,
    /// Reaches for it.
    pub peer: Arc<dyn DynTransport>,
}

/// One demand of the contract.
pub struct Case {
    /// What is demanded.
    pub name: &'static str,
    /// Checks it; panics when it is not met.
    pub check: fn(Pair) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

macro_rules! cases {
    ($($case:ident,)*) => {
        /// Every case, in the order in which [`run_all`] runs them.
        pub const CASES: &[Case] = &[
            $(Case { name: stringify!($case), check: |pair| Box::pin($case(pair)) },)*
        ];
    };
}

cases! {
    bytes_survive_round_trips_of_every_size,
    pieces_are_gathered_and_scattered,
    a_source_may_be_memory_or_bytes,
    ten_thousand_operations_in_one_batch,
    a_batch_that_is_too_large_fails_as_a_whole,
    results_come_one_by_one,
    checksums_are_those_of_the_bytes,
    capabilities_are_kept,
    an_empty_batch_has_no_results,
    an_empty_operation_succeeds,
    an_unknown_key_is_refused,
    a_revoked_key_is_refused,
    access_is_checked_in_both_directions,
    bounds_are_exact,
    lengths_must_agree,
    a_refusal_spoils_nothing_else,
    batches_run_concurrently,
    a_dropped_future_frees_nothing_in_flight,
    links_are_used_again,
    other_schemes_are_refused,
    a_lost_peer_fails_operations,
}

/// Runs every case on a fresh pair.
///
/// # Panics
/// When a case fails.
pub async fn run_all(mut pair: impl AsyncFnMut() -> Pair) {
    for case in CASES {
        run(case, pair().await).await;
    }
}

/// Runs one case.
///
/// # Panics
/// When it fails or takes longer than [`CASE_DEADLINE`].
pub async fn run(case: &Case, pair: Pair) {
    // A task of its own, so that the deadline holds even if the case never yields
    // on a runtime with more than one thread.
    let outcome = tokio::time::timeout(CASE_DEADLINE, tokio::spawn((case.check)(pair))).await;
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(failed)) => panic!("{}: {}", case.name, said(failed)),
        Err(_) => panic!("{}: not finished after {CASE_DEADLINE:?}", case.name),
    }
}

fn said(failed: tokio::task::JoinError) -> String {
    let Ok(payload) = failed.try_into_panic() else { return "the task was ended".to_owned() };
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload
            .downcast::<&str>()
            .map_or_else(|_| "it panicked".to_owned(), |text| (*text).to_owned()),
    }
}

/// A registered memory and a link to it.
struct Rig {
    pair: Pair,
    region: Region,
    link: Arc<dyn Link>,
}

impl Rig {
    async fn new(pair: Pair, len: usize, access: Access) -> Self {
        let memory = pair.owner.allocate(len).expect("the suite needs little memory");
        let region = pair.owner.register(&memory, access).expect("memory can be registered");
        let link = pair.peer.connect(endpoint(&pair)).await.expect("the owner can be reached");
        Self { pair, region, link }
    }

    fn span(&self, offset: u64, len: u64) -> RemoteSpan {
        span(self.region.key(), offset, len)
    }

    async fn one(&self, operation: Operation) -> Result<(), TransferError> {
        self.outcome(operation).await.map(|_| ())
    }

    async fn outcome(&self, operation: Operation) -> Outcome {
        let mut results = self.link.submit(vec![operation]).await;
        assert_eq!(results.len(), 1, "one result per operation");
        results.pop().expect("there is one result")
    }

    async fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), TransferError> {
        let span = self.span(offset, bytes.len() as u64);
        self.one(Operation::write(Bytes::copy_from_slice(bytes), span)).await
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, TransferError> {
        let memory = allocate(len);
        let span = self.span(offset, len as u64);
        self.one(Operation::read(span, memory.whole())).await?;
        Ok(memory.whole().to_vec())
    }

    /// Shows that the link still works.
    async fn still_works(&self) {
        assert!(self.link.is_healthy(), "the link stays healthy");
        self.write(0, b"still here").await.expect("the link still writes");
        assert_eq!(self.read(0, 10).await.expect("the link still reads"), b"still here");
    }
}

fn endpoint(pair: &Pair) -> &Endpoint {
    pair.owner.endpoint().expect("the owner of a pair has an endpoint")
}

fn allocate(len: usize) -> Memory {
    Memory::allocate(len).expect("the suite needs little memory")
}

fn span(key: RemoteKey, offset: u64, len: u64) -> RemoteSpan {
    RemoteSpan::new(key, Extent::new(offset, len).expect("the suite's extents do not overflow"))
}

/// Bytes that differ at every offset and for every seed.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
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
fn filled(bytes: &[u8]) -> MemorySlice {
    let memory = allocate(bytes.len() + 1);
    let slice = memory.slice(1, bytes.len()).expect("the memory is one byte longer");
    slice.copy_from(0, bytes).expect("the slice has the length of the bytes");
    slice
}

async fn bytes_survive_round_trips_of_every_size(pair: Pair) {
    let rig = Rig::new(pair, (16 << 20) + 7, Access::ReadWrite).await;
    for len in [0, 1, 15, 16, 17, 4095, 4096, 4097, 65_536, (1 << 20) + 1, 16 << 20] {
        let bytes = pattern(len as u64, len);
        for offset in [0, 7] {
            rig.write(offset, &bytes).await.expect("a write inside the region succeeds");
            let owned = rig.region.memory().slice(offset as usize, len);
            let owned = owned.expect("the region has room at this offset");
            assert_eq!(owned.checksum(), checksum(&bytes), "written: {len} bytes at {offset}");
            let read = rig.read(offset, len).await.expect("a read inside the region succeeds");
            assert!(read == bytes, "read back: {len} bytes at {offset}");
        }
    }
}

async fn pieces_are_gathered_and_scattered(pair: Pair) {
    let rig = Rig::new(pair, 1 << 20, Access::ReadWrite).await;
    // More pieces than a system call takes, some of them empty.
    let lens: Vec<usize> = (0..300).map(|at| (at * 37) % 701).collect();
    let total: usize = lens.iter().sum();
    let bytes = pattern(1, total);
    let mut at = 0;
    let cut = |len: usize, at: &mut usize| {
        *at += len;
        &bytes[*at - len..*at]
    };
    let sources = lens.iter().enumerate().map(|(index, &len)| {
        let part = cut(len, &mut at);
        match index % 2 {
            0 => Source::Bytes(Bytes::copy_from_slice(part)),
            _ => Source::Memory(filled(part)),
        }
    });
    let sources: Vec<Source> = sources.collect();
    let to = rig.span(11, total as u64);
    rig.one(Operation::write(sources, to)).await.expect("a gathered write succeeds");
    let memory = allocate(total);
    // Backwards, so that the pieces do not happen to lie in order.
    let mut end = total;
    let pieces: Vec<MemorySlice> = lens
        .iter()
        .map(|&len| {
            end -= len;
            memory.slice(end, len).expect("the pieces add up to the memory")
        })
        .collect();
    rig.one(Operation::read(to, pieces.clone())).await.expect("a scattered read succeeds");
    let joined: Vec<u8> = pieces.iter().flat_map(MemorySlice::to_vec).collect();
    assert!(joined == bytes, "scattered pieces hold the gathered bytes");
}

async fn a_source_may_be_memory_or_bytes(pair: Pair) {
    let rig = Rig::new(pair, 1 << 16, Access::ReadWrite).await;
    let bytes = pattern(2, 5000);
    let from_memory = Operation::write(filled(&bytes), rig.span(3, 5000));
    let from_bytes = Operation::write(Bytes::from(bytes.clone()), rig.span(9001, 5000));
    let results = rig.link.submit(vec![from_memory, from_bytes]).await;
    assert!(results.iter().all(Result::is_ok), "both writes succeed: {results:?}");
    assert!(rig.read(3, 5000).await.expect("the first can be read") == bytes);
    assert!(rig.read(9001, 5000).await.expect("the second can be read") == bytes);
}

async fn ten_thousand_operations_in_one_batch(pair: Pair) {
    const COUNT: usize = 10_000;
    const LEN: usize = 512;
    let rig = Rig::new(pair, COUNT * LEN, Access::ReadWrite).await;
    let bytes = Bytes::from(pattern(3, COUNT * LEN));
    let spans = || (0..COUNT).map(|index| rig.span((index * LEN) as u64, LEN as u64));
    let writes = spans()
        .enumerate()
        .map(|(index, to)| Operation::write(bytes.slice(index * LEN..(index + 1) * LEN), to));
    let results = rig.link.submit(writes.collect()).await;
    assert_eq!(results.len(), COUNT);
    assert!(results.iter().all(Result::is_ok), "every write succeeds");
    let memory = allocate(COUNT * LEN);
    let reads = spans().enumerate().map(|(index, from)| {
        let into = memory.slice(index * LEN, LEN).expect("the memory has room for each");
        Operation::read(from, into)
    });
    let results = rig.link.submit(reads.collect()).await;
    assert_eq!(results.len(), COUNT);
    assert!(results.iter().all(Result::is_ok), "every read succeeds");
    assert!(memory.whole().to_vec() == bytes, "every byte is back");
}

async fn a_batch_that_is_too_large_fails_as_a_whole(pair: Pair) {
    let rig = Rig::new(pair, 4096, Access::ReadWrite).await;
    let max = rig.link.capabilities().max_batch;
    let one = Operation::write(Bytes::from_static(b"x"), rig.span(0, 1));
    let results = rig.link.submit(vec![one; max + 1]).await;
    assert_eq!(results.len(), max + 1, "one result per operation");
    let refused = |outcome: &Outcome| {
        matches!(outcome, Err(TransferError::BatchTooLarge { len, max: m })
            if (*len, *m) == (max + 1, max))
    };
    assert!(results.iter().all(refused), "{:?}", results[0]);
    assert_eq!(rig.read(0, 1).await.expect("the region is there"), [0], "none was carried out");
    rig.still_works().await;
}

async fn results_come_one_by_one(pair: Pair) {
    const COUNT: usize = 50;
    let rig = Rig::new(pair, COUNT, Access::ReadWrite).await;
    let wrong = RemoteKey::from_bytes([0; 16]);
    let write = |index: usize| {
        let key = if index % 7 == 3 { wrong } else { rig.region.key() };
        Operation::write(Bytes::from(vec![index as u8]), span(key, index as u64, 1))
    };
    let mut completions = rig.link.submit((0..COUNT).map(write).collect());
    let mut seen = vec![None; COUNT];
    while let Some((index, outcome)) = completions.next().await {
        assert!(seen[index].replace(outcome.is_ok()).is_none(), "{index} is completed once");
        if outcome.is_ok() {
            // What is reported done is done.
            let byte = rig.read(index as u64, 1).await.expect("the region is there");
            assert_eq!(byte, [index as u8], "write {index} was reported done");
        }
    }
    let together: Vec<_> = completions.await.iter().map(|outcome| Some(outcome.is_ok())).collect();
    assert_eq!(seen, together);
    assert_eq!(seen.iter().filter(|ok| **ok == Some(false)).count(), (3..COUNT).step_by(7).len());
    rig.still_works().await;
}

async fn checksums_are_those_of_the_bytes(pair: Pair) {
    let rig = Rig::new(pair, 3 << 20, Access::ReadWrite).await;
    for len in [0_usize, 1, 100, 20_000, 300_000, 3 << 20] {
        let bytes = pattern(len as u64, len);
        let span = rig.span(0, len as u64);
        let expected = Some(checksum(&bytes));
        let half = len / 2;
        let sources: Vec<Source> =
            vec![Bytes::copy_from_slice(&bytes[..half]).into(), filled(&bytes[half..]).into()];
        let written = rig.outcome(Operation::write(sources, span).checksummed()).await;
        assert_eq!(written.expect("the write succeeds").checksum, expected, "{len}");
        let memory = allocate(len);
        let parts = [memory.slice(0, half), memory.slice(half, len - half)];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        let read = rig.outcome(Operation::read(span, parts.clone()).checksummed()).await;
        assert_eq!(read.expect("the read succeeds").checksum, expected, "{len}");
        assert!(memory.whole().to_vec() == bytes, "{len}");
        let plain = rig.outcome(Operation::read(span, parts)).await;
        assert_eq!(plain.expect("the read succeeds").checksum, None, "nobody asked");
    }
    // Between others, small and large, each has its own.
    let blocks: Vec<Vec<u8>> = (0..40).map(|n| pattern(n, 700 * n as usize)).collect();
    let mut at = 0;
    let place = |block: &Vec<u8>| {
        at += block.len() as u64;
        rig.span(at - block.len() as u64, block.len() as u64)
    };
    let spans: Vec<RemoteSpan> = blocks.iter().map(place).collect();
    let write = |(block, span): (&Vec<u8>, &RemoteSpan)| {
        Operation::write(Bytes::from(block.clone()), *span).checksummed()
    };
    let writes = rig.link.submit(blocks.iter().zip(&spans).map(write).collect()).await;
    let read = |span: &RemoteSpan| {
        Operation::read(*span, allocate(span.extent.len() as usize).whole()).checksummed()
    };
    let reads = rig.link.submit(spans.iter().map(read).collect()).await;
    for ((block, written), read) in blocks.iter().zip(writes).zip(reads) {
        let expected = Some(checksum(block));
        assert_eq!(written.expect("the write succeeds").checksum, expected);
        assert_eq!(read.expect("the read succeeds").checksum, expected);
    }
}

async fn capabilities_are_kept(pair: Pair) {
    let rig = Rig::new(pair, 4096, Access::ReadWrite).await;
    let capabilities = rig.link.capabilities();
    rig.write(100, b"in place").await.expect("the region can be written");
    let view = rig.link.view(rig.span(100, 8));
    if capabilities.views {
        let view = view.expect("a link that has views gives one");
        assert_eq!(view.bytes().to_vec(), b"in place");
        assert!(view.is_current());
        let outside = rig.link.view(rig.span(4090, 7)).map(|_| ());
        assert!(matches!(outside, Err(TransferError::OutOfBounds { .. })), "{outside:?}");
        let wrong = rig.link.view(span(RemoteKey::from_bytes([0; 16]), 0, 1)).map(|_| ());
        // A link that has to ask the owner first says that a read must come before.
        let refused =
            matches!(wrong, Err(TransferError::KeyRefused | TransferError::Unsupported { .. }));
        assert!(refused, "{wrong:?}");
        rig.region.revoke();
        assert!(!view.is_current(), "the region was withdrawn");
        assert_eq!(view.bytes().to_vec().len(), 8, "looking stays safe");
        return;
    }
    let view = view.map(|_| ());
    assert!(matches!(view, Err(TransferError::Unsupported { .. })), "{view:?}");
    if let Some(larger) = capabilities.max_operation.checked_add(1)
        && larger < 2 << 30
    {
        let memory = allocate(larger as usize);
        let refused = rig.one(Operation::read(rig.span(0, larger), memory.whole())).await;
        assert!(matches!(refused, Err(TransferError::TooLarge { .. })), "{refused:?}");
    }
    rig.still_works().await;
}

async fn an_empty_batch_has_no_results(pair: Pair) {
    let rig = Rig::new(pair, 4096, Access::ReadWrite).await;
    assert!(rig.link.submit(Vec::new()).await.is_empty());
    rig.still_works().await;
}

async fn an_empty_operation_succeeds(pair: Pair) {
    let rig = Rig::new(pair, 4096, Access::ReadWrite).await;
    for offset in [0, 1, 4096] {
        rig.write(offset, b"").await.expect("an empty write inside the region succeeds");
        rig.read(offset, 0).await.expect("an empty read inside the region succeeds");
        let none = Operation::read(rig.span(offset, 0), Vec::new());
        rig.one(none).await.expect("a read into no pieces at all succeeds");
    }
    let outside = rig.write(4097, b"").await;
    assert!(matches!(outside, Err(TransferError::OutOfBounds { .. })), "{outside:?}");
}

async fn an_unknown_key_is_refused(pair: Pair) {
    let rig = Rig::new(pair, 1 << 20, Access::ReadWrite).await;
    let mut bits = rig.region.key().to_bytes();
    bits[15] ^= 1;
    let wrong = RemoteKey::from_bytes(bits);
    // Small and large: a refused payload must not be taken for the next request.
    for len in [1, 4096, 1 << 20] {
        let write = Operation::write(Bytes::from(vec![7; len]), span(wrong, 0, len as u64));
        let refused = rig.one(write).await;
        assert!(matches!(refused, Err(TransferError::KeyRefused)), "{refused:?}");
        let read = Operation::read(span(wrong, 0, len as u64), allocate(len).whole());
        let refused = rig.one(read).await;
        assert!(matches!(refused, Err(TransferError::KeyRefused)), "{refused:?}");
    }
    let untouched = rig.read(0, 1 << 20).await.expect("the region is still there");
    assert!(untouched.iter().all(|&byte| byte == 0), "refused writes change nothing");
    rig.still_works().await;
}

async fn a_revoked_key_is_refused(pair: Pair) {
    let rig = Rig::new(pair, 4096, Access::ReadWrite).await;
    let again = rig.pair.owner.register(rig.region.memory(), Access::ReadWrite);
    let again = again.expect("the same memory can be registered twice");
    let key = again.key();
    assert_ne!(key, rig.region.key(), "each registration has its own key");
    let write = || Operation::write(Bytes::from_static(b"x"), span(key, 0, 1));
    rig.one(write()).await.expect("the key opens the region");
    again.revoke();
    let refused = rig.one(write()).await;
    assert!(matches!(refused, Err(TransferError::KeyRefused)), "{refused:?}");
    rig.still_works().await;
}

async fn access_is_checked_in_both_directions(pair: Pair) {
    let read_only = Rig::new(pair, 4096, Access::Read).await;
    let denied = read_only.write(0, b"x").await;
    let wanted = Access::Write;
    assert!(matches!(denied, Err(TransferError::AccessDenied { wanted: w }) if w == wanted));
    assert_eq!(read_only.read(0, 1).await.expect("reading is allowed"), [0]);
    let write_only = Rig::new(read_only.pair, 4096, Access::Write).await;
    write_only.write(0, b"x").await.expect("writing is allowed");
    let denied = write_only.read(0, 1).await;
    let wanted = Access::Read;
    assert!(matches!(denied, Err(TransferError::AccessDenied { wanted: w }) if w == wanted));
    let written = write_only.region.memory().slice(0, 1).expect("the region has a byte");
    assert_eq!(written.to_vec(), b"x");
}

async fn bounds_are_exact(pair: Pair) {
    let rig = Rig::new(pair, 5000, Access::ReadWrite).await;
    rig.write(4990, &[1; 10]).await.expect("up to the last byte is inside");
    let outside = [(4991, 10), (5000, 1), (5001, 1), (0, 5001), (u64::MAX - 4, 4), (u64::MAX, 0)];
    for (offset, len) in outside {
        for write in [true, false] {
            let span = rig.span(offset, len);
            let bytes = usize::try_from(len).expect("the lengths above are small");
            let refused = rig
                .one(match write {
                    true => Operation::write(Bytes::from(vec![2; bytes]), span),
                    false => Operation::read(span, allocate(bytes).whole()),
                })
                .await;
            let exact = matches!(refused, Err(TransferError::OutOfBounds { offset: o, len: l })
                if (o, l) == (offset, len));
            assert!(exact, "{len} bytes at {offset}: {refused:?}");
        }
    }
    let end = rig.read(4980, 20).await.expect("the region is still there");
    assert_eq!(end, [[0; 10], [1; 10]].concat(), "refused writes change nothing");
    rig.still_works().await;
}

async fn lengths_must_agree(pair: Pair) {
    let rig = Rig::new(pair, 4096, Access::ReadWrite).await;
    for (local, remote) in [(9, 10), (11, 10), (0, 1), (1, 0)] {
        let write = Operation::write(Bytes::from(vec![1; local]), rig.span(0, remote));
        let read = Operation::read(rig.span(0, remote), allocate(local).whole());
        for result in rig.link.submit(vec![write, read]).await {
            assert!(matches!(result, Err(TransferError::InvalidOperation(_))), "{result:?}");
        }
    }
    rig.still_works().await;
}

async fn a_refusal_spoils_nothing_else(pair: Pair) {
    let rig = Rig::new(pair, 1 << 20, Access::ReadWrite).await;
    let bytes = pattern(5, 100_000);
    let wrong = RemoteKey::from_bytes([0; 16]);
    let memory = allocate(100_000);
    let results = rig
        .link
        .submit(vec![
            Operation::write(Bytes::from(bytes.clone()), rig.span(0, 100_000)),
            Operation::write(Bytes::from(bytes.clone()), span(wrong, 0, 100_000)),
            Operation::write(Bytes::from(bytes.clone()), rig.span(1 << 20, 100_000)),
            Operation::write(Bytes::from(bytes.clone()), rig.span(0, 1)),
            Operation::write(Bytes::from(bytes.clone()), rig.span(200_000, 100_000)),
        ])
        .await;
    assert!(results[0].is_ok() && results[4].is_ok(), "{results:?}");
    assert!(matches!(results[1], Err(TransferError::KeyRefused)), "{results:?}");
    assert!(matches!(results[2], Err(TransferError::OutOfBounds { .. })), "{results:?}");
    assert!(matches!(results[3], Err(TransferError::InvalidOperation(_))), "{results:?}");
    let halves = [memory.slice(0, 50_000), memory.slice(50_000, 50_000)];
    let [front, back] = halves.map(|half| half.expect("the memory has both halves"));
    let results = rig
        .link
        .submit(vec![
            Operation::read(rig.span(0, 50_000), front),
            Operation::read(span(wrong, 0, 100_000), allocate(100_000).whole()),
            Operation::read(rig.span(250_000, 50_000), back),
        ])
        .await;
    assert!(results[0].is_ok() && results[1].is_err() && results[2].is_ok(), "{results:?}");
    assert!(memory.whole().to_vec() == bytes, "the neighbours of a refusal are whole");
}

async fn batches_run_concurrently(pair: Pair) {
    const TASKS: u64 = 8;
    const LEN: usize = 256 << 10;
    let rig = Rig::new(pair, LEN * TASKS as usize, Access::ReadWrite).await;
    let tasks = (0..TASKS).map(|task| {
        let link = Arc::clone(&rig.link);
        let to = rig.span(task * LEN as u64, LEN as u64);
        tokio::spawn(async move {
            for round in 0..16 {
                let bytes = pattern(task * 100 + round, LEN);
                let memory = allocate(LEN);
                let write = Operation::write(filled(&bytes), to);
                // Sizes are mixed between tasks, so that large and small meet.
                let small = Operation::read(to, memory.whole());
                for batch in [vec![write], vec![small]] {
                    let results = link.submit(batch).await;
                    assert!(results.iter().all(Result::is_ok), "{results:?}");
                }
                assert!(memory.whole().to_vec() == bytes, "task {task}, round {round}");
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for task in tasks {
        task.await.expect("no task fails");
    }
}

async fn a_dropped_future_frees_nothing_in_flight(pair: Pair) {
    const LEN: usize = 8 << 20;
    let rig = Rig::new(pair, LEN, Access::ReadWrite).await;
    let whole = rig.span(0, LEN as u64);
    let mut in_flight = Vec::new();
    for round in 0..8 {
        let memory = allocate(LEN);
        let operation = match round % 2 {
            0 => Operation::read(whole, memory.whole()),
            _ => Operation::write(memory.whole(), whole),
        };
        in_flight.push(memory);
        let operations = vec![operation.clone(), operation];
        // Polled once, so that the operations are under way, and dropped.
        let mut batch = std::pin::pin!(rig.link.submit(operations));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let _ = batch.as_mut().poll(&mut context);
    }
    for memory in in_flight {
        // Freezing succeeds once ours is the last handle.
        let mut memory = Some(memory);
        eventually("what was in flight is released", || {
            memory = memory.take().and_then(|memory| memory.try_into_bytes(LEN).err());
            memory.is_none()
        })
        .await;
    }
    rig.still_works().await;
}

async fn links_are_used_again(pair: Pair) {
    let rig = Rig::new(pair, 4096, Access::ReadWrite).await;
    for _ in 0..100 {
        let link = rig.pair.peer.connect(endpoint(&rig.pair)).await;
        let link = link.expect("the owner can be reached again");
        let write = Operation::write(Bytes::from_static(b"again"), rig.span(0, 5));
        assert!(link.submit(vec![write]).await[0].is_ok());
    }
    rig.still_works().await;
}

async fn other_schemes_are_refused(pair: Pair) {
    let other = Endpoint::new("carrier+pigeon", "loft-7").expect("a valid endpoint");
    let refused = pair.peer.connect(&other).await.err();
    let wrong = matches!(refused, Some(crate::ConnectError::WrongScheme { .. }));
    assert!(wrong, "{refused:?}");
    assert_eq!(endpoint(&pair).scheme(), pair.owner.scheme());
}

async fn a_lost_peer_fails_operations(pair: Pair) {
    let rig = Rig::new(pair, 4096, Access::ReadWrite).await;
    rig.still_works().await;
    let Rig { pair, region, link } = rig;
    let to = span(region.key(), 0, 4);
    let at = endpoint(&pair).clone();
    drop(region);
    drop(pair.owner);
    let write = || vec![Operation::write(Bytes::from_static(b"late"), to)];
    let deadline = tokio::time::Instant::now() + CASE_DEADLINE;
    while link.is_healthy() && tokio::time::Instant::now() < deadline {
        let results = link.submit(write()).await;
        assert!(results[0].is_err(), "nobody is left to take the write");
        tokio::task::yield_now().await;
    }
    let lost = link.submit(write()).await.remove(0).expect_err("the link is lost");
    assert!(lost.is_retryable(), "another peer may do: {lost:?}");
    assert!(pair.peer.connect(&at).await.is_err(), "nobody listens there any more");
}

/// Waits until `condition` holds.
async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + CASE_DEADLINE / 2;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
