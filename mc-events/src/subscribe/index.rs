//! An index of the nodes that hold each object.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use thiserror::Error;

use super::follow::Update;
use crate::event::{Event, Replica};

/// Memory of an object beside its key and replicas.
const OBJECT_SIZE: usize = 96;
/// Memory of a replica beside its location.
const REPLICA_SIZE: usize = 48;

/// Objects and where their replicas are.
///
/// The encoding `s4` does not say whose object it is: an index of several tenants takes equal keys for
/// one object. Give an endpoint to each tenant where that matters.
#[derive(Debug)]
pub struct Index {
    objects: HashMap<String, Vec<Replica>>,
    bytes: usize,
    max_bytes: usize,
}

/// The objects need more memory than the index may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the objects need more than {max_bytes} bytes; give the index more memory")]
pub struct IndexFull {
    /// The limit.
    pub max_bytes: usize,
}

impl Index {
    /// Holds at most about `max_bytes` bytes.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        Self { objects: HashMap::new(), bytes: 0, max_bytes }
    }

    /// Applies an update. Lost connections change nothing.
    ///
    /// # Errors
    /// The index is full, and lacks the rest of this update.
    pub fn apply(&mut self, update: Update) -> Result<(), IndexFull> {
        match update {
            Update::Reset => self.clear(),
            Update::Events(events) => {
                for event in events {
                    match event {
                        Event::Store(event) => self.set(event.key, event.replicas)?,
                        Event::Update(event) => self.set(event.key, event.replicas)?,
                        Event::Removed(event) => self.set(event.key, Vec::new())?,
                        Event::RemoveAll(_) => self.clear(),
                        // The encoding `s4` has none of these.
                        Event::MediumStored(_) | Event::MediumRemoved(_) | Event::Custom(_) => {}
                    }
                }
            }
            Update::Current { .. } | Update::Lost(_) => {}
        }
        Ok(())
    }

    /// Where an object's replicas are; empty for an object that is not there.
    #[must_use]
    pub fn replicas(&self, key: &str) -> &[Replica] {
        self.objects.get(key).map_or(&[], Vec::as_slice)
    }

    /// All objects, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[Replica])> {
        self.objects.iter().map(|(key, replicas)| (key.as_str(), replicas.as_slice()))
    }

    /// The number of objects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there are no objects.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    fn clear(&mut self) {
        self.objects.clear();
        self.bytes = 0;
    }

    /// One look-up for each event: most of its cost is memory that is in no cache.
    fn set(&mut self, key: String, replicas: Vec<Replica>) -> Result<(), IndexFull> {
        let entry = self.objects.entry(key);
        let size_now = if replicas.is_empty() { 0 } else { size(entry.key(), &replicas) };
        if let Entry::Occupied(before) = &entry {
            self.bytes -= size(before.key(), before.get());
        }
        let fits = self.bytes + size_now <= self.max_bytes;
        if fits && size_now > 0 {
            self.bytes += size_now;
            entry.insert_entry(replicas);
        } else if let Entry::Occupied(before) = entry {
            before.remove();
        }
        if fits { Ok(()) } else { Err(IndexFull { max_bytes: self.max_bytes }) }
    }
}

fn size(key: &str, replicas: &[Replica]) -> usize {
    let replicas = replicas.iter().map(|replica| REPLICA_SIZE + replica.location.len());
    OBJECT_SIZE + key.len() + replicas.sum::<usize>()
}
