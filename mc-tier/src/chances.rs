//! Faults at random, the same for the same seed.

use core::time::Duration;
use std::io;

use mc_types::SplitMix64;
use parking_lot::{Condvar, Mutex};

/// The faults and their source of randomness. `F` has a chance for each fault, from 0, never, to 1,
/// always.
#[derive(Debug)]
pub(crate) struct Chances<F>(Mutex<State<F>>, Condvar);

#[derive(Debug)]
struct State<F> {
    faults: F,
    random: SplitMix64,
}

impl<F: Default> Chances<F> {
    /// No faults yet.
    pub(crate) fn new(seed: u64) -> Self {
        let state = State { faults: F::default(), random: SplitMix64::new(seed) };
        Self(Mutex::new(state), Condvar::new())
    }

    pub(crate) fn set(&self, faults: F) {
        self.0.lock().faults = faults;
        self.1.notify_all();
    }

    /// Waits while a fault is set.
    pub(crate) fn wait_while(&self, is_set: impl Fn(&F) -> bool) {
        let mut state = self.0.lock();
        while is_set(&state.faults) {
            self.1.wait(&mut state);
        }
    }

    /// Returns the setting of a fault.
    pub(crate) fn of<T>(&self, fault: impl Fn(&F) -> T) -> T {
        fault(&self.0.lock().faults)
    }

    /// Returns whether a chance comes true.
    pub(crate) fn happens(&self, chance: impl Fn(&F) -> f64) -> bool {
        let mut state = self.0.lock();
        // Below 1: as many bits as an f64 holds.
        let drawn = (state.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        drawn < chance(&state.faults)
    }

    pub(crate) fn below(&self, bound: usize) -> usize {
        self.0.lock().random.below(bound)
    }

    /// Takes the time that an operation takes longer.
    pub(crate) fn wait(&self, delay: impl Fn(&F) -> Duration) {
        let delay = delay(&self.0.lock().faults);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
    }
}

/// Returns the error of a broken disk: EIO, by its number on Unix systems.
pub(crate) fn broken_disk() -> io::Error {
    io::Error::from_raw_os_error(5)
}
