//! The packs of an object store: stored objects that hold many.

use core::ops::Range;
use std::path::PathBuf;

use bytes::Bytes;
use object_store::{GetOptions, ObjectStoreExt as _};

use super::ObjectStoreTier;
use super::objects::Objects;
use super::read::body;
use crate::error::TierError;
use crate::packs::{PackMedium, Read, Tag};

/// Removals from a pack are known to the process that made them, until the pack is written anew: an
/// object store changes no byte of what it has.
impl PackMedium for ObjectStoreTier {
    fn read(&self, place: &str, range: Range<u64>, seen: Option<&Tag>) -> Result<Read, TierError> {
        let (place, seen) = (place.to_owned(), seen.cloned());
        self.wait(|objects| async move { objects.read_pack(&place, range, seen).await })
    }

    fn write(
        &self,
        place: &str,
        pieces: Vec<Bytes>,
        is_new: bool,
    ) -> Result<Option<Tag>, TierError> {
        let place = place.to_owned();
        self.wait(|objects| async move {
            if is_new && objects.is_there(&place).await? {
                return Ok(None);
            }
            objects.put_pieces(&place, pieces).await.map(Some)
        })
    }

    fn remove(&self, place: &str) -> Result<bool, TierError> {
        let place = place.to_owned();
        self.wait(|objects| async move { objects.remove_at(&place).await })
    }

    fn mark(&self, _place: &str, _at: &[u64], _tag: &Tag) -> Result<bool, TierError> {
        Ok(true)
    }

    fn shown(&self, place: &str) -> PathBuf {
        self.objects.shown(place)
    }
}

impl Objects {
    async fn read_pack(
        &self,
        place: &str,
        range: Range<u64>,
        seen: Option<Tag>,
    ) -> Result<Read, TierError> {
        let (range, if_match) = (Some(range.into()), seen.clone().flatten().map(String::from));
        let options = GetOptions { range, if_match, ..GetOptions::default() };
        let result = match self.store.get_opts(&self.path(place), options).await {
            Ok(result) => result,
            Err(object_store::Error::Precondition { .. }) => return Ok(Read::Changed),
            Err(error) if Self::is_missing(&error) => return Ok(Read::Missing),
            Err(error) => return Err(self.failure("read", place, error)),
        };
        let tag: Tag = result.meta.e_tag.clone().map(String::into_boxed_str);
        // A store without tags may have replaced it.
        if seen.is_some_and(|seen| seen != tag) {
            return Ok(Read::Changed);
        }
        let pack_len = result.meta.size;
        let bytes = body(result).await.map_err(|error| self.failure("read", place, error))?;
        Ok(Read::Part { bytes, pack_len, tag })
    }

    async fn is_there(&self, place: &str) -> Result<bool, TierError> {
        match self.store.head(&self.path(place)).await {
            Ok(_) => Ok(true),
            // Without a body, an answer does not tell a missing bucket: the put's does.
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.failure("read", place, error)),
        }
    }
}
