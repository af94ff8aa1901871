//! Who does the work: a client of this process, or the real client of the host.

use std::future::Future;
use std::ops::Range;

use bytes::Bytes;
use mc_standalone::DummyClient;
use mc_store::blocking::{self, GivenUp, unless};
use mc_store::{
    Generation, GetInto, ObjectKey, Put, PutOutcome, ReplicaDescription, ReplicateConfig, Source,
    Stat, TaskId, TaskReport,
};
use mc_transport::{Memory, MemorySlice};
use tokio::runtime::Runtime;

use crate::error::Failure;
use crate::interrupt::is_interrupted;

/// Does what a store is asked for. Every call blocks, so the interpreter has to be released.
#[derive(Debug)]
pub(super) enum Backend {
    /// A member of the cluster.
    Own(blocking::Client),
    /// Calls another process of this host.
    Served(Served),
}

/// A dummy client, and what drives it.
#[derive(Debug)]
pub(super) struct Served {
    client: DummyClient,
    /// Taken only when this is dropped.
    runtime: Option<Runtime>,
}

impl Served {
    pub(super) fn new(client: DummyClient, runtime: Runtime) -> Self {
        Self { client, runtime: Some(runtime) }
    }

    fn wait<F: Future>(&self, future: F) -> Result<F::Output, Failure> {
        let runtime = self.runtime.as_ref().expect("taken only when this is dropped");
        runtime.block_on(unless(is_interrupted, future)).map_err(|GivenUp| Failure::GIVEN_UP)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Waits for the call of that name of either client, and makes the same of what it answers.
macro_rules! wait {
    ($backend:expr, $client:ident => $call:expr, $make:expr) => {
        match $backend {
            Backend::Own(own) => {
                let $client = own.as_async();
                wait_for(own, $call).map($make)
            }
            Backend::Served(served) => {
                let $client = &served.client;
                served.wait($call).map($make)
            }
        }
    };
}

fn wait_for<F: Future>(own: &blocking::Client, future: F) -> Result<F::Output, Failure> {
    own.block_on_unless(future, is_interrupted).map_err(|GivenUp| Failure::GIVEN_UP)
}

fn one<T, E>(outcome: Result<T, E>) -> Result<T, Failure>
where
    Failure: From<E>,
{
    outcome.map_err(Failure::from)
}

fn each<T, E>(outcomes: Vec<Result<T, E>>) -> Vec<Result<T, Failure>>
where
    Failure: From<E>,
{
    outcomes.into_iter().map(one).collect()
}

/// Whether a value that is there already stays or makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Put,
    Upsert,
}

impl Backend {
    /// Stores objects; one that is there already is as good as stored by a put.
    pub(super) fn store(
        &self,
        puts: Vec<Put<'_>>,
        config: &ReplicateConfig,
        mode: Mode,
    ) -> Vec<Result<(), Failure>> {
        let count = puts.len();
        let puts = self.fit(puts);
        let outcomes = match mode {
            Mode::Put => {
                let outcomes = wait!(self, client => client.batch_put(puts, config), each);
                outcomes.map(|outcomes| outcomes.into_iter().map(|one| one.map(done)).collect())
            }
            Mode::Upsert => wait!(self, client => client.batch_upsert(puts, config), each),
        };
        outcomes.unwrap_or_else(|failure| vec![Err(failure); count])
    }

    /// Of memory that the real client cannot reach, a copy goes through the local buffer.
    fn fit<'a>(&self, mut puts: Vec<Put<'a>>) -> Vec<Put<'a>> {
        if let Self::Served(_) = self {
            for source in puts.iter_mut().flat_map(|put| &mut put.slices) {
                if let Source::Memory(slice) = source
                    && !is_shared(slice)
                {
                    *source = Bytes::from(slice.to_vec()).into();
                }
            }
        }
        puts
    }

    /// Whether bytes go straight into this memory.
    pub(super) fn reaches(&self, target: &MemorySlice) -> bool {
        matches!(self, Self::Own(_)) || is_shared(target)
    }

    pub(super) fn get(&self, key: &str) -> Result<Bytes, Failure> {
        wait!(self, client => client.get(key), one).flatten()
    }

    /// Some bytes of a value; only of this put, if one is named: of another one the failure is
    /// [`Failure::LEASE_EXPIRED`].
    pub(super) fn get_range(
        &self,
        key: &str,
        generation: Option<Generation>,
        range: Range<u64>,
    ) -> Result<Bytes, Failure> {
        let Some(put) = generation else {
            return wait!(self, client => client.get_range(key, range), one).flatten();
        };
        wait!(self, client => client.get_range_of(key, put, range), one).flatten()
    }

    pub(super) fn batch_get(&self, keys: &[&str]) -> Vec<Result<Bytes, Failure>> {
        let values = wait!(self, client => client.batch_get(keys), each);
        values.unwrap_or_else(|failure| vec![Err(failure); keys.len()])
    }

    pub(super) fn get_into(&self, key: &str, target: &MemorySlice) -> Result<u64, Failure> {
        wait!(self, client => client.get_into(key, target), one).flatten()
    }

    pub(super) fn batch_get_into(&self, gets: Vec<GetInto<'_>>) -> Vec<Result<u64, Failure>> {
        let count = gets.len();
        let lengths = wait!(self, client => client.batch_get_into(gets), each);
        lengths.unwrap_or_else(|failure| vec![Err(failure); count])
    }

    pub(super) fn exist(&self, key: &str) -> Result<bool, Failure> {
        wait!(self, client => client.exist(key), one).flatten()
    }

    pub(super) fn batch_exist(&self, keys: &[&str]) -> Result<Vec<bool>, Failure> {
        wait!(self, client => client.batch_exist(keys), one).flatten()
    }

    pub(super) fn size(&self, key: &str) -> Result<u64, Failure> {
        wait!(self, client => client.size(key), one).flatten()
    }

    pub(super) fn stat(&self, key: &str) -> Result<Stat, Failure> {
        wait!(self, client => client.stat(key), one).flatten()
    }

    pub(super) fn batch_stat(&self, keys: &[&str]) -> Result<Vec<Result<Stat, Failure>>, Failure> {
        match self {
            Self::Own(own) => Ok(each(wait_for(own, own.as_async().batch_stat(keys))??)),
            Self::Served(served) => Ok(each(served.wait(served.client.batch_stat(keys))??)),
        }
    }

    pub(super) fn remove(&self, key: &str, force: bool) -> Result<(), Failure> {
        wait!(self, client => client.remove(key, force), one).flatten()
    }

    pub(super) fn batch_remove(
        &self,
        keys: &[&str],
        force: bool,
    ) -> Result<Vec<Result<(), Failure>>, Failure> {
        match self {
            Self::Own(own) => Ok(each(wait_for(own, own.as_async().batch_remove(keys, force))??)),
            Self::Served(served) => {
                Ok(each(served.wait(served.client.batch_remove(keys, force))??))
            }
        }
    }

    pub(super) fn remove_by_regex(&self, pattern: &str, force: bool) -> Result<u64, Failure> {
        wait!(self, client => client.remove_by_regex(pattern, force), one).flatten()
    }

    pub(super) fn remove_all(&self, force: bool) -> Result<u64, Failure> {
        wait!(self, client => client.remove_all(force), one).flatten()
    }

    pub(super) fn batch_replicas(
        &self,
        keys: &[&str],
    ) -> Result<Vec<Result<Vec<ReplicaDescription>, Failure>>, Failure> {
        match self {
            Self::Own(own) => Ok(each(wait_for(own, own.as_async().batch_replicas(keys))??)),
            Self::Served(served) => served.wait(async {
                let mut found = Vec::with_capacity(keys.len());
                for key in keys {
                    found.push(one(served.client.replicas(key).await));
                }
                found
            }),
        }
    }

    pub(super) fn clear_replicas(
        &self,
        keys: &[&str],
        segment_name: Option<&str>,
    ) -> Result<Vec<ObjectKey>, Failure> {
        let own = self.own("batch_replica_clear")?;
        Ok(wait_for(own, own.as_async().clear_replicas(keys, segment_name))??)
    }

    pub(super) fn copy_to(&self, key: &str, targets: &[&str]) -> Result<TaskId, Failure> {
        wait!(self, client => client.copy_to(key, targets), one).flatten()
    }

    pub(super) fn move_to(&self, key: &str, source: &str, target: &str) -> Result<TaskId, Failure> {
        wait!(self, client => client.move_to(key, source, target), one).flatten()
    }

    pub(super) fn task(&self, id: TaskId) -> Result<TaskReport, Failure> {
        wait!(self, client => client.task(id), one).flatten()
    }

    /// Whether the master answers.
    pub(super) fn is_reachable(&self) -> bool {
        match self {
            Self::Own(own) => matches!(wait_for(own, own.as_async().ping()), Ok(Ok(_))),
            // The real client asks the master.
            Self::Served(_) => self.exist("health check").is_ok(),
        }
    }

    /// Makes memory known from which, and into which, bytes will move.
    pub(super) fn register(&self, memory: &Memory) -> Result<(), Failure> {
        match self {
            Self::Served(served) if memory.shareable().is_some() => {
                Ok(served.wait(served.client.register(memory))??)
            }
            // Everything is reached where it is, or copied.
            _ => Ok(()),
        }
    }

    /// The opposite of [`register`](Self::register).
    pub(super) fn unregister(&self, memory: &Memory) -> Result<(), Failure> {
        match self {
            Self::Served(served) if memory.shareable().is_some() => {
                Ok(served.wait(served.client.unregister(memory))??)
            }
            _ => Ok(()),
        }
    }

    /// The client of this process; a dummy client has none, and `what` is refused.
    pub(super) fn own(&self, what: &str) -> Result<&blocking::Client, Failure> {
        match self {
            Self::Own(client) => Ok(client),
            Self::Served(_) => {
                tracing::warn!("{what} is not for a dummy client; ask the real client's process");
                Err(Failure::NOT_SUPPORTED)
            }
        }
    }

    /// Leaves the cluster. Calls that are under way end by themselves.
    pub(super) fn shut_down(&self) {
        if let Self::Own(client) = self {
            client.shutdown();
        }
    }
}

fn done(outcome: PutOutcome) {
    match outcome {
        // Somebody stores the key, which has one value.
        PutOutcome::Stored | PutOutcome::Existing | PutOutcome::Pending => {}
    }
}

fn is_shared(slice: &MemorySlice) -> bool {
    slice.memory().shareable().is_some()
}
