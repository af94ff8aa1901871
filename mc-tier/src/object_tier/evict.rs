//! Eviction from an object store.

use std::time::SystemTime;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tracing::warn;

use super::objects::Objects;
use crate::error::TierError;
use crate::object::ObjectId;
use crate::oldest::Oldest;
use crate::place::generation_of;

/// Objects that are evicted before the caller hears of them.
pub(super) const PART: usize = 128;

/// Objects that are evicted at once: three requests each.
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
        stream::iter(part)
            .map(|(place, len)| async move { self.evict_at(&place, len).await })
            .buffered(IN_FLIGHT)
            .collect()
            .await
    }

    async fn evict_at(&self, place: &str, len: u64) -> Result<Evicted, TierError> {
        let id = match self.describe(place).await {
            Ok(None) => return Ok(None),
            Ok(Some(object)) => Some(object.id().clone()),
            Err(error @ TierError::Damaged { .. }) => {
                warn!(%error, "an object that could not be read was evicted");
                None
            }
            Err(error) => return Err(error),
        };
        Ok(self.remove_at(place).await?.then_some((id, len)))
    }
}
