//! Moving bytes between the memories of two processes, beside what plain sockets
//! and a plain copy do in the same run.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use mc_transport::tcp::{TcpConfig, TcpTransport};
use mc_transport::{
    Access, Link, MemFabric, Memory, Operation, RemoteSpan, Transferred, Transport,
};
use mc_types::{Endpoint, Extent, RemoteKey};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::iperf;
use crate::latency::Latencies;
use crate::pattern::Pattern;
use crate::placement::{self, Placement};
use crate::process::{self, Peer, Role};
use crate::raw;
use crate::scale::Scale;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Bytes of one operation.
const SIZES: [usize; 4] = [4 * KIB, 64 * KIB, MIB, 16 * MIB];

/// Bytes of the region: larger than the caches, so that copies are honest.
const REGION: usize = 256 * MIB;

/// What the region holds when it is made.
const SERVED: Pattern = Pattern::new(1);

/// What is written over it.
const WRITTEN: Pattern = Pattern::new(2);

/// Bytes of a request of the protocol: what the raw ping-pong asks with.
const REQUEST: usize = 40;

/// How often what is compared takes turns.
const TURNS: usize = 3;

/// Prints the suite's figures.
pub(crate) fn run<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let memcpy = memcpy_gbps(scale)?;
    report.add(Figure::new("memcpy_gbps", memcpy, "GB/s").with("size", 16 * MIB))?;
    in_process(scale, memcpy, report)?;
    let task = RegionTask { place: Placement::Cross, bytes: region_bytes(scale) };
    let (peer, said) = Peer::start::<RegionAddress>(&Role::Region(task))?;
    let tcp = Tcp { peer, said, scale };
    let far = placement::possible(&[Placement::Cross])?.first().copied().unwrap_or(Placement::Same);
    for place in placement::possible(&[Placement::Same, Placement::Cross])? {
        for size in SIZES {
            tcp.sizes(place, size, report)?;
        }
    }
    tcp.iperf(far, report)?;
    tcp.concurrent(far, report)?;
    tcp.checksums(far, report)
}

fn region_bytes(scale: Scale) -> usize {
    scale.pick(REGION, REGION, 2 * 16 * MIB)
}

fn operations(scale: Scale, size: usize) -> usize {
    let bytes = scale.pick(4 << 30, 1 << 30, 64 << 20);
    (bytes / size).clamp(scale.pick(100, 40, 3), scale.pick(40_000, 10_000, 50))
}

/// What one copy costs: into one block, from blocks that are not in the caches.
fn memcpy_gbps(scale: Scale) -> Result<f64, BenchError> {
    let source = Memory::allocate(region_bytes(scale))?;
    let target = Memory::allocate(16 * MIB)?;
    fill(&source, SERVED)?;
    let mut latencies = Latencies::default();
    let count = scale.pick(400, 100, 4);
    for turn in 0..count {
        let offset = turn * 16 * MIB % source.len();
        let part = source.slice(offset, 16 * MIB).expect("a region is whole blocks");
        let start = Instant::now();
        part.copy_to_slice(&target.whole()).expect("the same length");
        latencies.add(start.elapsed());
    }
    Ok(gbps(16 * MIB, &mut latencies))
}

fn fill(memory: &Memory, pattern: Pattern) -> Result<(), BenchError> {
    let mut block = vec![0; MIB];
    for offset in (0..memory.len()).step_by(MIB) {
        pattern.fill(offset, &mut block);
        memory.whole().copy_from(offset, &block).map_err(|error| {
            BenchError::wrong("filling a region of whole MiB", error.to_string())
        })?;
    }
    Ok(())
}

/// What [`serve_region`] is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RegionTask {
    /// Where to run.
    pub(crate) place: Placement,
    /// Bytes of the region.
    pub(crate) bytes: usize,
}

/// What [`serve_region`] says.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RegionAddress {
    endpoint: String,
    key: [u8; 16],
    bytes: u64,
    raw: SocketAddr,
}

/// Serves a region over TCP, and raw sockets, until told to end.
pub(crate) fn serve_region(task: &RegionTask) -> Result<(), BenchError> {
    let runtime = process::server_runtime(task.place)?;
    let raw = raw::serve()?;
    let memory = Memory::allocate(task.bytes)?;
    fill(&memory, SERVED)?;
    let config = TcpConfig::listening(SocketAddr::from(([127, 0, 0, 1], 0)));
    let transport = runtime
        .block_on(TcpTransport::start(config))
        .map_err(|error| BenchError::start("TCP transport")(error.into()))?;
    let region = transport.register(&memory, Access::ReadWrite)?;
    let endpoint = transport.endpoint().expect("it listens").to_string();
    let key = region.key().to_bytes();
    process::say(&RegionAddress { endpoint, key, bytes: task.bytes as u64, raw })?;
    process::wait_for_end();
    runtime.block_on(transport.shutdown());
    Ok(())
}

/// What reads and writes of one size took.
struct Timed {
    read: Latencies,
    write: Latencies,
}

/// A region of a peer, and a block of ours.
struct Pair {
    link: Arc<dyn Link>,
    key: RemoteKey,
    region: usize,
    local: Memory,
}

impl Pair {
    fn span(&self, offset: usize, size: usize) -> RemoteSpan {
        let extent = Extent::new(offset as u64, size as u64);
        RemoteSpan::new(self.key, extent.expect("offsets lie in the region"))
    }

    /// Reads and writes `count` times each, one operation at a time, through the
    /// whole region. What comes back is checked, outside of the times that are
    /// taken.
    async fn measure(&self, size: usize, count: usize) -> Result<Timed, BenchError> {
        let local = self.local.slice(0, size).expect("the block has the largest size");
        let mut timed = Timed { read: Latencies::default(), write: Latencies::default() };
        let mut found = vec![0; size];
        let offset_of = |turn: usize| turn * size % self.region;
        for turn in 0..count + count / 10 {
            let offset = offset_of(turn);
            // What a failed read would leave behind.
            WRITTEN.fill(0, &mut found[..64]);
            local.copy_from(0, &found[..64]).expect("the smallest size is longer");
            let start = Instant::now();
            self.one(Operation::read(self.span(offset, size), local.clone())).await?;
            let took = start.elapsed();
            if turn >= count / 10 {
                timed.read.add(took);
            }
            // All bytes of small reads; of large ones, whose check would take as
            // long as the read, every eighth.
            if size <= 64 * KIB || turn % 8 == 0 {
                local.copy_to(0, &mut found).expect("the same length");
                SERVED.check("read", offset, &found)?;
            } else {
                local.copy_to(size - 64, &mut found[..64]).expect("the smallest size is longer");
                SERVED.check("read", offset + size - 64, &found[..64])?;
            }
        }
        for turn in 0..count + count / 10 {
            let offset = offset_of(turn);
            // Each write carries its own place.
            SERVED.fill(offset, &mut found);
            local.copy_from(0, &found).expect("the same length");
            let start = Instant::now();
            self.one(Operation::write(local.clone(), self.span(offset, size))).await?;
            let took = start.elapsed();
            if turn >= count / 10 {
                timed.write.add(took);
            }
        }
        self.check_write(size).await?;
        Ok(timed)
    }

    /// Writes other bytes, reads them back, and restores what was there.
    async fn check_write(&self, size: usize) -> Result<(), BenchError> {
        let local = self.local.slice(0, size).expect("the block has the largest size");
        let span = self.span(0, size);
        let mut found = WRITTEN.bytes(size);
        local.copy_from(0, &found).expect("the same length");
        self.one(Operation::write(local.clone(), span)).await?;
        local.copy_from(0, &vec![0; size]).expect("the same length");
        self.one(Operation::read(span, local.clone())).await?;
        local.copy_to(0, &mut found).expect("the same length");
        WRITTEN.check("write", 0, &found)?;
        SERVED.fill(0, &mut found);
        local.copy_from(0, &found).expect("the same length");
        self.one(Operation::write(local, span)).await.map(|_| ())
    }

    async fn one(&self, operation: Operation) -> Result<Transferred, BenchError> {
        let mut results = self.link.submit(vec![operation]).await;
        match results.pop() {
            Some(result) if results.is_empty() => Ok(result?),
            _ => Err(BenchError::wrong("submit", "not one result for one operation")),
        }
    }
}

/// The rate of the median operation, in 10^9 bytes per second.
fn gbps(size: usize, latencies: &mut Latencies) -> f64 {
    latencies.rate_of(size as f64) / 1e9
}

fn single_threaded() -> Result<Runtime, BenchError> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// The transport inside one process, which is one copy and its checks.
fn in_process<W: Write>(
    scale: Scale,
    memcpy: f64,
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    let fabric = MemFabric::new();
    let started = |error: mc_transport::FabricError| BenchError::start("fabric")(error.into());
    let owner = fabric.transport("owner").map_err(started)?;
    let peer = fabric.transport("peer").map_err(started)?;
    let memory = Memory::allocate(region_bytes(scale))?;
    fill(&memory, SERVED)?;
    let region = owner.register(&memory, Access::ReadWrite)?;
    let runtime = single_threaded()?;
    let endpoint = owner.endpoint().expect("every node of a fabric has one");
    let link = runtime.block_on(peer.connect(endpoint))?;
    let local = Memory::allocate(16 * MIB)?;
    fill(&local, WRITTEN)?;
    let pair = Pair { link, key: region.key(), region: memory.len(), local };
    for size in SIZES {
        let mut timed = runtime.block_on(pair.measure(size, operations(scale, size)))?;
        let with = |name, value, unit| {
            Figure::new(name, value, unit).with("kind", "mem").with("size", size)
        };
        let (read, write) = (gbps(size, &mut timed.read), gbps(size, &mut timed.write));
        report.add(with("read_gbps", read, "GB/s").versus("memcpy", memcpy))?;
        report.add(with("write_gbps", write, "GB/s").versus("memcpy", memcpy))?;
        report.add(with("read_p50_us", timed.read.p50_us(), "µs"))?;
    }
    Ok(())
}

/// The region of another process, over TCP.
struct Tcp {
    peer: Peer,
    said: RegionAddress,
    scale: Scale,
}

impl Tcp {
    /// Bytes of the region; it was this process that chose them.
    fn region(&self) -> usize {
        self.said.bytes as usize
    }

    async fn connect(&self, block: usize) -> Result<(TcpTransport, Pair), BenchError> {
        let transport = TcpTransport::start(TcpConfig::default())
            .await
            .map_err(|error| BenchError::start("TCP transport")(error.into()))?;
        let endpoint: Endpoint = self
            .said
            .endpoint
            .parse()
            .map_err(|error| BenchError::wrong("parsing an endpoint", format!("{error}")))?;
        let link = transport.connect(&endpoint).await?;
        let local = Memory::allocate(block)?;
        // Mapped now, so that no measured read is the first to touch a page.
        fill(&local, WRITTEN)?;
        let key = RemoteKey::from_bytes(self.said.key);
        Ok((transport, Pair { link, key, region: self.region(), local }))
    }

    /// The rate of one stream of a plain socket.
    fn raw_gbps(&self, place: Placement) -> Result<f64, BenchError> {
        let duration = Duration::from_millis(self.scale.pick(1000, 400, 10));
        let mut pieces = placement::on_client_cpu(place, || {
            Ok(raw::stream(self.said.raw, 16 * MIB, self.region(), duration)?)
        })?;
        Ok(gbps(16 * MIB, &mut pieces))
    }

    /// What iperf3 says of one stream.
    fn iperf<W: Write>(&self, place: Placement, report: &mut Report<W>) -> Result<(), BenchError> {
        let duration = Duration::from_secs(self.scale.pick(4, 2, 1));
        let server = placement::cpus()?.first().copied().unwrap_or(0);
        let Some(iperf) = placement::on_client_cpu(place, || iperf::gbps(server, duration))? else {
            eprintln!("transport: no iperf3 on this machine; iperf_gbps is left out");
            return Ok(());
        };
        let figure = Figure::new("iperf_gbps", iperf, "GB/s").with("congestion", "cubic");
        let figure = figure.with("placement", place.name());
        report.add(figure.versus("raw stream", self.raw_gbps(place)?))
    }

    /// Rates and medians of one size, in turns with raw round trips of the same size
    /// and, for the sizes that fill a network, raw streams.
    fn sizes<W: Write>(
        &self,
        place: Placement,
        size: usize,
        report: &mut Report<W>,
    ) -> Result<(), BenchError> {
        let count = operations(self.scale, size).div_ceil(TURNS);
        let mut limit = None::<f64>;
        let mut raws = Latencies::default();
        let mut timed = Timed { read: Latencies::default(), write: Latencies::default() };
        for _ in 0..TURNS {
            if size >= MIB {
                // One stream alone is sometimes slow from its beginning to its end.
                let raw = self.raw_gbps(place)?;
                limit = Some(limit.map_or(raw, |limit| limit.max(raw)));
            }
            raws.merge(placement::on_client_cpu(place, || {
                Ok(raw::ping_pong(self.said.raw, REQUEST, size, self.region(), count)?)
            })?);
            let turn = placement::on_client_cpu(place, || {
                single_threaded()?.block_on(async {
                    let (transport, pair) = self.connect(16 * MIB).await?;
                    let turn = pair.measure(size, count).await;
                    transport.shutdown().await;
                    turn
                })
            })?;
            timed.read.merge(turn.read);
            timed.write.merge(turn.write);
        }
        let raw_p50 = raws.p50_us();
        let with = |name, value, unit| {
            let figure = Figure::new(name, value, unit).with("kind", "tcp").with("size", size);
            figure.with("placement", place.name())
        };
        let stream = "raw stream";
        let (read, write) = (gbps(size, &mut timed.read), gbps(size, &mut timed.write));
        report.add(with("read_gbps", read, "GB/s").maybe_versus(stream, limit))?;
        report.add(with("write_gbps", write, "GB/s").maybe_versus(stream, limit))?;
        let p50 = with("read_p50_us", timed.read.p50_us(), "µs");
        report.add(p50.versus("raw ping-pong", raw_p50))?;
        report.add(with("write_p50_us", timed.write.p50_us(), "µs"))?;
        let raw = Figure::new("raw_p50_us", raw_p50, "µs").with("size", size);
        report.add(raw.with("placement", place.name()))?;
        let Some(limit) = limit else { return Ok(()) };
        let raw = Figure::new("raw_stream_gbps", limit, "GB/s").with("congestion", "cubic");
        report.add(raw.with("placement", place.name()).with("beside", size))
    }

    /// 64 reads of 1 MiB under way, eight of them in each of eight tasks.
    fn concurrent<W: Write>(
        &self,
        place: Placement,
        report: &mut Report<W>,
    ) -> Result<(), BenchError> {
        const TASKS: usize = 8;
        const EACH: usize = 8;
        // Again, because the machine may be busier now.
        let limit = self.raw_gbps(place)?;
        let rounds = self.scale.pick(100, 30, 1);
        let cpu = || Ok::<_, BenchError>(process::own_cpu_seconds()? + self.peer.cpu_seconds()?);
        let (seconds, cpu) = placement::on_client_cpu(place, || {
            single_threaded()?.block_on(async {
                let (transport, pair) = self.connect(TASKS * EACH * MIB).await?;
                let pair = Arc::new(pair);
                let (start, before) = (Instant::now(), cpu()?);
                let tasks = (0..TASKS).map(|task| {
                    let pair = Arc::clone(&pair);
                    let run = tokio::spawn(async move { pair.batches(task, EACH, rounds).await });
                    async {
                        run.await
                            .unwrap_or_else(|e| Err(BenchError::wrong("reading", e.to_string())))
                    }
                });
                try_join_all(tasks).await?;
                let spent = (start.elapsed().as_secs_f64(), cpu()? - before);
                pair.check_batches(TASKS * EACH)?;
                transport.shutdown().await;
                Ok(spent)
            })
        })?;
        let gigabytes = (TASKS * EACH * rounds * MIB) as f64 / 1e9;
        let with = |figure: Figure| figure.with("kind", "tcp").with("placement", place.name());
        let rate = Figure::new("concurrent_gbps", gigabytes / seconds, "GB/s");
        report.add(with(rate.versus("raw stream", limit)))?;
        let cost = Figure::new("cpu_s_per_gb", cpu / gigabytes, "s/GB");
        report.add(with(cost))
    }

    /// What checking every byte that was read costs.
    fn checksums<W: Write>(
        &self,
        place: Placement,
        report: &mut Report<W>,
    ) -> Result<(), BenchError> {
        let count = self.scale.pick(200, 60, 3);
        let expected = mc_transport::checksum(&SERVED.bytes(16 * MIB));
        let (mut off, mut on) = placement::on_client_cpu(place, || {
            single_threaded()?.block_on(async {
                let (transport, pair) = self.connect(16 * MIB).await?;
                let span = pair.span(0, 16 * MIB);
                let (mut off, mut on) = (Latencies::default(), Latencies::default());
                for _ in 0..count {
                    let start = Instant::now();
                    pair.one(Operation::read(span, pair.local.whole())).await?;
                    off.add(start.elapsed());
                    let start = Instant::now();
                    let read = Operation::read(span, pair.local.whole()).checksummed();
                    let checksum = pair.one(read).await?.checksum;
                    on.add(start.elapsed());
                    if checksum != Some(expected) {
                        return Err(BenchError::wrong("read", "the checksum differs"));
                    }
                }
                transport.shutdown().await;
                Ok((off, on))
            })
        })?;
        let ratio = off.p50_us() / on.p50_us();
        let figure = Figure::new("crc_ratio", ratio, "ratio").with("kind", "tcp");
        report.add(figure.with("size", 16 * MIB).with("placement", place.name()))
    }
}

impl Pair {
    /// Reads `each` blocks of 1 MiB at a time into this task's part of the local
    /// memory.
    async fn batches(&self, task: usize, each: usize, rounds: usize) -> Result<(), BenchError> {
        for _ in 0..rounds {
            let batch = (0..each).map(|n| {
                let place = (task * each + n) * MIB;
                let target = self.local.slice(place, MIB).expect("every task has its part");
                Operation::read(self.span(place % self.region, MIB), target)
            });
            for result in self.link.submit(batch.collect()).await {
                result?;
            }
        }
        Ok(())
    }

    fn check_batches(&self, blocks: usize) -> Result<(), BenchError> {
        let mut found = vec![0; MIB];
        for place in (0..blocks).map(|block| block * MIB) {
            self.local.whole().copy_to(place, &mut found).expect("every task has its part");
            SERVED.check("concurrent reads", place % self.region, &found)?;
        }
        Ok(())
    }
}
