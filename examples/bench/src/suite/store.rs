//! Puts and gets: master, storage node and client in processes of their own.

mod pressure;

use std::io::Write;
use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use mc_store::{ByteSize, Client, GetInto, Master, Memory, Put, PutOutcome, ReplicateConfig};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::latency::Latencies;
use crate::pattern::Pattern;
use crate::placement::{self, Placement};
use crate::process::{self, Peer, Role};
use crate::raw;
use crate::scale::Scale;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Bytes of a value.
const SIZES: [usize; 4] = [4 * KIB, 64 * KIB, MIB, 16 * MIB];

/// Values of a batch.
const BATCH: usize = 100;

/// What [`serve_master`] is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MasterTask {
    /// Where to run.
    pub(crate) place: Placement,
}

/// What [`serve_master`] says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MasterAddress {
    /// Where the master answers.
    pub(crate) master: SocketAddr,
    /// Where raw round trips are answered.
    pub(crate) raw: SocketAddr,
}

/// Is a master until told to end.
pub(crate) fn serve_master(task: &MasterTask) -> Result<(), BenchError> {
    process::raise_file_limit()?;
    let runtime = process::server_runtime(task.place)?;
    let raw = raw::serve()?;
    let master = runtime
        .block_on(Master::builder().start())
        .map_err(|error| BenchError::start("master")(error.into()))?;
    process::say(&MasterAddress { master: master.local_addr(), raw })?;
    process::wait_for_end();
    runtime.block_on(master.shutdown());
    Ok(())
}

/// What [`serve_node`] is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeTask {
    /// Where to run.
    pub(crate) place: Placement,
    /// The master.
    pub(crate) master: SocketAddr,
    /// Bytes to contribute.
    pub(crate) segment: u64,
}

/// Contributes a segment until told to end.
pub(crate) fn serve_node(task: &NodeTask) -> Result<(), BenchError> {
    let runtime = process::server_runtime(task.place)?;
    let connecting = Client::builder()
        .master(task.master.to_string())
        .listen(SocketAddr::from(([127, 0, 0, 1], 0)))
        .segment_size(ByteSize::bytes(task.segment))
        .connect();
    let node =
        runtime.block_on(connecting).map_err(|error| BenchError::start("node")(error.into()))?;
    process::say(&())?;
    process::wait_for_end();
    runtime.block_on(node.shutdown());
    Ok(())
}

/// A master and a storage node, each in a process of its own. The node goes first.
struct Cluster {
    _node: Peer,
    _master: Peer,
    address: String,
}

impl Cluster {
    fn start(place: Placement, segment: usize) -> Result<Self, BenchError> {
        let (master, said) = Peer::start::<MasterAddress>(&Role::Master(MasterTask { place }))?;
        let task = NodeTask { place, master: said.master, segment: segment as u64 };
        let (node, ()) = Peer::start(&Role::Node(task))?;
        Ok(Self { _node: node, _master: master, address: said.master.to_string() })
    }

    async fn client(&self) -> Result<Client, BenchError> {
        let connecting = Client::builder().master(&self.address).connect();
        connecting.await.map_err(|error| BenchError::start("client")(error.into()))
    }
}

/// Prints the suite's figures.
pub(crate) fn run<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let cluster = Cluster::start(Placement::Cross, scale.pick(1 << 30, 1 << 30, 128 << 20))?;
    for place in placement::possible(&[Placement::Same, Placement::Cross])? {
        for size in SIZES {
            let count = count(scale, size);
            let mut timed = placement::on_client_cpu(place, || {
                single_threaded()?.block_on(async {
                    let client = cluster.client().await?;
                    let timed = singles(&client, size, count).await;
                    client.shutdown().await;
                    timed
                })
            })?;
            let with = |name, latencies: &mut Latencies| {
                let figure = Figure::new(name, latencies.p50_us(), "µs").with("size", size);
                figure.with("transport", "tcp").with("placement", place.name())
            };
            report.add(with("get_into_p50_us", &mut timed.get_into))?;
            report.add(with("put_p50_us", &mut timed.put))?;
        }
        let rounds = scale.pick(1000, 200, 3);
        let (puts, gets) = placement::on_client_cpu(place, || {
            single_threaded()?.block_on(async {
                let client = cluster.client().await?;
                let rates = batches(&client, rounds).await;
                client.shutdown().await;
                rates
            })
        })?;
        for (name, rate) in [("put_batch_per_s", puts), ("get_batch_per_s", gets)] {
            let figure = Figure::new(name, rate, "values/s").with("batch", BATCH);
            let figure = figure.with("size", 4 * KIB).with("transport", "tcp");
            report.add(figure.with("placement", place.name()))?;
        }
    }
    drop(cluster);
    pressure::run(scale, report)
}

fn single_threaded() -> Result<Runtime, BenchError> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

fn count(scale: Scale, size: usize) -> usize {
    let bytes: usize = scale.pick(3 << 30, 768 << 20, 32 << 20);
    (bytes / size).clamp(scale.pick(100, 40, 2), scale.pick(20_000, 5_000, 30))
}

struct Timed {
    put: Latencies,
    get_into: Latencies,
}

/// Puts a value, gets it back, checks it and removes it, over and over.
async fn singles(client: &Client, size: usize, count: usize) -> Result<Timed, BenchError> {
    let target = Memory::allocate(size)?;
    let mut found = vec![0; size];
    // Mapped now, so that no measured get is the first to touch a page.
    target.whole().copy_from(0, &found).expect("the same length");
    let mut timed = Timed { put: Latencies::default(), get_into: Latencies::default() };
    // A few values are enough to tell a wrong one, and to make them costs as much
    // as to send them.
    let values: Vec<(Pattern, Bytes)> =
        (0..4).map(|seed| (Pattern::new(seed), Pattern::new(seed).bytes(size).into())).collect();
    for turn in 0..count + count / 10 {
        let measured = turn >= count / 10;
        let (pattern, value) = &values[turn % values.len()];
        let key = format!("single-{size}-{turn}");
        let value = value.clone();
        let start = Instant::now();
        let outcome = client.put(&key, value).await?;
        let took = start.elapsed();
        if outcome != PutOutcome::Stored {
            return Err(BenchError::wrong("put", format!("{outcome:?} for a new key")));
        }
        if measured {
            timed.put.add(took);
        }
        let start = Instant::now();
        let len = client.get_into(&key, &target.whole()).await?;
        let took = start.elapsed();
        if measured {
            timed.get_into.add(took);
        }
        if len != size as u64 {
            return Err(BenchError::wrong("get_into", format!("{len} of {size} bytes")));
        }
        target.whole().copy_to(0, &mut found).expect("the same length");
        pattern.check("get_into", 0, &found)?;
        client.remove(&key, true).await?;
    }
    Ok(timed)
}

/// Values per second, put and got in batches.
async fn batches(client: &Client, rounds: usize) -> Result<(f64, f64), BenchError> {
    const SIZE: usize = 4 * KIB;
    let config = ReplicateConfig::default();
    let values: Vec<Bytes> =
        (0..BATCH).map(|n| Pattern::new(n as u64).bytes(SIZE).into()).collect();
    let target = Memory::allocate(BATCH * SIZE)?;
    let mut found = vec![0; SIZE];
    let (mut put, mut get) = (Latencies::default(), Latencies::default());
    for round in 0..rounds + rounds / 10 {
        let keys: Vec<String> = (0..BATCH).map(|n| format!("batch-{round}-{n}")).collect();
        let puts = keys.iter().zip(&values).map(|(key, value)| Put::new(key, value.clone()));
        let puts = puts.collect();
        let start = Instant::now();
        let outcomes = client.batch_put(puts, &config).await;
        let put_took = start.elapsed();
        for outcome in outcomes {
            if outcome? != PutOutcome::Stored {
                return Err(BenchError::wrong("batch_put", "a new key is not stored"));
            }
        }
        let part = |n: usize| target.slice(n * SIZE, SIZE).expect("the target has a whole batch");
        let gets = keys.iter().enumerate().map(|(n, key)| GetInto::new(key, part(n))).collect();
        let start = Instant::now();
        let lens = client.batch_get_into(gets).await;
        let get_took = start.elapsed();
        for (n, len) in lens.into_iter().enumerate() {
            if len? != SIZE as u64 {
                return Err(BenchError::wrong("batch_get_into", "another length"));
            }
            part(n).copy_to(0, &mut found).expect("the same length");
            Pattern::new(n as u64).check("batch_get_into", 0, &found)?;
        }
        if round >= rounds / 10 {
            put.add(put_took);
            get.add(get_took);
        }
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        for removed in client.batch_remove(&keys, true).await? {
            removed.map_err(|refusal| BenchError::wrong("batch_remove", refusal.to_string()))?;
        }
    }
    Ok((put.rate_of(BATCH as f64), get.rate_of(BATCH as f64)))
}
