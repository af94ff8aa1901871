//! Values that are given to one reader: the read, and then the removal of exactly what was read.

use bytes::Bytes;
use mc_rpc::{Refusal, RpcError};
use mc_types::{BoxFuture, ErrorCode, Generation, KeyRef};

use super::keys::checked;
use super::read::{Item, Target};
use super::{Client, ClientOperation};
use crate::error::{CallError, GetError};

/// How often a value is read again that another put has replaced before it was removed.
const ATTEMPTS: u32 = 3;

impl Client {
    /// As [`ObjectStore::get_and_remove`](crate::ObjectStore::get_and_remove). The value is verified
    /// before it is removed.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::GetError;
    /// client.put("rollout-17", "hidden states").await?;
    /// assert_eq!(client.get_and_remove("rollout-17").await?, "hidden states");
    /// assert!(matches!(client.get_and_remove("rollout-17").await, Err(GetError::NotFound)));
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`GetError`]; [`NotFound`](GetError::NotFound) also when another reader took the value.
    ///
    /// # Cancellation
    /// Dropping the future may remove the value without handing it out.
    pub async fn get_and_remove(&self, key: &str) -> Result<Bytes, GetError> {
        let keys = [key];
        let values = self.take(&keys, ClientOperation::Get, ClientOperation::Remove).await;
        values.into_iter().next().expect("one value for each key")
    }

    /// As [`ObjectStore::batch_get_and_remove`](crate::ObjectStore::batch_get_and_remove).
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// client.put("a", "1").await?;
    /// let values = client.batch_get_and_remove(&["a", "a", "b"]).await;
    /// assert_eq!(values[0].as_ref().ok().ok_or("it was there")?, "1");
    /// assert!(values[1].is_err() && values[2].is_err());
    /// # Ok(()) });
    /// ```
    pub async fn batch_get_and_remove(&self, keys: &[&str]) -> Vec<Result<Bytes, GetError>> {
        self.take(keys, ClientOperation::BatchGet, ClientOperation::BatchRemove).await
    }

    fn take<'a>(
        &'a self,
        keys: &'a [&'a str],
        get: ClientOperation,
        remove: ClientOperation,
    ) -> BoxFuture<'a, Vec<Result<Bytes, GetError>>> {
        Box::pin(async move {
            let mut outcomes: Vec<Option<Result<Bytes, GetError>>> =
                keys.iter().map(|_| None).collect();
            for _ in 0..ATTEMPTS {
                let open: Vec<usize> =
                    (0..keys.len()).filter(|&at| outcomes[at].is_none()).collect();
                if open.is_empty() {
                    break;
                }
                let item = |&at: &usize| Item::new(keys[at], None, None, Target::OWNED);
                let mut items: Vec<Item<'_>> = open.iter().map(item).collect();
                let timed = self.core.metrics.start(get);
                timed.within(self.core.reader().get_all(&mut items)).await;
                timed.ended(items.iter().map(Item::tally));
                let mut read = Vec::with_capacity(open.len());
                let mut values = Vec::with_capacity(open.len());
                for (at, item) in open.into_iter().zip(items) {
                    match item.read_of() {
                        Some(of) => {
                            read.push(of);
                            values.push((at, item.into_bytes()));
                        }
                        None => outcomes[at] = Some(item.into_bytes()),
                    }
                }
                if read.is_empty() {
                    break;
                }
                let removed = self.remove_read(&read, remove).await;
                for ((at, value), removed) in values.into_iter().zip(removed) {
                    outcomes[at] = match removed {
                        Ok(()) => Some(value),
                        // It is read again.
                        Err(GetError::Replaced) => None,
                        Err(error) => Some(Err(error)),
                    };
                }
            }
            outcomes.into_iter().map(|outcome| outcome.unwrap_or(Err(GetError::Replaced))).collect()
        })
    }

    /// Removes what was read; one outcome for each.
    async fn remove_read(
        &self,
        read: &[(KeyRef<'_>, Generation)],
        operation: ClientOperation,
    ) -> Vec<Result<(), GetError>> {
        let timed = self.core.metrics.start(operation);
        let outcomes: Vec<Result<(), GetError>> =
            match timed.within(self.remove_exactly(read)).await {
                Ok(answers) => {
                    let refused = |refusal: Refusal| match refusal.code {
                        ErrorCode::LeaseExpired => GetError::Replaced,
                        _ => GetError::refused(refusal),
                    };
                    answers.into_iter().map(|answer| answer.map_err(refused)).collect()
                }
                Err(error) => read.iter().map(|_| Err(GetError::Rpc(error.clone()))).collect(),
            };
        timed.ended(outcomes.iter().map(|outcome| match outcome {
            Ok(()) => Ok(0),
            Err(error) => Err(error.code()),
        }));
        outcomes
    }

    /// As [`ObjectStore::remove_generation`](crate::ObjectStore::remove_generation).
    ///
    /// # Errors
    /// [`CallError`]; its code is `LeaseExpired` when the key has the object of another put.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::ErrorCode;
    /// client.put("a", "bytes").await?;
    /// let first = client.stat("a").await?.generation;
    /// client.upsert("a", "others").await?;
    /// let refused = client.remove_generation("a", first).await.unwrap_err();
    /// assert_eq!(refused.code(), ErrorCode::LeaseExpired);
    /// assert_eq!(client.get("a").await?, "others");
    /// # Ok(()) });
    /// ```
    pub async fn remove_generation(
        &self,
        key: &str,
        generation: Generation,
    ) -> Result<(), CallError> {
        let mut answers = self.batch_remove_generations(&[(key, generation)]).await?;
        Ok(answers.remove(0).map_err(RpcError::Refused)?)
    }

    /// As [`ObjectStore::batch_remove_generations`](crate::ObjectStore::batch_remove_generations).
    ///
    /// # Errors
    /// [`CallError`] when one of the keys is not one or the master cannot be asked; within, what
    /// became of each object. Of more than [`MAX_BATCH`](mc_rpc::MAX_BATCH) some may be removed when
    /// it fails.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// client.put("a", "bytes").await?;
    /// let put = client.stat("a").await?.generation;
    /// let removed = client.batch_remove_generations(&[("a", put), ("a", put)]).await?;
    /// assert!(removed[0].is_ok() && removed[1].is_err());
    /// # Ok(()) });
    /// ```
    pub fn batch_remove_generations<'a>(
        &'a self,
        objects: &'a [(&'a str, Generation)],
    ) -> BoxFuture<'a, Result<Vec<Result<(), Refusal>>, CallError>> {
        Box::pin(async move {
            let keys: Vec<&str> = objects.iter().map(|(key, _)| *key).collect();
            let timed = self.core.metrics.start(ClientOperation::BatchRemove);
            let outcome = async {
                self.core.link.request()?;
                let of = objects.iter().map(|(_, generation)| *generation);
                let named: Vec<_> = checked(&keys)?.into_iter().zip(of).collect();
                Ok(self.remove_exactly(&named).await?)
            };
            let outcome: Result<_, CallError> = timed.within(outcome).await;
            match &outcome {
                Ok(answers) => timed.ended(answers.iter().map(|answer| match answer {
                    Ok(()) => Ok(0),
                    Err(refusal) => Err(refusal.code),
                })),
                Err(error) => timed.ended(keys.iter().map(|_| Err(error.code()))),
            }
            outcome
        })
    }

    /// Removes the objects of these puts. One that only a file tells of goes with the file.
    async fn remove_exactly(
        &self,
        objects: &[(KeyRef<'_>, Generation)],
    ) -> Result<Vec<Result<(), Refusal>>, RpcError> {
        let mut answers = Vec::with_capacity(objects.len());
        for part in objects.chunks(mc_rpc::MAX_BATCH) {
            answers.append(&mut self.core.link.master.batch_remove_generations(part).await?);
        }
        self.core.tiers.remove_unlisted_of(objects, &mut answers).await;
        Ok(answers)
    }
}
