//! Looking for an answer for a while before sleeping for it.
//!
//! A thread that sleeps is woken by an interrupt of the CPU that it slept on, which in a virtual
//! machine takes longer than the master needs to answer. A thread that looks again and again yields
//! its CPU each time, so that a master on the same one can answer.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::thread;
use std::time::Instant;

/// One thread of this process looks at a time: with more there are other things that the CPUs can
/// do, and a thread that sleeps is woken by a CPU that is awake.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// After so many answers of a connection that took longer, a look does not pay.
const MAX_IN_VAIN: u32 = 8;

/// How many calls later it is tried again.
const RETRY_AFTER: u32 = 16;

/// The habit of one connection.
#[derive(Debug)]
pub(super) struct Spin {
    is_taken: &'static AtomicBool,
    limit: Duration,
    /// Calls since the last answer that came in time, without those that found it taken.
    in_vain: u32,
}

impl Spin {
    /// Looks for so long.
    pub(super) fn new(limit: Duration) -> Self {
        Self { is_taken: &IS_TAKEN, limit, in_vain: 0 }
    }

    /// Returns the result of `look` if it finds something soon, and `None` otherwise or if that is
    /// not to be expected.
    pub(super) fn wait<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if self.limit.is_zero() || self.is_taken.swap(true, Ordering::Acquire) {
            return None;
        }
        let _turn = Turn(self.is_taken);
        self.in_vain = self.in_vain.wrapping_add(1);
        if self.in_vain > MAX_IN_VAIN && !self.in_vain.is_multiple_of(RETRY_AFTER) {
            return None;
        }
        let begin = Instant::now();
        loop {
            if let Some(found) = look() {
                self.in_vain = 0;
                return Some(found);
            }
            if begin.elapsed() >= self.limit {
                return None;
            }
            thread::yield_now();
        }
    }
}

/// Lets the next one look.
struct Turn(&'static AtomicBool);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(1);

    fn spin(limit: Duration) -> Spin {
        let is_taken = Box::leak(Box::new(AtomicBool::new(false)));
        Spin { is_taken, ..Spin::new(limit) }
    }

    #[test]
    fn what_comes_is_found() {
        let mut looks = 0;
        let found = spin(Duration::from_secs(30)).wait(|| {
            looks += 1;
            (looks == 1000).then_some(looks)
        });
        assert_eq!(found, Some(1000));
    }

    #[test]
    fn nobody_looks_without_time_or_turn() {
        assert_eq!(spin(Duration::ZERO).wait(|| Some(())), None);
        let mut other = spin(LIMIT);
        let mut one = Spin { is_taken: other.is_taken, ..Spin::new(LIMIT) };
        assert_eq!(one.wait(|| Some(other.wait(|| Some(())))), Some(None));
        assert_eq!(other.wait(|| Some(())), Some(()));
    }

    #[test]
    fn a_look_in_vain_is_rarely_repeated() {
        let mut spin = spin(LIMIT);
        let mut looked = |finds: bool| {
            let mut looked = false;
            let found = spin.wait(|| {
                looked = true;
                finds.then_some(())
            });
            assert_eq!(found.is_some(), finds && looked);
            looked
        };
        assert_eq!((0..MAX_IN_VAIN).filter(|_| looked(false)).count(), MAX_IN_VAIN as usize);
        let more = 100 * RETRY_AFTER;
        assert_eq!((0..more).filter(|_| looked(false)).count(), 100);
        // The next time that it is tried it finds something, and is a habit again.
        assert!((0..RETRY_AFTER).any(|_| looked(true)));
        assert!((0..1000).all(|_| looked(true)));
    }
}
