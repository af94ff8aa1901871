//! The space that the segments of a log have of their medium, as far as the log knows.

use std::io;
use std::time::{Duration, Instant};

/// The state of a segment's space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backing {
    /// The space was not asked for, or was not there.
    None,
    /// The medium has given it.
    Given,
    /// The segment cannot be read or written, and is not used until then; without a time, until the log is
    /// opened again.
    Broken { until: Option<Instant> },
}

/// The space of all segments.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) segments: Vec<Backing>,
    /// When to ask for more, once the medium had none left.
    pub(super) ask_at: Option<Instant>,
    /// Between two questions of a medium that is full.
    pub(super) pause: Duration,
}

impl Space {
    /// Segments that have no space yet.
    pub(super) fn new(segments: usize, pause: Duration) -> Self {
        Self { segments: vec![Backing::None; segments], ask_at: None, pause }
    }

    /// Notes that a segment has its space.
    pub(super) fn give(&mut self, segment: usize) {
        self.segments[segment] = Backing::Given;
    }

    /// Notes that a segment cannot be read: what it has is not known.
    pub(super) fn leave_out(&mut self, segment: usize) {
        self.segments[segment] = Backing::Broken { until: None };
    }

    /// Notes that a segment cannot be written. It may be the medium that fails, which may be well again: the
    /// segment is tried again after a while.
    pub(super) fn set_aside(&mut self, segment: usize) {
        self.segments[segment] = Backing::Broken { until: Some(Instant::now() + self.pause) };
    }

    pub(super) fn is_given(&self, segment: usize) -> bool {
        self.segments[segment] == Backing::Given
    }

    pub(super) fn given(&self) -> usize {
        self.segments.iter().filter(|segment| **segment == Backing::Given).count()
    }
}

/// Returns whether an error says that there is no space left.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
