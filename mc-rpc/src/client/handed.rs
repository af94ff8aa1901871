//! A stream from outside, which the two tasks of a connection share.

use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::stream::ByteStream;

/// Clones are the same stream. One reads at a time, and one writes; any may
/// [close](Self::close) it.
#[derive(Clone)]
pub(super) struct HandedStream(Arc<Mutex<State>>);

struct State {
    /// `None` when it is closed.
    stream: Option<Box<dyn ByteStream>>,
    /// The tasks that wait, to be told of the end.
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl HandedStream {
    pub(super) fn new(stream: Box<dyn ByteStream>) -> Self {
        let state = State { stream: Some(stream), reader: None, writer: None };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Drops the stream, so that its other end notices, and ends reads and writes that wait.
    pub(super) fn close(&self) {
        let mut state = self.0.lock();
        let (stream, reader, writer) =
            (state.stream.take(), state.reader.take(), state.writer.take());
        drop(state);
        drop(stream);
        reader.into_iter().chain(writer).for_each(Waker::wake);
    }

    fn poll_write_side<T>(
        &self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut dyn ByteStream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let State { stream, writer, .. } = &mut *self.0.lock();
        let Some(stream) = stream else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        remember(writer, cx);
        poll(Pin::new(&mut **stream), cx)
    }
}

fn remember(slot: &mut Option<Waker>, cx: &Context<'_>) {
    if !slot.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *slot = Some(cx.waker().clone());
    }
}

impl AsyncRead for HandedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let State { stream, reader, .. } = &mut *self.0.lock();
        // A closed one has ended.
        let Some(stream) = stream else { return Poll::Ready(Ok(())) };
        remember(reader, cx);
        Pin::new(&mut **stream).poll_read(cx, into)
    }
}

impl AsyncWrite for HandedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_side(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_write_side(cx, |stream, cx| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_write_side(cx, |stream, cx| stream.poll_shutdown(cx))
    }
}
