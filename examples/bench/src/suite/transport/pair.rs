//! A region of a peer and a block of ours, and what is measured between them.

use std::sync::Arc;
use std::time::Instant;

use mc_transport::{Link, Memory, Operation, RemoteSpan, Transferred};
use mc_types::{Extent, RemoteKey};

use super::{KIB, MIB, SERVED, WRITTEN};
use crate::error::BenchError;
use crate::latency::Latencies;

/// The durations of reads and writes of one size.
#[derive(Default)]
pub(super) struct Timed {
    pub(super) read: Latencies,
    pub(super) write: Latencies,
}

impl Timed {
    pub(super) fn merge(&mut self, other: Self) {
        self.read.merge(other.read);
        self.write.merge(other.write);
    }
}

/// A region of a peer, and a block of ours.
pub(super) struct Pair {
    pub(super) link: Arc<dyn Link>,
    pub(super) key: RemoteKey,
    pub(super) region: usize,
    pub(super) local: Memory,
}

impl Pair {
    pub(super) fn span(&self, offset: usize, size: usize) -> RemoteSpan {
        let extent = Extent::new(offset as u64, size as u64);
        RemoteSpan::new(self.key, extent.expect("offsets lie in the region"))
    }

    /// Reads and writes `count` times each, one operation at a time, through the
    /// whole region. What comes back is checked, outside of the times that are
    /// taken.
    pub(super) async fn measure(&self, size: usize, count: usize) -> Result<Timed, BenchError> {
        let local = self.local.slice(0, size).expect("the block has the largest size");
        let mut timed = Timed::default();
        let mut found = vec![0; size];
        let offset_of = |turn: usize| turn * size % self.region;
        for turn in 0..count + count / 10 {
            let offset = offset_of(turn);
            // What a failed read would leave behind.
            WRITTEN.fill(0, &mut found[..64]);
            local.copy_from(0, &found[..64]).expect("the smallest size is longer");
            let start = Instant::now();
            self.one(Operation::read(self.span(offset, size), local.clone())).await?;
            let took = start.elapsed();
            if turn >= count / 10 {
                timed.read.add(took);
            }
            // All bytes of small reads; of large ones, whose check would take as
            // long as the read, every eighth.
            if size <= 64 * KIB || turn % 8 == 0 {
                local.copy_to(0, &mut found).expect("the same length");
                SERVED.check("read", offset, &found)?;
            } else {
                local.copy_to(size - 64, &mut found[..64]).expect("the smallest size is longer");
                SERVED.check("read", offset + size - 64, &found[..64])?;
            }
        }
        for turn in 0..count + count / 10 {
            let offset = offset_of(turn);
            // Each write carries its own place.
            SERVED.fill(offset, &mut found);
            local.copy_from(0, &found).expect("the same length");
            let start = Instant::now();
            self.one(Operation::write(local.clone(), self.span(offset, size))).await?;
            let took = start.elapsed();
            if turn >= count / 10 {
                timed.write.add(took);
            }
        }
        self.check_write(size).await?;
        Ok(timed)
    }

    /// Reads the whole region once: a process that maps memory has to find each page of
    /// it once, which is no part of a copy.
    pub(super) async fn touch(&self) -> Result<(), BenchError> {
        let step = self.local.len().min(self.region);
        for offset in (0..self.region).step_by(step) {
            let local = self.local.slice(0, step.min(self.region - offset));
            let local = local.expect("a step has at most the length of the block");
            self.one(Operation::read(self.span(offset, local.len()), local)).await?;
        }
        Ok(())
    }

    /// Writes other bytes, reads them back, and restores what was there.
    async fn check_write(&self, size: usize) -> Result<(), BenchError> {
        let local = self.local.slice(0, size).expect("the block has the largest size");
        let span = self.span(0, size);
        let mut found = WRITTEN.bytes(size);
        local.copy_from(0, &found).expect("the same length");
        self.one(Operation::write(local.clone(), span)).await?;
        local.copy_from(0, &vec![0; size]).expect("the same length");
        self.one(Operation::read(span, local.clone())).await?;
        local.copy_to(0, &mut found).expect("the same length");
        WRITTEN.check("write", 0, &found)?;
        SERVED.fill(0, &mut found);
        local.copy_from(0, &found).expect("the same length");
        self.one(Operation::write(local, span)).await.map(|_| ())
    }

    pub(super) async fn one(&self, operation: Operation) -> Result<Transferred, BenchError> {
        let mut results = self.link.submit(vec![operation]).await;
        match results.pop() {
            Some(result) if results.is_empty() => Ok(result?),
            _ => Err(BenchError::wrong("submit", "not one result for one operation")),
        }
    }
}

impl Pair {
    /// Reads `each` blocks of 1 MiB at a time into this task's part of the local
    /// memory.
    pub(super) async fn batches(
        &self,
        task: usize,
        each: usize,
        rounds: usize,
    ) -> Result<(), BenchError> {
        for _ in 0..rounds {
            let batch = (0..each).map(|n| {
                let place = (task * each + n) * MIB;
                let target = self.local.slice(place, MIB).expect("every task has its part");
                Operation::read(self.span(place % self.region, MIB), target)
            });
            for result in self.link.submit(batch.collect()).await {
                result?;
            }
        }
        Ok(())
    }

    pub(super) fn check_batches(&self, blocks: usize) -> Result<(), BenchError> {
        let mut found = vec![0; MIB];
        for place in (0..blocks).map(|block| block * MIB) {
            self.local.whole().copy_to(place, &mut found).expect("every task has its part");
            SERVED.check("concurrent reads", place % self.region, &found)?;
        }
        Ok(())
    }
}
