//! Moving bytes between the memories of two processes, beside what plain sockets
//! and a plain copy do in the same run.

mod kind;
mod pair;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use mc_transport::{Access, DynTransport, MemFabric, Memory, Operation};
use mc_types::{Endpoint, RemoteKey};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use self::kind::{Files, Kind};
use self::pair::{Pair, Timed};
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::iperf::{self, Iperf};
use crate::latency::Latencies;
use crate::pattern::Pattern;
use crate::placement::{self, Placement};
use crate::process::{self, Peer, Task};
use crate::raw;
use crate::scale::Scale;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Bytes of one operation.
const SIZES: [usize; 4] = [4 * KIB, 64 * KIB, MIB, 16 * MIB];

/// Bytes of the region: larger than the caches, so that copies are honest.
const REGION: usize = 256 * MIB;

/// The bytes of the region when it is made.
const SERVED: Pattern = Pattern::new(1);

/// The bytes that are written over them.
const WRITTEN: Pattern = Pattern::new(2);

/// Bytes of a request of the protocol: what the raw ping-pong asks with.
const REQUEST: usize = 40;

/// The number of turns of the things that are compared.
const TURNS: usize = 3;

/// Prints the suite's figures.
pub(crate) fn run<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let memcpy = memcpy_gbps(scale)?;
    report.add(Figure::new("memcpy_gbps", memcpy, "GB/s").with("size", 16 * MIB))?;
    in_process(scale, memcpy, report)?;
    let folder = tempfile::tempdir()?;
    let files = Files::make(folder.path())?;
    let far = placement::possible(&[Placement::Cross])?.first().copied().unwrap_or(Placement::Same);
    shared_memory(&files, scale, far, report)?;
    let tcp = Remote::start(Kind::Tcp, &files, scale)?;
    for place in placement::possible(&[Placement::Same, Placement::Cross])? {
        for size in SIZES {
            tcp.sizes(place, size, report)?;
        }
    }
    tcp.against_iperf(far, report)?;
    tcp.checksums(far, report)?;
    drop(tcp);
    encrypted(&files, scale, far, report)
}

fn region_bytes(scale: Scale) -> usize {
    scale.pick(REGION, REGION, 2 * 16 * MIB)
}

fn operations(scale: Scale, size: usize) -> usize {
    let bytes = scale.pick(4 << 30, 1 << 30, 64 << 20);
    (bytes / size).clamp(scale.pick(100, 40, 3), scale.pick(40_000, 10_000, 50))
}

/// The cost of one copy: into one block, from blocks that are not in the caches. What was
/// copied is checked as often as what is read over a link, which costs the caches as much.
fn memcpy_gbps(scale: Scale) -> Result<f64, BenchError> {
    let source = Memory::allocate(region_bytes(scale))?;
    let target = Memory::allocate(16 * MIB)?;
    fill(&source, SERVED)?;
    let mut latencies = Latencies::default();
    let mut found = vec![0; 16 * MIB];
    let count = scale.pick(400, 100, 4);
    for turn in 0..count {
        let offset = turn * 16 * MIB % source.len();
        let part = source.slice(offset, 16 * MIB).expect("a region is whole blocks");
        let start = Instant::now();
        part.copy_to_slice(&target.whole()).expect("the same length");
        latencies.add(start.elapsed());
        if turn % 8 == 0 {
            target.whole().copy_to(0, &mut found).expect("the same length");
            SERVED.check("copy", offset, &found)?;
        }
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

/// The parameters of [`serve_region`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RegionTask {
    /// Where to run.
    place: Placement,
    /// Over what.
    kind: Kind,
    /// Bytes of the region.
    bytes: usize,
    files: Files,
}

impl Task for RegionTask {
    const ROLE: &'static str = "region";
    const NAME: &'static str = "region";
}

/// The message of [`serve_region`] to its parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RegionAddress {
    endpoint: String,
    key: [u8; 16],
    bytes: u64,
    raw: SocketAddr,
}

/// Serves a region, and raw sockets, until told to end.
pub(crate) fn serve_region(task: &RegionTask) -> Result<(), BenchError> {
    let runtime = process::server_runtime(task.place)?;
    let raw = raw::serve()?;
    let transport = runtime.block_on(task.kind.owner(&task.files))?;
    let memory = transport.allocate(task.bytes)?;
    fill(&memory, SERVED)?;
    let region = transport.register(&memory, Access::ReadWrite)?;
    let endpoint = transport.endpoint().expect("it listens").to_string();
    let key = region.key().to_bytes();
    process::say(&RegionAddress { endpoint, key, bytes: task.bytes as u64, raw })?;
    process::wait_for_end();
    Ok(())
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

/// The region of another process.
struct Remote {
    kind: Kind,
    files: Files,
    peer: Peer,
    said: RegionAddress,
    scale: Scale,
}

impl Remote {
    fn start(kind: Kind, files: &Files, scale: Scale) -> Result<Self, BenchError> {
        let (place, bytes) = (Placement::Cross, region_bytes(scale));
        let task = RegionTask { place, kind, bytes, files: files.clone() };
        let (peer, said) = Peer::start::<_, RegionAddress>(&task)?;
        Ok(Self { kind, files: files.clone(), peer, said, scale })
    }

    /// Bytes of the region; it was this process that chose them.
    fn region(&self) -> usize {
        self.said.bytes as usize
    }

    async fn connect(&self, block: usize) -> Result<(Box<dyn DynTransport>, Pair), BenchError> {
        let transport = self.kind.peer(&self.files).await?;
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

    /// Measures operations of one size, one at a time, through the first `region`
    /// bytes of the region.
    fn timed(
        &self,
        place: Placement,
        size: usize,
        count: usize,
        region: usize,
    ) -> Result<Timed, BenchError> {
        placement::on_client_cpu(place, || {
            single_threaded()?.block_on(async {
                let (_transport, pair) = self.connect(16 * MIB).await?;
                let pair = Pair { region, ..pair };
                pair.touch().await?;
                pair.measure(size, count).await
            })
        })
    }

    /// The rate of one stream of a plain socket.
    fn raw_gbps(&self, place: Placement) -> Result<f64, BenchError> {
        let duration = Duration::from_millis(self.scale.pick(1000, 400, 10));
        let mut pieces = placement::on_client_cpu(place, || {
            Ok(raw::stream(self.said.raw, 16 * MIB, self.region(), duration)?)
        })?;
        Ok(gbps(16 * MIB, &mut pieces))
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
        let mut timed = Timed::default();
        for _ in 0..TURNS {
            if size >= MIB {
                // One stream alone is sometimes slow from its beginning to its end.
                let raw = self.raw_gbps(place)?;
                limit = Some(limit.map_or(raw, |limit| limit.max(raw)));
            }
            raws.merge(placement::on_client_cpu(place, || {
                Ok(raw::ping_pong(self.said.raw, REQUEST, size, self.region(), count)?)
            })?);
            timed.merge(self.timed(place, size, count, self.region())?);
        }
        let raw_p50 = raws.p50_us();
        let with = |name, value, unit| self.figure(name, value, unit, place).with("size", size);
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

    /// Measures one stream by iperf3, and ours in turns with it. Its sender sends one buffer again
    /// and again; so do we then, out of 16 MiB of the region.
    fn against_iperf<W: Write>(
        &self,
        place: Placement,
        report: &mut Report<W>,
    ) -> Result<(), BenchError> {
        let duration = Duration::from_secs(self.scale.pick(2, 1, 1));
        let server = placement::cpus()?.first().copied().unwrap_or(0);
        let count = operations(self.scale, 16 * MIB).div_ceil(TURNS);
        let mut streams = Vec::new();
        let mut timed = Timed::default();
        let mut together = Vec::new();
        for _ in 0..self.scale.pick(TURNS, TURNS, 1) {
            streams.extend(placement::on_client_cpu(place, || iperf::measure(server, duration))?);
            timed.merge(self.timed(place, 16 * MIB, count, 16 * MIB)?);
            together.push(self.concurrent(place)?);
        }
        let iperf = iperf::median(streams);
        if iperf.is_none() {
            eprintln!("transport: no iperf3 on this machine; what it says is left out");
        }
        let by = |value: fn(&Iperf) -> f64| iperf.as_ref().map(value);
        let with = |name, value, unit| self.figure(name, value, unit, place);
        for (name, latencies) in [("read_gbps", &mut timed.read), ("write_gbps", &mut timed.write)]
        {
            let figure = with(name, gbps(16 * MIB, latencies), "GB/s").with("size", 16 * MIB);
            let figure = figure.with("source", "16 MiB");
            report.add(figure.maybe_versus("iperf3", by(|iperf| iperf.gbps)))?;
        }
        together.sort_by(|a, b| a.gbps.total_cmp(&b.gbps));
        let middle = &together[together.len() / 2];
        let rate = with("concurrent_gbps", middle.gbps, "GB/s");
        report.add(rate.maybe_versus("iperf3", by(|iperf| iperf.gbps)))?;
        let cost = with("cpu_s_per_gb", middle.cpu_s_per_gb, "s/GB");
        report.add(cost.maybe_versus("iperf3", by(|iperf| iperf.cpu_s_per_gb)))?;
        let Some(iperf) = iperf else { return Ok(()) };
        let of_iperf = |name, value, unit| {
            let figure = Figure::new(name, value, unit).with("congestion", "cubic");
            figure.with("placement", place.name())
        };
        let figure = of_iperf("iperf_gbps", iperf.gbps, "GB/s");
        report.add(figure.versus("raw stream", self.raw_gbps(place)?))?;
        report.add(of_iperf("iperf_cpu_s_per_gb", iperf.cpu_s_per_gb, "s/GB"))
    }

    /// 64 reads of 1 MiB under way, eight of them in each of eight tasks.
    fn concurrent(&self, place: Placement) -> Result<Together, BenchError> {
        const TASKS: usize = 8;
        const EACH: usize = 8;
        let rounds = self.scale.pick(100, 30, 1);
        let cpu = || Ok::<_, BenchError>(process::own_cpu_seconds()? + self.peer.cpu_seconds()?);
        let (seconds, cpu) = placement::on_client_cpu(place, || {
            single_threaded()?.block_on(async {
                let (_transport, pair) = self.connect(TASKS * EACH * MIB).await?;
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
                Ok(spent)
            })
        })?;
        let gigabytes = (TASKS * EACH * rounds * MIB) as f64 / 1e9;
        Ok(Together { gbps: gigabytes / seconds, cpu_s_per_gb: cpu / gigabytes })
    }

    /// The cost of checking every byte that was read.
    fn checksums<W: Write>(
        &self,
        place: Placement,
        report: &mut Report<W>,
    ) -> Result<(), BenchError> {
        let count = self.scale.pick(200, 60, 3);
        let expected = mc_transport::checksum(&SERVED.bytes(16 * MIB));
        let (mut off, mut on) = placement::on_client_cpu(place, || {
            single_threaded()?.block_on(async {
                let (_transport, pair) = self.connect(16 * MIB).await?;
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
                Ok((off, on))
            })
        })?;
        let ratio = off.p50_us() / on.p50_us();
        report.add(self.figure("crc_ratio", ratio, "ratio", place).with("size", 16 * MIB))
    }

    fn figure(
        &self,
        name: &'static str,
        value: f64,
        unit: &'static str,
        place: Placement,
    ) -> Figure {
        let figure = Figure::new(name, value, unit).with("kind", self.kind.name());
        figure.with("placement", place.name())
    }
}

/// The rate and cost of many operations at a time.
struct Together {
    gbps: f64,
    /// CPU seconds of both sides, for each gigabyte.
    cpu_s_per_gb: f64,
}

/// Memory that both processes map, in turns with a plain copy on the same CPU.
fn shared_memory<W: Write>(
    files: &Files,
    scale: Scale,
    place: Placement,
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    let shm = Remote::start(Kind::Shm, files, scale)?;
    for size in SIZES {
        let count = operations(scale, size).div_ceil(TURNS);
        let mut timed = Timed::default();
        let mut copies = Vec::new();
        for _ in 0..TURNS {
            if size >= MIB {
                copies.push(placement::on_client_cpu(place, || memcpy_gbps(scale))?);
            }
            timed.merge(shm.timed(place, size, count, shm.region())?);
        }
        copies.sort_by(f64::total_cmp);
        let memcpy = copies.get(copies.len() / 2).copied();
        let with = |name, value, unit| shm.figure(name, value, unit, place).with("size", size);
        let (read, write) = (gbps(size, &mut timed.read), gbps(size, &mut timed.write));
        report.add(with("read_gbps", read, "GB/s").maybe_versus("memcpy", memcpy))?;
        report.add(with("write_gbps", write, "GB/s").maybe_versus("memcpy", memcpy))?;
        report.add(with("read_p50_us", timed.read.p50_us(), "µs"))?;
        report.add(with("write_p50_us", timed.write.p50_us(), "µs"))?;
    }
    Ok(())
}

/// QUIC, in turns with TCP and TLS.
fn encrypted<W: Write>(
    files: &Files,
    scale: Scale,
    place: Placement,
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    let tls = Remote::start(Kind::Tls, files, scale)?;
    let quic = Remote::start(Kind::Quic, files, scale)?;
    for size in [4 * KIB, MIB, 16 * MIB] {
        let count = operations(scale, size).div_ceil(4 * TURNS);
        let [mut by_tls, mut by_quic] = [Timed::default(), Timed::default()];
        for _ in 0..TURNS {
            by_tls.merge(tls.timed(place, size, count, tls.region())?);
            by_quic.merge(quic.timed(place, size, count, quic.region())?);
        }
        let [tls_read, tls_write] = [&mut by_tls.read, &mut by_tls.write].map(|l| gbps(size, l));
        let with = |remote: &Remote, name, value, unit| {
            remote.figure(name, value, unit, place).with("size", size)
        };
        if size == 16 * MIB {
            report.add(with(&tls, "tls_gbps", tls_read, "GB/s"))?;
        }
        report.add(with(&tls, "read_gbps", tls_read, "GB/s"))?;
        report.add(with(&tls, "write_gbps", tls_write, "GB/s"))?;
        report.add(with(&tls, "read_p50_us", by_tls.read.p50_us(), "µs"))?;
        let [read, write] = [&mut by_quic.read, &mut by_quic.write].map(|l| gbps(size, l));
        report.add(with(&quic, "read_gbps", read, "GB/s").versus("tls", tls_read))?;
        report.add(with(&quic, "write_gbps", write, "GB/s").versus("tls", tls_write))?;
        report.add(with(&quic, "read_p50_us", by_quic.read.p50_us(), "µs"))?;
    }
    Ok(())
}
