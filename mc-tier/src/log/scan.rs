//! Finds the records of a segment.

use std::io;

use super::record::{BLOCK, MAX_RECORD_HEADER_LEN, Record, is_record, padded, parse_record};
use crate::backend::StorageBackend;
use crate::error::Damage;
use crate::object_file::HeaderError;

/// Bytes that are read at once: enough for the longest header at any block.
const WINDOW: u64 = 16 << 10;

/// The records between two offsets, one after the other. Damaged ones are passed over.
#[derive(Debug)]
pub(super) struct Records<'a> {
    backend: &'a dyn StorageBackend,
    nonce: u64,
    at: u64,
    end: u64,
    window: Vec<u8>,
    window_at: u64,
    /// The number of places at which records were passed over.
    pub(super) damaged: u64,
}

impl<'a> Records<'a> {
    pub(super) fn new(backend: &'a dyn StorageBackend, nonce: u64, begin: u64, end: u64) -> Self {
        Self { backend, nonce, at: begin, end, window: Vec::new(), window_at: begin, damaged: 0 }
    }

    /// Returns the next record and its offset; `None` behind the last one.
    pub(super) fn next(&mut self) -> io::Result<Option<(u64, Record)>> {
        let mut has_skipped = false;
        while self.at < self.end {
            if let Some(record) = self.record()? {
                let at = self.at;
                self.at += padded(record.len());
                // Where no record follows, the last write was not finished.
                self.damaged += u64::from(has_skipped);
                return Ok(Some((at, record)));
            }
            has_skipped = true;
            self.at += BLOCK;
        }
        Ok(None)
    }

    /// The record at the current offset, if there is one.
    fn record(&mut self) -> io::Result<Option<Record>> {
        let (nonce, left) = (self.nonce, self.end - self.at);
        // Most headers are in one block.
        let bytes = self.bytes(BLOCK)?;
        if !is_record(bytes, nonce) {
            return Ok(None);
        }
        let record = match parse_record(bytes, nonce) {
            Err(HeaderError::Damaged(Damage::Length { .. })) => {
                parse_record(self.bytes(MAX_RECORD_HEADER_LEN as u64)?, nonce)
            }
            parsed => parsed,
        };
        Ok(record.ok().filter(|record| record.len() <= left))
    }

    /// The bytes at the current offset: at least so many, or all that are left.
    fn bytes(&mut self, least: u64) -> io::Result<&[u8]> {
        let left = self.end - self.at;
        let behind = self.window_at + self.window.len() as u64;
        if self.at + least.min(left) > behind {
            self.window.resize(left.min(WINDOW) as usize, 0);
            self.backend.read(self.at, &mut self.window)?;
            self.window_at = self.at;
        }
        Ok(&self.window[(self.at - self.window_at) as usize..])
    }
}
