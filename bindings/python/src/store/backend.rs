//! The client behind a store: a client in this process, or the node agent of the host.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_standalone::DummyClient;
use mc_store::blocking::{self, GivenUp};
use mc_store::{
    Generation, GetInto, MakeMemory, ObjectKey, Put, PutMode, PutOutcome, ReplicateConfig,
    ReplicatedStore, Source, StoreError,
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

    /// Waits for a call of the store.
    pub(super) fn wait<'a, T, F>(
        &'a self,
        call: impl FnOnce(&'a dyn ReplicatedStore) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        Ok(wait_for(&self.store, call(self.store()))??)
    }

    /// Waits for a call that has an outcome for each of `count` objects.
    pub(super) fn wait_for_each<'a, T, F>(
        &'a self,
        count: usize,
        call: impl FnOnce(&'a dyn ReplicatedStore) -> F,
    ) -> Vec<Result<T, Failure>>
    where
        F: Future<Output = Vec<Result<T, StoreError>>>,
    {
        match wait_for(&self.store, call(self.store())) {
            Ok(outcomes) => outcomes.into_iter().map(|one| one.map_err(Failure::from)).collect(),
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
        let outcomes = self.wait_for_each(count, |store| store.batch_store(puts, config, mode));
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

    /// Reads values that have no more bytes than the numbers beside the keys; longer ones are not
    /// read.
    pub(super) fn get_at_most(&self, gets: &[(&str, u64)]) -> Vec<Result<Bytes, Failure>> {
        self.wait_for_each(gets.len(), |store| store.batch_get_at_most(gets))
    }

    pub(super) fn batch_get_made(
        &self,
        keys: &[&str],
        make: &MakeMemory<'_>,
    ) -> Vec<Result<Bytes, Failure>> {
        self.wait_for_each(keys.len(), |store| store.batch_get_made(keys, make))
    }

    pub(super) fn batch_get(&self, keys: &[&str]) -> Vec<Result<Bytes, Failure>> {
        self.wait_for_each(keys.len(), |store| store.batch_get(keys))
    }

    pub(super) fn batch_get_and_remove(&self, keys: &[&str]) -> Vec<Result<Bytes, Failure>> {
        self.wait_for_each(keys.len(), |store| store.batch_get_and_remove(keys))
    }

    pub(super) fn batch_get_into(&self, gets: Vec<GetInto<'_>>) -> Vec<Result<u64, Failure>> {
        self.wait_for_each(gets.len(), |store| store.batch_get_into(gets))
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

    /// Returns whether the master answers.
    pub(super) fn is_reachable(&self) -> bool {
        match &self.own {
            Some(own) => matches!(wait_for(&self.store, own.as_async().ping()), Ok(Ok(_))),
            // The node agent asks the master.
            None => self.wait(|store| store.exist("health check")).is_ok(),
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
            true => self.wait(|store| store.register(memory)),
            false => Ok(()),
        }
    }

    /// Undoes [`register`](Self::register).
    pub(super) fn unregister(&self, memory: &Memory) -> Result<(), Failure> {
        match self.store().can_register(memory) {
            true => self.wait(|store| store.unregister(memory)),
            false => Ok(()),
        }
    }

    /// Returns whether a node agent does the work.
    pub(super) const fn is_thin(&self) -> bool {
        self.own.is_none()
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

fn done(outcome: PutOutcome) {
    match outcome {
        // Another client has stored, or is storing, the key's only value.
        PutOutcome::Stored | PutOutcome::Existing | PutOutcome::Pending => {}
    }
}
