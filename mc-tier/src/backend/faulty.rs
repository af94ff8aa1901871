//! A medium that fails when a test wants it to.

use core::time::Duration;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use mc_types::ByteSize;
use parking_lot::Mutex;

use super::StorageBackend;
use crate::chances::{Chances, broken_disk};

/// The bytes that a medium of little space gives at a time.
const BLOCK: u64 = 4096;

/// Wraps a backend that is slow, hung, full, read-only, broken or lying, as a test wants it. What happens
/// at random is the same for the same seed and operations.
#[derive(Debug)]
pub struct FaultyBackend<B> {
    inner: B,
    chances: Chances<BackendFaults>,
    /// The numbers of the blocks that have space of the medium.
    blocks: Mutex<BTreeSet<u64>>,
}

/// The faults of a [`FaultyBackend`]. Chances are from 0, never, to 1, always.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct BackendFaults {
    /// The chance that a write finds the disk full. It has written a part of the bytes.
    pub full: f64,
    /// The chance that a write fails as on a broken disk. It has written a part of the bytes.
    pub write_fails: f64,
    /// The chance that a write says that all is well, and has written nothing.
    pub write_lost: f64,
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
    /// Whether operations wait until this is not set any more.
    pub hangs: bool,
    /// Whether everything but reads fails as on a file system that is mounted read-only.
    pub read_only: bool,
    /// The space that the medium has for all, in blocks of 4096 bytes which it gives when they are written or
    /// reserved first; `None` for enough. What was written before counts, also where this is less.
    pub space: Option<ByteSize>,
    /// Whether space cannot be reserved, so that writing tells.
    pub reserves_nothing: bool,
    /// A range of offsets where reads and writes fail, as of bad sectors; empty by default.
    pub bad: (u64, u64),
}

impl<B: StorageBackend> FaultyBackend<B> {
    /// A backend without faults yet.
    #[must_use]
    pub fn new(inner: B, seed: u64) -> Self {
        Self { inner, chances: Chances::new(seed), blocks: Mutex::default() }
    }

    /// Has these faults from now on. Operations that hang go on if the new ones do not.
    pub fn set(&self, faults: BackendFaults) {
        self.chances.set(faults);
    }

    /// Fails where an operation on this range meets a bad sector.
    fn begin(&self, offset: u64, len: usize) -> io::Result<()> {
        self.chances.wait_while(|faults| faults.hangs);
        self.chances.wait(|faults| faults.delay);
        let (begin, end) = self.chances.of(|faults| faults.bad);
        let is_bad = offset.max(begin) < (offset + len as u64).min(end);
        if is_bad { Err(broken_disk()) } else { Ok(()) }
    }

    /// Fails where the medium is read-only.
    fn change(&self) -> io::Result<()> {
        let is_read_only = self.chances.of(|faults| faults.read_only);
        if is_read_only { Err(io::ErrorKind::ReadOnlyFilesystem.into()) } else { Ok(()) }
    }

    /// Takes space for a range; none of it if there is not enough.
    fn take_space(&self, offset: u64, len: u64) -> io::Result<()> {
        let space = self.chances.of(|faults| faults.space);
        let mut blocks = self.blocks.lock();
        let wanted = offset / BLOCK..(offset + len).div_ceil(BLOCK);
        let new: Vec<u64> = wanted.filter(|block| !blocks.contains(block)).collect();
        let taken = (blocks.len() + new.len()) as u64 * BLOCK;
        if !new.is_empty() && space.is_some_and(|space| taken > space.as_u64()) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        blocks.extend(new);
        Ok(())
    }
}

impl<B: StorageBackend> StorageBackend for FaultyBackend<B> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.begin(offset, buffer.len())?;
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
        self.begin(offset, bytes.len())?;
        self.change()?;
        self.take_space(offset, bytes.len() as u64)?;
        let error = if self.chances.happens(|faults| faults.full) {
            io::ErrorKind::StorageFull.into()
        } else if self.chances.happens(|faults| faults.write_fails) {
            broken_disk()
        } else if self.chances.happens(|faults| faults.write_lost) {
            return Ok(());
        } else {
            return self.inner.write(offset, bytes);
        };
        let part = self.chances.below(bytes.len());
        self.inner.write(offset, &bytes[..part])?;
        Err(error)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.begin(offset, 0)?;
        self.change()?;
        if self.chances.of(|faults| faults.reserves_nothing) {
            return Ok(());
        }
        self.take_space(offset, len)?;
        self.inner.reserve(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.begin(offset, 0)?;
        self.change()?;
        let given = offset.div_ceil(BLOCK)..(offset + len) / BLOCK;
        self.blocks.lock().retain(|block| !given.contains(block));
        self.inner.discard(offset, len)
    }

    fn sync(&self) -> io::Result<()> {
        self.begin(0, 0)?;
        self.change()?;
        if self.chances.happens(|faults| faults.sync_fails) {
            return Err(broken_disk());
        }
        self.inner.sync()
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }
}
