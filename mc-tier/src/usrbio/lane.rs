//! Calls over a ring, one at a time.

use core::ops::Range;
use core::time::Duration;
use std::collections::VecDeque;
use std::io;

use super::library::{Registered, Ring};

/// A ring, and the requests that are on their way in it.
pub(super) struct Lane {
    ring: Ring,
    /// For each block the range of the call's buffer that it is for.
    pending: Vec<Option<Range<usize>>>,
}

/// The caller's bytes.
pub(super) enum Target<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

impl Target<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Read(buffer) => buffer.len(),
            Self::Write(bytes) => bytes.len(),
        }
    }
}

impl Lane {
    pub(super) fn new(ring: Ring) -> Self {
        let pending = vec![None; ring.blocks()];
        Self { ring, pending }
    }

    /// Reads or writes bytes of the file from `offset` on. Returns the ranges that a read found
    /// nothing for.
    ///
    /// After a failure, waits for the requests that are on their way. Those that have not ended
    /// when the time is up are waited for by the next call, which fails when they still have not: a
    /// write that timed out never overwrites a later one.
    pub(super) fn transfer(
        &mut self,
        file: &Registered,
        offset: u64,
        mut target: Target<'_>,
        timeout: Duration,
    ) -> io::Result<Vec<Range<usize>>> {
        self.drain(timeout)?;
        let block_len = self.ring.block_len();
        let begins = (0..target.len()).step_by(block_len);
        let mut pieces: VecDeque<_> =
            begins.map(|begin| begin..target.len().min(begin + block_len)).collect();
        let (mut holes, mut failure) = (Vec::new(), None);
        loop {
            if failure.is_none() {
                failure = self.prepare(file, offset, &target, &mut pieces).err();
            }
            if self.is_idle() {
                return failure.map_or(Ok(holes), Err);
            }
            failure = failure.or(self.ring.submit().err());
            let results = match self.ring.wait(timeout) {
                Ok(results) if !results.is_empty() => results,
                Ok(_) => return Err(failure.unwrap_or_else(|| late("3FS has not answered"))),
                Err(error) => return Err(failure.unwrap_or(error)),
            };
            for (block, result) in results {
                let piece = self.pending.get_mut(block).and_then(Option::take);
                let taken = piece.ok_or_else(foreign).and_then(|piece| {
                    let rest = self.take(block, &piece, result?, &mut target)?;
                    match rest {
                        rest if rest == piece => holes.push(rest),
                        rest if rest.is_empty() => {}
                        rest => pieces.push_front(rest),
                    }
                    Ok(())
                });
                failure = failure.or(taken.err());
            }
        }
    }

    /// Prepares requests for pieces as long as there are free blocks.
    fn prepare(
        &mut self,
        file: &Registered,
        offset: u64,
        target: &Target<'_>,
        pieces: &mut VecDeque<Range<usize>>,
    ) -> io::Result<()> {
        for block in 0..self.pending.len() {
            if self.pending[block].is_some() {
                continue;
            }
            let Some(piece) = pieces.front() else { return Ok(()) };
            if let Target::Write(bytes) = target {
                self.ring.fill(block, &bytes[piece.clone()]);
            }
            match self.ring.prepare(file, block, piece.len(), offset + piece.start as u64) {
                Ok(()) => self.pending[block] = pieces.pop_front(),
                // The ring is full; results make room.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !self.is_idle() => {
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes the bytes of a request that has ended, and returns what of its piece is left: all of
    /// it where a read found nothing.
    fn take(
        &self,
        block: usize,
        piece: &Range<usize>,
        len: usize,
        target: &mut Target<'_>,
    ) -> io::Result<Range<usize>> {
        if len > piece.len() {
            return Err(foreign());
        }
        let rest = piece.start + len..piece.end;
        match target {
            Target::Read(buffer) => self.ring.copy(block, &mut buffer[piece.start..rest.start]),
            Target::Write(_) if len == 0 => return Err(io::ErrorKind::WriteZero.into()),
            Target::Write(_) => {}
        }
        Ok(rest)
    }

    /// Waits for the requests of a call that timed out.
    fn drain(&mut self, timeout: Duration) -> io::Result<()> {
        while !self.is_idle() {
            let results = self.ring.wait(timeout)?;
            if results.is_empty() {
                return Err(late("3FS has not yet answered an earlier request that timed out"));
            }
            for (block, _) in results {
                if let Some(pending) = self.pending.get_mut(block) {
                    *pending = None;
                }
            }
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.pending.iter().all(Option::is_none)
    }
}

fn late(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

fn foreign() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "USRBIO returned a result of no request")
}
