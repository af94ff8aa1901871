//! Bytes between a stream and memory, in bounded copies: quinn keeps what it sends until
//! it is acknowledged, and registered memory may change or go away before that.

use bytes::Bytes;
use mc_transport::MemorySlice;
use mc_transport::backend::{Summing, guarded};
use mc_transport::{BootTime, Cancel, Source};
use quinn::{ReadError, RecvStream, SendStream, WriteError};
use tokio::task::yield_now;

use super::clock::Clock;
use super::fault::CLOSED;

/// Chunks taken from a stream under one lock of its connection; each is about a packet.
const CHUNKS: usize = 32;

/// Bytes of headers and small payloads that leave together.
const TOGETHER: usize = 64 << 10;

/// Payloads up to this size are copied behind their header.
const SMALL: usize = 16 << 10;

/// Bytes of memory copied at a time; the second cache still has them when they are
/// encrypted.
const CHUNK: usize = 128 << 10;

/// Bytes moved before the task that sends and receives packets gets its turn.
const YIELD_AFTER: usize = 512 << 10;

/// Why bytes could not be moved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FlowError {
    #[error("the peer ended the stream in the middle of a header or payload")]
    Truncated,
    #[error("the grant of a write ended")]
    GrantEnded,
    #[error("cannot receive")]
    Read(#[from] ReadError),
    #[error("cannot send")]
    Write(#[from] WriteError),
}

/// The receiving half of a stream.
pub(super) struct Inflow<'a> {
    stream: RecvStream,
    clock: &'a Clock,
    chunks: [Bytes; CHUNKS],
    /// The first of `chunks` that is still to be parsed.
    next: usize,
    filled: usize,
    since_yield: usize,
}

impl<'a> Inflow<'a> {
    pub(super) fn new(stream: RecvStream, clock: &'a Clock) -> Self {
        let chunks = [const { Bytes::new() }; CHUNKS];
        Self { stream, clock, chunks, next: 0, filled: 0, since_yield: 0 }
    }

    /// Returns whether bytes have arrived that were not taken.
    pub(super) fn is_empty(&self) -> bool {
        self.chunks[self.next..self.filled].iter().all(Bytes::is_empty)
    }

    /// The next `N` bytes; `None` when the stream ends before the first of them.
    pub(super) async fn header<const N: usize>(&mut self) -> Result<Option<[u8; N]>, FlowError> {
        let mut header = [0; N];
        let mut at = 0;
        while at < N {
            let Some(bytes) = self.take(N - at).await? else {
                return if at == 0 { Ok(None) } else { Err(FlowError::Truncated) };
            };
            header[at..at + bytes.len()].copy_from_slice(&bytes);
            at += bytes.len();
        }
        Ok(Some(header))
    }

    /// Fills `pieces`, and adds what they get to `digest`. From the moment on that `cancel` says so
    /// the bytes go nowhere; returns whether all went where they belong.
    pub(super) async fn payload(
        &mut self,
        pieces: &[MemorySlice],
        mut digest: Option<&mut Summing>,
        cancel: Option<&Cancel>,
    ) -> Result<bool, FlowError> {
        let mut is_taken = true;
        for piece in pieces {
            let mut at = 0;
            while at < piece.len() {
                let bytes = self.take(piece.len() - at).await?.ok_or(FlowError::Truncated)?;
                let copied = guarded(cancel, || piece.copy_from(at, &bytes));
                is_taken &= copied.is_some();
                copied
                    .unwrap_or(Ok(()))
                    .expect("the bytes were cut to what the piece, which can be written, has left");
                if let Some(digest) = &mut digest {
                    digest.update(&bytes);
                }
                at += bytes.len();
            }
        }
        Ok(is_taken)
    }

    /// Drops the next `len` bytes.
    pub(super) async fn discard(&mut self, mut len: u64) -> Result<(), FlowError> {
        while len > 0 {
            let most = usize::try_from(len).unwrap_or(usize::MAX);
            len -= self.take(most).await?.ok_or(FlowError::Truncated)?.len() as u64;
        }
        Ok(())
    }

    /// Waits for the end of the stream; `false` when bytes come instead.
    pub(super) async fn is_finished(&mut self) -> Result<bool, FlowError> {
        Ok(self.take(1).await?.is_none())
    }

    /// Refuses what still comes.
    pub(super) fn stop(&mut self, code: quinn::VarInt) {
        // An error says that nothing more can come.
        let _ = self.stream.stop(code);
    }

    /// At most `most` bytes, of one chunk; `None` at the end of the stream.
    ///
    /// # Cancellation
    /// Dropping the future loses nothing.
    pub(super) async fn take(&mut self, most: usize) -> Result<Option<Bytes>, FlowError> {
        loop {
            if let Some(chunk) = self.chunks[..self.filled].get_mut(self.next) {
                if chunk.len() > most {
                    return Ok(Some(chunk.split_to(most)));
                }
                self.next += 1;
                if !chunk.is_empty() {
                    return Ok(Some(std::mem::take(chunk)));
                }
            } else {
                if self.since_yield >= YIELD_AFTER {
                    self.since_yield = 0;
                    yield_now().await;
                }
                let Some(filled) = self.stream.read_chunks(&mut self.chunks).await? else {
                    return Ok(None);
                };
                (self.next, self.filled) = (0, filled);
                let bytes = self.chunks[..filled].iter().map(Bytes::len).sum();
                self.since_yield += bytes;
                self.clock.moved(bytes);
            }
        }
    }
}

/// The sending half of a stream. Dropped before it is [finished](Self::finish), it says that
/// it was broken off: an end in the middle would look like a peer that breaks the protocol.
pub(super) struct Outflow<'a> {
    stream: SendStream,
    is_finished: bool,
    clock: &'a Clock,
    /// Headers and small payloads that were not handed over yet.
    gathered: Vec<u8>,
    /// Bytes that are being sent; kept here so that cancelling the wait loses none.
    leaving: Bytes,
    /// Bytes of memory that were read.
    read: u64,
    handed_over: u64,
    since_yield: usize,
}

impl<'a> Outflow<'a> {
    pub(super) fn new(stream: SendStream, clock: &'a Clock) -> Self {
        Self {
            stream,
            is_finished: false,
            clock,
            gathered: Vec::new(),
            leaving: Bytes::new(),
            read: 0,
            handed_over: 0,
            since_yield: 0,
        }
    }

    /// Sends a header, soon.
    pub(super) async fn header(&mut self, header: &[u8]) -> Result<(), FlowError> {
        if self.gathered.len() >= TOGETHER {
            self.flush().await?;
        }
        self.gathered.extend_from_slice(header);
        Ok(())
    }

    /// Sends `source`, soon, and adds it to `digest`. Memory is read until `until` at most.
    pub(super) async fn payload(
        &mut self,
        source: &Source,
        digest: Option<&mut Summing>,
        until: Option<BootTime>,
    ) -> Result<(), FlowError> {
        match source {
            Source::Memory(slice) => self.memory(slice, digest, until).await,
            Source::Bytes(bytes) => {
                if let Some(digest) = digest {
                    digest.update(bytes);
                }
                if bytes.len() <= SMALL {
                    return self.header(bytes).await;
                }
                self.flush().await?;
                self.hand_over(bytes.clone()).await
            }
        }
    }

    /// Sends `slice` as it is now, soon, and adds what is sent to `digest`. The slice is read until
    /// `until` at most.
    ///
    /// # Cancellation
    /// The bytes that were [read](Self::bytes_read) are sent with what follows.
    pub(super) async fn memory(
        &mut self,
        slice: &MemorySlice,
        mut digest: Option<&mut Summing>,
        until: Option<BootTime>,
    ) -> Result<(), FlowError> {
        let check_time = || match until.is_some_and(BootTime::has_passed) {
            true => Err(FlowError::GrantEnded),
            false => Ok(()),
        };
        if slice.len() <= SMALL {
            if self.gathered.len() >= TOGETHER {
                self.flush().await?;
            }
            check_time()?;
            let start = self.gathered.len();
            append(slice, 0, slice.len(), &mut self.gathered);
            self.read += slice.len() as u64;
            if let Some(digest) = digest {
                digest.update(&self.gathered[start..]);
            }
            return Ok(());
        }
        self.flush().await?;
        for at in (0..slice.len()).step_by(CHUNK) {
            check_time()?;
            let len = CHUNK.min(slice.len() - at);
            let mut chunk = Vec::with_capacity(len);
            append(slice, at, len, &mut chunk);
            self.read += len as u64;
            if let Some(digest) = &mut digest {
                digest.update(&chunk);
            }
            self.hand_over(chunk.into()).await?;
        }
        Ok(())
    }

    /// Hands everything over that was gathered.
    pub(super) async fn flush(&mut self) -> Result<(), FlowError> {
        self.hand_over(Bytes::new()).await?;
        if self.gathered.is_empty() {
            return Ok(());
        }
        let gathered = std::mem::take(&mut self.gathered);
        self.hand_over(gathered.into()).await
    }

    /// Ends the stream, everything having been handed over.
    pub(super) async fn finish(&mut self) -> Result<(), FlowError> {
        self.flush().await?;
        // An error says that the peer wants no more of it.
        let _ = self.stream.finish();
        self.is_finished = true;
        Ok(())
    }

    /// Bytes of memory that were read so far.
    pub(super) fn bytes_read(&self) -> u64 {
        self.read
    }

    /// Bytes handed over so far.
    pub(super) fn handed_over(&self) -> u64 {
        self.handed_over
    }

    /// Waits until the peer has everything, or wants no more.
    pub(super) async fn acknowledged(&mut self) {
        // Whichever it is, nothing of the stream is kept any more.
        let _ = self.stream.stopped().await;
    }

    /// Drops what was not acknowledged.
    pub(super) fn reset(&mut self, code: quinn::VarInt) {
        // An error says that there is nothing to drop.
        let _ = self.stream.reset(code);
    }

    /// Hands over the rest of a call that was cancelled, or else `bytes`; callers
    /// [flush](Self::flush) before.
    async fn hand_over(&mut self, bytes: Bytes) -> Result<(), FlowError> {
        if self.leaving.is_empty() {
            self.leaving = bytes;
        }
        while !self.leaving.is_empty() {
            // Before and not after: who handed the last bytes over takes note of it at
            // once, or their answer could come first.
            if self.since_yield >= YIELD_AFTER {
                self.since_yield = 0;
                yield_now().await;
            }
            let leaving = std::slice::from_mut(&mut self.leaving);
            let written = self.stream.write_chunks(leaving).await?.bytes;
            self.clock.moved(written);
            self.handed_over += written as u64;
            self.since_yield += written;
        }
        Ok(())
    }
}

impl Drop for Outflow<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.reset(CLOSED);
        }
    }
}

fn append(slice: &MemorySlice, at: usize, len: usize, target: &mut Vec<u8>) {
    slice.append_to(at, len, target).expect("the range lies inside the slice");
}
