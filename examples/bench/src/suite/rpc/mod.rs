//! The control protocol: a real master in a process of its own, callers here.

mod load;
mod stub;

use std::io::Write;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use mc_rpc::MasterClient;
use mc_rpc::frame::HEADER_LEN;
use tokio::runtime::Runtime;

use self::load::Outcome;
use self::stub::{Over, StubKind};
use super::keys::KeyWriter;
use super::store::{MasterAddress, MasterTask};
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::latency::Latencies;
use crate::placement::{self, Placement};
use crate::process::{self, Peer};
use crate::raw;
use crate::scale::Scale;

pub(crate) use self::load::LoadOptions;
pub(super) use self::load::{Load, Operation};

/// Bytes of an Exist request on the wire: header, key field, key.
const EXIST_REQUEST: usize = HEADER_LEN + 2 + 40;

/// Bytes of its reply: header, one field.
const EXIST_REPLY: usize = HEADER_LEN + 2;

/// Connections that do nothing.
const IDLE: usize = 1000;

/// Prints the suite's figures, or those of the one operation that was asked for.
pub(crate) fn run<W: Write>(
    scale: Scale,
    options: &LoadOptions,
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    if let Some(operation) = options.operation {
        return single(scale, operation, options, report);
    }
    if options.master.is_some() {
        // Its placement and its idle memory are not ours to measure.
        return throughput(scale, options, Placement::Free, report);
    }
    for place in placement::possible(&[Placement::Cross, Placement::Free])? {
        throughput(scale, options, place, report)?;
    }
    // One caller has nothing to do while the master works; beside it, it need not be woken.
    alone(scale, options, Placement::Same, report)?;
    latency(scale, report)?;
    idle(scale, report)
}

/// A master to measure: the one that was named, or one of our own.
struct Target {
    address: String,
    /// Where the process of our own answers raw connections.
    raw: Option<SocketAddr>,
    /// Ends with this value.
    _master: Option<Peer>,
}

impl Target {
    fn start(options: &LoadOptions, place: Placement) -> Result<Self, BenchError> {
        if let Some(address) = &options.master {
            return Ok(Self { address: address.clone(), raw: None, _master: None });
        }
        let task = MasterTask::at(place);
        let (peer, said) = Peer::start::<_, MasterAddress>(&task)?;
        let (address, raw) = (said.master.to_string(), Some(said.raw));
        Ok(Self { address, raw, _master: Some(peer) })
    }
}

fn seconds(scale: Scale, options: &LoadOptions) -> Duration {
    options.seconds.map_or_else(
        || {
            scale.pick(
                Duration::from_secs(4),
                Duration::from_millis(1200),
                Duration::from_millis(50),
            )
        },
        Duration::from_secs_f64,
    )
}

/// One operation as the flags describe it.
fn single<W: Write>(
    scale: Scale,
    operation: Operation,
    options: &LoadOptions,
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    let place =
        placement::possible(&[Placement::Cross])?.first().copied().unwrap_or(Placement::Same);
    let place = if options.master.is_some() { Placement::Free } else { place };
    let target = Target::start(options, place)?;
    let load = Load::of(operation, options, seconds(scale, options));
    let outcome = load.run(&target.address, place)?;
    add_load(report, &load, place, outcome)
}

/// Prints how many calls, or keys of batches, were done, and how long a call took.
fn add_load<W: Write>(
    report: &mut Report<W>,
    load: &Load,
    place: Placement,
    mut outcome: Outcome,
) -> Result<(), BenchError> {
    let with = |figure: Figure| {
        let figure = figure.with("threads", load.threads).with("placement", place.name());
        let figure = figure.with("clients", load.clients).with("pipeline", load.pipeline);
        let figure = figure.with("stub", load.stub().name());
        if load.operation.is_batch() { figure.with("batch", load.batch) } else { figure }
    };
    let (rate_name, p50_name) = load.operation.figures();
    let keys = outcome.calls * load.keys_per_call();
    report.add(with(Figure::new(rate_name, keys as f64 / outcome.seconds, "1/s")))?;
    report.add(with(Figure::new(p50_name, outcome.latencies.p50_us(), "µs")))?;
    let ratio = Figure::new("loaded_p99_ratio", p99_ratio(outcome.latencies), "ratio");
    let ratio = ratio.with("rate", rate_name);
    report.add(with(ratio))
}

/// Many callers at once. Each load has a master of its own, because tables that one
/// load has grown would slow the next down.
fn throughput<W: Write>(
    scale: Scale,
    options: &LoadOptions,
    place: Placement,
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    let seconds = seconds(scale, options);
    let of = |operation| Load::of(operation, options, seconds);
    let run = |load: &Load| load.run(&Target::start(options, place)?.address, place);
    for operation in [Operation::Get, Operation::Put, Operation::BatchGet, Operation::BatchPut] {
        let load = of(operation);
        add_load(report, &load, place, run(&load)?)?;
    }
    if let Some(raw) = Target::start(options, place)?.raw {
        let latencies = raw_load(raw, options.threads, scale.pick(20_000, 5_000, 100), place)?;
        let figure = Figure::new("raw_loaded_p99_ratio", p99_ratio(latencies), "ratio");
        let figure = figure.with("threads", options.threads);
        report.add(figure.with("placement", place.name()))?;
    }
    alone(scale, options, place, report)
}

/// As many round trips of so many threads at once, of plain blocking sockets.
fn raw_load(
    address: SocketAddr,
    threads: u32,
    count: usize,
    place: Placement,
) -> Result<Latencies, BenchError> {
    let one = || raw::ping_pong(address, EXIST_REQUEST, EXIST_REPLY, 0, count);
    placement::on_client_cpu(place, || {
        thread::scope(|scope| {
            let started: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
            let mut all = Latencies::default();
            for one in started {
                all.merge(one.join().unwrap_or_else(|panic| resume_unwind(panic))?);
            }
            Ok(all)
        })
    })
}

/// The 99th percentile over the median.
fn p99_ratio(mut latencies: Latencies) -> f64 {
    latencies.quantile_us(0.99) / latencies.p50_us()
}

/// One caller, on one connection.
fn alone<W: Write>(
    scale: Scale,
    options: &LoadOptions,
    place: Placement,
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    let seconds = seconds(scale, options);
    let of = |operation| Load::of(operation, options, seconds).by_one();
    let run = |load: &Load| load.run(&Target::start(options, place)?.address, place);
    for load in [of(Operation::BatchPut), of(Operation::BatchExist).batches_of(1000)] {
        add_load(report, &load, place, run(&load)?)?;
    }
    let outcome = run(&of(Operation::Exist).in_flight(64))?;
    let rate = outcome.calls as f64 / outcome.seconds;
    let figure = Figure::new("exist_pipelined_per_s", rate, "1/s").with("in_flight", 64);
    report.add(figure.with("placement", place.name()))
}

fn single_threaded() -> Result<Runtime, BenchError> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// One call in flight, and a raw ping-pong over TCP of the same size beside it.
fn latency<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let count = scale.pick(100_000, 20_000, 100);
    let task = MasterTask::at(Placement::Same);
    let (_master, said) = Peer::start::<_, MasterAddress>(&task)?;
    for place in placement::possible(&[Placement::Same, Placement::Cross])? {
        // In turns, so that a slow moment of the machine hits all.
        let mut stubs: Vec<(StubKind, Over, Latencies)> = Vec::new();
        for over in [Over::Tcp, Over::Unix] {
            let kinds = [StubKind::Blocking, StubKind::Async];
            stubs.extend(kinds.map(|kind| (kind, over, Latencies::default())));
        }
        let mut raws = Latencies::default();
        let master = said.master.to_string();
        for _ in 0..4 {
            raws.merge(placement::on_client_cpu(place, || {
                Ok(raw::ping_pong(said.raw, EXIST_REQUEST, EXIST_REPLY, 0, count / 4)?)
            })?);
            for (kind, over, ours) in &mut stubs {
                ours.merge(placement::on_client_cpu(place, || {
                    single_threaded()?.block_on(exists(*kind, *over, &master, count / 4))
                })?);
            }
        }
        let raw_p50 = raws.p50_us();
        let placed = |name, value| {
            Figure::new(name, value, "µs").with("placement", place.name()).with("calls", count)
        };
        for (kind, over, ours) in stubs {
            let with = |name, value| {
                placed(name, value).with("stub", kind.name()).with("over", over.name())
            };
            let p50 = with("exist_p50_us", ours.clone().p50_us());
            report.add(p50.versus("raw ping-pong", raw_p50))?;
            report.add(with("exist_p99_us", ours.clone().quantile_us(0.99)))?;
        }
        report.add(placed("raw_p50_us", raw_p50))?;
    }
    Ok(())
}

async fn exists(
    kind: StubKind,
    over: Over,
    master: &str,
    count: usize,
) -> Result<Latencies, BenchError> {
    let client = kind.connect(master, over).await?;
    let mut keys = KeyWriter::new(99);
    let mut latencies = Latencies::default();
    for turn in 0..count + count / 10 {
        let key = keys.key(turn as u64);
        let start = Instant::now();
        if client.exist(key).await? {
            return Err(BenchError::wrong("exist", "a key that nobody put"));
        }
        if turn >= count / 10 {
            latencies.add(start.elapsed());
        }
    }
    Ok(latencies)
}

/// The cost of an idle connection for the master.
fn idle<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let count = scale.pick(IDLE, IDLE, 20);
    process::raise_file_limit()?;
    let task = MasterTask::at(Placement::Free);
    let (peer, said) = Peer::start::<_, MasterAddress>(&task)?;
    let address = said.master.to_string();
    let watched =
        scale.pick(Duration::from_secs(3), Duration::from_secs(1), Duration::from_millis(50));
    let (bytes, cpu) = single_threaded()?.block_on(async {
        // The first connection makes what all others share.
        let first = MasterClient::connect(&address, Over::Tcp.config()).await?;
        ask(&first).await?;
        let before = peer.resident_bytes()?;
        let mut clients = Vec::with_capacity(count);
        for _ in 0..count.div_ceil(50) {
            let more = (0..50.min(count - clients.len())).map(|_| async {
                let client = MasterClient::connect(&address, Over::Tcp.config()).await?;
                // One call each: an idle connection has been used.
                ask(&client).await?;
                Ok::<_, BenchError>(client)
            });
            clients.extend(try_join_all(more).await?);
        }
        let bytes = peer.resident_bytes()?.saturating_sub(before) as f64 / count as f64;
        let (start, used) = (Instant::now(), peer.cpu_seconds()?);
        tokio::time::sleep(watched).await;
        let cpu = (peer.cpu_seconds()? - used) / start.elapsed().as_secs_f64();
        for client in &clients {
            ask(client).await?;
        }
        Ok::<_, BenchError>((bytes, cpu))
    })?;
    report.add(Figure::new("idle_conn_bytes", bytes, "B").with("connections", count))?;
    report.add(Figure::new("idle_cpu_part", cpu, "ratio").with("connections", count))
}

async fn ask(client: &MasterClient) -> Result<(), BenchError> {
    client.exist(KeyWriter::new(99).key(0)).await?;
    Ok(())
}
