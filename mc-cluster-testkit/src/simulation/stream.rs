//! Streams that deliver in order, each piece with a delay of its own, and that break.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::network::{Ending, Network, Process};

/// Bytes under way in one direction, at which a writer waits.
const WINDOW: usize = 1 << 20;

/// The state that both ends of a stream share.
pub(super) struct Wire {
    processes: [Process; 2],
    ways: [Way; 2],
}

/// One direction of a stream: the bytes that one end sends to the other.
#[derive(Default)]
struct Way {
    under_way: VecDeque<(Instant, Bytes)>,
    bytes: usize,
    /// When the last piece arrives: none overtakes it.
    last: Option<Instant>,
    end: Option<(Instant, WayEnd)>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// The event that follows the last piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WayEnd {
    Closed,
    Reset,
}

impl Way {
    fn wake(&mut self) {
        self.reader.take().into_iter().chain(self.writer.take()).for_each(Waker::wake);
    }

    fn end(&mut self, at: Instant, end: WayEnd) {
        if self.end.is_none() {
            let at = self.last.map_or(at, |last| last.max(at));
            self.end = Some((at, end));
            self.wake();
        }
    }

    /// Drops what has not arrived yet.
    fn lose(&mut self, now: Instant) {
        self.under_way.retain(|(arrives, _)| *arrives <= now);
        self.bytes = self.under_way.iter().map(|(_, piece)| piece.len()).sum();
        self.last = self.under_way.back().map(|(arrives, _)| *arrives);
    }

    fn delay(&mut self, by: Duration) {
        self.under_way.iter_mut().for_each(|(arrives, _)| *arrives += by);
        self.last = self.last.map(|last| last + by);
    }
}

impl Wire {
    /// Tells the other end that this process has ended.
    pub(super) fn process_ended(&mut self, network: &Network, process: &Process, ending: Ending) {
        for side in 0..2 {
            if self.processes[side].is_same(process) && ending == Ending::Killed {
                let at = network.arrival(process, &self.processes[1 - side]);
                self.ways[side].end(at, WayEnd::Reset);
                // Its peer's writer need not wait for it any more.
                self.ways[1 - side].wake();
            }
        }
    }

    /// Breaks the stream while `side` writes.
    fn breaks(&mut self, network: &Network, side: usize, now: Instant) {
        let inbound = &mut self.ways[1 - side];
        inbound.lose(now);
        inbound.end(now, WayEnd::Reset);
        let outbound = &mut self.ways[side];
        match network.late_by() {
            Some(late) => outbound.delay(late),
            None => outbound.lose(now),
        }
        outbound
            .end(network.arrival(&self.processes[side], &self.processes[1 - side]), WayEnd::Reset);
    }
}

/// One end of a stream.
pub(super) struct End {
    side: usize,
    network: Arc<Network>,
    wire: Arc<Mutex<Wire>>,
    timer: Pin<Box<Sleep>>,
}

/// A stream between these processes: their ends, in this order.
pub(super) fn wire(network: &Arc<Network>, processes: [&Process; 2]) -> [End; 2] {
    let own = processes.map(Clone::clone);
    let wire = Arc::new(Mutex::new(Wire { processes: own, ways: Default::default() }));
    processes.iter().for_each(|process| process.has_end_of(&wire));
    [0, 1].map(|side| End {
        side,
        network: Arc::clone(network),
        wire: Arc::clone(&wire),
        timer: Box::pin(sleep(Duration::ZERO)),
    })
}

fn locked(wire: &Mutex<Wire>) -> MutexGuard<'_, Wire> {
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AsyncRead for End {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let wait = {
                let side = self.side;
                let mut wire = locked(&self.wire);
                let now = Instant::now();
                let (ended, runs_at) =
                    (wire.processes[side].ended(), wire.processes[side].runs_at(now));
                let way = &mut wire.ways[1 - side];
                way.reader = Some(cx.waker().clone());
                if ended.is_some() {
                    return Poll::Pending;
                }
                let next = way.under_way.front().map(|(arrives, _)| *arrives);
                let next = next.or(way.end.map(|(at, _)| at));
                let Some(next) = next else { return Poll::Pending };
                let next = next.max(runs_at);
                if next <= now {
                    let Some((_, piece)) = way.under_way.front_mut() else {
                        return Poll::Ready(match way.end {
                            Some((_, WayEnd::Closed)) => Ok(()),
                            _ => Err(io::ErrorKind::ConnectionReset.into()),
                        });
                    };
                    let len = piece.len().min(into.remaining());
                    into.put_slice(&piece[..len]);
                    piece.advance(len);
                    if piece.is_empty() {
                        way.under_way.pop_front();
                    }
                    way.bytes -= len;
                    way.writer.take().into_iter().for_each(Waker::wake);
                    return Poll::Ready(Ok(()));
                }
                next
            };
            if self.timer.deadline() != wait {
                self.timer.as_mut().reset(wait);
            }
            ready!(self.timer.as_mut().poll(cx));
        }
    }
}

impl AsyncWrite for End {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let (side, now) = (self.side, Instant::now());
        let mut wire = locked(&self.wire);
        if wire.processes[side].ended().is_some() {
            return Poll::Pending;
        }
        let is_reset = |end: Option<(Instant, WayEnd)>| end.is_some_and(|(at, _)| at <= now);
        // The peer has closed, or the stream is broken.
        if is_reset(wire.ways[1 - side].end) || wire.ways[side].end.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if self.network.breaks() {
            wire.breaks(&self.network, side, now);
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if wire.ways[side].bytes >= WINDOW {
            wire.ways[side].writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let arrives = self.network.arrival(&wire.processes[side], &wire.processes[1 - side]);
        let way = &mut wire.ways[side];
        let arrives = way.last.map_or(arrives, |last| last.max(arrives));
        way.last = Some(arrives);
        way.bytes += bytes.len();
        way.under_way.push_back((arrives, Bytes::copy_from_slice(bytes)));
        way.reader.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.close();
        Poll::Ready(Ok(()))
    }
}

impl End {
    fn close(&self) {
        let mut wire = locked(&self.wire);
        // A process that has ended closes nothing.
        if wire.processes[self.side].ended().is_none() && wire.ways[self.side].end.is_none() {
            let at =
                self.network.arrival(&wire.processes[self.side], &wire.processes[1 - self.side]);
            wire.ways[self.side].end(at, WayEnd::Closed);
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.close();
    }
}
