//! Eviction from an object store.

use std::collections::HashMap;
use std::time::SystemTime;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tracing::warn;

use super::objects::Objects;
use crate::error::TierError;
use crate::object::ObjectId;
use crate::oldest::Oldest;
use crate::place::generation_of;

/// Objects that are evicted before they are reported to the caller.
pub(super) const PART: usize = 1000;

/// Headers that are read at once.
const IN_FLIGHT: usize = 16;

/// When an object was stored, its generation and its place. Many stores know whole seconds only; within these,
/// generations tell the order, unless a master was started again meanwhile.
type Aged = (SystemTime, u64, Box<str>);

/// An evicted object and its bytes; without an id it was damaged. `None` when it was gone already.
pub(super) type Evicted = Option<(Option<ObjectId>, u64)>;

impl Objects {
    /// Lists the objects that were stored first and have so many bytes together, and the bytes of each.
    pub(super) async fn oldest(&self, wanted: u64) -> Result<Vec<(Aged, u64)>, TierError> {
        let mut oldest = Oldest::new(wanted);
        let mut listed = self.store.list(self.prefix());
        while let Some(meta) = listed.try_next().await.map_err(|error| self.listing(error))? {
            if let Some(place) = self.place_of(&meta) {
                let age = (meta.last_modified.into(), generation_of(place), place.into());
                oldest.add(age, meta.size);
            }
        }
        Ok(oldest.into_vec())
    }

    /// Removes these objects.
    pub(super) async fn evict_part(
        &self,
        part: Vec<(Box<str>, u64)>,
    ) -> Vec<Result<Evicted, TierError>> {
        let found = stream::iter(part)
            .map(|(place, len)| async move { (self.find(&place).await, place, len) })
            .buffered(IN_FLIGHT)
            .collect::<Vec<_>>()
            .await;
        let (mut outcomes, mut places, mut known) = (Vec::new(), Vec::new(), HashMap::new());
        for (found, place, len) in found {
            match found {
                Ok(Some(id)) => {
                    places.push(place.clone());
                    known.insert(place, (id, len));
                }
                Ok(None) => {}
                Err(error) => outcomes.push(Err(error)),
            }
        }
        for (place, removed) in self.remove_all(places).await {
            let evicted = known.remove(&place);
            outcomes.push(removed.map(|was_there| evicted.filter(|_| was_there)));
        }
        outcomes
    }

    /// The id of the object at a place, or none where it is damaged; `None` when it is gone.
    async fn find(&self, place: &str) -> Result<Option<Option<ObjectId>>, TierError> {
        match self.describe(place).await {
            Ok(object) => Ok(object.map(|object| Some(object.id().clone()))),
            Err(error @ TierError::Damaged { .. }) => {
                warn!(%error, "an object that could not be read was evicted");
                Ok(Some(None))
            }
            Err(error) => Err(error),
        }
    }
}
