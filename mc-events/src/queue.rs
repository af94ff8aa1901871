//! The bounded queue between those who publish and the publisher.

use std::collections::VecDeque;
use std::time::Instant;

use crate::event::Event;

/// One event in so many has the time at which it was queued: to read the clock costs as much as
/// the rest of a [`push`](Queue::push).
const EVENTS_PER_TIME: usize = 64;

/// A queued event.
#[derive(Debug)]
pub(crate) struct Entry<T> {
    pub(crate) event: Event,
    /// The caller's means to learn of the event's end.
    pub(crate) done: T,
    /// The event's memory, in bytes.
    size: usize,
    queued_at: Option<Instant>,
    /// Whether events were dropped between the one before and this one.
    after_gap: bool,
}

/// The result of [`Queue::push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// The event is queued; the publisher must be woken if it sleeps.
    Queued {
        sleeps: bool,
    },
    Dropped,
    Closed,
}

#[derive(Debug)]
pub(crate) struct Queue<T> {
    entries: VecDeque<Entry<T>>,
    bytes: usize,
    max_events: usize,
    max_bytes: usize,
    /// Events after the last one with a time.
    without_time: usize,
    /// The last time of an event that was taken.
    taken_time: Instant,
    /// Whether events were dropped after the last entry.
    gap: bool,
    /// Whether the publisher waits to be woken.
    sleeps: bool,
    closed: bool,
}

/// The events that the publisher takes at once.
#[derive(Debug)]
pub(crate) struct Taken {
    /// Whether events are missing before the first entry.
    pub(crate) gap: bool,
    /// When the first entry was queued, or one of the [`EVENTS_PER_TIME`] before it.
    pub(crate) queued_at: Instant,
}

impl<T> Queue<T> {
    pub(crate) fn new(max_events: usize, max_bytes: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            max_events,
            max_bytes,
            without_time: 0,
            taken_time: Instant::now(),
            gap: false,
            sleeps: false,
            closed: false,
        }
    }

    /// Queues an event, or drops it and remembers the gap.
    pub(crate) fn push(&mut self, event: Event, done: T) -> Pushed {
        if self.closed {
            return Pushed::Closed;
        }
        let size = event.size_if_it_fits().filter(|size| self.bytes + size <= self.max_bytes);
        let Some(size) = size.filter(|_| self.entries.len() < self.max_events) else {
            self.gap = true;
            return Pushed::Dropped;
        };
        let has_time = self.entries.is_empty() || self.without_time + 1 >= EVENTS_PER_TIME;
        self.without_time = if has_time { 0 } else { self.without_time + 1 };
        let queued_at = has_time.then(Instant::now);
        let after_gap = std::mem::take(&mut self.gap);
        self.bytes += size;
        self.entries.push_back(Entry { event, done, size, queued_at, after_gap });
        Pushed::Queued { sleeps: std::mem::take(&mut self.sleeps) }
    }

    /// Appends the oldest events to `entries`: at most `max_events`, at most `max_bytes` unless the
    /// first has more, none after a gap. An event that clears everything comes alone.
    pub(crate) fn take(
        &mut self,
        max_events: usize,
        max_bytes: usize,
        entries: &mut Vec<Entry<T>>,
    ) -> Taken {
        let Some(first) = self.entries.front() else {
            return Taken { gap: std::mem::take(&mut self.gap), queued_at: self.taken_time };
        };
        let (gap, mut bytes, mut count) = (first.after_gap, first.size, 1);
        let queued_at = first.queued_at.unwrap_or(self.taken_time);
        if !matches!(first.event, Event::RemoveAll(_)) {
            for entry in self.entries.iter().take(max_events).skip(1) {
                let alone = matches!(entry.event, Event::RemoveAll(_));
                if entry.after_gap || alone || bytes + entry.size > max_bytes {
                    break;
                }
                bytes += entry.size;
                count += 1;
            }
        }
        self.bytes -= bytes;
        for entry in self.entries.drain(..count) {
            self.taken_time = entry.queued_at.unwrap_or(self.taken_time);
            entries.push(entry);
        }
        Taken { gap, queued_at }
    }

    /// Has the next [`push`](Self::push) say that the publisher must be woken.
    pub(crate) const fn sleep(&mut self) {
        self.sleeps = true;
    }

    /// Takes no more events.
    pub(crate) const fn close(&mut self) {
        self.closed = true;
    }

    pub(crate) const fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Forgets all events and returns how many there were.
    pub(crate) fn clear(&mut self) -> usize {
        self.bytes = 0;
        self.entries.drain(..).count()
    }
}
