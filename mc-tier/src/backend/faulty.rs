//! A medium that fails when a test wants it to.

use core::time::Duration;
use std::io;
use std::path::Path;

use mc_types::SplitMix64;
use parking_lot::Mutex;

use super::StorageBackend;

/// Wraps a backend that fails at random. The same seed and operations give the same faults.
#[derive(Debug)]
pub struct FaultyBackend<B> {
    inner: B,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    faults: BackendFaults,
    random: SplitMix64,
}

/// What a [`FaultyBackend`] does wrong. Chances are from 0, never, to 1, always.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct BackendFaults {
    /// The chance that a write finds the disk full. It has written a part of the bytes.
    pub full: f64,
    /// The chance that a write fails as on a broken disk. It has written a part of the bytes.
    pub write_fails: f64,
    /// The chance that a read fails as on a broken disk. It has read a part of the bytes.
    pub read_fails: f64,
    /// The chance that a read returns a flipped bit.
    pub flipped_bit: f64,
    /// The chance that a sync fails.
    pub sync_fails: f64,
    /// The time that every operation takes longer.
    pub delay: Duration,
}

impl<B: StorageBackend> FaultyBackend<B> {
    /// A backend without faults yet.
    #[must_use]
    pub fn new(inner: B, seed: u64) -> Self {
        let state = State { faults: BackendFaults::default(), random: SplitMix64::new(seed) };
        Self { inner, state: Mutex::new(state) }
    }

    /// Has these faults from now on.
    pub fn set(&self, faults: BackendFaults) {
        self.state.lock().faults = faults;
    }

    /// Returns whether a chance comes true.
    fn happens(&self, chance: impl Fn(&BackendFaults) -> f64) -> bool {
        let mut state = self.state.lock();
        // Below 1: as many bits as an f64 holds.
        let drawn = (state.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        drawn < chance(&state.faults)
    }

    fn below(&self, bound: usize) -> usize {
        self.state.lock().random.below(bound)
    }

    fn delay(&self) {
        let delay = self.state.lock().faults.delay;
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
    }
}

/// The number of EIO on Unix systems.
const EIO: i32 = 5;

impl<B: StorageBackend> StorageBackend for FaultyBackend<B> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.delay();
        if self.happens(|faults| faults.read_fails) {
            let part = self.below(buffer.len());
            self.inner.read(offset, &mut buffer[..part])?;
            return Err(io::Error::from_raw_os_error(EIO));
        }
        self.inner.read(offset, buffer)?;
        if self.happens(|faults| faults.flipped_bit) {
            let bit = self.below(8 * buffer.len());
            buffer[bit / 8] ^= 1 << (bit % 8);
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.delay();
        let error = if self.happens(|faults| faults.full) {
            io::ErrorKind::StorageFull.into()
        } else if self.happens(|faults| faults.write_fails) {
            io::Error::from_raw_os_error(EIO)
        } else {
            return self.inner.write(offset, bytes);
        };
        let part = self.below(bytes.len());
        self.inner.write(offset, &bytes[..part])?;
        Err(error)
    }

    fn sync(&self) -> io::Result<()> {
        self.delay();
        if self.happens(|faults| faults.sync_fails) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        self.inner.sync()
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }
}
