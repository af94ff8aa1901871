//! Listing the objects of a place.

use std::collections::BTreeSet;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use object_store::ObjectMeta;

use super::objects::Objects;
use crate::error::TierError;
use crate::object::StoredObject;
use crate::place::{is_object, run_of_pack};
use crate::tier::TierUsage;

/// Headers that a scan reads at once.
const HEADERS_IN_FLIGHT: usize = 16;

impl Objects {
    /// Reads what is said of the objects at these places, in their order; those that are gone are left out.
    pub(super) async fn describe_each(
        &self,
        places: Vec<Box<str>>,
    ) -> Vec<Result<StoredObject, TierError>> {
        let described =
            stream::iter(places).map(|place| async move { self.describe(&place).await });
        let described = described.buffered(HEADERS_IN_FLIGHT);
        described.filter_map(async |object| object.transpose()).collect().await
    }

    /// Counts the objects that are in no pack and the bytes of all, and lists the packs' runs and lengths.
    pub(super) async fn usage(&self) -> Result<(TierUsage, Vec<(u64, u64)>), TierError> {
        let (mut usage, mut packs) = (TierUsage::default(), Vec::new());
        let mut listed = self.store.list(self.prefix());
        while let Some(meta) = listed.try_next().await.map_err(|error| self.listing(error))? {
            let Some(place) = self.place_of(&meta) else { continue };
            match run_of_pack(place) {
                Some(run) => packs.push((run, meta.size)),
                None => usage.objects += 1,
            }
            usage.bytes += meta.size;
        }
        Ok((usage, packs))
    }

    /// The first `count` places behind the cursor, and whether there are no more.
    pub(super) async fn first_places(
        &self,
        after: &str,
        count: usize,
    ) -> Result<(BTreeSet<Box<str>>, bool), TierError> {
        let mut listed = match after {
            "" => self.store.list(self.prefix()),
            after => self.store.list_with_offset(self.prefix(), &self.path(after)),
        };
        let (mut places, mut is_last) = (BTreeSet::new(), true);
        while let Some(meta) = listed.try_next().await.map_err(|error| self.listing(error))? {
            let Some(place) = self.place_of(&meta) else { continue };
            if place <= after {
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
