//! Many operations at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use mc_memory::Access;
use mc_types::RemoteKey;

use super::Pair;
use super::rig::{Guarded, Rig, allocate, endpoint, filled, pattern, span};
use crate::completion::Outcome;
use crate::error::TransferError;
use crate::operation::Operation;

pub(super) async fn ten_thousand_operations_in_one_batch(pair: Pair) {
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

pub(super) async fn a_batch_that_is_too_large_fails_as_a_whole(pair: Pair) {
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

pub(super) async fn results_come_one_by_one(pair: Pair) {
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

pub(super) async fn an_empty_batch_has_no_results(pair: Pair) {
    let rig = Rig::new(pair, 4096, Access::ReadWrite).await;
    assert!(rig.link.submit(Vec::new()).await.is_empty());
    rig.still_works().await;
}

pub(super) async fn batches_run_concurrently(pair: Pair) {
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

pub(super) async fn ten_thousand_operations_of_several_tasks(pair: Pair) {
    const TASKS: usize = 8;
    const COUNT: usize = 1250;
    const ROOM: usize = COUNT * 2048;
    let rig = Rig::new(pair, TASKS * ROOM, Access::ReadWrite).await;
    // Mostly small, some large, some empty.
    let len = |index: usize| match index % 50 {
        0 => 40_009,
        n => n * n * 7919 % 1021,
    };
    let tasks = (0..TASKS).map(|task| {
        let (link, key) = (Arc::clone(&rig.link), rig.region.key());
        tokio::spawn(async move {
            let lens: Vec<usize> = (0..COUNT).map(len).collect();
            let total = lens.iter().sum();
            assert!(total <= ROOM, "the operations fit into the room of their task");
            let bytes = Bytes::from(pattern(task as u64 + 10, total));
            let back = Guarded::new(1, total);
            let (mut at, mut writes, mut reads) = (0, Vec::new(), Vec::new());
            for len in lens {
                let place = span(key, (task * ROOM + at) as u64, len as u64);
                writes.push(Operation::write(bytes.slice(at..at + len), place));
                let part = back.slice().part(at, len).expect("the parts add up to the slice");
                reads.push(Operation::read(place, part));
                at += len;
            }
            let written = link.submit(writes).await;
            let read = link.submit(reads).await;
            let done = written.iter().chain(&read).filter(|outcome| outcome.is_ok()).count();
            assert_eq!(done, 2 * COUNT, "every operation of task {task} succeeds");
            assert!(back.bytes() == bytes, "the bytes of task {task} are back");
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no task fails");
    }
    rig.still_works().await;
}

pub(super) async fn results_that_nobody_takes_hold_nobody_up(pair: Pair) {
    const COUNT: usize = 300;
    const LEN: usize = 100_003;
    let rig = Rig::new(pair, COUNT + LEN, Access::ReadWrite).await;
    let bytes = pattern(8, LEN);
    rig.write(COUNT as u64, &bytes).await.expect("the region can be filled");
    let others_are_done = Arc::new(AtomicBool::new(false));
    let (link, key, done) = (Arc::clone(&rig.link), rig.region.key(), Arc::clone(&others_are_done));
    let slow = tokio::spawn(async move {
        let targets: Vec<_> = (0..COUNT).map(|_| Guarded::new(2, LEN)).collect();
        let from = span(key, COUNT as u64, LEN as u64);
        let reads = targets.iter().map(|target| Operation::read(from, target.slice()));
        let mut completions = link.submit(reads.collect());
        let mut taken = 0;
        while let Some((index, outcome)) = completions.next().await {
            outcome.expect("a slow reader's reads succeed");
            assert!(targets[index].bytes() == bytes, "read {index} is whole");
            taken += 1;
            // A few results, and then none until the others are done.
            while taken == 10 && !done.load(Ordering::Acquire) {
                tokio::task::yield_now().await;
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(taken, COUNT);
    });
    for round in 0..100 {
        let byte = [round as u8];
        rig.write(round, &byte).await.expect("others go on writing");
        assert_eq!(rig.read(round, 1).await.expect("others go on reading"), byte);
    }
    others_are_done.store(true, Ordering::Release);
    slow.await.expect("the slow reader gets everything");
}

pub(super) async fn two_nodes_write_different_parts_at_once(pair: Pair) {
    const PART: usize = 65_537;
    const PARTS: usize = 16;
    let rig = Rig::new(pair, PART * PARTS, Access::ReadWrite).await;
    // The owner is the second, if it is one that can reach itself.
    let own = rig.pair.owner.connect(endpoint(&rig.pair)).await;
    let links = [Arc::clone(&rig.link), own.unwrap_or_else(|_| Arc::clone(&rig.link))];
    let bytes = |part: usize, round: usize| pattern((part * 100 + round) as u64, PART);
    let writers = links.into_iter().enumerate().map(|(node, link)| {
        let key = rig.region.key();
        tokio::spawn(async move {
            for round in 0..8 {
                // Every other part, so that each has the other's on both sides.
                let writes = (node..PARTS).step_by(2).map(|part| {
                    let to = span(key, (part * PART) as u64, PART as u64);
                    Operation::write(Bytes::from(bytes(part, round)), to)
                });
                let results = link.submit(writes.collect()).await;
                assert!(results.iter().all(Result::is_ok), "{results:?}");
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("both write to the end");
    }
    for part in 0..PARTS {
        let written = rig.read((part * PART) as u64, PART).await.expect("each part can be read");
        assert!(written == bytes(part, 7), "part {part} is that of its last write");
    }
}
