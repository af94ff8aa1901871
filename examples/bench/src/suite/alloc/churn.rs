//! A pool that is used up, over and over.

use std::collections::VecDeque;

use super::space::Space;
use crate::cpu_clock::CpuClock;
use crate::error::BenchError;

/// Where every random sequence begins, so that both allocators see the same.
pub(super) const SEED: u64 = 20_240_815;

/// Allocations that are handed back in the order of their making when only recent
/// ones are to go.
const RECENT: usize = 256;

/// An allocator, everything that is allocated from it, and what that amounts to.
pub(super) struct Churn<S: Space> {
    space: S,
    live: Vec<S::Held>,
    random: fastrand::Rng,
    capacity: u64,
    used: u64,
    /// The part of the live allocations that goes when an allocation fails; at
    /// least one does.
    pub(super) evicted_part: f64,
    failures: u64,
    /// Bytes in use at failures, summed.
    used_at_failures: f64,
}

/// The behaviour of a pool in a steady state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steady {
    /// The part of the pool in use, on average.
    pub(super) utilisation: f64,
    /// Nanoseconds for an allocation with the frees that it needed.
    pub(super) ns_per_allocation: f64,
}

/// 70 % small, 20 % medium, 10 % large.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mix {
    pub(super) small: u64,
    pub(super) medium: u64,
    pub(super) large: u64,
}

impl Mix {
    fn draw(self, random: &mut fastrand::Rng) -> u64 {
        match random.u8(..10) {
            0..7 => self.small,
            7..9 => self.medium,
            _ => self.large,
        }
    }
}

impl<S: Space> Churn<S> {
    pub(super) fn new(pool: u64, unit: u64, regions: u64) -> Self {
        Self {
            space: S::new(pool, unit, regions),
            live: Vec::new(),
            random: fastrand::Rng::with_seed(SEED),
            capacity: pool,
            used: 0,
            evicted_part: 0.0,
            failures: 0,
            used_at_failures: 0.0,
        }
    }

    /// Allocates `size` bytes until that fails.
    pub(super) fn fill(&mut self, size: u64) -> Result<(), BenchError> {
        while self.try_put(size) {}
        if self.live.is_empty() {
            return Err(refused(size));
        }
        Ok(())
    }

    /// Allocates `size` bytes, freeing live allocations chosen at random until
    /// that succeeds.
    pub(super) fn put(&mut self, size: u64) -> Result<(), BenchError> {
        while !self.try_put(size) {
            self.failures += 1;
            self.used_at_failures += self.used as f64;
            let victims = (self.live.len() as f64 * self.evicted_part) as usize;
            for _ in 0..victims.max(1) {
                if self.live.is_empty() {
                    return Err(refused(size));
                }
                self.free_one()?;
            }
        }
        Ok(())
    }

    /// Puts `count` times and measures.
    pub(super) fn steady(
        &mut self,
        count: u64,
        size: impl Fn(&mut fastrand::Rng) -> u64,
    ) -> Result<Steady, BenchError> {
        let mut used = 0.0;
        let start = CpuClock::start();
        for _ in 0..count {
            let size = size(&mut self.random);
            self.put(size)?;
            used += self.used as f64;
        }
        let nanos = start.nanos();
        Ok(Steady {
            utilisation: used / count as f64 / self.capacity as f64,
            ns_per_allocation: nanos / count as f64,
        })
    }

    /// The part of the pool in use when allocations failed, on average.
    pub(super) fn when_full(&self) -> f64 {
        self.used_at_failures / self.failures as f64 / self.capacity as f64
    }

    /// Fills the pool up to `level` bytes, then puts `count` times while random
    /// allocations go to keep that level. Gives what it did, and how many puts
    /// found no region although there was room beyond that level.
    pub(super) fn at_level(
        &mut self,
        count: u64,
        level: u64,
        mix: Mix,
    ) -> Result<(Steady, u64), BenchError> {
        while self.used < level {
            let size = mix.draw(&mut self.random);
            self.put(size)?;
        }
        let (mut failed, mut used) = (0, 0.0);
        let start = CpuClock::start();
        for _ in 0..count {
            while self.used > level {
                self.free_one()?;
            }
            let size = mix.draw(&mut self.random);
            let before = self.failures;
            self.put(size)?;
            failed += u64::from(self.failures > before);
            used += self.used as f64;
        }
        let steady = Steady {
            utilisation: used / count as f64 / self.capacity as f64,
            ns_per_allocation: start.nanos() / count as f64,
        };
        Ok((steady, failed))
    }

    /// Makes `live` allocations with gaps of all sizes between them, then frees
    /// one and allocates one, `count` times: one of the last made, which keeps
    /// the touched memory small, or any one, which misses the caches when there
    /// are many. Gives nanoseconds per pair.
    pub(super) fn among_gaps(
        &mut self,
        live: u64,
        count: u64,
        recent: bool,
    ) -> Result<f64, BenchError> {
        let size = |random: &mut fastrand::Rng| random.u64(64..=128) << 10;
        for _ in 0..2 * live {
            let size = size(&mut self.random);
            self.put(size)?;
        }
        self.random.shuffle(&mut self.live);
        while self.live.len() as u64 > live {
            self.free_one()?;
        }
        if !recent {
            let start = CpuClock::start();
            for _ in 0..count {
                self.free_one()?;
                let size = size(&mut self.random);
                self.put(size)?;
            }
            return Ok(start.nanos() / count as f64);
        }
        let mut young: VecDeque<S::Held> = VecDeque::with_capacity(RECENT);
        for _ in 0..RECENT.min(self.live.len() / 2) {
            young.extend(self.live.pop());
        }
        let start = CpuClock::start();
        for _ in 0..count {
            let oldest = young.pop_front().expect("it is never empty between two turns");
            self.used -= self.space.free(oldest).ok_or_else(not_taken)?;
            let size = size(&mut self.random);
            self.put(size)?;
            young.extend(self.live.pop());
        }
        let nanos = start.nanos();
        self.live.extend(young);
        Ok(nanos / count as f64)
    }

    /// Checks that no two live allocations share a byte, that all lie in the pool,
    /// and that they add up.
    ///
    /// # Errors
    /// [`BenchError::Wrong`] with the first that does not.
    pub(super) fn check(&self) -> Result<(), BenchError> {
        let mut extents: Vec<(u64, u64)> =
            self.live.iter().map(|held| self.space.extent(held)).collect();
        check_disjoint("allocating", &mut extents, self.capacity)?;
        let sum: u64 = extents.iter().map(|(_, len)| len).sum();
        if sum != self.used {
            let found = format!("the live ones have {sum} bytes, not {}", self.used);
            return Err(BenchError::wrong("allocating", found));
        }
        Ok(())
    }

    fn try_put(&mut self, size: u64) -> bool {
        match self.space.allocate(size) {
            Some(held) => {
                self.live.push(held);
                self.used += size;
                true
            }
            None => false,
        }
    }

    fn free_one(&mut self) -> Result<(), BenchError> {
        let victim = self.random.usize(..self.live.len());
        let held = self.live.swap_remove(victim);
        self.used -= self.space.free(held).ok_or_else(not_taken)?;
        Ok(())
    }
}

/// Checks that extents (first byte and length) lie in `[0, capacity)` and apart
/// from each other; sorts them.
pub(crate) fn check_disjoint(
    what: &'static str,
    extents: &mut [(u64, u64)],
    capacity: u64,
) -> Result<(), BenchError> {
    extents.sort_unstable();
    let mut end = 0;
    for (offset, len) in extents.iter() {
        if *offset < end {
            return Err(BenchError::wrong(what, format!("two extents overlap at {offset}")));
        }
        end = offset + len;
    }
    if end > capacity {
        return Err(BenchError::wrong(what, format!("an extent ends at {end} of {capacity}")));
    }
    Ok(())
}

fn refused(size: u64) -> BenchError {
    BenchError::wrong("allocating", format!("{size} bytes are refused in an empty pool"))
}

fn not_taken() -> BenchError {
    BenchError::wrong("freeing", "a live allocation is refused")
}

#[cfg(test)]
mod tests {
    use super::super::space::{Ours, Published};
    use super::*;

    #[test]
    fn overlaps_are_found() {
        let check = |mut extents: Vec<(u64, u64)>| check_disjoint("x", &mut extents, 100);
        assert!(check(vec![(50, 50), (0, 50)]).is_ok());
        assert!(check(vec![(49, 50), (0, 50)]).is_err());
        assert!(check(vec![(51, 50)]).is_err());
        assert!(check(vec![]).is_ok());
    }

    #[test]
    fn both_allocators_keep_the_books() {
        fn used<S: Space>() -> u64 {
            let mut churn = Churn::<S>::new(1 << 30, 1024, 1 << 16);
            churn.evicted_part = 0.05;
            churn.steady(2000, |random| random.u64(1..=4096) << 10).unwrap();
            churn.check().unwrap();
            churn.used
        }
        assert!(used::<Ours>() > used::<Published>() / 2);
    }

    #[test]
    fn gaps_stay_in_the_books() {
        for recent in [true, false] {
            let mut churn = Churn::<Ours>::new(1 << 30, 1, 0);
            assert!(churn.among_gaps(1000, 1000, recent).unwrap() > 0.0);
            churn.check().unwrap();
            assert_eq!(churn.live.len(), 1000);
        }
    }
}
