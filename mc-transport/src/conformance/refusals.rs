//! Operations that are refused, and change nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use mc_memory::{Access, Memory};
use mc_types::{Endpoint, RemoteKey};

use super::Pair;
use super::rig::{Guarded, Rig, allocate, endpoint, eventually, pattern, span};
use crate::error::TransferError;
use crate::operation::Operation;

pub(super) async fn an_empty_operation_succeeds(pair: Pair) {
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

pub(super) async fn an_unknown_key_is_refused(pair: Pair) {
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

pub(super) async fn a_revoked_key_is_refused(pair: Pair) {
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

pub(super) async fn access_is_checked_in_both_directions(pair: Pair) {
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

pub(super) async fn bounds_are_exact(pair: Pair) {
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

pub(super) async fn lengths_must_agree(pair: Pair) {
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

pub(super) async fn a_refusal_spoils_nothing_else(pair: Pair) {
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

pub(super) async fn other_schemes_are_refused(pair: Pair) {
    let other = Endpoint::new("carrier+pigeon", "loft-7").expect("a valid endpoint");
    let refused = pair.peer.connect(&other).await.err();
    let wrong = matches!(refused, Some(crate::ConnectError::WrongScheme { .. }));
    assert!(wrong, "{refused:?}");
    assert_eq!(endpoint(&pair).scheme(), pair.owner.scheme());
}

pub(super) async fn empty_operations_are_checked(pair: Pair) {
    let rig = Rig::new(pair, 4096, Access::Read).await;
    let empty_read = |key, offset| Operation::read(span(key, offset, 0), Vec::new());
    let empty_write = |key, offset| Operation::write(Bytes::new(), span(key, offset, 0));
    let (key, wrong) = (rig.region.key(), RemoteKey::from_bytes([0; 16]));
    for refused in [rig.one(empty_read(wrong, 0)).await, rig.one(empty_write(wrong, 0)).await] {
        assert!(matches!(refused, Err(TransferError::KeyRefused)), "{refused:?}");
    }
    let denied = rig.one(empty_write(key, 0)).await;
    assert!(matches!(denied, Err(TransferError::AccessDenied { .. })), "{denied:?}");
    let outside = rig.one(empty_read(key, u64::MAX)).await;
    assert!(matches!(outside, Err(TransferError::OutOfBounds { .. })), "{outside:?}");
    // Between others, none takes the place of another.
    let target = Guarded::new(3, 10);
    let results = rig.link.submit(vec![
        empty_read(key, 4096),
        empty_write(wrong, 1),
        Operation::read(rig.span(4086, 10), target.slice()),
        empty_read(key, 0).checksummed(),
    ]);
    let results = results.await;
    let expected = [true, false, true, true];
    assert!(results.iter().map(Result::is_ok).eq(expected), "{results:?}");
    assert_eq!(target.bytes(), [0; 10]);
    // A region may be empty, too.
    let nothing = rig.pair.owner.register(&allocate(0), Access::ReadWrite);
    let nothing = nothing.expect("a region may be empty");
    rig.one(empty_read(nothing.key(), 0)).await.expect("there is nothing to be read");
    rig.one(empty_write(nothing.key(), 0)).await.expect("there is nothing to be written");
    let outside =
        rig.one(Operation::write(Bytes::from_static(b"x"), span(nothing.key(), 0, 1))).await;
    assert!(matches!(outside, Err(TransferError::OutOfBounds { .. })), "{outside:?}");
}

pub(super) async fn a_key_opens_its_own_region_only(pair: Pair) {
    let rig = Rig::new(pair, 4096, Access::ReadWrite).await;
    // Taken one after the other, so that they may well lie side by side.
    let others = [4096, 8192, 100_003].map(|len| {
        let memory = rig.pair.owner.allocate(len).expect("the suite needs little memory");
        let bytes = pattern(len as u64, len);
        memory.whole().copy_from(0, &bytes).expect("the memory is as long as the pattern");
        let region = rig.pair.owner.register(&memory, Access::ReadWrite);
        (region.expect("memory can be registered"), bytes)
    });
    rig.write(0, &pattern(4, 4096)).await.expect("the key opens its region");
    for (region, bytes) in &others {
        // The bounds of another region, with the key of this one.
        let len = bytes.len();
        let written = rig.one(Operation::write(Bytes::from(vec![9; len]), rig.span(0, len as u64)));
        let written = written.await;
        if len == 4096 {
            written.expect("the bounds are those of the key's own region, too");
        } else {
            assert!(matches!(written, Err(TransferError::OutOfBounds { .. })), "{written:?}");
        }
        let target = Guarded::new(5, len);
        let read = Operation::read(span(region.key(), 0, len as u64), target.slice());
        rig.one(read).await.expect("the other region has a key of its own");
        assert!(&target.bytes() == bytes, "a region of {len} bytes is left alone");
    }
    assert_eq!(rig.read(0, 4096).await.expect("the region is there"), [9; 4096]);
    for (region, _) in others {
        let key = region.key();
        region.revoke();
        let refused = rig.one(Operation::write(Bytes::from_static(b"x"), span(key, 0, 1))).await;
        assert!(matches!(refused, Err(TransferError::KeyRefused)), "{refused:?}");
    }
    rig.still_works().await;
}

pub(super) async fn a_key_may_be_revoked_while_operations_run(pair: Pair) {
    const TASKS: usize = 4;
    const HALF: usize = 256 << 10;
    let rig = Rig::new(pair, 4096, Access::ReadWrite).await;
    let take = |len: usize| rig.pair.owner.allocate(len).expect("the suite needs little memory");
    // Each task reads one half of its range and writes the other.
    let memories: [Memory; 3] = [4096, 2 * HALF * TASKS, 4096].map(take);
    let before = pattern(11, 2 * HALF * TASKS);
    memories[1].whole().copy_from(0, &before).expect("the memory is as long as the pattern");
    let region = rig.pair.owner.register(&memories[1], Access::ReadWrite);
    let region = region.expect("memory can be registered");
    let rounds = Arc::new(AtomicUsize::new(0));
    let tasks = (0..TASKS).map(|task| {
        let (link, key) = (Arc::clone(&rig.link), region.key());
        let (rounds, whole) = (Arc::clone(&rounds), memories[1].whole());
        let place = 2 * HALF * task;
        let readable = before[place..place + HALF].to_vec();
        tokio::spawn(async move {
            for round in 0.. {
                // One large, one small, in turn; each write has other bytes.
                let (mut operations, mut targets, mut sources) = (vec![], vec![], vec![]);
                for (at, len) in [(0, 200_003), (200_003, 61), (200_064, 20_011)] {
                    let source = Bytes::from(pattern(round * 10 + at as u64, len));
                    let to = span(key, (place + HALF + at) as u64, len as u64);
                    operations.push(Operation::write(source.clone(), to));
                    sources.push((at, source));
                    let target = Guarded::new(round, len);
                    let from = span(key, (place + at) as u64, len as u64);
                    operations.push(Operation::read(from, target.slice()));
                    targets.push((at, target));
                }
                let results = link.submit(operations).await;
                for (index, outcome) in results.iter().enumerate() {
                    // What is half sent can only be broken off, with the link.
                    let typed = match outcome {
                        Ok(_) | Err(TransferError::KeyRefused) => true,
                        Err(error) => error.is_retryable() && !link.is_healthy(),
                    };
                    assert!(typed, "done, refused or broken off: {outcome:?}");
                    let (at, target) = &targets[index / 2];
                    let read = target.bytes();
                    if outcome.is_ok() && index % 2 == 1 {
                        assert!(read == readable[*at..*at + read.len()], "what was read is right");
                    }
                    if outcome.is_ok() && index % 2 == 0 {
                        let (at, source) = &sources[index / 2];
                        let written = whole.part(place + HALF + at, source.len());
                        let written = written.expect("the write was inside the region").to_vec();
                        assert!(&written == source, "what was reported written is");
                    }
                }
                rounds.fetch_add(1, Ordering::Relaxed);
                if results.iter().all(Result::is_err) {
                    return;
                }
                tokio::task::yield_now().await;
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    eventually("operations run", || rounds.load(Ordering::Relaxed) > 2 * TASKS).await;
    region.revoke();
    for task in tasks {
        task.await.expect("each operation is done or refused");
    }
    let after = memories[1].whole().to_vec();
    for task in 0..TASKS {
        let place = 2 * HALF * task;
        let same = after[place..place + HALF] == before[place..place + HALF];
        assert!(same, "what was only read is left alone");
    }
    for neighbour in [&memories[0], &memories[2]] {
        assert!(neighbour.whole().to_vec().iter().all(|&byte| byte == 0), "as are neighbours");
    }
    let Rig { pair, region, link } = rig;
    let link = match link.is_healthy() {
        true => link,
        false => pair.peer.connect(endpoint(&pair)).await.expect("the owner can be reached"),
    };
    Rig { pair, region, link }.still_works().await;
}

pub(super) async fn bounds_are_exact_for_regions_of_every_size(pair: Pair) {
    let rig = Rig::new(pair, 4096, Access::ReadWrite).await;
    for size in [1_usize, 2, 61, 4095, 4096, 4097, 65_537, (1 << 20) + 1] {
        let memory = rig.pair.owner.allocate(size).expect("the suite needs little memory");
        let bytes = pattern(size as u64, size);
        memory.whole().copy_from(0, &bytes).expect("the memory is as long as the pattern");
        let region = rig.pair.owner.register(&memory, Access::ReadWrite);
        let region = region.expect("memory can be registered");
        let end = size as u64;
        // Offset, length, and whether that is inside: one byte more at either end is not.
        let places = [
            (0, end, true),
            (0, 1, true),
            (end - 1, 1, true),
            (end, 0, true),
            (0, end + 1, false),
            (1, end, false),
            (end - 1, 2, false),
            (end, 1, false),
            (end + 1, 0, false),
        ];
        for (offset, len, inside) in places {
            let place = span(region.key(), offset, len);
            let local = Guarded::new(12, len as usize);
            let read = rig.one(Operation::read(place, local.slice())).await;
            let read_bytes = local.bytes();
            let write = rig.one(Operation::write(local.slice(), place)).await;
            for result in [read, write] {
                let as_due = match &result {
                    Ok(()) => inside,
                    Err(TransferError::OutOfBounds { offset: o, len: l }) => {
                        !inside && (*o, *l) == (offset, len)
                    }
                    Err(_) => false,
                };
                assert!(as_due, "{len} bytes at {offset} of {size}: {result:?}");
            }
            if inside {
                let at = offset as usize;
                assert!(read_bytes == bytes[at..at + read_bytes.len()], "{len} at {offset}");
            }
        }
        assert!(memory.whole().to_vec() == bytes, "refused writes change nothing");
    }
    rig.still_works().await;
}

pub(super) async fn offsets_do_not_wrap_around(pair: Pair) {
    let rig = Rig::new(pair, 100_003, Access::ReadWrite).await;
    let bytes = pattern(13, 100_003);
    rig.write(0, &bytes).await.expect("the region can be filled");
    // An extent cannot be built beyond the last address, but up to it.
    let powers = [1_u64 << 31, 1 << 32, 1 << 47, 1 << 52, 1 << 63];
    let ends = [1_u64, 2, 15, 16, 17, 4096, 65_537].map(|len| (u64::MAX - len, len));
    let far = powers.map(|offset| (offset, 16)).into_iter().chain(ends);
    for (offset, len) in far {
        let (target, good) = (Guarded::new(14, len as usize), Guarded::new(15, 1000));
        let results = rig.link.submit(vec![
            Operation::write(Bytes::from(vec![3; len as usize]), rig.span(offset, len)),
            Operation::read(rig.span(offset, len), target.slice()),
            Operation::read(rig.span(1, 1000), good.slice()),
        ]);
        let results = results.await;
        for refused in &results[..2] {
            let exact = matches!(refused, Err(TransferError::OutOfBounds { offset: o, len: l })
                if (*o, *l) == (offset, len));
            assert!(exact, "{len} bytes at {offset}: {refused:?}");
        }
        target.bytes();
        assert!(results[2].is_ok() && good.bytes() == bytes[1..1001], "{:?}", results[2]);
    }
    assert!(rig.region.memory().whole().to_vec() == bytes, "refused writes change nothing");
    rig.still_works().await;
}
