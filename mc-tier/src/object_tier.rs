//! A tier in an object store.

mod evict;
mod failure;
mod list;
mod location;
mod objects;
mod pack;
#[cfg(feature = "s3")]
mod profile;
mod read;
mod remove;
#[cfg(feature = "s3")]
mod s3;

use core::fmt;
use core::num::NonZeroUsize;
use core::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use mc_types::ByteSize;
use tokio::runtime::{Builder, Runtime};
use tracing::warn;

use crate::error::TierError;
use crate::object::{ObjectBytes, ObjectId};
use crate::pack_file::MOST;
use crate::packs::{PackMedium, Packs};
use crate::place::{Cursor, run_of_pack};
use crate::tier::{ScanCursor, ScanPage, Tier, TierUsage, Watermarks};
use evict::Evicted;
use location::Location;
use objects::Objects;

#[cfg(feature = "s3")]
pub use profile::ProfileError;
#[cfg(feature = "s3")]
pub use s3::{S3Settings, S3Variables};

/// The smallest part that S3 takes of a multipart upload, the last one aside.
const MIN_PART_LEN: ByteSize = ByteSize::mib(5);

/// The longest part: what a put or a get sends or receives by one request.
const MAX_PART_LEN: ByteSize = ByteSize::gib(1);

/// Threads that a tier runs its requests on.
const THREADS: usize = 2;

/// Keeps each object in an object of an object store: an S3 bucket, a local directory, or memory.
///
/// Any number of processes may use a bucket at once, under the same prefix. The name of a stored
/// object follows from tenant, key and generation: `PREFIX/FOLDER/o,TENANT,KEY,GENERATION`, with
/// one of 256 folders and with every byte that is no letter, digit, `_`, `-` or `.` as `%XX`; a
/// long name is `PREFIX/FOLDER/h,HASH,GENERATION`. Its bytes are those that
/// [`object_file`](crate::object_file) describes.
///
/// An object store replaces an object as a whole. Objects that are longer than
/// [`part_len`](ObjectStoreSettings::part_len) are sent as a multipart upload, several parts at
/// once; a put that fails aborts its upload. A process that is killed leaves its parts in the
/// store: give the bucket a lifecycle rule that removes incomplete multipart uploads.
///
/// The methods block, and may be called from any thread: the requests run on two threads of the
/// tier's own. In an async program call them by `tokio::task::spawn_blocking` all the same, since
/// they hold up the thread that calls them. Each request has a time limit and a limit of retries,
/// so that no call waits for ever; see `S3Settings`.
///
/// Clones are the same tier.
#[derive(Clone)]
pub struct ObjectStoreTier {
    objects: Arc<Objects>,
    threads: Arc<RequestThreads>,
    packs: Arc<Packs>,
}

/// How an [`ObjectStoreTier`] moves bytes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ObjectStoreSettings {
    /// Bytes of a request: longer objects are put as a multipart upload of parts of this length,
    /// and read by several requests. 5 MiB, which is the least that S3 takes, to 1 GiB; 8 MiB by
    /// default.
    pub part_len: ByteSize,
    /// Parts of a call that are on their way at once; 4 by default. A get takes this many times
    /// `part_len` of memory beside the object.
    pub parts_in_flight: NonZeroUsize,
    /// How `s3://` is reached.
    #[cfg(feature = "s3")]
    pub s3: S3Settings,
}

impl Default for ObjectStoreSettings {
    fn default() -> Self {
        Self {
            part_len: ByteSize::mib(8),
            parts_in_flight: NonZeroUsize::new(4).expect("it is not zero"),
            #[cfg(feature = "s3")]
            s3: S3Settings::default(),
        }
    }
}

impl ObjectStoreTier {
    /// Opens a place in an object store, and lists it to find out whether it can be used.
    ///
    /// | URL | place |
    /// |---|---|
    /// | `s3://BUCKET/PREFIX` | a bucket, by the feature `s3`; the prefix may be missing, and `?endpoint=URL&region=REGION` behind it says where it is |
    /// | `file:///DIRECTORY` | a directory that exists |
    /// | `memory:///` | memory of the tier and its clones, for tests |
    ///
    /// The text is taken as it is, without any decoding of `%XX`. For a directory that may be
    /// unmounted, [`DirectoryTier`](crate::DirectoryTier) is the better tier: this one would make
    /// it again.
    ///
    /// # Errors
    /// [`TierError::InvalidUrl`], [`TierError::InvalidPartLen`], [`TierError::NoBucket`],
    /// [`TierError::Denied`], [`TierError::Unavailable`], and what else the store says.
    pub fn open(url: &str, settings: &ObjectStoreSettings) -> Result<Self, TierError> {
        if !(MIN_PART_LEN..=MAX_PART_LEN).contains(&settings.part_len) {
            let (len, least, most) = (settings.part_len, MIN_PART_LEN, MAX_PART_LEN);
            return Err(TierError::InvalidPartLen { len, least, most });
        }
        let objects = Objects::connect(Location::parse(url)?, settings)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("mc-tier-objects")
            .enable_all()
            .build()
            .map_err(|source| {
                TierError::from_io("start threads for", &PathBuf::from(objects.root()), source)
            })?;
        let threads = Arc::new(RequestThreads(Some(runtime)));
        let tier = Self { objects: Arc::new(objects), threads, packs: Arc::default() };
        tier.wait(async |objects| objects.check().await)?;
        Ok(tier)
    }

    /// Runs a task on the tier's threads, and waits for its result. The caller's thread runs none
    /// of it, so that it may be one of another runtime's.
    fn wait<T, W>(&self, task: impl FnOnce(Arc<Objects>) -> W) -> T
    where
        T: Send + 'static,
        W: Future<Output = T> + Send + 'static,
    {
        let (done, result) = mpsc::sync_channel(1);
        let task = task(Arc::clone(&self.objects));
        self.threads.runtime().spawn(async move {
            // The caller waits until it is sent.
            let _ = done.send(task.await);
        });
        result.recv().expect("a task of the tier ends with its result")
    }
}

impl ObjectStoreTier {
    fn scan_places(&self, cursor: Cursor, limit: usize) -> Result<ScanPage, TierError> {
        let mut page = ScanPage { objects: Vec::new(), unreadable: Vec::new(), next: None };
        let after = cursor.place;
        let first = cursor.within.map(|within| (after.clone().into_boxed_str(), within));
        let listed =
            self.wait(move |objects| async move { objects.first_places(&after, limit).await });
        let (places, is_last) = listed?;
        let last = places.last().filter(|_| !is_last).cloned();
        let places = first.into_iter().chain(places.into_iter().map(|place| (place, 0)));
        let mut alone: Vec<Box<str>> = Vec::new();
        for (place, within) in places {
            let free = limit.saturating_sub(page.objects.len() + page.unreadable.len());
            if alone.len() == free {
                // With this place the next page begins.
                let cursor = Cursor { place: place.into(), within: Some(within) };
                self.describe_alone(&mut alone, &mut page)?;
                page.next = Some(cursor.into());
                return Ok(page);
            }
            let Some(run) = run_of_pack(&place) else {
                alone.push(place);
                continue;
            };
            let free = free - alone.len();
            self.describe_alone(&mut alone, &mut page)?;
            match self.packs.list(self, run, within, free) {
                Ok(objects) if objects.len() == free => {
                    let next = objects.last().map(|it| it.id().generation().place_in_run() + 1);
                    page.objects.extend(objects);
                    page.next = Some(Cursor { place: place.into(), within: next }.into());
                    return Ok(page);
                }
                Ok(objects) => page.objects.extend(objects),
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => page.unreadable.push(error),
            }
        }
        self.describe_alone(&mut alone, &mut page)?;
        page.next = last.map(ScanCursor::new);
        Ok(page)
    }

    /// Lists the objects at these places, which are no packs.
    fn describe_alone(
        &self,
        alone: &mut Vec<Box<str>>,
        page: &mut ScanPage,
    ) -> Result<(), TierError> {
        if alone.is_empty() {
            return Ok(());
        }
        let places = core::mem::take(alone);
        for object in self.wait(|objects| async move { objects.describe_each(places).await }) {
            match object {
                Ok(object) => page.objects.push(object),
                // Of the others nothing else would be heard, after as long a wait.
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => page.unreadable.push(error),
            }
        }
        Ok(())
    }

    /// Removes a pack. What it had is in the outcomes, and its bytes with the first of it.
    fn evict_pack(&self, place: &str, len: u64) -> Vec<Result<Evicted, TierError>> {
        let Some(run) = run_of_pack(place) else { return Vec::new() };
        let objects = match self.packs.list(self, run, 0, usize::MAX) {
            Ok(objects) => objects,
            Err(error @ TierError::Damaged { .. }) => {
                warn!(%error, "a pack that could not be read was evicted");
                Vec::new()
            }
            Err(error) => return vec![Err(error)],
        };
        match PackMedium::remove(self, place) {
            Ok(true) => {}
            Ok(false) => return Vec::new(),
            Err(error) => return vec![Err(error)],
        }
        self.packs.is_gone(run);
        if objects.is_empty() {
            return vec![Ok(Some((None, len)))];
        }
        let lengths = core::iter::once(len).chain(core::iter::repeat(0));
        let evicted = objects.into_iter().zip(lengths);
        evicted.map(|(object, len)| Ok(Some((Some(object.id().clone()), len)))).collect()
    }
}

/// Returns whether of other objects nothing else would be heard, after as long a wait.
const fn is_final(error: &TierError) -> bool {
    matches!(error, TierError::Unavailable { .. } | TierError::NoBucket { .. })
}

impl fmt::Debug for ObjectStoreTier {
    /// Shows the place, and none of the credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectStoreTier({:?})", self.objects.root())
    }
}

/// The threads that run the requests.
struct RequestThreads(Option<Runtime>);

impl RequestThreads {
    fn runtime(&self) -> &Runtime {
        self.0.as_ref().expect("it is there until the tier is dropped")
    }
}

impl Drop for RequestThreads {
    fn drop(&mut self) {
        // Otherwise the drop would wait for the threads, which an async thread may not.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Tier for ObjectStoreTier {
    /// A put that fails may have stored the object, if only the store's answer was lost.
    fn put(&self, id: &ObjectId, object: &ObjectBytes) -> Result<(), TierError> {
        let (own_id, object) = (id.clone(), object.clone());
        self.wait(|objects| async move { objects.put(&own_id, &object).await })?;
        self.packs.is_replaced(self, id)
    }

    /// Asks for a pack before it stores it.
    fn put_many(&self, objects: &[(ObjectId, ObjectBytes)]) -> Result<(), TierError> {
        let alone = self.packs.put(self, objects)?;
        alone.into_iter().try_for_each(|(id, object)| self.put(id, object))
    }

    fn put_at_once(&self) -> usize {
        MOST
    }

    fn get(&self, id: &ObjectId) -> Result<Option<ObjectBytes>, TierError> {
        if let Some(object) = self.packs.get(self, id)? {
            return Ok(Some(object));
        }
        let id = id.clone();
        self.wait(|objects| async move { objects.get(&id).await })
    }

    /// Reads the first bytes of the object, which have its header, and then what is missing of the
    /// slices that the range touches.
    fn get_range(&self, id: &ObjectId, range: Range<u64>) -> Result<Option<Bytes>, TierError> {
        if let Some(bytes) = self.packs.get_range(self, id, &range)? {
            return Ok(Some(bytes));
        }
        let id = id.clone();
        self.wait(|objects| async move { objects.get_range(&id, range).await })
    }

    /// Reads the first bytes of the object, which have its header, and then what is missing of the range.
    fn get_unverified(&self, id: &ObjectId, range: Range<u64>) -> Result<Option<Bytes>, TierError> {
        if let Some(bytes) = self.packs.get_unverified(self, id, &range)? {
            return Ok(Some(bytes));
        }
        let id = id.clone();
        self.wait(|objects| async move { objects.get_unverified(&id, range).await })
    }

    /// Asks for the object before it removes it. Of two clients that remove an object at the same
    /// time, both may be told that it was there.
    fn remove(&self, id: &ObjectId) -> Result<bool, TierError> {
        if let [Some(was_there)] = self.packs.remove(self, core::slice::from_ref(id))?[..] {
            return Ok(was_there);
        }
        let id = id.clone();
        self.wait(|objects| async move { objects.remove(&id).await })
    }

    /// Removes 1000 objects of a bucket by one request, and counts those that were not there, too. Where the
    /// store does not know such requests, as [`remove`](Tier::remove) does.
    fn remove_many(&self, ids: &[ObjectId]) -> Result<u64, TierError> {
        let (mut count, mut places) = (0, Vec::new());
        for (id, outcome) in ids.iter().zip(self.packs.remove(self, ids)?) {
            match outcome {
                Some(was_there) => count += u64::from(was_there),
                None => places.push(Objects::place(id).into()),
            }
        }
        let removed = self.wait(|objects| async move { objects.remove_all(places).await });
        for (_, was_there) in removed {
            count += u64::from(was_there?);
        }
        Ok(count)
    }

    fn removed_at_once(&self) -> usize {
        self.objects.removed_at_once()
    }

    /// Lists a page in the order of the names, and reads the header of each object and the index of each pack.
    /// Each page of a `file:///` takes time in the number of all objects.
    fn scan(&self, after: Option<&ScanCursor>, limit: NonZeroUsize) -> Result<ScanPage, TierError> {
        self.scan_places(Cursor::new(after), limit.get())
    }

    /// Counts the objects of all processes that use the place, by listing it. Of a pack it counts what was written
    /// to it, without what this process has removed.
    fn usage(&self) -> Result<TierUsage, TierError> {
        let (mut usage, packs) = self.wait(|objects| async move { objects.usage().await })?;
        for (run, len) in packs {
            match self.packs.count(self, run, len) {
                Ok(count) => usage.objects += count,
                Err(error) if is_final(&error) => return Err(error),
                // It has none that can be read.
                Err(_) => {}
            }
        }
        Ok(usage)
    }

    /// Writes packs anew of whose objects half were removed.
    fn clean_up(&self) -> Result<u64, TierError> {
        self.packs.clean_up(self)
    }

    fn wants_clean_up(&self) -> bool {
        self.packs.wants_clean_up()
    }

    /// Evicts the objects that were stored first, by the times of the store. Lists the place twice, reads
    /// the header of each object that goes, and removes 1000 by one request. Those that are damaged go without a word.
    fn evict(
        &self,
        watermarks: Watermarks,
        evicted: &mut dyn FnMut(ObjectId),
    ) -> Result<TierUsage, TierError> {
        let mut removed = TierUsage::default();
        let Some(wanted) = watermarks.excess(self.usage()?) else { return Ok(removed) };
        let oldest = self.wait(move |objects| async move { objects.oldest(wanted).await })?;
        let mut failure = None;
        for part in oldest.chunks(evict::PART) {
            let part = part.iter().map(|((.., place), len)| (place.clone(), *len));
            let (packs, alone): (Vec<_>, Vec<_>) =
                part.partition(|(place, _)| run_of_pack(place).is_some());
            let mut outcomes = self.wait(|objects| async move { objects.evict_part(alone).await });
            for (place, len) in packs {
                outcomes.extend(self.evict_pack(&place, len));
            }
            for outcome in outcomes {
                match outcome {
                    Ok(Some((id, len))) => {
                        removed.objects += 1;
                        removed.bytes += len;
                        if let Some(id) = id {
                            evicted(id);
                        }
                    }
                    // Removed by another in the meantime.
                    Ok(None) => {}
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
            // Of the others nothing else would be heard.
            if failure.as_ref().is_some_and(is_final) {
                break;
            }
        }
        failure.filter(|_| removed.objects == 0).map_or(Ok(removed), Err)
    }
}
