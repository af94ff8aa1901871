//! A connection's calls that take long: they wait for their turn and run beside it, and
//! their answers come back when they are there.

use core::task::{Context, Poll};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::dispatch::{CallSource, answer_call, refuse_cancelled};
use super::executor::Panicked;
use super::held_answers::HeldAnswers;
use crate::frame::{FrameHeader, HEADER_LEN};
use crate::method::Method;
use crate::refusal::Completion;
use crate::server::shared::Shared;

/// Calls of one connection that have a turn or ask for one. The others wait here, so that
/// connections take turns however many calls each has.
pub(super) const AT_A_TIME: usize = 2;

/// Calls that wait, and calls that run.
pub(super) struct LongCalls {
    waiting: VecDeque<QueuedCall>,
    running: Vec<Running>,
    /// Bytes of all of them.
    bytes: usize,
    ended: mpsc::UnboundedReceiver<AnsweredCall>,
    on_end: mpsc::UnboundedSender<AnsweredCall>,
}

struct QueuedCall {
    header: FrameHeader,
    /// The whole frame.
    frame: Bytes,
    arrived: Instant,
}

struct Running {
    id: u64,
    bytes: usize,
    cancelled: Arc<AtomicBool>,
}

/// A call that has been answered.
struct AnsweredCall {
    id: u64,
    /// The frame that answers it, and when it may be sent; `None` when the call panicked.
    answer: Option<(BytesMut, Completion)>,
}

impl Drop for LongCalls {
    fn drop(&mut self) {
        // No client waits for these any more.
        for call in &self.running {
            call.cancelled.store(true, Ordering::Relaxed);
        }
    }
}

impl LongCalls {
    pub(super) fn new() -> Self {
        let (on_end, ended) = mpsc::unbounded_channel();
        Self { waiting: VecDeque::new(), running: Vec::new(), bytes: 0, ended, on_end }
    }

    /// Calls that are not answered.
    pub(super) fn open(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    /// Bytes that they hold.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes a call in; `frame` is its whole frame.
    pub(super) fn add(
        &mut self,
        shared: &Arc<Shared>,
        asker: &CallSource,
        header: FrameHeader,
        frame: Bytes,
        arrived: Instant,
    ) {
        self.bytes += frame.len();
        self.waiting.push_back(QueuedCall { header, frame, arrived });
        self.run_next(shared, asker);
    }

    fn run_next(&mut self, shared: &Arc<Shared>, asker: &CallSource) {
        while self.running.len() < AT_A_TIME
            && let Some(QueuedCall { header, frame, arrived }) = self.waiting.pop_front()
        {
            let cancelled = Arc::new(AtomicBool::new(false));
            self.running.push(Running {
                id: header.id,
                bytes: frame.len(),
                cancelled: Arc::clone(&cancelled),
            });
            let (shared, asker, on_end) = (Arc::clone(shared), asker.clone(), self.on_end.clone());
            tokio::spawn(async move {
                let answering = Arc::clone(&shared);
                let work = move || {
                    let mut out = BytesMut::new();
                    if cancelled.load(Ordering::Relaxed) {
                        refuse_cancelled(&answering.counters, header, &mut out);
                        return (out, Completion::Now);
                    }
                    let (payload, waited) = (&frame[HEADER_LEN..], arrived.elapsed());
                    let completion =
                        answer_call(&answering, &asker, header, payload, waited, &mut out);
                    (out, completion)
                };
                let method = Method::from_number(header.method);
                let answer = shared.executor.run(method, work).await.ok();
                // The connection may be gone.
                drop(on_end.send(AnsweredCall { id: header.id, answer }));
            });
        }
    }

    /// Appends the answers that are there to `out`, and has those held that are to wait; returns
    /// whether there were any.
    pub(super) fn poll_ended(
        &mut self,
        cx: &mut Context<'_>,
        shared: &Arc<Shared>,
        asker: &CallSource,
        (out, held): (&mut BytesMut, &mut Option<Box<HeldAnswers>>),
    ) -> Result<bool, Panicked> {
        let mut any = false;
        while let Poll::Ready(Some(AnsweredCall { id, answer })) = self.ended.poll_recv(cx) {
            any = true;
            if let Some(at) = self.running.iter().position(|call| call.id == id) {
                self.bytes -= self.running.swap_remove(at).bytes;
            }
            let (frame, completion) = answer.ok_or(Panicked)?;
            let start = out.len();
            out.extend_from_slice(&frame);
            HeldAnswers::hold_last(held, completion, start, out);
            self.run_next(shared, asker);
        }
        Ok(any)
    }

    /// Gives a call up: one that waits is taken out, and its header returned; one that has
    /// no turn yet will not be executed.
    pub(super) fn cancel(&mut self, id: u64) -> Option<FrameHeader> {
        if let Some(call) = self.running.iter().find(|call| call.id == id) {
            call.cancelled.store(true, Ordering::Relaxed);
            return None;
        }
        let at = self.waiting.iter().position(|call| call.header.id == id)?;
        let call = self.waiting.remove(at)?;
        self.bytes -= call.frame.len();
        Some(call.header)
    }
}
