//! Readers over a slow link, while everything around what they read is replaced.

use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use mc_store::{Client, GetError, Memory, MemorySlice, NodeConfig};

use super::MIB;
use super::cluster::{Carrier, Cluster, Plan, connect};
use super::relay::Pace;
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::latency::Latencies;
use crate::pattern::Pattern;
use crate::placement::Placement;
use crate::scale::Scale;

/// Where readers connect from, by which the relay knows them.
const READERS_AT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

/// Readers, each with a slow connection of its own.
const READERS: u64 = 8;

/// Puts under way at a time, which evict everything that is not being read.
const WRITERS: u64 = 8;

/// Bytes of what writers put.
const CHURNED: usize = MIB;

/// Prints what readers find that take much longer than a lease.
pub(super) fn run<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let work = SlowReading {
        pool: scale.pick(256 * MIB, 256 * MIB, 96 * MIB),
        // More than the system keeps on its way, so that the last of it is still in the
        // node's memory when the first lease is long over.
        value: scale.pick(8 * MIB, 8 * MIB, MIB),
        bytes_per_s: scale.pick(1_000_000, 1_000_000, 8_000_000),
        lease: Duration::from_millis(scale.pick(1000, 1000, 500)),
        time: Duration::from_secs_f64(scale.pick(60.0, 10.0, 0.3)),
    };
    let mut found = work.run()?;
    let with = |figure: Figure| {
        figure
            .with("readers", READERS)
            .with("bytes_per_s", work.bytes_per_s)
            .with("value", work.value)
            .with("lease_ms", work.lease.as_millis() as u64)
            .with("seconds", work.time.as_secs_f64())
    };
    report.add(with(Figure::new("slow_reader_wrong", found.wrong as f64, "reads")))?;
    report.add(with(Figure::new("slow_reader_expired", found.expired as f64, "reads")))?;
    let whole = found.reads.len() as f64;
    report.add(with(Figure::new("slow_reader_checked_reads", whole, "reads")))?;
    if found.reads.len() > 0 {
        let longest = found.reads.max_us() / 1e6;
        report.add(with(Figure::new("slow_reader_longest_s", longest, "s")))?;
    }
    let turnovers = found.churned as f64 * CHURNED as f64 / work.pool as f64;
    let per_second = turnovers / found.seconds;
    report.add(with(Figure::new("slow_reader_pool_turnovers_per_s", per_second, "1/s")))?;
    if found.wrong > 0 {
        return Err(BenchError::wrong("slow reads", format!("{} were wrong", found.wrong)));
    }
    Ok(())
}

struct SlowReading {
    pool: usize,
    value: usize,
    bytes_per_s: u64,
    lease: Duration,
    time: Duration,
}

#[derive(Default)]
struct Found {
    /// Reads that gave the right bytes.
    reads: Latencies,
    wrong: u64,
    expired: u64,
    /// Values that writers stored meanwhile.
    churned: u64,
    seconds: f64,
}

impl SlowReading {
    fn run(&self) -> Result<Found, BenchError> {
        // Writers share the node's memory, so that they are as fast as they can be; the
        // readers' client does not, so that its bytes take the slow link.
        let mut plan = Plan::new(Placement::Free, Carrier::Shm, self.pool);
        plan.lease = Some(self.lease);
        plan.relay = Some(Pace { slow: READERS_AT.into(), bytes_per_s: self.bytes_per_s });
        let cluster = plan.start()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let writer = cluster.client().await?;
            let churn = Churn::start(&writer);
            let start = Instant::now();
            let readers = (0..READERS).map(|number| self.reader(&cluster, &writer, number, start));
            let read = try_join_all(readers).await;
            let seconds = start.elapsed().as_secs_f64();
            let churned = churn.end().await?;
            writer.shutdown().await;
            let mut total = Found { churned, seconds, ..Found::default() };
            for found in read? {
                total.reads.merge(found.reads);
                total.wrong += found.wrong;
                total.expired += found.expired;
            }
            Ok(total)
        })
    }

    /// Reads one value after the other, as long as another one fits into the time, and
    /// at least one.
    async fn reader(
        &self,
        cluster: &Cluster,
        writer: &Client,
        number: u64,
        start: Instant,
    ) -> Result<Found, BenchError> {
        let mut node = NodeConfig::default();
        node.tcp.rails = vec![READERS_AT.into()];
        let reader = connect(cluster.builder().node(node)).await?;
        let target = Memory::allocate(self.value)?;
        let pattern = Pattern::new(number);
        let value = Bytes::from(pattern.bytes(self.value));
        let expected = Duration::from_secs_f64(self.value as f64 / self.bytes_per_s as f64);
        let mut found = Found::default();
        for turn in 0.. {
            if turn > 0 && start.elapsed() + expected > self.time {
                break;
            }
            let key = format!("slow-{number}-{turn}");
            writer.put(&key, value.clone()).await?;
            found.read(&reader, &key, &target.whole(), pattern, self.lease).await?;
            // It may be gone, which is as good.
            let _ = writer.remove(&key, true).await;
        }
        reader.shutdown().await;
        Ok(found)
    }
}

impl Found {
    async fn read(
        &mut self,
        reader: &Client,
        key: &str,
        target: &MemorySlice,
        pattern: Pattern,
        lease: Duration,
    ) -> Result<(), BenchError> {
        let start = Instant::now();
        match reader.get_into(key, target).await {
            Ok(len) => {
                let whole = len == target.len() as u64;
                if whole && pattern.check("slow read", 0, &target.to_vec()).is_ok() {
                    self.reads.add(start.elapsed());
                } else {
                    self.wrong += 1;
                }
            }
            Err(GetError::ChecksumMismatch { .. }) => self.wrong += 1,
            Err(GetError::LeaseExpired) => self.expired += 1,
            // Evicted before the read had begun, which no lease forbids;
            // afterwards a lease did.
            Err(GetError::NotFound) if start.elapsed() < lease => {}
            Err(GetError::NotFound) => self.expired += 1,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// Writers that never rest.
struct Churn {
    end: Arc<AtomicBool>,
    stored: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<Result<(), BenchError>>>,
}

impl Churn {
    fn start(client: &Client) -> Self {
        let (end, stored) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let value = Bytes::from(Pattern::new(READERS).bytes(CHURNED));
        let tasks = (0..WRITERS).map(|number| {
            let (client, value) = (client.clone(), value.clone());
            let (end, stored) = (Arc::clone(&end), Arc::clone(&stored));
            tokio::spawn(async move {
                for turn in 0_u64.. {
                    if end.load(Ordering::Relaxed) {
                        break;
                    }
                    client.put(&format!("churn-{number}-{turn}"), value.clone()).await?;
                    stored.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })
        });
        let tasks = tasks.collect();
        Self { end, stored, tasks }
    }

    /// The number of values that were stored.
    async fn end(self) -> Result<u64, BenchError> {
        self.end.store(true, Ordering::Relaxed);
        for ended in join_all(self.tasks).await {
            ended.map_err(|error| BenchError::wrong("churning", error.to_string()))??;
        }
        Ok(self.stored.load(Ordering::Relaxed))
    }
}
