//! Batches from a file or a stream.

use core::mem;
use std::io::{self, Read};

use bytes::BytesMut;

use super::batch::{Batch, BatchError, HEADER_LEN, MAGIC, batch_len};

/// Bytes that are read at a time.
const READ: usize = 1 << 20;

/// Reads batches one after the other. Behind a damaged one it continues with the next.
#[derive(Debug)]
pub struct BatchReader<R> {
    input: R,
    /// The bytes before each batch.
    mark: Vec<u8>,
    buffer: BytesMut,
    is_at_end: bool,
}

impl<R: Read> BatchReader<R> {
    /// Reads from here.
    #[must_use]
    pub fn new(input: R) -> Self {
        Self::marked(input, &[])
    }

    /// Reads from here the batches that stand directly behind this mark, and no others: keys and
    /// checksums in a batch may look like one.
    #[must_use]
    pub fn marked(input: R, mark: &[u8]) -> Self {
        Self { input, mark: mark.into(), buffer: BytesMut::new(), is_at_end: false }
    }

    /// The next batch, or what is in its place; `None` at the end.
    ///
    /// # Errors
    /// What the input says.
    pub fn next_batch(&mut self) -> io::Result<Option<Result<Batch, BatchError>>> {
        let start = self.mark.len();
        self.fill(start + HEADER_LEN)?;
        if self.buffer.is_empty() {
            return Ok(None);
        }
        let have = self.buffer.len().saturating_sub(start);
        if have < HEADER_LEN {
            self.buffer.clear();
            return Ok(Some(Err(BatchError::CutOff { have, len: HEADER_LEN })));
        }
        if !self.buffer.starts_with(&self.mark) {
            return self.pass_over(BatchError::NoBatch);
        }
        let header = self.buffer[start..].first_chunk().expect("there are enough bytes");
        let len = match batch_len(header) {
            Ok(len) => len,
            Err(error) => return self.pass_over(error),
        };
        self.fill(start + len)?;
        if self.buffer.len() < start + len {
            // Or its length is damaged, and more follows.
            return self.pass_over(BatchError::CutOff { have: self.buffer.len() - start, len });
        }
        let bytes = self.buffer.split_to(start + len).freeze();
        match Batch::parse(bytes.slice(start..)) {
            Ok(batch) => Ok(Some(Ok(batch))),
            Err(error) => {
                // Its length may be damaged, too: the next one may begin inside of it.
                let behind = mem::replace(&mut self.buffer, BytesMut::from(&bytes[..]));
                self.buffer.unsplit(behind);
                self.pass_over(error)
            }
        }
    }

    /// Goes on where the next batch may begin.
    fn pass_over(&mut self, error: BatchError) -> io::Result<Option<Result<Batch, BatchError>>> {
        let mut from = 1;
        let begin = [&self.mark, &MAGIC[..]].concat();
        loop {
            let rest = &self.buffer[from.min(self.buffer.len())..];
            if let Some(at) = rest.windows(begin.len()).position(|window| window == begin) {
                let _ = self.buffer.split_to(from + at);
                return Ok(Some(Err(error)));
            }
            // The last bytes may be the first ones of a batch.
            let keep = self.buffer.len().saturating_sub(begin.len() - 1).max(from);
            let _ = self.buffer.split_to(keep.min(self.buffer.len()));
            from = 0;
            if self.is_at_end {
                self.buffer.clear();
                return Ok(Some(Err(error)));
            }
            self.fill(READ)?;
        }
    }

    /// Reads until there are so many bytes, or no more.
    fn fill(&mut self, len: usize) -> io::Result<()> {
        while self.buffer.len() < len && !self.is_at_end {
            let have = self.buffer.len();
            // What is announced is reserved as it comes.
            let more = READ.max((len - have).min(4 * READ));
            self.buffer.resize(have + more, 0);
            let read = loop {
                match self.input.read(&mut self.buffer[have..]) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    read => break read,
                }
            };
            self.buffer.truncate(have + *read.as_ref().unwrap_or(&0));
            self.is_at_end = read? == 0;
        }
        Ok(())
    }
}
