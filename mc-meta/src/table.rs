//! The segment table: which segments are mounted, by whom, and on which hosts.

use std::collections::HashMap;
use std::sync::Arc;

use mc_alloc::strategy::Segments;
use mc_types::{ClientId, SegmentId};

use crate::segment::Segment;

#[derive(Debug, Default)]
pub(crate) struct SegmentTable {
    segments: Vec<Arc<Segment>>,
    by_id: HashMap<SegmentId, usize>,
    by_name: HashMap<Box<str>, usize>,
    /// The segments of each client, in the order in which they were mounted.
    by_client: HashMap<ClientId, Vec<SegmentId>>,
    by_host: HashMap<Box<str>, Host>,
    /// The number of each segment's host.
    host_numbers: Vec<u64>,
    hosts_seen: u64,
    largest: u64,
    capacity: u64,
    view: u64,
}

/// A host that serves segments.
#[derive(Debug)]
struct Host {
    /// Never given to another host, nor to the same one when it comes back.
    number: u64,
    /// Where its segments are in the table.
    segments: Vec<usize>,
}

impl SegmentTable {
    pub(crate) fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    pub(crate) fn by_id(&self, id: SegmentId) -> Option<&Arc<Segment>> {
        self.by_id.get(&id).map(|&at| &self.segments[at])
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<&Arc<Segment>> {
        self.by_name.get(name).map(|&at| &self.segments[at])
    }

    /// Changes whenever a segment comes or goes.
    pub(crate) const fn view(&self) -> u64 {
        self.view
    }

    pub(crate) const fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn used(&self) -> u64 {
        self.segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.used()))
    }

    /// Where the segment of this name is.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Bytes of the largest object that a segment can hold.
    pub(crate) const fn largest(&self) -> u64 {
        self.largest
    }

    /// Adds a segment whose id and name are free.
    pub(crate) fn add(&mut self, segment: Arc<Segment>) {
        let at = self.segments.len();
        self.by_id.insert(segment.spec().id, at);
        self.by_name.insert(segment.spec().name.clone(), at);
        self.by_client.entry(segment.client()).or_default().push(segment.spec().id);
        let hosts_seen = &mut self.hosts_seen;
        let host = self.by_host.entry(segment.host().into()).or_insert_with(|| {
            *hosts_seen += 1;
            Host { number: *hosts_seen, segments: Vec::new() }
        });
        host.segments.push(at);
        self.host_numbers.push(host.number);
        self.segments.push(segment);
        self.recount();
    }

    /// Takes a segment out and retires it.
    pub(crate) fn remove(&mut self, id: SegmentId) -> Option<Arc<Segment>> {
        let at = self.by_id.remove(&id)?;
        let segment = self.segments.swap_remove(at);
        self.host_numbers.swap_remove(at);
        self.by_name.remove(&segment.spec().name);
        self.leave_client(&segment);
        self.leave_host(&segment, at);
        if let Some(moved) = self.segments.get(at) {
            self.by_id.insert(moved.spec().id, at);
            self.by_name.insert(moved.spec().name.clone(), at);
            let last = self.segments.len();
            if let Some(host) = self.by_host.get_mut(moved.host()) {
                host.segments.iter_mut().filter(|place| **place == last).for_each(|p| *p = at);
            }
        }
        segment.retire();
        self.recount();
        Some(segment)
    }

    fn leave_client(&mut self, segment: &Segment) {
        if let Some(own) = self.by_client.get_mut(&segment.client()) {
            own.retain(|id| *id != segment.spec().id);
            if own.is_empty() {
                self.by_client.remove(&segment.client());
            }
        }
    }

    fn leave_host(&mut self, segment: &Segment, at: usize) {
        if let Some(host) = self.by_host.get_mut(segment.host()) {
            host.segments.retain(|place| *place != at);
            if host.segments.is_empty() {
                self.by_host.remove(segment.host());
            }
        }
    }

    /// Ids of the segments that `client` contributes.
    pub(crate) fn of_client(&self, client: ClientId) -> Vec<SegmentId> {
        self.by_client.get(&client).cloned().unwrap_or_default()
    }

    /// What a strategy may know of the segments when `writer` puts.
    pub(crate) const fn seen_by(&self, writer: ClientId) -> SeenBy<'_> {
        SeenBy { table: self, writer }
    }

    fn recount(&mut self) {
        let largest = self.segments.iter().map(|segment| segment.largest_object()).max();
        self.largest = largest.unwrap_or(0);
        let sizes = self.segments.iter().map(|segment| segment.spec().size);
        self.capacity = sizes.fold(0, u64::saturating_add);
        self.view += 1;
    }
}

/// The table as the allocation strategies see it, with the distances from a writer.
pub(crate) struct SeenBy<'a> {
    table: &'a SegmentTable,
    writer: ClientId,
}

impl Segments for SeenBy<'_> {
    fn capacity(&self, at: usize) -> u64 {
        self.table.segments[at].spec().size
    }

    fn available(&self, at: usize) -> u64 {
        self.table.segments[at].free()
    }

    fn largest_free(&self, at: usize) -> u64 {
        self.table.segments[at].largest_free()
    }

    fn host(&self, at: usize) -> u64 {
        self.table.host_numbers[at]
    }

    /// Only the writer's host is known to be near: that of its oldest segment.
    fn near(&self, distance: u32) -> Option<&[usize]> {
        if distance > 0 {
            return None;
        }
        let own = self.table.by_client.get(&self.writer)?.first()?;
        let host = self.table.by_host.get(self.table.by_id(*own)?.host())?;
        Some(&host.segments)
    }
}
