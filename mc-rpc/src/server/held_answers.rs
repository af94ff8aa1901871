//! Answers of one connection that wait until what they say is durable.

use core::time::Duration;
use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use mc_types::{ErrorCode, Sequence};
use tokio::time::Instant;

use crate::frame::{FrameHeader, append_refusal};
use crate::refusal::{Completion, Refusal};

/// The answers, in the order in which they were made.
#[derive(Debug, Default)]
pub(super) struct HeldAnswers {
    answers: VecDeque<HeldAnswer>,
    bytes: usize,
}

#[derive(Debug)]
struct HeldAnswer {
    /// Leaves when the effects up to this one are durable.
    sequence: Sequence,
    since: Instant,
    /// The whole frame.
    frame: Bytes,
}

impl HeldAnswers {
    /// Takes the frame that answers a call from the end of `out`, where it begins at `start`, if it
    /// has to wait. Most connections never hold any.
    pub(super) fn hold_last(
        held: &mut Option<Box<Self>>,
        completion: Completion,
        start: usize,
        out: &mut BytesMut,
    ) {
        let Completion::After(sequence) = completion else { return };
        // A copy: `out` keeps its memory for the answers of other connections.
        let frame = Bytes::copy_from_slice(&out[start..]);
        out.truncate(start);
        let held = held.get_or_insert_default();
        held.bytes += frame.len();
        held.answers.push_back(HeldAnswer { sequence, since: Instant::now(), frame });
    }

    pub(super) fn len(&self) -> usize {
        self.answers.len()
    }

    /// Bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// When the oldest was held.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.answers.front().map(|answer| answer.since)
    }

    /// Appends to `out` the answers that wait for nothing after `durable`.
    pub(super) fn release(&mut self, durable: Sequence, out: &mut BytesMut) {
        self.answers.retain(|answer| {
            let waits = answer.sequence > durable;
            if !waits {
                out.put_slice(&answer.frame);
                self.bytes -= answer.frame.len();
            }
            waits
        });
    }

    /// Gives up the answers that have been held since `limit` or for longer, and appends refusals
    /// to `out`; returns how many.
    pub(super) fn refuse_older(
        &mut self,
        limit: Instant,
        refusal: &Refusal,
        out: &mut BytesMut,
    ) -> usize {
        let before = self.answers.len();
        while self.oldest().is_some_and(|since| since <= limit)
            && let Some(answer) = self.answers.pop_front()
        {
            self.bytes -= answer.frame.len();
            let header = answer.frame.first_chunk().expect("a frame begins with a header");
            let header = FrameHeader::parse(header, u32::MAX).expect("it was made here");
            append_refusal(out, header.id, header.method, refusal);
        }
        before - self.answers.len()
    }
}

/// Refuses a call whose answer is there, and shows or made a change that is not known to be durable.
pub(super) fn not_durable(waited: Option<Duration>) -> Refusal {
    let why = match waited {
        Some(waited) => format!("its journal has not kept it for {waited:?}"),
        None => "its journal has ended".into(),
    };
    let message = format!(
        "the master cannot answer the call, because the answer depends on a change of this call or another \
         one, and {why}: the change is undone if the master ends now; before repeating a call that \
         changes something, look at what it was to change"
    );
    Refusal::new(ErrorCode::AnswerNotKept, message)
}
