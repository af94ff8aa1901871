//! A medium that fails when a test wants it to.

use core::time::Duration;
use std::io;
use std::path::Path;

use super::StorageBackend;
use crate::chances::{Chances, broken_disk};

/// Wraps a backend that fails at random. The same seed and operations give the same faults.
#[derive(Debug)]
pub struct FaultyBackend<B> {
    inner: B,
    chances: Chances<BackendFaults>,
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
    /// The chance that a read finds the end of the medium before its own.
    pub read_ends: f64,
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
        Self { inner, chances: Chances::new(seed) }
    }

    /// Has these faults from now on.
    pub fn set(&self, faults: BackendFaults) {
        self.chances.set(faults);
    }
}

impl<B: StorageBackend> StorageBackend for FaultyBackend<B> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.chances.wait(|faults| faults.delay);
        if self.chances.happens(|faults| faults.read_fails) {
            let part = self.chances.below(buffer.len());
            self.inner.read(offset, &mut buffer[..part])?;
            return Err(broken_disk());
        }
        if self.chances.happens(|faults| faults.read_ends) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.inner.read(offset, buffer)?;
        if self.chances.happens(|faults| faults.flipped_bit) {
            let bit = self.chances.below(8 * buffer.len());
            buffer[bit / 8] ^= 1 << (bit % 8);
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.chances.wait(|faults| faults.delay);
        let error = if self.chances.happens(|faults| faults.full) {
            io::ErrorKind::StorageFull.into()
        } else if self.chances.happens(|faults| faults.write_fails) {
            broken_disk()
        } else {
            return self.inner.write(offset, bytes);
        };
        let part = self.chances.below(bytes.len());
        self.inner.write(offset, &bytes[..part])?;
        Err(error)
    }

    fn sync(&self) -> io::Result<()> {
        self.chances.wait(|faults| faults.delay);
        if self.chances.happens(|faults| faults.sync_fails) {
            return Err(broken_disk());
        }
        self.inner.sync()
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }
}
