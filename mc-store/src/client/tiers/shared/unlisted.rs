//! Files that the master does not know of: the client-side mode of Mooncake's first versions.
//!
//! A client that is given a directory by a setting of its own, under a master that names none, writes a
//! file for each object that it puts. A read of an object that the master does not have looks for the
//! file. Its name follows from tenant and key alone, so that the last put under a key has the file, or none:
//! one that is not written leaves no older one there. A client deletes the files of what it removes or
//! replaces itself; of what others do it knows nothing.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use mc_meta::{Pattern, SharedFile};
use mc_rpc::{Refusal, ReplicaList};
use mc_tier::{DirectoryTier, InvalidObject, ObjectId, StoredObject, Tier as _, TierError};
use mc_types::{ErrorCode, Generation, KeyRef};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::SharedTier;
use super::queue::{Deletion, Pending, Which};
use crate::client::tiers::Tiers;
use crate::client::tiers::slices_of;

/// In the place of the put that an object came from. No master gives it to one.
const OF_ANY_PUT: Generation = Generation::new(0);

/// How long a removal or a replacement waits for the deletion of files: a directory may hang.
const DELETION: Duration = Duration::from_secs(2);

/// Files that are listed at a time.
const PAGE: NonZeroUsize = NonZeroUsize::new(1024).expect("it is not zero");

/// Threads that look for the files of one call's keys.
const LOOKERS: usize = 16;

/// The time that a reader of such a file has in place of a lease.
const NO_LEASE: Duration = Duration::from_secs(3600);

impl Tiers {
    /// The id by which the shared tier knows an object.
    ///
    /// # Errors
    /// When the tenant's name is too long.
    pub(in crate::client) fn file_id(
        &self,
        shared: &SharedTier,
        key: KeyRef<'_>,
        generation: Generation,
    ) -> Result<ObjectId, InvalidObject> {
        let generation = if shared.is_unlisted { OF_ANY_PUT } else { generation };
        self.object_id(key, generation)
    }

    /// Returns whether the client keeps files that the master does not know of.
    pub(in crate::client) fn has_unlisted(&self) -> bool {
        self.unlisted().is_some()
    }

    fn unlisted(&self) -> Option<(&SharedTier, Arc<DirectoryTier>)> {
        let shared = self.shared.as_ref()?;
        Some((shared, shared.unlisted()?))
    }

    /// Answers for objects that the master does not have and that have a file, as it would for files
    /// that it knows of.
    pub(in crate::client) async fn find_unlisted(
        &self,
        keys: &[KeyRef<'_>],
        answers: &mut [Result<ReplicaList, Refusal>],
    ) {
        let is_missing = |at: usize| answers[at].as_ref().is_err_and(is_not_found);
        for (at, object) in self.stat_unlisted(keys, is_missing).await {
            answers[at] = Ok(ReplicaList {
                generation: OF_ANY_PUT,
                slices: slices_of(&object),
                replicas: Vec::new(),
                suspects: 0,
                file: Some(SharedFile { len: object.object_len() }),
                local_disks: Vec::new(),
                lease: NO_LEASE,
            });
        }
    }

    /// Marks the objects that have a file as existing.
    pub(in crate::client) async fn exist_unlisted(&self, keys: &[KeyRef<'_>], exist: &mut [bool]) {
        for (at, _) in self.stat_unlisted(keys, |at| !exist[at]).await {
            exist[at] = true;
        }
    }

    /// Looks at the files of those keys whose places are `wanted`. Returns those that are there.
    async fn stat_unlisted(
        &self,
        keys: &[KeyRef<'_>],
        wanted: impl Fn(usize) -> bool,
    ) -> Vec<(usize, StoredObject)> {
        let Some((_, tier)) = self.unlisted() else { return Vec::new() };
        let wanted = keys.iter().enumerate().filter(|(at, _)| wanted(*at));
        let ids = wanted.filter_map(|(at, key)| Some((at, self.object_id(*key, OF_ANY_PUT).ok()?)));
        let ids: Vec<(usize, ObjectId)> = ids.collect();
        if ids.is_empty() {
            return Vec::new();
        }
        // A file server takes its time for each, and many at once.
        let looks = ids.chunks(ids.len().div_ceil(LOOKERS)).map(|part| {
            let (tier, part) = (Arc::clone(&tier), part.to_vec());
            self.on_tier(move || Ok(stat(&tier, part)))
        });
        join_all(looks).await.into_iter().flatten().flatten().collect()
    }

    /// Deletes the files of objects that the master has removed or does not have. An answer that there
    /// is no such object becomes one that it is removed, where it had a file.
    pub(in crate::client) async fn remove_unlisted(
        &self,
        keys: &[KeyRef<'_>],
        answers: &mut [Result<(), Refusal>],
    ) {
        if !self.has_unlisted() {
            return;
        }
        let gone = keys.iter().zip(answers).filter(|(_, answer)| match answer {
            Ok(()) => true,
            Err(refusal) => is_not_found(refusal),
        });
        let gone = gone.filter_map(|(key, answer)| {
            let id = self.object_id(*key, OF_ANY_PUT).ok()?;
            Some((id, answer))
        });
        let (ids, answers): (Vec<ObjectId>, Vec<_>) = gone.unzip();
        let had_files = self.ask_to_delete(Which::Objects(ids)).await;
        for (answer, had_file) in answers.into_iter().zip(had_files) {
            if had_file {
                *answer = Ok(());
            }
        }
    }

    /// [`remove_unlisted`](Self::remove_unlisted) after the removal of particular puts: of those that
    /// the master has removed, and of those that only a file tells of.
    pub(in crate::client) async fn remove_unlisted_of(
        &self,
        objects: &[(KeyRef<'_>, Generation)],
        answers: &mut [Result<(), Refusal>],
    ) {
        if !self.has_unlisted() {
            return;
        }
        let is_meant = |of: Generation, answer: &Result<(), Refusal>| match answer {
            Ok(()) => true,
            Err(refusal) => of == OF_ANY_PUT && is_not_found(refusal),
        };
        let meant: Vec<usize> =
            (0..objects.len()).filter(|&at| is_meant(objects[at].1, &answers[at])).collect();
        let keys: Vec<KeyRef<'_>> = meant.iter().map(|&at| objects[at].0).collect();
        let mut of_files: Vec<_> = meant.iter().map(|&at| answers[at].clone()).collect();
        self.remove_unlisted(&keys, &mut of_files).await;
        for (at, answer) in meant.into_iter().zip(of_files) {
            answers[at] = answer;
        }
    }

    /// Deletes the files of all objects whose keys match; of all without a pattern.
    pub(in crate::client) async fn remove_all_unlisted(&self, pattern: Option<&str>) {
        if !self.has_unlisted() {
            return;
        }
        // The master would have refused a pattern that is none.
        if let Ok(pattern) = pattern.map(Pattern::new).transpose() {
            let pattern = pattern.map(Box::new);
            self.ask_to_delete(Which::Matching(self.tenant.clone(), pattern)).await;
        }
    }

    /// Deletes the files of objects that are about to be replaced: no client is to read the old value when
    /// memory has evicted the new one before its file is written.
    pub(in crate::client) async fn delete_replaced(&self, keys: impl Iterator<Item = KeyRef<'_>>) {
        if self.has_unlisted() {
            let ids = keys.filter_map(|key| self.object_id(key, OF_ANY_PUT).ok()).collect();
            self.ask_to_delete(Which::Objects(ids)).await;
        }
    }

    /// Deletes what an earlier put under the same key has left where a file was not written.
    pub(in crate::client) async fn delete_outdated(&self, unwritten: &[Pending]) {
        let Some((_, tier)) = self.unlisted() else { return };
        let keys = unwritten.iter().map(|pending| pending.key.as_ref());
        let ids = keys.filter_map(|key| self.object_id(key, OF_ANY_PUT).ok());
        let ids: Vec<ObjectId> = ids.collect();
        let deleted = self.on_tier(move || delete(&tier, ids.iter(), &mut Vec::new())).await;
        if let Err(error) = deleted {
            debug!(%error, "the file of an earlier put could not be deleted");
        }
    }

    /// Has files deleted. Returns for each whether it was there; nothing when that takes too long, and then it
    /// goes on.
    async fn ask_to_delete(&self, which: Which) -> Vec<bool> {
        let Some((shared, _)) = self.unlisted() else { return Vec::new() };
        // To find those that match takes a listing.
        let is_bounded = matches!(which, Which::Objects(_));
        let deleted = shared.queue.delete(which);
        if !is_bounded {
            return deleted.await;
        }
        timeout(DELETION, deleted).await.unwrap_or_else(|_| {
            shared.counters.complain(|failures| {
                warn!(failures, "files are not deleted after {DELETION:?}; going on without that");
            });
            Vec::new()
        })
    }

    /// Deletes files, and notifies the caller.
    pub(in crate::client) async fn delete_unlisted(&self, deletion: Deletion) {
        let Some(shared) = &self.shared else { return };
        let Deletion { which, turn, done } = deletion;
        let tier = shared.unlisted();
        let those = Arc::clone(&which);
        let delete = move || {
            let mut had_files = Vec::new();
            let Some(tier) = tier else { return Ok((had_files, Ok(()))) };
            let deleted = match &*those {
                Which::Objects(ids) => delete(&tier, ids.iter(), &mut had_files),
                Which::Matching(..) => delete_matching(&tier, &those, &mut had_files),
            };
            Ok((had_files, deleted))
        };
        let outcome = self.on_tier(delete).await;
        shared.queue.turns.end_deletion(turn, &which, || shared.queue.is_idle()).await;
        let Ok((had_files, deleted)) = outcome else { return };
        if let Err(error) = deleted {
            shared.counters.complain(|failures| {
                warn!(%error, failures, "files of removed objects could not be deleted");
            });
        }
        shared.counters.deleted(had_files.iter().filter(|had_file| **had_file).count() as u64);
        // The caller may have gone.
        let _ = done.send(had_files);
    }
}

/// Reads what the files of objects say of them. Returns those that are there.
fn stat(tier: &DirectoryTier, ids: Vec<(usize, ObjectId)>) -> Vec<(usize, StoredObject)> {
    let found = ids.into_iter().filter_map(|(at, id)| match tier.stat(&id) {
        Ok(object) => Some((at, object?)),
        Err(error) => {
            debug!(%error, "a file that the master does not know of cannot be read");
            None
        }
    });
    found.collect()
}

fn is_not_found(refusal: &Refusal) -> bool {
    refusal.code == ErrorCode::ObjectNotFound
}

/// Deletes the files of objects. Adds for each whether it had one, and returns the first failure.
fn delete<'a>(
    tier: &DirectoryTier,
    ids: impl Iterator<Item = &'a ObjectId>,
    had_files: &mut Vec<bool>,
) -> Result<(), TierError> {
    let mut failure = None;
    had_files.extend(ids.map(|id| {
        tier.remove(id).unwrap_or_else(|error| {
            failure.get_or_insert(error);
            false
        })
    }));
    failure.map_or(Ok(()), Err)
}

fn delete_matching(
    tier: &DirectoryTier,
    which: &Which,
    had_files: &mut Vec<bool>,
) -> Result<(), TierError> {
    let mut deleted = Ok(());
    let mut after = None;
    loop {
        let page = tier.scan(after.as_ref(), PAGE)?;
        let ids = page.objects.iter().map(StoredObject::id).filter(|id| which.has(id));
        deleted = deleted.and(delete(tier, ids, had_files));
        after = page.next;
        if after.is_none() {
            return deleted;
        }
    }
}
