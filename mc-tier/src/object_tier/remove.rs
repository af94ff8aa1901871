//! Removals from an object store.

use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::{StreamExt as _, stream};
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _};
use tracing::debug;

use super::objects::Objects;
use crate::error::TierError;
use crate::object::ObjectId;

/// Names that one request may have.
const AT_ONCE: usize = 1000;

/// Removals at once where each is a request of its own.
const IN_FLIGHT: usize = 16;

/// Requests for many objects that fail one after the other before no more are sent: not every store knows them.
const MAX_FAILURES: usize = 3;

/// A place, and whether something was there.
pub(super) type Removed = (Box<str>, Result<bool, TierError>);

impl Objects {
    /// The objects that one request removes.
    pub(super) fn removed_at_once(&self) -> usize {
        if self.is_bulk() { AT_ONCE } else { 1 }
    }

    pub(super) async fn remove(&self, id: &ObjectId) -> Result<bool, TierError> {
        self.remove_at(&Self::place(id)).await
    }

    /// Removes what is at `place`. Returns whether there was something.
    pub(super) async fn remove_at(&self, place: &str) -> Result<bool, TierError> {
        let path = self.path(place);
        let failure = |error| self.failure("remove", place, error);
        let was_there = match self.store.head(&path).await {
            Ok(_) => true,
            // Without a body, an answer does not tell a missing bucket: the removal's does.
            Err(object_store::Error::NotFound { .. }) => false,
            Err(error) => return Err(failure(error)),
        };
        match self.store.delete(&path).await {
            Ok(()) => Ok(was_there),
            Err(error) if Self::is_missing(&error) => Ok(false),
            Err(error) => Err(failure(error)),
        }
    }

    /// Removes what is at these places, in their order. One request removes many where the store knows such
    /// requests: then it is not known whether something was there. Ends with a place that cannot be removed, if
    /// that is to be expected of the next ones.
    pub(super) async fn remove_all(&self, places: Vec<Box<str>>) -> Vec<Removed> {
        let mut removed = Vec::with_capacity(places.len());
        for part in places.chunks(AT_ONCE) {
            let gone = self.remove_at_once(part).await;
            let (gone, left): (Vec<_>, Vec<_>) =
                part.iter().partition(|place| gone.contains(&self.path(place)));
            removed.extend(gone.into_iter().map(|place| (place.clone(), Ok(true))));
            let mut left = left.into_iter().cloned();
            let Some(first) = left.next() else { continue };
            let outcome = self.remove_at(&first).await;
            let is_lost = outcome.is_err();
            removed.push((first, outcome));
            if is_lost {
                break;
            }
            let each = left.map(|place| async move {
                let outcome = self.remove_at(&place).await;
                (place, outcome)
            });
            removed.extend(stream::iter(each).buffered(IN_FLIGHT).collect::<Vec<_>>().await);
        }
        removed
    }

    /// Removes what is at these places by one request. Returns those that are gone: none where the store
    /// does not know such requests.
    async fn remove_at_once(&self, places: &[Box<str>]) -> HashSet<Path> {
        let Some(bulk) = self.bulk.as_ref().filter(|_| places.len() > 1 && self.is_bulk()) else {
            return HashSet::new();
        };
        let paths: Vec<_> = places.iter().map(|place| Ok(self.path(place))).collect();
        let mut outcomes = bulk.delete_stream(stream::iter(paths).boxed());
        let (mut gone, mut failure) = (HashSet::with_capacity(places.len()), None);
        while let Some(outcome) = outcomes.next().await {
            match outcome {
                Ok(path) => drop(gone.insert(path)),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        let failures = if gone.is_empty() { self.bulk_failures.load(Relaxed) + 1 } else { 0 };
        self.bulk_failures.store(failures, Relaxed);
        if let Some(error) = failure {
            debug!(%error, left = places.len() - gone.len(), "objects are removed one by one");
        }
        gone
    }

    fn is_bulk(&self) -> bool {
        self.bulk.is_some() && self.bulk_failures.load(Relaxed) < MAX_FAILURES
    }
}
