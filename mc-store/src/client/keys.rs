//! Calls about keys, which move no bytes.

use mc_rpc::{
    MAX_BATCH, MasterClient, ObjectDescription, Refusal, RemovedAll, ReplicaList, RpcError,
};
use mc_types::{BoxFuture, Generation, KeyError, KeyRef};

use super::{Client, ClientOperation};
use crate::error::CallError;

/// Most bytes of keys that one call to the master names; a quarter of what masters accept
/// by default.
const MAX_KEY_BYTES: usize = 4 << 20;

/// Keys whose files are looked for before the next ones, when the first that is missing ends the search.
const LOOKED_FOR: usize = 64;

/// The description of an object that can be read; see [`Client::stat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stat {
    /// How many bytes it has.
    pub len: u64,
    /// The put that stored it. Of two objects that had one key at different times each has
    /// another; [`GetInto::generation`](crate::GetInto::generation) reads of this one only.
    pub generation: Generation,
}

impl Stat {
    /// An object of `len` bytes that the put `generation` stored.
    #[must_use]
    pub const fn new(len: u64, generation: Generation) -> Self {
        Self { len, generation }
    }
}

impl From<&ReplicaList> for Stat {
    fn from(list: &ReplicaList) -> Self {
        Self { len: list.slices.total_len(), generation: list.generation }
    }
}

impl Client {
    /// As [`ObjectStore::exist`](crate::ObjectStore::exist).
    ///
    /// # Errors
    /// [`CallError`] when the key is not one or the master cannot be asked.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// client.put("prompt-17/block-0", "bytes").await?;
    /// assert!(client.exist("prompt-17/block-0").await?);
    /// assert!(!client.exist("prompt-18/block-0").await?);
    /// # Ok(()) });
    /// ```
    pub fn exist<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<bool, CallError>> {
        Box::pin(async move {
            let timed = self.core.metrics.start(ClientOperation::Exist);
            let outcome = async {
                let key = KeyRef::new(key)?;
                let mut exists = [self.core.link.request()?.exist(key).await?];
                self.core.tiers.exist_unlisted(&[key], &mut exists).await;
                Ok(exists[0])
            };
            let outcome = timed.within(outcome).await;
            timed.found(1, outcome, |exists| usize::from(!exists))
        })
    }

    /// As [`ObjectStore::batch_exist`](crate::ObjectStore::batch_exist).
    ///
    /// # Errors
    /// [`CallError`] when one of the keys is not one or the master cannot be
    /// asked.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// client.put("a", "bytes").await?;
    /// assert_eq!(client.batch_exist(&["a", "b", "a"]).await?, [true, false, true]);
    /// # Ok(()) });
    /// ```
    pub fn batch_exist<'a>(
        &'a self,
        keys: &'a [&'a str],
    ) -> BoxFuture<'a, Result<Vec<bool>, CallError>> {
        Box::pin(async move {
            let timed = self.core.metrics.start(ClientOperation::BatchExist);
            let outcome = async {
                let keys = checked(keys)?;
                let answers = self.in_parts(&keys, |master, part| master.batch_exist(part)).await?;
                let unrefused = answers.into_iter().collect::<Result<Vec<bool>, Refusal>>();
                let mut exist = unrefused.map_err(RpcError::Refused)?;
                self.core.tiers.exist_unlisted(&keys, &mut exist).await;
                Ok(exist)
            };
            let absent = |exist: &Vec<bool>| exist.iter().filter(|exists| !**exists).count();
            let outcome = timed.within(outcome).await;
            timed.found(keys.len(), outcome, absent)
        })
    }

    /// As [`ObjectStore::probe`](crate::ObjectStore::probe).
    ///
    /// # Errors
    /// [`CallError`] when the key is not one or the master cannot be asked.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// client.put("a", "bytes").await?;
    /// assert!(client.probe("a").await?);
    /// // No lease holds it.
    /// client.remove("a", false).await?;
    /// assert!(!client.probe("a").await?);
    /// # Ok(()) });
    /// ```
    pub fn probe<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<bool, CallError>> {
        Box::pin(async move {
            let timed = self.core.metrics.start(ClientOperation::Exist);
            let outcome = async {
                let key = KeyRef::new(key)?;
                let mut exists = [self.core.link.request()?.probe(key).await?];
                self.core.tiers.exist_unlisted(&[key], &mut exists).await;
                Ok(exists[0])
            };
            let outcome = timed.within(outcome).await;
            timed.found(1, outcome, |exists| usize::from(!exists))
        })
    }

    /// As [`ObjectStore::batch_probe`](crate::ObjectStore::batch_probe).
    ///
    /// # Errors
    /// [`CallError`] when one of the keys is not one or the master cannot be
    /// asked.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// client.put("a", "bytes").await?;
    /// assert_eq!(client.batch_probe(&["a", "b", "a"]).await?, [true, false, true]);
    /// # Ok(()) });
    /// ```
    pub fn batch_probe<'a>(
        &'a self,
        keys: &'a [&'a str],
    ) -> BoxFuture<'a, Result<Vec<bool>, CallError>> {
        Box::pin(async move {
            let timed = self.core.metrics.start(ClientOperation::BatchExist);
            let outcome = async {
                let keys = checked(keys)?;
                let answers = self.in_parts(&keys, |master, part| master.batch_probe(part)).await?;
                let unrefused = answers.into_iter().collect::<Result<Vec<bool>, Refusal>>();
                let mut exist = unrefused.map_err(RpcError::Refused)?;
                self.core.tiers.exist_unlisted(&keys, &mut exist).await;
                Ok(exist)
            };
            let absent = |exist: &Vec<bool>| exist.iter().filter(|exists| !**exists).count();
            let outcome = timed.within(outcome).await;
            timed.found(keys.len(), outcome, absent)
        })
    }

    /// As [`ObjectStore::longest_prefix`](crate::ObjectStore::longest_prefix).
    ///
    /// # Errors
    /// As [`batch_exist`](Self::batch_exist).
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// for block in ["block-0", "block-1", "block-3"] {
    ///     client.put(block, "bytes").await?;
    /// }
    /// assert_eq!(client.longest_prefix(&["block-0", "block-1", "block-2", "block-3"]).await?, 2);
    /// # Ok(()) });
    /// ```
    pub fn longest_prefix<'a>(
        &'a self,
        keys: &'a [&'a str],
    ) -> BoxFuture<'a, Result<usize, CallError>> {
        Box::pin(async move {
            let timed = self.core.metrics.start(ClientOperation::LongestPrefix);
            let outcome = async {
                let master = self.core.link.request()?;
                if self.core.tiers.has_unlisted() {
                    return self.longest_prefix_with_unlisted(keys).await;
                }
                let mut found = 0;
                for part in parts(&checked(keys)?) {
                    let there = master.longest_prefix(part).await?;
                    found += there;
                    if there < part.len() {
                        break;
                    }
                }
                Ok(found)
            };
            let outcome = timed.within(outcome).await;
            timed.found(keys.len(), outcome, |found| keys.len() - found)
        })
    }

    /// The longest prefix of which each key has an object or a file that the master does not know of. Looks
    /// for no file behind the first that is missing but those that it looks for at the same time.
    async fn longest_prefix_with_unlisted(&self, keys: &[&str]) -> Result<usize, CallError> {
        let keys = checked(keys)?;
        let answers = self.in_parts(&keys, |master, part| master.batch_exist(part)).await?;
        let unrefused = answers.into_iter().collect::<Result<Vec<bool>, Refusal>>();
        let mut exist = unrefused.map_err(RpcError::Refused)?;
        let mut found = 0;
        for (keys, exist) in keys.chunks(LOOKED_FOR).zip(exist.chunks_mut(LOOKED_FOR)) {
            self.core.tiers.exist_unlisted(keys, exist).await;
            let there = exist.iter().take_while(|exists| **exists).count();
            found += there;
            if there < exist.len() {
                break;
            }
        }
        Ok(found)
    }

    /// As [`ObjectStore::size`](crate::ObjectStore::size).
    ///
    /// # Errors
    /// [`CallError`]; its code is `ObjectNotFound` when there is no such object and
    /// `ReplicaIsNotReady` when it cannot be read now.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// client.put("a", vec![7; 65_536]).await?;
    /// assert_eq!(client.size("a").await?, 65_536);
    /// # Ok(()) });
    /// ```
    pub async fn size(&self, key: &str) -> Result<u64, CallError> {
        Ok(self.stat(key).await?.len)
    }

    /// [`size`](Self::size) of many objects, each on its own; in the order of the keys.
    ///
    /// # Errors
    /// [`CallError`] when one of the keys is not one or the master cannot be asked;
    /// within, why an object has no size.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::ErrorCode;
    /// client.put("a", vec![7; 4096]).await?;
    /// let sizes = client.batch_size(&["a", "b"]).await?;
    /// assert_eq!(sizes[0], Ok(4096));
    /// assert_eq!(sizes[1].as_ref().unwrap_err().code, ErrorCode::ObjectNotFound);
    /// # Ok(()) });
    /// ```
    pub async fn batch_size(&self, keys: &[&str]) -> Result<Vec<Result<u64, Refusal>>, CallError> {
        let stats = self.batch_stat(keys).await?.into_iter();
        Ok(stats.map(|stat| stat.map(|stat| stat.len)).collect())
    }

    /// As [`ObjectStore::stat`](crate::ObjectStore::stat).
    ///
    /// # Errors
    /// As [`size`](Self::size).
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// client.put("a", "bytes").await?;
    /// let first = client.stat("a").await?;
    /// assert_eq!(first.len, 5);
    /// assert_eq!(client.stat("a").await?, first);
    /// client.upsert("a", "other").await?;
    /// assert_ne!(client.stat("a").await?.generation, first.generation);
    /// # Ok(()) });
    /// ```
    pub async fn stat(&self, key: &str) -> Result<Stat, CallError> {
        let mut stats = self.batch_stat(&[key]).await?;
        Ok(stats.remove(0).map_err(RpcError::Refused)?)
    }

    /// As [`ObjectStore::batch_stat`](crate::ObjectStore::batch_stat).
    ///
    /// # Errors
    /// [`CallError`] when one of the keys is not one or the master cannot be asked;
    /// within, why nothing is known of an object.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// client.put("a", "bytes").await?;
    /// let stats = client.batch_stat(&["a", "b"]).await?;
    /// assert_eq!(stats[0], Ok(client.stat("a").await?));
    /// assert!(stats[1].is_err());
    /// # Ok(()) });
    /// ```
    pub fn batch_stat<'a>(
        &'a self,
        keys: &'a [&'a str],
    ) -> BoxFuture<'a, Result<Vec<Result<Stat, Refusal>>, CallError>> {
        Box::pin(async move {
            let keys = checked(keys)?;
            let mut lists =
                self.in_parts(&keys, |master, part| master.batch_get_replica_list(part)).await?;
            self.core.tiers.find_unlisted(&keys, &mut lists).await;
            Ok(lists.into_iter().map(|list| list.map(|list| Stat::from(&list))).collect())
        })
    }

    /// As [`ObjectStore::remove`](crate::ObjectStore::remove).
    ///
    /// # Errors
    /// [`CallError`]; its code tells a missing object from a leased one.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::ErrorCode;
    /// client.put("a", "bytes").await?;
    /// client.get("a").await?;
    /// let refused = client.remove("a", false).await.unwrap_err();
    /// assert_eq!(refused.code(), ErrorCode::ObjectHasLease);
    /// client.remove("a", true).await?;
    /// # Ok(()) });
    /// ```
    pub fn remove<'a>(&'a self, key: &'a str, force: bool) -> BoxFuture<'a, Result<(), CallError>> {
        Box::pin(async move {
            let timed = self.core.metrics.start(ClientOperation::Remove);
            let outcome = async {
                let key = KeyRef::new(key)?;
                let mut answer = match self.core.link.request()?.remove(key, force).await {
                    Err(RpcError::Refused(refusal)) => [Err(refusal)],
                    answer => [Ok(answer?)],
                };
                self.core.tiers.remove_unlisted(&[key], &mut answer).await;
                let [answer] = answer;
                Ok(answer.map_err(RpcError::Refused)?)
            };
            let outcome = timed.within(outcome).await;
            timed.answered(outcome)
        })
    }

    /// As [`ObjectStore::batch_remove`](crate::ObjectStore::batch_remove).
    ///
    /// # Errors
    /// [`CallError`] when one of the keys is not one or the master cannot be
    /// asked; within, what became of each key. Of more than
    /// [`MAX_BATCH`](mc_rpc::MAX_BATCH) keys some may be removed when it fails.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// client.put("a", "bytes").await?;
    /// let removed = client.batch_remove(&["a", "b"], false).await?;
    /// assert!(removed[0].is_ok() && removed[1].is_err());
    /// # Ok(()) });
    /// ```
    pub fn batch_remove<'a>(
        &'a self,
        keys: &'a [&'a str],
        force: bool,
    ) -> BoxFuture<'a, Result<Vec<Result<(), Refusal>>, CallError>> {
        Box::pin(async move {
            let timed = self.core.metrics.start(ClientOperation::BatchRemove);
            let outcome = async {
                let keys = checked(keys)?;
                let mut answers =
                    self.in_parts(&keys, |master, part| master.batch_remove(part, force)).await?;
                self.core.tiers.remove_unlisted(&keys, &mut answers).await;
                Ok(answers)
            };
            let outcome: Result<_, CallError> = timed.within(outcome).await;
            match &outcome {
                Ok(keys) => timed.ended(keys.iter().map(|key| match key {
                    Ok(()) => Ok(0),
                    Err(refusal) => Err(refusal.code),
                })),
                Err(error) => timed.ended(keys.iter().map(|_| Err(error.code()))),
            }
            outcome
        })
    }

    /// As [`ObjectStore::remove_all`](crate::ObjectStore::remove_all).
    ///
    /// # Errors
    /// [`CallError`] when the master cannot be asked.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// client.put("a", "bytes").await?;
    /// client.put("b", "bytes").await?;
    /// assert_eq!(client.remove_all(false).await?, 2);
    /// # Ok(()) });
    /// ```
    pub fn remove_all<'a>(&'a self, force: bool) -> BoxFuture<'a, Result<u64, CallError>> {
        Box::pin(async move { Ok(self.remove_all_counted(force).await?.removed) })
    }

    /// [`remove_all`](Self::remove_all), which also says how many objects are left and why.
    ///
    /// # Errors
    /// [`CallError`] when the master cannot be asked.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// client.put("a", "bytes").await?;
    /// client.get("a").await?;
    /// let done = client.remove_all_counted(false).await?;
    /// assert_eq!((done.removed, done.left.map(|left| left.leased)), (0, Some(1)));
    /// # Ok(()) });
    /// ```
    pub fn remove_all_counted(&self, force: bool) -> BoxFuture<'_, Result<RemovedAll, CallError>> {
        Box::pin(async move {
            let timed = self.core.metrics.start(ClientOperation::RemoveAll);
            let outcome = async {
                let removed = self.core.link.request()?.remove_all_counted(force).await?;
                self.core.tiers.remove_all_unlisted(None).await;
                Ok(removed)
            };
            let outcome = timed.within(outcome).await;
            timed.answered(outcome)
        })
    }

    /// As [`ReplicatedStore::describe`](crate::ReplicatedStore::describe).
    ///
    /// # Errors
    /// [`CallError`] when there is no such object or the master cannot be asked.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// client.put("a", "bytes").await?;
    /// let object = client.describe("a").await?;
    /// assert_eq!(object.owner, client.id());
    /// assert_eq!(&*object.replicas[0].segment_name, "node");
    /// # Ok(()) });
    /// ```
    pub fn describe<'a>(
        &'a self,
        key: &'a str,
    ) -> BoxFuture<'a, Result<ObjectDescription, CallError>> {
        Box::pin(async move { Ok(self.core.link.request()?.describe(KeyRef::new(key)?).await?) })
    }

    /// Asks about `keys` in calls that a master takes, one after the other; about no keys
    /// without asking.
    // One lifetime for all, named by the caller: with an `AsyncFn`, or a bound for every
    // lifetime, nobody could spawn what calls this.
    pub(super) async fn in_parts<'k, T, A: Future<Output = Result<Vec<T>, RpcError>>>(
        &'k self,
        keys: &'k [KeyRef<'k>],
        ask: impl Fn(&'k MasterClient, &'k [KeyRef<'k>]) -> A,
    ) -> Result<Vec<T>, CallError> {
        let master = self.core.link.request()?;
        let mut answers = Vec::new();
        for part in parts(keys) {
            answers.append(&mut ask(master, part).await?);
        }
        Ok(answers)
    }
}

pub(super) fn checked<'a>(keys: &[&'a str]) -> Result<Vec<KeyRef<'a>>, KeyError> {
    keys.iter().map(|key| KeyRef::new(key)).collect()
}

/// Divides `keys` into runs that one call may name.
fn parts<'k, 'a>(mut keys: &'k [KeyRef<'a>]) -> impl Iterator<Item = &'k [KeyRef<'a>]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |key: &&KeyRef<'_>| {
            bytes += key.as_str().len();
            bytes <= MAX_KEY_BYTES
        };
        let count = keys.iter().take(MAX_BATCH).take_while(fits).count();
        keys.split_off(..count).filter(|part| !part.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lens(keys: &[&str]) -> Vec<usize> {
        parts(&checked(keys).unwrap()).map(<[_]>::len).collect()
    }

    /// Compiled, never run: applications spawn these calls.
    #[allow(dead_code, reason = "it is enough that it compiles")]
    fn calls_can_be_spawned(client: Client) {
        fn spawned(_: impl Future + Send + 'static) {}
        spawned(async move {
            let _ = client.batch_exist(&["k"]).await;
            let _ = client.batch_size(&["k"]).await;
            let _ = client.batch_remove(&["k"], false).await;
            let _ = client.clear_replicas(&["k"], Some("segment")).await;
        });
    }

    #[test]
    fn keys_are_divided_by_number_and_by_bytes() {
        assert_eq!(lens(&[]), [0usize; 0]);
        assert_eq!(lens(&["a"]), [1]);
        assert_eq!(lens(&vec!["a"; MAX_BATCH]), [MAX_BATCH]);
        assert_eq!(lens(&vec!["a"; MAX_BATCH + 1]), [MAX_BATCH, 1]);
        let long = "k".repeat(mc_types::MAX_KEY_LEN);
        let fit = MAX_KEY_BYTES / long.len();
        assert_eq!(lens(&vec![&*long; 2 * fit + 1]), [fit, fit, 1]);
    }
}
