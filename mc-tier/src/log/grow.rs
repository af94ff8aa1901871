//! The space that a log's segments have of their medium.
//!
//! A file is as long as its log may become, and its file system gives it space as it is used. So the log
//! takes the space of a segment before it begins it. Where the medium has none left, the log works with
//! the segments that it has: its oldest objects make room, and nothing else is lost. It asks for more from
//! time to time.

use std::io;
use std::time::Instant;

use mc_types::ByteSize;
use tracing::{info, warn};

use super::LogTier;
use super::record::BLOCK;
use super::space::{Backing, is_full};
use super::writer::Writer;

impl LogTier {
    /// Counts the free segments that have space of the medium, up to `wanted`. Takes space for more where
    /// these are fewer.
    pub(super) fn free_segments(&self, writer: &mut Writer, wanted: usize) -> usize {
        let mut found = 0;
        for number in 0..writer.segments.len() {
            if found == wanted {
                break;
            }
            found += usize::from(writer.segments[number].is_none() && self.back(writer, number));
        }
        found
    }

    /// A free segment that has space, or else one that the medium has space for; none of those that were
    /// `tried`.
    pub(super) fn next_segment(&self, writer: &mut Writer, tried: &[usize]) -> Option<usize> {
        let free = |writer: &Writer, number: &usize| {
            writer.segments[*number].is_none() && !tried.contains(number)
        };
        let numbers = 0..writer.segments.len();
        let given = |number: &usize| free(writer, number) && writer.space.is_given(*number);
        if let Some(number) = numbers.clone().find(given) {
            return Some(number);
        }
        numbers.into_iter().find(|number| free(writer, number) && self.back(writer, *number))
    }

    /// Returns whether a free segment has space. Takes it from the medium if it has none yet.
    fn back(&self, writer: &mut Writer, number: usize) -> bool {
        let space = &mut writer.space;
        match space.segments[number] {
            Backing::Given => return true,
            Backing::Broken { until } if until.is_none_or(|until| Instant::now() < until) => {
                return false;
            }
            Backing::None if space.ask_at.is_some_and(|at| Instant::now() < at) => return false,
            Backing::None | Backing::Broken { .. } => {}
        }
        match self.backend.reserve(self.begin_of(number), self.segment_len) {
            Err(error) if is_full(&error) => {
                self.note_full(writer, number, &error);
                false
            }
            // Writing tells what else is wrong.
            _ => {
                space.give(number);
                if space.ask_at.is_some() {
                    self.note_limit(writer);
                }
                true
            }
        }
    }

    /// Gives back what a free segment has of the medium if that is not enough for it, and asks for a whole
    /// one when a segment is needed next.
    pub(super) fn give_back(&self, writer: &mut Writer, number: usize) {
        if writer.space.segments[number] == Backing::None
            && self.backend.discard(self.begin_of(number), self.segment_len).is_ok()
            && writer.space.ask_at.is_some()
        {
            writer.space.ask_at = Some(Instant::now());
        }
    }

    /// Takes space of a medium that was full, if it is time to ask. Returns whether it has some again.
    pub(super) fn grow(&self, writer: &mut Writer) -> bool {
        if writer.space.ask_at.is_none_or(|at| Instant::now() < at) {
            return false;
        }
        let given = writer.space.given();
        self.free_segments(writer, usize::MAX);
        writer.space.given() > given
    }

    /// Notes that the medium has no space left for a segment.
    pub(super) fn note_full(&self, writer: &mut Writer, number: usize, error: &io::Error) {
        let was_limited = writer.space.ask_at.is_some();
        writer.space.segments[number] = Backing::None;
        writer.space.ask_at = Some(Instant::now() + writer.space.pause);
        self.note_limit(writer);
        if !was_limited {
            warn!(
                path = %self.backend.path().display(), %error,
                wanted = %ByteSize::bytes(self.backend.len()), now = %self.limit(),
                "the file system is full; the log goes on with the space that it has. Free some, or make \
                 the log smaller"
            );
        }
    }

    /// Notes how long the log is while its medium is full.
    fn note_limit(&self, writer: &mut Writer) {
        let space = &mut writer.space;
        let is_whole = !space.segments.contains(&Backing::None);
        if is_whole {
            space.ask_at = None;
            info!(path = %self.backend.path().display(), "the log has all of its space again");
        }
        let len = if is_whole {
            self.backend.len()
        } else {
            BLOCK + space.given() as u64 * self.segment_len
        };
        self.limit.store(len, std::sync::atomic::Ordering::Relaxed);
    }

    /// The bytes that the log can have now.
    pub(super) fn limit(&self) -> ByteSize {
        ByteSize::bytes(self.limit.load(std::sync::atomic::Ordering::Relaxed))
    }
}
