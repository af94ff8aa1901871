//! Regions that are withdrawn or interrupted while operations run, and memory that has another use then.

use std::time::{Duration, Instant};

use mc_memory::{Access, Memory};

use super::Pair;
use super::rig::{Rig, allocate, endpoint, pattern, span};
use crate::completion::Completions;
use crate::error::TransferError;
use crate::operation::Operation;

const LEN: usize = 8 << 20;
const DEADLINE: Duration = Duration::from_secs(30);

/// The errors of an operation whose region is withdrawn under it.
fn ended(error: &TransferError) -> bool {
    error.is_retryable() || matches!(error, TransferError::KeyRefused)
}

/// Writes of all of `source`, of which the first is done.
async fn writes_under_way(rig: &Rig, source: &Memory) -> Completions {
    source.whole().copy_from(0, &pattern(1, LEN)).expect("as long as the pattern");
    let whole = rig.span(0, LEN as u64);
    let writes = (0..16).map(|_| Operation::write(source.whole(), whole));
    let mut writes = rig.link.submit(writes.collect());
    let (_, first) = writes.next().await.expect("there are many");
    first.expect("the region is open");
    writes
}

pub(super) async fn what_is_withdrawn_is_touched_no_more(pair: Pair) {
    let rig = Rig::new(pair, LEN, Access::ReadWrite).await;
    let source = allocate(LEN);
    let mut writes = writes_under_way(&rig, &source).await;
    let memory = rig.region.memory().clone();
    rig.region.withdraw().await;
    // The memory's next life, unless another process may still have it: that one gets
    // other pages.
    let next = pattern(2, LEN);
    if !memory.was_lent() {
        memory.whole().copy_from(0, &next).expect("as long as the pattern");
    }
    while let Some((_, outcome)) = writes.next().await {
        assert!(outcome.as_ref().err().is_none_or(ended), "{outcome:?}");
    }
    if !memory.was_lent() {
        assert!(memory.whole().to_vec() == next, "an old write reached the memory's next life");
    }
}

pub(super) async fn an_interrupted_region_keeps_its_key(pair: Pair) {
    let rig = Rig::new(pair, LEN, Access::ReadWrite).await;
    let source = allocate(LEN);
    let mut writes = writes_under_way(&rig, &source).await;
    let memory = rig.region.memory().clone();
    rig.region.interrupt().await;
    while let Some((_, outcome)) = writes.next().await {
        assert!(outcome.as_ref().err().is_none_or(ended), "{outcome:?}");
    }
    let next = pattern(2, LEN);
    source.whole().copy_from(0, &next).expect("as long as the pattern");
    let (begun, whole) = (Instant::now(), rig.span(0, LEN as u64));
    // A device's keys are new: a peer that has the old ones is refused once.
    while let Err(error) =
        rig.link.submit(vec![Operation::write(source.whole(), whole)]).await.remove(0)
    {
        assert!(ended(&error) && begun.elapsed() < DEADLINE, "{error:?}");
    }
    assert!(memory.whole().to_vec() == next);
    rig.still_works().await;
}

pub(super) async fn a_withdrawn_read_brings_no_foreign_bytes(pair: Pair) {
    let rig = Rig::new(pair, LEN, Access::ReadWrite).await;
    let (old, new) = (pattern(3, LEN), pattern(4, LEN));
    let memory = rig.region.memory().clone();
    memory.whole().copy_from(0, &old).expect("as long as the pattern");
    let targets: Vec<_> = (0..16).map(|_| allocate(LEN)).collect();
    let whole = rig.span(0, LEN as u64);
    let reads = targets.iter().map(|target| Operation::read(whole, target.whole()));
    let mut reads = rig.link.submit(reads.collect());
    let (first, outcome) = reads.next().await.expect("there are many");
    outcome.expect("the region is open");
    rig.region.withdraw().await;
    memory.whole().copy_from(0, &new).expect("as long as the pattern");
    let mut good = vec![first];
    while let Some((nth, outcome)) = reads.next().await {
        match outcome {
            Ok(_) => good.push(nth),
            Err(error) => assert!(ended(&error), "{error:?}"),
        }
    }
    for nth in good {
        assert!(targets[nth].whole().to_vec() == old, "read {nth} brought bytes of the next life");
    }
}

pub(super) async fn the_memory_serves_again_under_another_key(pair: Pair) {
    let rig = Rig::new(pair, 4096, Access::ReadWrite).await;
    rig.still_works().await;
    let old = rig.region.key();
    let Rig { pair, region, link } = rig;
    let memory = region.memory().clone();
    region.withdraw().await;
    let region = pair.owner.register(&memory, Access::ReadWrite).expect("it serves again");
    assert_ne!(region.key(), old);
    let refused = link.submit(vec![Operation::read(span(old, 0, 4), allocate(4).whole())]).await;
    assert!(matches!(refused[0], Err(TransferError::KeyRefused)), "{refused:?}");
    let link = pair.peer.connect(endpoint(&pair)).await.expect("the owner can be reached");
    Rig { pair, region, link }.still_works().await;
}
