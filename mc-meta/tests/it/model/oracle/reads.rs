//! Reads and listings.

use core::time::Duration;
use std::collections::BTreeMap;

use mc_lease::SoftPin;
use mc_meta::{GetError, ListCursor, PinError};
use mc_types::KeyRef;

use super::{Lost, Mounting, Oracle};

/// How long before an access the last read was at most that the master remembers: a longer time than any read
/// may take.
const REMEMBERED: Duration = Duration::from_millis((1 << 14) - 1);

impl Oracle {
    pub(crate) fn get(&mut self, key: KeyRef<'_>) {
        let result = self.master.get_replica_list(self.now, key);
        match self.objects.get(key.as_str()) {
            None => assert_eq!(result.unwrap_err(), GetError::NotFound),
            Some(object) if !self.is_readable(object) => {
                assert_eq!(result.unwrap_err(), GetError::NotReady);
            }
            Some(object) => {
                let list = result.unwrap();
                assert_eq!(list.generation, object.generation);
                assert_eq!(list.slices.as_slice(), object.slices);
                assert_eq!(list.lease, self.config.lease_ttl);
                let placed: Vec<(Mounting, _)> = list
                    .placements
                    .iter()
                    .map(|at| (self.segments[&at.segment.spec().id].mounting, at.extent))
                    .collect();
                assert_eq!(placed, self.readable(object));
                self.totals.get_hits += 1;
                self.access(key.as_str());
                self.reads(key.as_str());
                self.expect_no_events_about(key.as_str());
                return;
            }
        }
        self.totals.get_misses += 1;
        self.expect_no_events_about(key.as_str());
    }

    pub(crate) fn exist(&mut self, key: KeyRef<'_>) {
        let object = self.objects.get(key.as_str());
        let readable = object.is_some_and(|object| self.is_readable(object));
        assert_eq!(self.master.exist(self.now, key), readable);
        if readable {
            self.totals.exist_hits += 1;
            self.access(key.as_str());
        } else {
            self.totals.exist_misses += 1;
        }
        self.expect_no_events_about(key.as_str());
    }

    pub(crate) fn longest_prefix(&mut self, keys: &[String]) {
        let readable =
            |key: &&String| self.objects.get(*key).is_some_and(|object| self.is_readable(object));
        let expected = keys.iter().take_while(readable).count();
        let refs = keys.iter().map(|key| KeyRef::new(key).unwrap());
        assert_eq!(self.master.longest_prefix(self.now, refs), expected);
        self.totals.exist_hits += expected as u64;
        self.totals.exist_misses += u64::from(expected < keys.len());
        for key in &keys[..expected] {
            self.objects.get_mut(key).unwrap().wanted = Some(self.now);
        }
        assert_eq!(self.take_events(), []);
    }

    /// Gives an object a pin, or takes those that it has: `None`.
    pub(crate) fn pin(&mut self, key: KeyRef<'_>, ttl: Option<Option<Duration>>) {
        let result = match ttl {
            Some(ttl) => self.master.pin(self.now, key, ttl),
            None => self.master.unpin(self.now, key),
        };
        let expected = match self.objects.get(key.as_str()) {
            None => Err(PinError::NotFound),
            Some(object) if !object.complete => Err(PinError::NotReady),
            Some(_) => Ok(()),
        };
        assert_eq!(result, expected);
        if result.is_err() {
            return self.expect_no_events_about(key.as_str());
        }
        let now = self.now;
        if ttl.is_some() {
            self.access(key.as_str());
        }
        let object = self.objects.get_mut(key.as_str()).unwrap();
        match ttl {
            Some(ttl) => {
                object.begun = object.touched;
                object.soft_pin = ttl.map_or(SoftPin::STANDARD, SoftPin::lasting);
            }
            None => (object.soft_pin, object.hard_pin) = (SoftPin::NONE, false),
        }
        // Its place among others is that of one which was just used.
        object.wanted = Some(now);
        // What is told of it beyond its record is as before.
        self.expect_no_events_about(key.as_str());
    }

    fn access(&mut self, key: &str) {
        self.turns += 1;
        let (turn, now, lease) = (self.turns, self.now, self.config.lease_ttl);
        let object = self.objects.get_mut(key).unwrap();
        object.touched = object.touched.max(now);
        // And not when the clock has gone back since.
        object.read = object.read.filter(|read| object.touched - *read < REMEMBERED);
        object.promised = object.promised.max(now + lease);
        object.turn = turn;
        object.leased = true;
        (object.settled, object.wanted) = (None, None);
        if let Some(group) = object.group {
            let group = self.groups.get_mut(&group).unwrap();
            group.leased = group.leased.max(now + lease);
        }
    }

    /// Notes a read: the client that gets the places reads there.
    pub(super) fn reads(&mut self, key: &str) {
        let object = self.objects.get_mut(key).unwrap();
        object.read = Some(object.touched);
    }

    pub(crate) fn list(&self, from: ListCursor, limit: usize) {
        let mut listed = BTreeMap::new();
        let mut cursor = Some(from);
        while let Some(at) = cursor {
            let page = self.master.list_keys("key-", at, limit);
            assert!(page.keys.len() <= limit);
            for info in page.keys {
                let known = listed.insert(info.key.as_str().to_owned(), info);
                assert!(known.is_none(), "listed twice");
            }
            cursor = page.next.map(|next| ListCursor::from_u64(next.to_u64()));
        }
        for (key, object) in &self.objects {
            let info = &listed[key];
            let unseen = |((lost, _), it): (&(String, _), &Lost)| lost == key && !it.replaces;
            if self.lost.iter().any(unseen) {
                // What has just lost its last segment still stands before it.
                assert_eq!(info.replicas, 0);
                continue;
            }
            assert_eq!(info.len, object.len());
            let readable = if object.complete { self.readable(object).len() } else { 0 };
            assert_eq!(info.replicas as usize, readable);
        }
        for (key, info) in listed {
            // What has just lost its last segment may still be listed.
            assert!(self.objects.contains_key(&key) || info.replicas == 0);
        }
    }
}
