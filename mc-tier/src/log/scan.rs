//! Finds the records of a segment.

use std::io;

use super::record::{
    BLOCK, MAX_RECORD_HEADER_LEN, Record, has_first_blocks, padded, parse_record, was_record,
};
use super::table::DeadBlocks;
use crate::backend::{BufferPool, IoBuffer, StorageBackend};
use crate::error::Damage;
use crate::object_file::HeaderError;

/// Bytes that are read at once: enough for a disk to be busy.
const WINDOW: u64 = 512 << 10;

/// Bytes that are read at once behind a record that is longer than a window: enough for the longest
/// header. The bytes of its object are skipped, and those of the next one may be, too.
const SHORT_WINDOW: u64 = 16 << 10;

/// The records between two offsets, one after the other. Damaged ones are passed over.
#[derive(Debug)]
pub(super) struct Records<'a> {
    backend: &'a dyn StorageBackend,
    pool: &'a BufferPool,
    nonce: u64,
    /// Blocks where records are not missed, counted from the segment's first.
    dead: Option<&'a DeadBlocks>,
    begin: u64,
    at: u64,
    end: u64,
    window: IoBuffer,
    window_at: u64,
    /// The next length of the window.
    window_len: u64,
    /// The number of places at which records were passed over.
    pub(super) damaged: u64,
}

impl<'a> Records<'a> {
    /// The records from `at` to `end` of the segment that begins at `begin`.
    pub(super) fn new(
        backend: &'a dyn StorageBackend,
        pool: &'a BufferPool,
        (begin, at, end): (u64, u64, u64),
        nonce: u64,
        dead: Option<&'a DeadBlocks>,
    ) -> Self {
        let (window, window_at, window_len, damaged) = (pool.take(0), at, WINDOW, 0);
        Self { backend, pool, nonce, dead, begin, at, end, window, window_at, window_len, damaged }
    }

    /// Where the next record is looked for.
    pub(super) const fn at(&self) -> u64 {
        self.at
    }

    /// Returns the next record and its first block, counted from the segment's first; `None` behind
    /// the last one.
    pub(super) fn next(&mut self) -> io::Result<Option<(u64, Record)>> {
        let mut has_skipped = false;
        while self.at < self.end {
            let block = (self.at - self.begin) / BLOCK;
            match self.record()? {
                Ok(record) => {
                    let len = padded(record.len());
                    self.at += len;
                    self.window_len = if len > WINDOW { SHORT_WINDOW } else { WINDOW };
                    // Where no record follows, the last write was not finished.
                    self.damaged += u64::from(has_skipped);
                    return Ok(Some((block, record)));
                }
                Err(was_record) => {
                    has_skipped |=
                        was_record && !self.dead.is_some_and(|dead| dead.contains(block));
                    self.at += BLOCK;
                    self.window_len = WINDOW;
                }
            }
        }
        Ok(None)
    }

    /// The record at the current offset, or else whether there was one.
    fn record(&mut self) -> io::Result<Result<Record, bool>> {
        let (nonce, left) = (self.nonce, self.end - self.at);
        // Most headers are in one block.
        let bytes = self.bytes(BLOCK)?;
        if !was_record(bytes, nonce) {
            return Ok(Err(false));
        }
        let record = match parse_record(bytes, nonce) {
            Err(HeaderError::Damaged(Damage::Length { .. })) => {
                parse_record(self.bytes(MAX_RECORD_HEADER_LEN as u64)?, nonce)
            }
            parsed => parsed,
        };
        let Some(record) = record.ok().filter(|record| padded(record.len()) <= left) else {
            return Ok(Err(true));
        };
        let len = padded(record.header_len as u64);
        let is_whole = has_first_blocks(&self.bytes(len)?[..len as usize], record.header_len);
        Ok(if is_whole { Ok(record) } else { Err(true) })
    }

    /// The bytes at the current offset: at least so many, or all that are left.
    fn bytes(&mut self, least: u64) -> io::Result<&[u8]> {
        let left = self.end - self.at;
        let behind = self.window_at + self.window.len() as u64;
        if self.at + least.min(left) > behind {
            self.window = self.pool.take(left.min(self.window_len) as usize);
            self.backend.read(self.at, &mut self.window)?;
            self.window_at = self.at;
        }
        Ok(&self.window[(self.at - self.window_at) as usize..])
    }
}
