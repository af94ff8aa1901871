//! The objects of a place in an object store.

use std::future::ready;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _, PutPayload, PutResult};
use tracing::warn;

use super::ObjectStoreSettings;
use super::location::Location;
use crate::error::TierError;
use crate::object::{ObjectBytes, ObjectId, StoredObject};
use crate::object_file::encode_header;
use crate::packs::Tag;
use crate::place::place_within;

/// Longest name of a stored object: a local store appends a number of its own while it writes, and
/// files have names of at most 255 bytes.
const MAX_NAME_LEN: usize = 240;

/// A place in an object store.
pub(super) struct Objects {
    pub(super) store: Box<dyn ObjectStore>,
    /// The same, if one request to it removes many objects.
    pub(super) bulk: Option<Box<dyn ObjectStore>>,
    /// Requests that removed none of many objects, one after the other.
    pub(super) bulk_failures: AtomicUsize,
    /// The URL of the place, for messages.
    root: String,
    pub(super) prefix: Path,
    /// Whether the store lists objects in the order of their names.
    pub(super) is_sorted: bool,
    /// Whether errors of the operating system are those of files.
    pub(super) is_local: bool,
    pub(super) part_len: u64,
    pub(super) parts_in_flight: usize,
}

impl Objects {
    /// Makes what is needed to reach a place. Sends nothing.
    pub(super) fn connect(
        location: Location,
        settings: &ObjectStoreSettings,
    ) -> Result<Self, TierError> {
        let mut objects = Self {
            store: Box::new(InMemory::new()),
            bulk: None,
            bulk_failures: AtomicUsize::new(0),
            root: "memory:///".to_owned(),
            prefix: Path::default(),
            is_sorted: true,
            is_local: false,
            part_len: settings.part_len.as_u64(),
            parts_in_flight: settings.parts_in_flight.get(),
        };
        let store: Result<Box<dyn ObjectStore>, _> = match location {
            Location::Memory => return Ok(objects),
            Location::Directory(directory) => {
                objects.root = format!("file://{}", directory.display());
                (objects.is_sorted, objects.is_local) = (false, true);
                LocalFileSystem::new_with_prefix(directory).map(|store| Box::new(store) as _)
            }
            #[cfg(feature = "s3")]
            Location::Bucket(bucket) => {
                objects.root = format!("s3://{}/{}", bucket.name(), bucket.prefix());
                objects.prefix = Path::parse(bucket.prefix()).map_err(|_| {
                    let reason = "a prefix has no signs that need an encoding";
                    TierError::InvalidUrl { url: objects.root.clone(), reason }
                })?;
                super::s3::connect(&bucket, &settings.s3).map(|[store, bulk]| {
                    objects.bulk = Some(bulk);
                    store
                })
            }
            #[cfg(not(feature = "s3"))]
            Location::Bucket(bucket) => {
                let url = format!("s3://{}/{}", bucket.name(), bucket.prefix());
                let reason =
                    "this program was built without S3: turn on the feature `s3` of mc-tier";
                return Err(TierError::InvalidUrl { url, reason });
            }
        };
        objects.store = store.map_err(|error| objects.failure("open", "", error))?;
        Ok(objects)
    }

    /// The URL of the place.
    pub(super) fn root(&self) -> &str {
        &self.root
    }

    /// Returns an error when nothing can be listed here.
    pub(super) async fn check(&self) -> Result<(), TierError> {
        match self.store.list(self.prefix()).next().await {
            Some(Err(error)) => Err(self.failure("list", "", error)),
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// Returns the common beginning of all names.
    pub(super) fn prefix(&self) -> Option<&Path> {
        (!self.prefix.is_root()).then_some(&self.prefix)
    }

    /// The place of an object below the prefix.
    pub(super) fn place(id: &ObjectId) -> String {
        place_within(id, MAX_NAME_LEN)
    }

    /// The name of the stored object at `place`.
    pub(super) fn path(&self, place: &str) -> Path {
        let path = if self.prefix.is_root() {
            place.to_owned()
        } else {
            format!("{}/{place}", self.prefix)
        };
        // What is no name, which a foreign cursor may be, names nothing.
        Path::parse(&path).unwrap_or_else(|_| Path::from(path))
    }

    pub(super) async fn put(&self, id: &ObjectId, object: &ObjectBytes) -> Result<(), TierError> {
        let stored = StoredObject::of(id.clone(), object);
        let header = Bytes::from(encode_header(&stored));
        let pieces = core::iter::once(header)
            .chain(object.slices().iter().map(|slice| slice.bytes().clone()));
        self.put_pieces(&Self::place(id), pieces.collect()).await.map(drop)
    }

    /// Stores these bytes, one piece behind the other. Returns their tag.
    pub(super) async fn put_pieces(
        &self,
        place: &str,
        pieces: Vec<Bytes>,
    ) -> Result<Tag, TierError> {
        let len: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        let path = self.path(place);
        let pieces = pieces.into_iter();
        let put = if len <= self.part_len {
            self.store.put(&path, pieces.collect()).await
        } else {
            self.upload(&path, cut(pieces, self.part_len as usize)).await
        };
        let put = put.map_err(|error| self.failure("put", place, error))?;
        Ok(put.e_tag.map(String::into_boxed_str))
    }

    /// Sends a long object in parts.
    async fn upload(&self, path: &Path, parts: Vec<PutPayload>) -> object_store::Result<PutResult> {
        let mut upload = self.store.put_multipart(path).await?;
        let has_failed = AtomicBool::new(false);
        let mut sent = Ok(());
        {
            let mut sending = pin!(
                stream::iter(parts)
                    .take_while(|_| ready(!has_failed.load(Ordering::Relaxed)))
                    .map(|part| upload.put_part(part))
                    .buffer_unordered(self.parts_in_flight)
            );
            // Also those that are under way when one fails: a server that goes on with a part after the upload was
            // aborted may keep it.
            while let Some(part) = sending.next().await {
                if part.is_err() && !has_failed.swap(true, Ordering::Relaxed) {
                    sent = part;
                }
            }
        }
        let put = match sent {
            Ok(()) => upload.complete().await,
            Err(error) => Err(error),
        };
        if put.is_err()
            && let Err(error) = upload.abort().await
        {
            warn!(%error, "an incomplete multipart upload may be left in the object store");
        }
        put
    }
}

/// Gathers pieces into parts of `part_len`, without a copy. The last part may be shorter.
fn cut(pieces: impl Iterator<Item = Bytes>, part_len: usize) -> Vec<PutPayload> {
    let (mut parts, mut part, mut missing) = (Vec::new(), Vec::new(), part_len);
    for mut piece in pieces {
        while !piece.is_empty() {
            let taken = piece.split_to(piece.len().min(missing));
            missing -= taken.len();
            part.push(taken);
            if missing == 0 {
                parts.push(part.drain(..).collect());
                missing = part_len;
            }
        }
    }
    if !part.is_empty() {
        parts.push(part.into_iter().collect());
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_bytes_of_the_pieces() {
        let bytes: Vec<u8> = (0..100).collect();
        for lengths in [&[100][..], &[1, 99], &[30, 30, 40], &[7, 3, 10, 80], &[33, 0, 67]] {
            let mut rest = Bytes::from(bytes.clone());
            let pieces: Vec<Bytes> = lengths.iter().map(|len| rest.split_to(*len)).collect();
            for part_len in [1, 7, 10, 30, 99, 100, 101] {
                let parts = cut(pieces.iter().cloned(), part_len);
                let lengths: Vec<usize> = parts.iter().map(PutPayload::content_length).collect();
                let (last, others) = lengths.split_last().unwrap();
                assert!(others.iter().all(|len| *len == part_len) && *last <= part_len);
                let joined: Vec<u8> =
                    parts.iter().flatten().flat_map(|piece| piece.to_vec()).collect();
                assert_eq!(joined, bytes, "parts of {part_len}");
            }
        }
    }
}
