//! Removal on request.

use std::collections::BTreeSet;

use mc_meta::{Removal, RemoveError};
use mc_types::{Generation, KeyRef};

use super::journal::Event;
use super::{Object, Oracle};

impl Oracle {
    pub(crate) fn remove(&mut self, key: KeyRef<'_>, force: bool) {
        let result = self.master.remove(self.now, key, force);
        let expected = match self.objects.get(key.as_str()) {
            None => Err(RemoveError::NotFound),
            Some(object) if !object.complete => Err(RemoveError::NotReady),
            Some(object) if self.is_leased(object) && !force => {
                Err(RemoveError::Leased { remaining: self.lease_of(object) })
            }
            Some(_) => Ok(()),
        };
        assert_eq!(result, expected);
        if result.is_err() {
            self.expect_no_events_about(key.as_str());
            return;
        }
        let object = self.forget(key.as_str());
        self.totals.removed_objects += 1;
        let removed = Event::Removed {
            key: key.as_str().to_owned(),
            generation: object.generation,
            cause: Removal::Requested,
        };
        assert_eq!(self.take_events(), [removed]);
    }

    pub(crate) fn remove_all(&mut self, force: bool) {
        let goes = |object: &Object| object.complete && (force || !self.is_leased(object));
        let mut expected: BTreeSet<(String, Generation)> = self
            .objects
            .iter()
            .filter(|(_, object)| goes(object))
            .map(|(key, object)| (key.clone(), object.generation))
            .collect();
        let removed = self.master.remove_all(self.now, force);
        assert_eq!(removed, expected.len() as u64);
        for event in self.take_events() {
            let Event::Removed { key, generation, cause: Removal::Requested } = event else {
                panic!("{event:?} while everything is removed");
            };
            self.forget(&key);
            assert!(expected.remove(&(key, generation)), "removed once");
        }
        assert!(expected.is_empty(), "told of every removal");
        self.totals.removed_objects += removed;
    }
}
