//! Looking for an answer for a while before sleeping for it.
//!
//! A thread that sleeps is woken by an interrupt of the CPU that it slept on, which in a virtual
//! machine takes longer than the master needs to answer. A thread that looks again and again yields
//! its CPU each time, so that a master on the same one can answer.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::thread;
use std::time::Instant;

/// The threads of this process that wait for answers.
static WAITING: Crowd = Crowd::new();

/// Most that may wait while one of them looks. With more there are other things that the CPUs can do, and
/// a thread that sleeps is woken by a CPU that is awake; one that looks takes the time that the others'
/// answers need. Eight threads did hardly more calls with one that looks, and the slowest of a hundred took
/// up to five times as long. Two do half as many again.
const MAX_BESIDE: u32 = 2;

/// After so many answers of a connection that took longer, a look does not pay.
const MAX_IN_VAIN: u32 = 8;

/// How many calls later it is tried again.
const RETRY_AFTER: u32 = 16;

/// The habit of one connection.
#[derive(Debug)]
pub(super) struct Spin {
    crowd: &'static Crowd,
    limit: Duration,
    /// Calls since the last answer that came in time, without those where it could not look.
    in_vain: u32,
}

impl Spin {
    /// Looks for so long.
    pub(super) fn new(limit: Duration) -> Self {
        Self { crowd: &WAITING, limit, in_vain: 0 }
    }

    /// Begins to wait for an answer, until what is returned is dropped.
    pub(super) fn begin(&self) -> Waiting {
        self.crowd.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(self.crowd)
    }

    /// Returns the result of `look` if it finds something soon, and `None` otherwise or if that is
    /// not to be expected.
    pub(super) fn look<T>(
        &mut self,
        waiting: &Waiting,
        mut look: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if self.limit.is_zero() {
            return None;
        }
        let _turn = waiting.turn()?;
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
            if waiting.is_crowded() || begin.elapsed() >= self.limit {
                return None;
            }
            thread::yield_now();
        }
    }
}

/// Threads that wait, of which one at a time may look.
#[derive(Debug)]
struct Crowd {
    waiting: AtomicU32,
    is_looked: AtomicBool,
}

impl Crowd {
    const fn new() -> Self {
        Self { waiting: AtomicU32::new(0), is_looked: AtomicBool::new(false) }
    }
}

/// A thread that waits.
#[must_use]
pub(super) struct Waiting(&'static Crowd);

impl Waiting {
    fn is_crowded(&self) -> bool {
        self.0.waiting.load(Ordering::Relaxed) > MAX_BESIDE
    }

    /// The turn to look, if it can be had.
    fn turn(&self) -> Option<Turn> {
        let may = !self.is_crowded() && !self.0.is_looked.swap(true, Ordering::Acquire);
        may.then(|| Turn(self.0))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Lets the next one look.
struct Turn(&'static Crowd);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.is_looked.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(1);

    fn spin(limit: Duration) -> Spin {
        Spin { crowd: Box::leak(Box::new(Crowd::new())), ..Spin::new(limit) }
    }

    #[test]
    fn what_comes_is_found() {
        let (mut looks, mut spin) = (0, spin(Duration::from_secs(30)));
        let waiting = spin.begin();
        let found = spin.look(&waiting, || {
            looks += 1;
            (looks == 1000).then_some(looks)
        });
        assert_eq!(found, Some(1000));
    }

    #[test]
    fn one_looks_at_a_time_and_none_without_time() {
        let mut never = spin(Duration::ZERO);
        assert_eq!(never.look(&never.begin(), || Some(())), None);

        let mut one = spin(LIMIT);
        let mut other = Spin { crowd: one.crowd, ..Spin::new(LIMIT) };
        let (first, second) = (one.begin(), other.begin());
        let found = one.look(&first, || Some(other.look(&second, || Some(()))));
        assert_eq!(found, Some(None), "the other finds it taken");
        assert_eq!(other.look(&second, || Some(())), Some(()));
    }

    #[test]
    fn nobody_looks_in_a_crowd() {
        let mut one = spin(Duration::from_secs(30));
        let (waiting, mut others) = (one.begin(), Vec::new());
        let crowd = one.crowd;
        let found = one.look(&waiting, || {
            others.push(Spin { crowd, ..Spin::new(LIMIT) }.begin());
            None::<()>
        });
        assert_eq!((found, others.len()), (None, 2), "it stops when there is one");
        assert_eq!(one.look(&waiting, || Some(())), None);
        others.pop();
        assert_eq!(one.look(&waiting, || Some(())), Some(()));
    }

    #[test]
    fn a_look_in_vain_is_rarely_repeated() {
        let mut spin = spin(LIMIT);
        let mut looked = |finds: bool| {
            let mut looked = false;
            let found = spin.look(&spin.begin(), || {
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
