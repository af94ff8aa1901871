//! How puts end.

use mc_meta::{LateWrites, PutEnd, PutFinishError, PutHandle, Removal};
use mc_types::{ClientId, KeyRef, Time};

use super::journal::Event;
use super::{Object, Oracle, is_genuine};

impl Oracle {
    /// The put that a client means: what stands at the key, or its replacement.
    fn meant(
        &self,
        key: &str,
        client: ClientId,
        handle: PutHandle,
    ) -> Result<&Object, PutFinishError> {
        let PutHandle { generation, token } = handle;
        let object = self.objects.get(key).ok_or(PutFinishError::NotFound)?;
        let named = |object: &Object| generation == object.generation;
        let meant = match self.replacements.get(key) {
            Some(put) if named(put) || (put.owner == client && !named(object)) => put,
            _ => object,
        };
        if meant.owner != client || !is_genuine(generation, token) {
            return Err(PutFinishError::IllegalClient);
        }
        if generation != meant.generation {
            return Err(PutFinishError::NotOpen);
        }
        Ok(meant)
    }

    pub(crate) fn put_end(&mut self, client: ClientId, put: &PutEnd<'_>) {
        let result = self.master.put_end(self.now, client, put);
        let key = put.key.as_str();
        let expected = self.meant(key, client, put.handle).and_then(|meant| {
            let (given, slices) = (put.checksums.len(), meant.slices.len());
            if meant.complete {
                Ok(None)
            } else if given != 0 && given != slices {
                Err(PutFinishError::ChecksumCount { given, slices })
            } else {
                Ok(Some(meant.generation))
            }
        });
        assert_eq!(result, expected.map(|_| ()));
        let Ok(Some(generation)) = expected else {
            return self.expect_no_events_about(key);
        };
        let events = self.take_events();
        let mut expected = Vec::new();
        if self.objects[key].generation != generation {
            expected.push(self.supersede(key));
        }
        self.complete(put);
        expected.push(Event::Stored(self.seen(key)));
        assert_eq!(events, expected);
        self.expect_losses_told(key);
    }

    /// A replacement takes the place of what was there. Readers may still be reading it.
    fn supersede(&mut self, key: &str) -> Event {
        let old = self.forget(key);
        if let Some(until) = self.read_until(&old) {
            self.keep_until(until, old.replicas, None);
        }
        let (key, generation) = (key.to_owned(), old.generation);
        Event::Removed { key, generation, cause: Removal::Replaced }
    }

    fn complete(&mut self, put: &PutEnd<'_>) {
        self.turns += 1;
        let (turn, now) = (self.turns, self.now);
        let object = self.objects.get_mut(put.key.as_str()).unwrap();
        object.complete = true;
        object.turn = turn;
        (object.begun, object.touched, object.promised) = (now, now, Time::ORIGIN);
        (object.held, object.settled) = (None, None);
        for (slice, checksum) in object.slices.iter_mut().zip(put.checksums) {
            slice.checksum = Some(*checksum);
        }
        self.totals.put_ends += 1;
    }

    pub(crate) fn put_revoke(
        &mut self,
        client: ClientId,
        key: KeyRef<'_>,
        handle: PutHandle,
        late: LateWrites,
    ) {
        let result = self.master.put_revoke(self.now, client, key, handle, late);
        let key = key.as_str();
        let events = self.take_events();
        self.expect_losses_told(key);
        let expected = match self.meant(key, client, handle) {
            Ok(meant) if meant.complete => Err(PutFinishError::NotOpen),
            Ok(meant) => Ok(meant.generation),
            Err(error) => Err(error),
        };
        let generation = match expected {
            Ok(generation) => generation,
            Err(error) => {
                let PutHandle { generation, token } = handle;
                let writer = ((client, generation), is_genuine(generation, token));
                return self.revoked_again(&result, error, writer, late, &events);
            }
        };
        assert_eq!(result, Ok(()));
        let put = self.forget_put(key, generation);
        if late == LateWrites::Possible {
            let until = put.begun + self.config.put_start_release_timeout;
            self.keep_until(until, put.replicas, Some((client, generation)));
        }
        self.totals.put_revokes += 1;
        assert_eq!(events, [Event::Abandoned { key: key.to_owned(), generation }]);
    }
}
