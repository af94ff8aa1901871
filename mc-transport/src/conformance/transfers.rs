//! Bytes arrive where they belong, and nowhere else.

use bytes::Bytes;
use mc_memory::{Access, MemorySlice, checksum};
use mc_types::RemoteKey;

use super::Pair;
use super::rig::{Guarded, Rig, allocate, filled, pattern, span};
use crate::error::TransferError;
use crate::operation::{Operation, RemoteSpan, Source};
use crate::slice_sums::SliceSums;

pub(super) async fn bytes_survive_round_trips_of_every_size(pair: Pair) {
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

pub(super) async fn pieces_are_gathered_and_scattered(pair: Pair) {
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

pub(super) async fn a_source_may_be_memory_or_bytes(pair: Pair) {
    let rig = Rig::new(pair, 1 << 16, Access::ReadWrite).await;
    let bytes = pattern(2, 5000);
    let from_memory = Operation::write(filled(&bytes), rig.span(3, 5000));
    let from_bytes = Operation::write(Bytes::from(bytes.clone()), rig.span(9001, 5000));
    let results = rig.link.submit(vec![from_memory, from_bytes]).await;
    assert!(results.iter().all(Result::is_ok), "both writes succeed: {results:?}");
    assert!(rig.read(3, 5000).await.expect("the first can be read") == bytes);
    assert!(rig.read(9001, 5000).await.expect("the second can be read") == bytes);
}

pub(super) async fn checksums_are_those_of_the_bytes(pair: Pair) {
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

pub(super) async fn slices_are_added_up_with_their_prefixes(pair: Pair) {
    let rig = Rig::new(pair, 10 << 20, Access::ReadWrite).await;
    let shapes: [&[usize]; 8] = [
        &[],
        &[1],
        &[65_536],
        &[65_537],
        &[0, 70_000, 0, 200_001, 3],
        &[131_072, 131_073, 1 << 20],
        &[(9 << 20) + 5],
        &[4 << 20, 0, 5 << 20],
    ];
    for lens in shapes {
        let total = lens.iter().sum();
        let bytes = pattern(total as u64 + 3, total);
        let span = rig.span(0, total as u64);
        let memory = allocate(total);
        let (mut at, mut expected) = (0, SliceSums::default());
        let (mut sources, mut targets): (Vec<Source>, Vec<MemorySlice>) = (Vec::new(), Vec::new());
        for (nth, &len) in lens.iter().enumerate() {
            let slice = &bytes[at..at + len];
            expected.checksums.push(checksum(slice));
            let inner = (1..).map(|n| n * 65_536).take_while(|&at| at < len);
            expected.prefixes.extend(inner.map(|at| checksum(&slice[..at])));
            sources.push(match nth % 2 {
                0 => Bytes::copy_from_slice(slice).into(),
                _ => filled(slice).into(),
            });
            targets.push(memory.slice(at, len).expect("the slices add up to the memory"));
            at += len;
        }
        let write = rig.outcome(Operation::write(sources.clone(), span).checkpointed()).await;
        let read = rig.outcome(Operation::read(span, targets).checkpointed()).await;
        assert!(memory.whole().to_vec() == bytes, "{lens:?}");
        for done in [write, read] {
            let sums = done.expect("both succeed").slices;
            // A link that divided the operation may know none.
            assert!(sums.is_none_or(|sums| *sums == expected), "{lens:?}");
        }
        assert_eq!(SliceSums::of(&sources), expected, "{lens:?}");
    }
}

pub(super) async fn capabilities_are_kept(pair: Pair) {
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

pub(super) async fn odd_offsets_and_lengths_are_exact(pair: Pair) {
    const LEN: usize = (1 << 20) + 7919;
    let rig = Rig::new(pair, LEN, Access::ReadWrite).await;
    let mut expected = pattern(6, LEN);
    rig.write(0, &expected).await.expect("the region can be filled");
    let lens = [1, 2, 3, 5, 7, 13, 31, 127, 509, 1021, 4093, 16_381, 16_411, 131_071, 1_048_573];
    for (round, &len) in lens.iter().enumerate() {
        for offset in [1, 3, 61, 4093, 7919] {
            let source = Guarded::new((round * 8 + offset) as u64, len);
            let bytes = source.bytes();
            let place = rig.span(offset as u64, len as u64);
            let write = Operation::write(source.slice(), place).checksummed();
            let written = rig.outcome(write).await.expect("a write inside the region succeeds");
            assert_eq!(written.checksum, Some(checksum(&bytes)), "{len} bytes at {offset}");
            expected[offset..offset + len].copy_from_slice(&bytes);
            let target = Guarded::new(round as u64 + 1000, len);
            rig.one(Operation::read(place, target.slice())).await.expect("a read succeeds");
            assert!(target.bytes() == bytes, "{len} bytes at {offset}");
            assert!(source.bytes() == bytes, "a source is left as it is");
        }
        let whole = rig.region.memory().whole().checksum();
        assert_eq!(whole, checksum(&expected), "{len} bytes were written, and no other");
    }
}

pub(super) async fn memory_may_have_several_keys(pair: Pair) {
    let rig = Rig::new(pair, 4096, Access::ReadWrite).await;
    let again = |access| {
        let region = rig.pair.owner.register(rig.region.memory(), access);
        region.expect("the same memory can be registered again")
    };
    let (reading, writing) = (again(Access::Read), again(Access::Write));
    let keys = [rig.region.key(), reading.key(), writing.key()];
    assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2], "each has its own");
    let write = |key: RemoteKey, bytes: &'static [u8]| {
        let to = span(key, 5, bytes.len() as u64);
        rig.one(Operation::write(Bytes::from_static(bytes), to))
    };
    let read = async |key: RemoteKey| {
        let target = Guarded::new(7, 3);
        let read = rig.one(Operation::read(span(key, 5, 3), target.slice())).await;
        read.map(|()| target.bytes())
    };
    write(keys[0], b"one").await.expect("the first key opens the memory to writes");
    write(keys[2], b"two").await.expect("the third key opens the memory to writes");
    assert_eq!(read(keys[0]).await.expect("the first key opens it to reads"), b"two");
    assert_eq!(read(keys[1]).await.expect("the second key opens it to reads"), b"two");
    let denied = write(keys[1], b"no!").await;
    assert!(matches!(denied, Err(TransferError::AccessDenied { .. })), "{denied:?}");
    let denied = read(keys[2]).await;
    assert!(matches!(denied, Err(TransferError::AccessDenied { .. })), "{denied:?}");
    writing.revoke();
    let refused = write(keys[2], b"no!").await;
    assert!(matches!(refused, Err(TransferError::KeyRefused)), "{refused:?}");
    assert_eq!(read(keys[1]).await.expect("the second key was not withdrawn"), b"two");
    reading.revoke();
    let refused = read(keys[1]).await;
    assert!(matches!(refused, Err(TransferError::KeyRefused)), "{refused:?}");
    assert_eq!(read(keys[0]).await.expect("the first key was not withdrawn"), b"two");
    rig.still_works().await;
}
