//! Futures, links and nodes that go away in the middle.

use std::future::Future;

use bytes::Bytes;
use mc_memory::{Access, Memory};

use super::rig::{Guarded, Rig, allocate, endpoint, released, span};
use super::{CASE_DEADLINE, Pair};
use crate::cancel::Cancel;
use crate::completion::{Completions, Outcome};
use crate::error::TransferError;
use crate::operation::Operation;

pub(super) async fn a_dropped_future_frees_nothing_in_flight(pair: Pair) {
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
        released(memory).await;
    }
    rig.still_works().await;
}

pub(super) async fn links_are_used_again(pair: Pair) {
    let rig = Rig::new(pair, 4096, Access::ReadWrite).await;
    for _ in 0..100 {
        let link = rig.pair.peer.connect(endpoint(&rig.pair)).await;
        let link = link.expect("the owner can be reached again");
        let write = Operation::write(Bytes::from_static(b"again"), rig.span(0, 5));
        assert!(link.submit(vec![write]).await[0].is_ok());
    }
    rig.still_works().await;
}

pub(super) async fn a_lost_peer_fails_operations(pair: Pair) {
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

pub(super) async fn a_cancelled_read_touches_its_memory_no_more(pair: Pair) {
    const LEN: usize = 4 << 20;
    let rig = Rig::new(pair, LEN, Access::ReadWrite).await;
    if !rig.link.capabilities().cancels {
        return;
    }
    rig.write(0, &vec![1; LEN]).await.expect("the write is valid");
    for turns in 0..16 {
        let (memory, cancel) = (allocate(LEN), Cancel::new());
        let read = Operation::read(rig.span(0, LEN as u64), memory.whole());
        let mut batch = std::pin::pin!(rig.link.submit(vec![read.cancelled_by(&cancel)]));
        for _ in 0..turns * turns {
            let is_done = {
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                batch.as_mut().poll(&mut context).is_ready()
            };
            if is_done {
                break;
            }
            tokio::task::yield_now().await;
        }
        cancel.cancel();
        memory.whole().copy_from(0, &vec![7; LEN]).expect("the memory is so long");
        // Answered behind the read.
        rig.read(0, 1).await.expect("the link goes on");
        let late = memory.whole().to_vec().iter().filter(|&&byte| byte != 7).count();
        assert_eq!(late, 0, "bytes came after the cancellation, {turns}");
    }
    rig.still_works().await;
}

pub(super) async fn a_future_may_be_dropped_at_any_point(pair: Pair) {
    const LEN: usize = 300_007;
    // What shows that the link works lies before what the dropped writes, which may arrive
    // later, change.
    const FRONT: usize = 61;
    let rig = Rig::new(pair, FRONT + LEN, Access::ReadWrite).await;
    for len in [0, 61, LEN] {
        let place = rig.span((FRONT + LEN - len) as u64, len as u64);
        for polls in 0..3 {
            let (source, target) = (allocate(len), allocate(len));
            let operations = (0..64).map(|index| match index % 2 {
                0 => Operation::read(place, target.whole()),
                _ => Operation::write(source.whole(), place),
            });
            let mut batch = rig.link.submit(operations.collect());
            match polls {
                // Before a result was asked for.
                0 => {}
                // While all are waited for.
                1 => {
                    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                    let _ = std::pin::pin!(&mut batch).as_mut().poll(&mut context);
                }
                // After the first of many.
                _ => {
                    let first = batch.next().await.expect("there are many");
                    first.1.expect("the operation is valid");
                }
            }
            drop(batch);
            for memory in [source, target] {
                // There is nothing to release in what is empty.
                if len > 0 {
                    released(memory).await;
                }
            }
            rig.still_works().await;
        }
    }
}

/// Operations that take long enough to be interrupted, and where the reads put bytes.
fn long(rig: &Rig, len: usize) -> (Completions, Vec<Guarded>, Memory) {
    let (targets, source) = ((0..16).map(|seed| Guarded::new(seed, len)), allocate(len));
    let targets: Vec<Guarded> = targets.collect();
    let whole = rig.span(0, len as u64);
    let operations = targets.iter().flat_map(|target| {
        [Operation::read(whole, target.slice()), Operation::write(source.whole(), whole)]
    });
    (rig.link.submit(operations.collect()), targets, source)
}

/// Checks that each operation of [`long`] has a result that says what became of it.
async fn all_typed(
    (completions, targets, source): (Completions, Vec<Guarded>, Memory),
    allowed: fn(&TransferError) -> bool,
) {
    let results: Vec<Outcome> = completions.await;
    assert_eq!(results.len(), 2 * targets.len(), "one result per operation");
    for (index, outcome) in results.iter().enumerate() {
        assert!(outcome.as_ref().err().is_none_or(allowed), "{outcome:?}");
        let read = targets[index / 2].bytes();
        if outcome.is_ok() && index % 2 == 0 {
            assert!(read.iter().all(|&byte| byte == 0), "what was read is right");
        }
    }
    released(source).await;
}

pub(super) async fn an_owner_may_end_while_operations_run(pair: Pair) {
    const LEN: usize = 1_000_003;
    let rig = Rig::new(pair, LEN, Access::ReadWrite).await;
    let (mut running, late) = (long(&rig, LEN), long(&rig, LEN));
    let first = running.0.next().await.expect("there are many operations");
    first.1.expect("the owner is there");
    let Rig { pair, region, link } = rig;
    drop(pair.owner);
    let lost =
        |error: &TransferError| error.is_retryable() || matches!(error, TransferError::KeyRefused);
    all_typed(running, lost).await;
    all_typed(late, lost).await;
    let to = span(region.key(), 0, 4);
    let deadline = tokio::time::Instant::now() + CASE_DEADLINE / 2;
    while link.is_healthy() {
        assert!(tokio::time::Instant::now() < deadline, "the link notices that it was lost");
        let late =
            link.submit(vec![Operation::write(Bytes::from_static(b"late"), to)]).await.remove(0);
        assert!(late.as_ref().is_err_and(lost), "nobody is left to take it: {late:?}");
        tokio::task::yield_now().await;
    }
    drop(region);
}

pub(super) async fn a_peer_may_end_while_its_operations_run(pair: Pair) {
    const LEN: usize = 1_000_003;
    let rig = Rig::new(pair, LEN, Access::ReadWrite).await;
    let (mut running, late) = (long(&rig, LEN), long(&rig, LEN));
    let first = running.0.next().await.expect("there are many operations");
    first.1.expect("the peer is there");
    let Rig { pair, region, link } = rig;
    drop(pair.peer);
    let ended =
        |error: &TransferError| error.is_retryable() || matches!(error, TransferError::Closed);
    all_typed(running, ended).await;
    all_typed(late, ended).await;
    drop(link);
    // The owner works as before.
    let memory = region.memory();
    memory.slice(0, 4).expect("the region is longer").copy_from(0, b"mine").expect("it fits");
    let again = pair.owner.register(memory, Access::Read).expect("the owner still registers");
    assert_ne!(again.key(), region.key());
}
