//! Who does the work: a client of this process, or the real client of the host.

use std::future::Future;
use std::ops::Range;

use bytes::Bytes;
use mc_store::standalone::DummyClient;
use mc_store::{
    GetInto, ObjectKey, Put, PutOutcome, ReplicaDescription, ReplicateConfig, Source, TaskId,
    TaskReport, blocking,
};
use mc_transport::{Memory, MemorySlice};
use tokio::runtime::Runtime;

use crate::error::Failure;

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

    fn wait<F: Future>(&self, future: F) -> F::Output {
        self.runtime.as_ref().expect("taken only when this is dropped").block_on(future)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Calls the method of that name of either client.
macro_rules! either {
    ($backend:expr, $client:ident => $call:expr) => {
        match $backend {
            Backend::Own($client) => $call.map_err(Failure::from),
            Backend::Served(served) => {
                let $client = &served.client;
                served.wait($call).map_err(Failure::from)
            }
        }
    };
}

/// The same for calls with one outcome for each object.
macro_rules! each {
    ($backend:expr, $client:ident => $call:expr, $and_then:expr) => {
        match $backend {
            Backend::Own($client) => {
                $call.into_iter().map(|one| one.map($and_then).map_err(Failure::from)).collect()
            }
            Backend::Served(served) => {
                let $client = &served.client;
                let outcomes = served.wait($call);
                outcomes.into_iter().map(|one| one.map($and_then).map_err(Failure::from)).collect()
            }
        }
    };
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
        let puts = self.fit(puts);
        match mode {
            Mode::Put => each!(self, client => client.batch_put(puts, config), done),
            Mode::Upsert => each!(self, client => client.batch_upsert(puts, config), |()| ()),
        }
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
        either!(self, client => client.get(key))
    }

    pub(super) fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, Failure> {
        either!(self, client => client.get_range(key, range))
    }

    pub(super) fn batch_get(&self, keys: &[&str]) -> Vec<Result<Bytes, Failure>> {
        each!(self, client => client.batch_get(keys), |value| value)
    }

    pub(super) fn get_into(&self, key: &str, target: &MemorySlice) -> Result<u64, Failure> {
        either!(self, client => client.get_into(key, target))
    }

    pub(super) fn batch_get_into(&self, gets: Vec<GetInto<'_>>) -> Vec<Result<u64, Failure>> {
        each!(self, client => client.batch_get_into(gets), |len| len)
    }

    pub(super) fn exist(&self, key: &str) -> Result<bool, Failure> {
        either!(self, client => client.exist(key))
    }

    pub(super) fn batch_exist(&self, keys: &[&str]) -> Result<Vec<bool>, Failure> {
        either!(self, client => client.batch_exist(keys))
    }

    pub(super) fn size(&self, key: &str) -> Result<u64, Failure> {
        either!(self, client => client.size(key))
    }

    pub(super) fn remove(&self, key: &str, force: bool) -> Result<(), Failure> {
        either!(self, client => client.remove(key, force))
    }

    pub(super) fn batch_remove(
        &self,
        keys: &[&str],
        force: bool,
    ) -> Result<Vec<Result<(), Failure>>, Failure> {
        Ok(match self {
            Self::Own(client) => {
                let outcomes = client.batch_remove(keys, force)?;
                outcomes.into_iter().map(|one| one.map_err(Failure::from)).collect()
            }
            Self::Served(served) => {
                let outcomes = served.wait(served.client.batch_remove(keys, force))?;
                outcomes.into_iter().map(|one| one.map_err(Failure::from)).collect()
            }
        })
    }

    pub(super) fn remove_by_regex(&self, pattern: &str, force: bool) -> Result<u64, Failure> {
        either!(self, client => client.remove_by_regex(pattern, force))
    }

    pub(super) fn remove_all(&self, force: bool) -> Result<u64, Failure> {
        either!(self, client => client.remove_all(force))
    }

    pub(super) fn batch_replicas(
        &self,
        keys: &[&str],
    ) -> Result<Vec<Result<Vec<ReplicaDescription>, Failure>>, Failure> {
        Ok(match self {
            Self::Own(client) => {
                let found = client.batch_replicas(keys)?;
                found.into_iter().map(|one| one.map_err(Failure::from)).collect()
            }
            Self::Served(served) => served.wait(async {
                let mut found = Vec::with_capacity(keys.len());
                for key in keys {
                    found.push(served.client.replicas(key).await.map_err(Failure::from));
                }
                found
            }),
        })
    }

    pub(super) fn clear_replicas(
        &self,
        keys: &[&str],
        segment_name: Option<&str>,
    ) -> Result<Vec<ObjectKey>, Failure> {
        match self {
            Self::Own(client) => Ok(client.clear_replicas(keys, segment_name)?),
            Self::Served(_) => Err(unsupported("batch_replica_clear")),
        }
    }

    pub(super) fn copy_to(&self, key: &str, targets: &[&str]) -> Result<TaskId, Failure> {
        either!(self, client => client.copy_to(key, targets))
    }

    pub(super) fn move_to(&self, key: &str, source: &str, target: &str) -> Result<TaskId, Failure> {
        either!(self, client => client.move_to(key, source, target))
    }

    pub(super) fn task(&self, id: TaskId) -> Result<TaskReport, Failure> {
        either!(self, client => client.task(id))
    }

    /// Whether the master, or the real client, answers.
    pub(super) fn is_reachable(&self) -> bool {
        match self {
            Self::Own(client) => client.ping().is_ok(),
            // The real client asks the master.
            Self::Served(_) => self.exist("health check").is_ok(),
        }
    }

    /// Makes memory known from which, and into which, bytes will move.
    pub(super) fn register(&self, memory: &Memory) -> Result<(), Failure> {
        match self {
            Self::Served(served) if memory.shareable().is_some() => {
                Ok(served.wait(served.client.register(memory))?)
            }
            // Everything is reached where it is, or copied.
            _ => Ok(()),
        }
    }

    /// The opposite of [`register`](Self::register).
    pub(super) fn unregister(&self, memory: &Memory) -> Result<(), Failure> {
        match self {
            Self::Served(served) if memory.shareable().is_some() => {
                Ok(served.wait(served.client.unregister(memory))?)
            }
            _ => Ok(()),
        }
    }

    /// The client of this process; a dummy client has none, and `what` is refused.
    pub(super) fn own(&self, what: &str) -> Result<&blocking::Client, Failure> {
        match self {
            Self::Own(client) => Ok(client),
            Self::Served(_) => Err(unsupported(what)),
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

fn unsupported(what: &str) -> Failure {
    tracing::warn!("{what} is not for a dummy client; ask the real client's process");
    Failure::NOT_SUPPORTED
}
