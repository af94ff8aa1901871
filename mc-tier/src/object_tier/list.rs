//! Listing the objects of a place.

use core::num::NonZeroUsize;
use std::collections::BTreeSet;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use object_store::ObjectMeta;

use super::objects::Objects;
use crate::error::TierError;
use crate::place::is_object;
use crate::tier::{ScanCursor, ScanPage, TierUsage};

/// Headers that a scan reads at once.
const HEADERS_IN_FLIGHT: usize = 16;

impl Objects {
    pub(super) async fn scan(
        &self,
        after: Option<&ScanCursor>,
        limit: NonZeroUsize,
    ) -> Result<ScanPage, TierError> {
        let (places, is_last) = self.first_places(after, limit.get()).await?;
        let next =
            if is_last { None } else { places.last().map(|place| ScanCursor::new(&**place)) };
        let mut page = ScanPage { objects: Vec::new(), unreadable: Vec::new(), next };
        let mut described = stream::iter(places)
            .map(|place| async move { self.describe(&place).await })
            .buffered(HEADERS_IN_FLIGHT);
        while let Some(object) = described.next().await {
            match object {
                Ok(Some(object)) => page.objects.push(object),
                // Removed in the meantime.
                Ok(None) => {}
                // Of the others nothing else would be heard, after as long a wait.
                Err(error @ (TierError::Unavailable { .. } | TierError::NoBucket { .. })) => {
                    return Err(error);
                }
                Err(error) => page.unreadable.push(error),
            }
        }
        Ok(page)
    }

    pub(super) async fn usage(&self) -> Result<TierUsage, TierError> {
        let mut usage = TierUsage::default();
        let mut listed = self.store.list(self.prefix());
        while let Some(meta) = listed.try_next().await.map_err(|error| self.listing(error))? {
            if self.place_of(&meta).is_some() {
                usage.objects += 1;
                usage.bytes += meta.size;
            }
        }
        Ok(usage)
    }

    /// The first `count` places behind the cursor, and whether there are no more.
    async fn first_places(
        &self,
        after: Option<&ScanCursor>,
        count: usize,
    ) -> Result<(BTreeSet<Box<str>>, bool), TierError> {
        let mut listed = match after {
            None => self.store.list(self.prefix()),
            Some(cursor) => self.store.list_with_offset(self.prefix(), &self.path(cursor.as_str())),
        };
        let (mut places, mut is_last) = (BTreeSet::new(), true);
        while let Some(meta) = listed.try_next().await.map_err(|error| self.listing(error))? {
            let Some(place) = self.place_of(&meta) else { continue };
            if after.is_some_and(|after| place <= after.as_str()) {
                continue;
            }
            places.insert(place.into());
            if places.len() > count {
                places.pop_last();
                is_last = false;
                if self.is_sorted {
                    break;
                }
            }
        }
        Ok((places, is_last))
    }

    /// The place of a stored object below the prefix, if it is an object of a tier.
    pub(super) fn place_of<'a>(&self, meta: &'a ObjectMeta) -> Option<&'a str> {
        let path = meta.location.as_ref();
        let place = if self.prefix.is_root() {
            path
        } else {
            path.strip_prefix(self.prefix.as_ref())?.strip_prefix('/')?
        };
        let (folder, name) = place.split_once('/')?;
        let is_folder = folder.len() == 2 && folder.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_folder && is_object(name) && !name.contains('/')).then_some(place)
    }

    pub(super) fn listing(&self, error: object_store::Error) -> TierError {
        self.failure("list", "", error)
    }
}
