//! The segments of one medium that take new objects.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::space::segment::Segment;

/// Segments of one medium that take new objects, each with a position that the allocation
/// strategies choose among. A put looks at one pool only, so that segments of other media
/// cost it nothing.
#[derive(Debug, Default)]
pub(crate) struct MediumPool {
    segments: Vec<Arc<Segment>>,
    by_host: HashMap<Box<str>, Host>,
    /// The number of each segment's host.
    host_numbers: Vec<u64>,
    hosts_seen: u64,
    /// How many of `segments` can hold an object of so many bytes, and no larger one.
    largest: BTreeMap<u64, usize>,
    /// Bytes of `segments`.
    capacity: u128,
}

/// A host that serves segments.
#[derive(Debug)]
struct Host {
    /// Never given to another host, nor to the same one when it comes back.
    number: u64,
    /// Where its segments are in the pool.
    segments: Vec<usize>,
}

impl MediumPool {
    pub(crate) fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Bytes of the segments.
    pub(super) const fn capacity(&self) -> u128 {
        self.capacity
    }

    /// Bytes of the largest object that a segment can hold.
    pub(super) fn largest(&self) -> u64 {
        self.largest.last_key_value().map_or(0, |(len, _)| *len)
    }

    /// The number of the host of the segment at a position.
    pub(super) fn host_number(&self, at: usize) -> u64 {
        self.host_numbers[at]
    }

    /// The positions of the segments on a host.
    pub(super) fn on_host(&self, host: &str) -> Option<&[usize]> {
        self.by_host.get(host).map(|host| &*host.segments)
    }

    /// Adds a segment and returns its position.
    pub(super) fn add(&mut self, segment: Arc<Segment>) -> usize {
        let at = self.segments.len();
        let hosts_seen = &mut self.hosts_seen;
        let host = self.by_host.entry(segment.host().into()).or_insert_with(|| {
            *hosts_seen += 1;
            Host { number: *hosts_seen, segments: Vec::new() }
        });
        host.segments.push(at);
        self.host_numbers.push(host.number);
        self.capacity += u128::from(segment.spec().size);
        *self.largest.entry(segment.largest_object()).or_default() += 1;
        self.segments.push(segment);
        at
    }

    /// Takes out the segment at a position, which the last one gets.
    pub(super) fn remove(&mut self, at: usize) -> Arc<Segment> {
        let segment = self.segments.swap_remove(at);
        self.host_numbers.swap_remove(at);
        self.capacity -= u128::from(segment.spec().size);
        if let Entry::Occupied(mut count) = self.largest.entry(segment.largest_object()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        self.leave_host(&segment, at);
        if let Some(moved) = self.segments.get(at) {
            let last = self.segments.len();
            if let Some(host) = self.by_host.get_mut(moved.host()) {
                host.segments.iter_mut().filter(|place| **place == last).for_each(|p| *p = at);
            }
        }
        segment
    }

    fn leave_host(&mut self, segment: &Segment, at: usize) {
        if let Some(host) = self.by_host.get_mut(segment.host()) {
            host.segments.retain(|place| *place != at);
            if host.segments.is_empty() {
                self.by_host.remove(segment.host());
            }
        }
    }
}
