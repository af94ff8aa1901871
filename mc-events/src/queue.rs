//! The bounded queue between those who publish and the publisher.

use std::collections::VecDeque;
use std::time::Instant;

use crate::event::Event;

/// A queued event.
#[derive(Debug)]
pub(crate) struct Entry<T> {
    pub(crate) event: Event,
    pub(crate) queued_at: Instant,
    /// What tells the caller about the event's end.
    pub(crate) done: T,
    /// Whether events were dropped between the one before and this one.
    after_gap: bool,
}

/// The result of [`Queue::push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// The event is queued; the publisher must be woken if the queue was empty.
    Queued {
        was_empty: bool,
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
    /// Whether events were dropped after the last entry.
    gap: bool,
    closed: bool,
}

/// What the publisher takes at once.
#[derive(Debug)]
pub(crate) struct Taken<T> {
    /// Whether events are missing before the first entry.
    pub(crate) gap: bool,
    pub(crate) entries: Vec<Entry<T>>,
}

impl<T> Queue<T> {
    pub(crate) const fn new(max_events: usize, max_bytes: usize) -> Self {
        let entries = VecDeque::new();
        Self { entries, bytes: 0, max_events, max_bytes, gap: false, closed: false }
    }

    /// Queues an event, or drops it and remembers the gap.
    pub(crate) fn push(&mut self, event: Event, queued_at: Instant, done: T) -> Pushed {
        if self.closed {
            return Pushed::Closed;
        }
        let size = event.size();
        let full = self.entries.len() >= self.max_events || self.bytes + size > self.max_bytes;
        if full || !event.fits() {
            self.gap = true;
            return Pushed::Dropped;
        }
        let was_empty = self.entries.is_empty();
        let after_gap = std::mem::take(&mut self.gap);
        self.bytes += size;
        self.entries.push_back(Entry { event, queued_at, done, after_gap });
        Pushed::Queued { was_empty }
    }

    /// Takes the oldest events: at most `max_events`, at most `max_bytes` unless the first has more,
    /// none after a gap. An event that clears everything comes alone.
    pub(crate) fn take(&mut self, max_events: usize, max_bytes: usize) -> Taken<T> {
        let Some(first) = self.entries.front() else {
            return Taken { gap: std::mem::take(&mut self.gap), entries: Vec::new() };
        };
        let (gap, mut bytes, mut count) = (first.after_gap, first.event.size(), 1);
        if !matches!(first.event, Event::RemoveAll(_)) {
            for entry in self.entries.iter().take(max_events).skip(1) {
                bytes += entry.event.size();
                let alone = matches!(entry.event, Event::RemoveAll(_));
                if entry.after_gap || alone || bytes > max_bytes {
                    bytes -= entry.event.size();
                    break;
                }
                count += 1;
            }
        }
        self.bytes -= bytes;
        Taken { gap, entries: self.entries.drain(..count).collect() }
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
