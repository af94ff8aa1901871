//! Values of a client, which shares memory with the node that holds them: the copies are its own. Client, node
//! and master are on one thread; the pages of the segment are populated by another, which is not counted.

use std::error::Error;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_meta::{Master, MasterConfig};
use mc_rpc::{MasterService, Server, ServerConfig, SystemClock};
use mc_store::{Client, GetInto, Memory, MemoryOptions, MemorySlice, Put, ReplicateConfig};
use mc_types::{ByteSize, KeyRef};
use tokio::runtime::Runtime;

use crate::keys::Keys;
use crate::{Done, profiled_path};

/// Values in a batch.
const BATCH: usize = 100;

/// A client whose values are on a node of the same host.
struct Cluster {
    runtime: Runtime,
    client: Client,
    /// Where values are read to.
    memory: Memory,
}

impl Cluster {
    /// A cluster with room for that many values of `len` bytes, in memory whose pages are there.
    fn start(values: u64, len: usize) -> Result<Self, Box<dyn Error>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let memory = Memory::options().pre_fault(NonZeroUsize::MIN).allocate(len * BATCH)?;
        let size = ByteSize::bytes(2 * values * len as u64).max(ByteSize::mib(16));
        let client = runtime.block_on(async {
            let master = Arc::new(Master::new(MasterConfig::default(), 42)?);
            let service = MasterService::new(master, SystemClock::new());
            let server =
                Server::bind("127.0.0.1:0", service, ServerConfig::default()).await?.spawn();
            let address = server.local_addr().to_string();
            let member = || {
                // A heartbeat is a thread's work, and would come at another moment in each run.
                let rarely = Duration::from_secs(3600);
                Client::builder().master(address.as_str()).heartbeat_interval(rarely)
            };
            let node = member()
                .listen(([127, 0, 0, 1], 0).into())
                .segment_size(size)
                .segment_memory(MemoryOptions::default().shared().pre_fault(NonZeroUsize::MIN))
                .connect()
                .await?;
            let client = member().connect().await?;
            // They serve as long as this process runs.
            std::mem::forget((server, node));
            Ok::<_, Box<dyn Error>>(client)
        })?;
        Ok(Self { runtime, client, memory })
    }

    /// A cluster with these values.
    fn filled(keys: &Keys, len: usize) -> Result<Self, Box<dyn Error>> {
        let cluster = Self::start(keys.len(), len)?;
        cluster.put_each(keys, len)?;
        Ok(cluster)
    }

    fn put_each(&self, keys: &Keys, len: usize) -> Done {
        let value = value(len);
        self.runtime.block_on(async {
            for number in 0..keys.len() {
                self.client.put(keys.at(number)?.as_str(), value.clone()).await?;
            }
            Ok(())
        })
    }
}

fn value(len: usize) -> Bytes {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// The part of `memory` for the value at this place of a batch.
fn part(memory: &Memory, at: usize, len: usize) -> Result<MemorySlice, &'static str> {
    memory.slice(at * len, len).ok_or("a batch fits")
}

/// The keys that a run uses, after those with which it finds everything in its place.
fn families(operations: u64) -> (Keys, Keys) {
    (Keys::new(0, 8 * BATCH as u64), Keys::new(1, operations))
}

pub(crate) fn put(operations: u64, len: usize) -> Done {
    let (first, keys) = families(operations);
    let cluster = Cluster::start(operations + first.len(), len)?;
    cluster.put_each(&Keys::new(0, 8), len)?;
    profiled_path(&mut || cluster.put_each(&keys, len))
}

pub(crate) fn get_into(operations: u64, len: usize) -> Done {
    let keys = Keys::new(1, operations);
    let cluster = Cluster::filled(&keys, len)?;
    let target = part(&cluster.memory, 0, len)?;
    let read = || {
        cluster.runtime.block_on(async {
            for number in 0..operations {
                black_box(cluster.client.get_into(keys.at(number)?.as_str(), &target).await?);
            }
            Ok(())
        })
    };
    read()?;
    profiled_path(&mut || read())
}

fn put_batches(cluster: &Cluster, batches: &[Vec<KeyRef<'_>>], len: usize) -> Done {
    let (config, value) = (ReplicateConfig::default(), value(len));
    cluster.runtime.block_on(async {
        for batch in batches {
            let puts = batch.iter().map(|key| Put::new(key.as_str(), value.clone())).collect();
            for stored in cluster.client.batch_put(puts, &config).await {
                black_box(stored?);
            }
        }
        Ok(())
    })
}

pub(crate) fn batch_put(operations: u64, len: usize) -> Done {
    let (first, keys) = families(operations);
    let cluster = Cluster::start(operations + first.len(), len)?;
    put_batches(&cluster, &first.batches(BATCH)?, len)?;
    let batches = keys.batches(BATCH)?;
    profiled_path(&mut || put_batches(&cluster, &batches, len))
}

pub(crate) fn batch_get(operations: u64, len: usize) -> Done {
    let keys = Keys::new(1, operations);
    let cluster = Cluster::filled(&keys, len)?;
    let batches = keys.batches(BATCH)?;
    let read = || {
        cluster.runtime.block_on(async {
            for batch in &batches {
                let mut gets = Vec::with_capacity(batch.len());
                for (at, key) in batch.iter().enumerate() {
                    gets.push(GetInto::new(key.as_str(), part(&cluster.memory, at, len)?));
                }
                for read in cluster.client.batch_get_into(gets).await {
                    black_box(read?);
                }
            }
            Ok(())
        })
    };
    read()?;
    profiled_path(&mut || read())
}
