//! The client behind a store: a client in this process, or the node agent of the host.

use std::future::Future;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_standalone::DummyClient;
use mc_store::blocking::{self, GivenUp};
use mc_store::{
    Generation, GetInto, ObjectDescription, ObjectKey, Put, PutMode, PutOutcome, ReplicaTransfer,
    ReplicateConfig, ReplicatedStore, Source, Stat, StoreError, TaskId, TaskReport,
};
use mc_transport::{Memory, MemorySlice};
use tokio::runtime::Runtime;

use crate::error::Failure;
use crate::interrupt::is_interrupted;
use crate::memory::Borrows;

/// How often a wait for the end of transfers looks at them.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The client of a store. Every call blocks: the interpreter must be released.
#[derive(Debug)]
pub(super) struct Backend {
    store: blocking::Store<dyn ReplicatedStore>,
    /// The same client as a member of the cluster; `None` for a thin client.
    own: Option<blocking::Client>,
}

impl Backend {
    /// Makes the backend of a member of the cluster.
    pub(super) fn member(client: blocking::Client) -> Self {
        Self { store: client.as_store().map(|store| store as _), own: Some(client) }
    }

    /// Makes the backend of a thin client, which `runtime` drives.
    pub(super) fn served(client: DummyClient, runtime: Runtime) -> Self {
        Self { store: blocking::Store::new(runtime, Arc::new(client)), own: None }
    }

    fn wait<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, Failure> {
        Ok(wait_for(&self.store, call)??)
    }

    fn wait_for_each<T>(
        &self,
        count: usize,
        call: impl Future<Output = Vec<Result<T, StoreError>>>,
    ) -> Vec<Result<T, Failure>> {
        match wait_for(&self.store, call) {
            Ok(outcomes) => each(outcomes),
            Err(failure) => (0..count).map(|_| Err(failure)).collect(),
        }
    }

    fn store(&self) -> &dyn ReplicatedStore {
        self.store.as_async()
    }

    /// Stores objects. A put of a key that has an object succeeds.
    pub(super) fn store_all(
        &self,
        puts: Vec<Put<'_>>,
        config: &ReplicateConfig,
        mode: PutMode,
    ) -> Vec<Result<(), Failure>> {
        let count = puts.len();
        let puts = self.copy_unreachable(puts);
        let outcomes = self.wait_for_each(count, self.store().batch_store(puts, config, mode));
        outcomes.into_iter().map(|outcome| outcome.map(done)).collect()
    }

    /// Replaces memory that the store cannot reach by copies.
    fn copy_unreachable<'a>(&self, mut puts: Vec<Put<'a>>) -> Vec<Put<'a>> {
        for source in puts.iter_mut().flat_map(|put| &mut put.slices) {
            if let Source::Memory(slice) = source
                && !self.reaches(slice)
            {
                *source = Bytes::from(slice.to_vec()).into();
            }
        }
        puts
    }

    /// Returns whether the store can transfer bytes to and from this memory directly.
    pub(super) fn reaches(&self, target: &MemorySlice) -> bool {
        self.store().can_register(target.memory())
    }

    pub(super) fn get(&self, key: &str) -> Result<Bytes, Failure> {
        self.wait(self.store().get(key))
    }

    /// Reads values that have no more bytes than the numbers beside the keys; longer ones are not
    /// read.
    pub(super) fn get_at_most(&self, gets: &[(&str, u64)]) -> Vec<Result<Bytes, Failure>> {
        self.wait_for_each(gets.len(), self.store().batch_get_at_most(gets))
    }

    /// Reads a range of a value. With a `generation`, fails with [`Failure::LEASE_EXPIRED`] if
    /// another put has replaced the value.
    pub(super) fn get_range(
        &self,
        key: &str,
        generation: Option<Generation>,
        range: Range<u64>,
    ) -> Result<Bytes, Failure> {
        self.wait(self.store().get_range(key, range, generation))
    }

    pub(super) fn batch_get(&self, keys: &[&str]) -> Vec<Result<Bytes, Failure>> {
        self.wait_for_each(keys.len(), self.store().batch_get(keys))
    }

    pub(super) fn get_and_remove(&self, key: &str) -> Result<Bytes, Failure> {
        self.wait(self.store().get_and_remove(key))
    }

    pub(super) fn batch_get_and_remove(&self, keys: &[&str]) -> Vec<Result<Bytes, Failure>> {
        self.wait_for_each(keys.len(), self.store().batch_get_and_remove(keys))
    }

    pub(super) fn get_into(&self, key: &str, target: &MemorySlice) -> Result<u64, Failure> {
        self.wait(self.store().get_into(key, target))
    }

    pub(super) fn batch_get_into(&self, gets: Vec<GetInto<'_>>) -> Vec<Result<u64, Failure>> {
        self.wait_for_each(gets.len(), self.store().batch_get_into(gets))
    }

    pub(super) fn exist(&self, key: &str) -> Result<bool, Failure> {
        self.wait(self.store().exist(key))
    }

    pub(super) fn batch_exist(&self, keys: &[&str]) -> Result<Vec<bool>, Failure> {
        self.wait(self.store().batch_exist(keys))
    }

    pub(super) fn probe(&self, key: &str) -> Result<bool, Failure> {
        self.wait(self.store().probe(key))
    }

    pub(super) fn batch_probe(&self, keys: &[&str]) -> Result<Vec<bool>, Failure> {
        self.wait(self.store().batch_probe(keys))
    }

    pub(super) fn size(&self, key: &str) -> Result<u64, Failure> {
        self.wait(self.store().size(key))
    }

    pub(super) fn stat(&self, key: &str) -> Result<Stat, Failure> {
        self.wait(self.store().stat(key))
    }

    pub(super) fn batch_stat(&self, keys: &[&str]) -> Result<Vec<Result<Stat, Failure>>, Failure> {
        self.wait(self.store().batch_stat(keys)).map(each)
    }

    pub(super) fn remove(&self, key: &str, force: bool) -> Result<(), Failure> {
        self.wait(self.store().remove(key, force))
    }

    pub(super) fn batch_remove(
        &self,
        keys: &[&str],
        force: bool,
    ) -> Result<Vec<Result<(), Failure>>, Failure> {
        self.wait(self.store().batch_remove(keys, force)).map(each)
    }

    pub(super) fn remove_by_regex(&self, pattern: &str, force: bool) -> Result<u64, Failure> {
        self.wait(self.store().remove_by_regex(pattern, force))
    }

    pub(super) fn remove_all(&self, force: bool) -> Result<u64, Failure> {
        self.wait(self.store().remove_all(force))
    }

    pub(super) fn batch_describe(
        &self,
        keys: &[&str],
    ) -> Result<Vec<Result<ObjectDescription, Failure>>, Failure> {
        self.wait(self.store().batch_describe(keys)).map(each)
    }

    /// The path of an object's file; `None` for a thin client.
    pub(super) fn file_path(&self, key: &str, generation: Generation) -> Option<PathBuf> {
        self.own.as_ref()?.file_path(key, generation)
    }

    /// Returns whether objects may get files on the shared tier; the agent of a thin client knows.
    pub(super) fn may_keep_files(&self) -> bool {
        self.own.as_ref().is_none_or(blocking::Client::keeps_files)
    }

    pub(super) fn clear_replicas(
        &self,
        keys: &[&str],
        segment_name: Option<&str>,
    ) -> Result<Vec<ObjectKey>, Failure> {
        let own = self.own("batch_replica_clear")?;
        Ok(wait_for(&self.store, own.as_async().clear_replicas(keys, segment_name))??)
    }

    pub(super) fn transfer(
        &self,
        key: &str,
        transfer: ReplicaTransfer<'_>,
    ) -> Result<TaskId, Failure> {
        self.wait(self.store().transfer(key, transfer))
    }

    pub(super) fn task(&self, id: TaskId) -> Result<TaskReport, Failure> {
        self.wait(self.store().task(id))
    }

    /// Returns whether the master answers.
    pub(super) fn is_reachable(&self) -> bool {
        match &self.own {
            Some(own) => matches!(wait_for(&self.store, own.as_async().ping()), Ok(Ok(_))),
            // The node agent asks the master.
            None => self.exist("health check").is_ok(),
        }
    }

    /// Lets abandoned calls end, until nothing uses some memory any more or the time has passed;
    /// returns whether nothing uses it.
    pub(super) fn let_end(&self, uses: &Borrows, limit: Duration) -> bool {
        let end = async {
            while !uses.is_empty() {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        // The end of the wait drives what only calls drive.
        let _ = wait_for(&self.store, async { tokio::time::timeout(limit, end).await });
        uses.is_empty()
    }

    /// Registers memory for transfers. Ignores memory that the store cannot reach, whose bytes are
    /// copied.
    pub(super) fn register(&self, memory: &Memory) -> Result<(), Failure> {
        match self.store().can_register(memory) {
            true => self.wait(self.store().register(memory)),
            false => Ok(()),
        }
    }

    /// Undoes [`register`](Self::register).
    pub(super) fn unregister(&self, memory: &Memory) -> Result<(), Failure> {
        match self.store().can_register(memory) {
            true => self.wait(self.store().unregister(memory)),
            false => Ok(()),
        }
    }

    /// Returns the member of the cluster; logs that `what` is not supported by a thin client.
    pub(super) fn own(&self, what: &str) -> Result<&blocking::Client, Failure> {
        self.own.as_ref().ok_or_else(|| {
            tracing::warn!(
                "{what}: not supported by a thin client; call it in a process that uses setup()"
            );
            Failure::NOT_SUPPORTED
        })
    }

    /// Leaves the cluster. Pending calls end by themselves.
    pub(super) fn shut_down(&self) {
        if let Some(client) = &self.own {
            client.shutdown();
        }
    }
}

fn wait_for<F: Future>(
    store: &blocking::Store<dyn ReplicatedStore>,
    call: F,
) -> Result<F::Output, Failure> {
    store.block_on_unless(call, is_interrupted).map_err(|GivenUp| Failure::GIVEN_UP)
}

fn each<T>(outcomes: Vec<Result<T, StoreError>>) -> Vec<Result<T, Failure>> {
    outcomes.into_iter().map(|outcome| outcome.map_err(Failure::from)).collect()
}

fn done(outcome: PutOutcome) {
    match outcome {
        // Another client has stored, or is storing, the key's only value.
        PutOutcome::Stored | PutOutcome::Existing | PutOutcome::Pending => {}
    }
}
