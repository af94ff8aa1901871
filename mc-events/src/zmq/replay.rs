//! A ROUTER socket that sends messages again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Buf;
use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::Semaphore;

use super::accept::{Accepting, HANDSHAKE_TIMEOUT, Serve, Visit, accept};
use super::endpoint::{Connection, Listener};
use super::pages::{MadePage, RecentPages};
use super::wire::{self, Bounds, Incoming};
use crate::pack::Packer;
use crate::replay::{END_OF_REPLAY, INFO, MAX_CURSOR, ParsedRequest, ReplayRequest, SNAPSHOT};
use crate::snapshot::{Snapshot, SnapshotPage};
use crate::stream::Stream;

/// Time limit for a peer to read a part of an answer.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The most objects in a page of a snapshot.
const MAX_PAGE_OBJECTS: usize = 500;
/// The most bytes in a page of a snapshot of more than one object.
const MAX_PAGE_BYTES: usize = 1 << 20;

/// A ROUTER socket. Each connection is answered by its own task, at the pace at which it reads.
#[derive(Debug)]
pub(crate) struct ReplayServer {
    accepting: Accepting,
}

/// Where the answers come from.
pub(crate) struct ReplaySource {
    pub(crate) stream: Arc<Mutex<Stream>>,
    pub(crate) incarnation: u64,
    pub(crate) snapshot: Option<Arc<dyn Snapshot>>,
    /// Requests that were not understood.
    pub(crate) ignored: Arc<AtomicU64>,
    /// Pages are made one at a time.
    pub(crate) turn: Semaphore,
    /// The pages that were made lately.
    pub(crate) pages: Arc<RecentPages>,
}

impl ReplayServer {
    pub(crate) fn new(listener: Listener, connections: usize, source: ReplaySource) -> Self {
        Self { accepting: accept(listener, connections, Arc::new(source)) }
    }

    /// Closes the socket and waits until another can take its place.
    pub(crate) async fn close(self) {
        self.accepting.end().await;
    }
}

impl Serve for ReplaySource {
    async fn serve(
        self: Arc<Self>,
        mut connection: Box<dyn Connection>,
        visit: Visit,
    ) -> io::Result<()> {
        let hands = wire::shake_hands(&mut connection, "ROUTER", &["REQ", "DEALER", "ROUTER"]);
        tokio::time::timeout(HANDSHAKE_TIMEOUT, hands).await??;
        visit.greeted();
        let (reader, mut writer) = tokio::io::split(connection);
        let mut reader = BufReader::with_capacity(wire::MAX_FRAME, reader);
        let mut listed = None;
        loop {
            let frames = match wire::read(&mut reader, Bounds::REQUEST).await {
                Ok(Incoming::Message { frames, too_many: false }) => frames,
                Ok(Incoming::Message { .. }) => Vec::new(),
                Ok(Incoming::Ping(context)) => {
                    write(&mut writer, &wire::pong(&context)[..]).await?;
                    continue;
                }
                Err(error) => {
                    if error.kind() == io::ErrorKind::InvalidData {
                        self.ignored.fetch_add(1, Ordering::Relaxed);
                    }
                    return Err(error);
                }
            };
            let mut answer = Answer { writer: &mut writer, visit: &visit, delimiter: false };
            match ParsedRequest::parse(&frames) {
                Some(ParsedRequest { request, delimiter }) => {
                    visit.asked();
                    answer.delimiter = delimiter;
                    self.answer(request, &mut listed, answer).await?;
                }
                None => _ = self.ignored.fetch_add(1, Ordering::Relaxed),
            }
        }
    }
}

impl ReplaySource {
    /// Answers a request. `listed` is the highest number of the pages that this connection got since
    /// it began its list.
    async fn answer<W: AsyncWrite + Unpin>(
        &self,
        request: ReplayRequest<'_>,
        listed: &mut Option<u64>,
        mut answer: Answer<'_, W>,
    ) -> io::Result<()> {
        match request {
            ReplayRequest::From(start) => self.replay(start, u64::MAX, answer).await,
            ReplayRequest::Between(start, end) => self.replay(start, end, answer).await,
            ReplayRequest::Info => answer.send(&[INFO, &self.info()]).await,
            ReplayRequest::Snapshot { cursor } => match &self.snapshot {
                Some(snapshot) => {
                    // The subscriber may have applied what was published before its latest page, and
                    // a page that is older than that would take it back.
                    let since = match *listed {
                        _ if cursor.is_empty() => 0,
                        Some(number) => number,
                        None => self.stream.lock().next(),
                    };
                    let page = self.page(snapshot, cursor, since).await?;
                    *listed = Some(page.number.max(since));
                    let (incarnation, number) =
                        (self.incarnation.to_be_bytes(), page.number.to_be_bytes());
                    let frames = [SNAPSHOT, &incarnation, &number, &page.next, &page.payload];
                    answer.send(&frames).await
                }
                None => {
                    self.ignored.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                }
            },
        }
    }

    async fn replay<W: AsyncWrite + Unpin>(
        &self,
        start: u64,
        end: u64,
        mut answer: Answer<'_, W>,
    ) -> io::Result<()> {
        // What is published meanwhile comes from the other socket.
        let end = end.min(self.stream.lock().next());
        let mut next = start;
        while next < end {
            let message = self.stream.lock().first_in(next..end);
            let Some(message) = message else { break };
            answer.send(&[&message.number().to_be_bytes(), message.payload()]).await?;
            next = message.number() + 1;
        }
        answer.send(&[&END_OF_REPLAY.to_be_bytes(), b""]).await
    }

    fn info(&self) -> Vec<u8> {
        let (oldest, next, encoding) = {
            let stream = self.stream.lock();
            (stream.oldest(), stream.next(), stream.encoding().name())
        };
        let mut info = Vec::new();
        let mut packer = Packer::new(&mut info);
        packer.map(6).str("incarnation").uint(self.incarnation).str("encoding").str(encoding);
        packer.str("oldest").uint(oldest).str("next").uint(next);
        packer.str("snapshot").bool(self.snapshot.is_some()).str("ranges").bool(true);
        info
    }

    /// A page that was read when no message before `since` was missing in it: one that was made for
    /// another subscriber, if the messages from then on are kept, or else a new one.
    async fn page(
        &self,
        snapshot: &Arc<dyn Snapshot>,
        cursor: &[u8],
        since: u64,
    ) -> io::Result<MadePage> {
        let recent = || {
            let since = since.max(self.stream.lock().complete_since());
            self.pages.find(cursor, since)
        };
        if let Some(page) = recent() {
            return Ok(page);
        }
        let _turn = self.turn.acquire().await.map_err(io::Error::other)?;
        // Subscribers that list together wait for the same page.
        if let Some(page) = recent() {
            return Ok(page);
        }
        let mut max_objects = MAX_PAGE_OBJECTS;
        loop {
            // Before the page is read: what it misses has this number or a higher one.
            let number = self.stream.lock().next();
            let (source, from) = (Arc::clone(snapshot), cursor.to_vec());
            let page = tokio::task::spawn_blocking(move || source.page(&from, max_objects));
            let SnapshotPage { objects, next } = page.await.map_err(io::Error::other)?;
            if next.len() > MAX_CURSOR {
                return Err(io::Error::other("a snapshot's cursor is too long"));
            }
            let payload = self.stream.lock().snapshot(unix_micros(), objects);
            if payload.len() <= MAX_PAGE_BYTES || max_objects == 1 {
                let page = MadePage { number, payload, next: next.into() };
                self.pages.keep(cursor, &page);
                return Ok(page);
            }
            max_objects /= 2;
        }
    }
}

/// The wall clock, in microseconds since 1970.
pub(crate) fn unix_micros() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Where answers go, and in what form.
struct Answer<'a, W> {
    writer: &'a mut W,
    visit: &'a Visit,
    delimiter: bool,
}

impl<W: AsyncWrite + Unpin> Answer<'_, W> {
    /// Sends a message. Its last frame, which may be large, is not copied.
    async fn send(&mut self, frames: &[&[u8]]) -> io::Result<()> {
        let (&last, others) = frames.split_last().expect("an answer has a frame");
        let delimiter: &[&[u8]] = if self.delimiter { &[b""] } else { &[] };
        let mut head = Vec::new();
        wire::append_head(&mut head, &[delimiter, others].concat(), last.len());
        write(self.writer, (&head[..]).chain(last)).await?;
        self.visit.read();
        Ok(())
    }
}

async fn write(writer: &mut (impl AsyncWrite + Unpin), mut bytes: impl Buf) -> io::Result<()> {
    tokio::time::timeout(STALL_TIMEOUT, writer.write_all_buf(&mut bytes)).await?
}
