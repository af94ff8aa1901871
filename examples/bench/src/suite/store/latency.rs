//! The duration of one call, and the number of values that batches move in a second.

use std::io::Write;
use std::time::Instant;

use bytes::Bytes;
use mc_store::{Client, GetInto, Memory, Put, PutOutcome, ReplicateConfig};

use super::cluster::{Carrier, Cluster, Plan, SHORT_LEASE};
use super::reference::{Amounts, Measured, Reference};
use super::{KIB, MIB};
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::latency::Latencies;
use crate::pattern::Pattern;
use crate::placement::{self, Placement};
use crate::process::ClientRuntime;
use crate::scale::Scale;

/// Bytes of a value.
const SIZES: [usize; 4] = [4 * KIB, 64 * KIB, MIB, 16 * MIB];

/// Values of a batch.
const BATCH: usize = 100;

/// Bytes of a value of a batch.
const BATCH_VALUE: usize = 4 * KIB;

/// The figures that are compared with Mooncake: our name, its name, and that of the ratio.
const COMPARED: [[&str; 3]; 9] = [
    ["get_into_p50_us", "ref_get_into_p50_us", "ratio_get_into_p50_us"],
    ["get_into_p99_us", "ref_get_into_p99_us", "ratio_get_into_p99_us"],
    ["get_p50_us", "ref_get_p50_us", "ratio_get_p50_us"],
    ["get_p99_us", "ref_get_p99_us", "ratio_get_p99_us"],
    ["put_p50_us", "ref_put_p50_us", "ratio_put_p50_us"],
    ["put_p99_us", "ref_put_p99_us", "ratio_put_p99_us"],
    ["exist_p50_us", "ref_exist_p50_us", "ratio_exist_p50_us"],
    ["put_batch_per_s", "ref_put_batch_per_s", "ratio_put_batch_per_s"],
    ["get_batch_per_s", "ref_get_batch_per_s", "ratio_get_batch_per_s"],
];

/// Prints latencies of single calls and rates of batches, by carrier, placement and
/// runtime of the client, and Mooncake's for each placement.
pub(super) fn run<W: Write>(
    scale: Scale,
    reference: Option<&Reference>,
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    let all = [Placement::Same, Placement::Cross, Placement::Free];
    for place in placement::possible(&all)? {
        let mut ours = Vec::new();
        for carrier in [Carrier::Tcp, Carrier::Shm] {
            // One for each place: the scheduler may move the processes of a free one.
            let plan = Plan::new(place, carrier, segment(scale));
            let cluster = Plan { lease: Some(SHORT_LEASE), ..plan }.start()?;
            for runtime in [ClientRuntime::Single, ClientRuntime::Multi] {
                let setting = Setting { place, carrier, runtime, cluster: &cluster };
                let figures = setting.measure(scale)?;
                figures.iter().try_for_each(|figure| report.add(figure.clone()))?;
                ours.extend(figures);
            }
        }
        if let Some(reference) = reference {
            let theirs = reference.measure(place, &amounts(scale))?;
            compare(place, &ours, &theirs, report)?;
        }
    }
    Ok(())
}

fn amounts(scale: Scale) -> Amounts {
    Amounts {
        values: SIZES.into_iter().map(|size| (size, count(scale, size))).collect(),
        exist: exist_calls(scale),
        rounds: rounds(scale),
    }
}

/// Prints what Mooncake took, and each of our figures by its own.
fn compare<W: Write>(
    place: Placement,
    ours: &[Figure],
    theirs: &[Measured],
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    for measured in theirs {
        let names = COMPARED.into_iter().find(|[name, ..]| *name == measured.name);
        let [name, ref_name, ratio_name] = names.ok_or_else(|| {
            BenchError::wrong("measuring Mooncake", format!("a {}", measured.name))
        })?;
        let sized = |figure: Figure| match measured.size {
            Some(size) => figure.with("size", size),
            None => figure,
        };
        let same = |figure: &&Figure| {
            let size = figure.params.get("size").and_then(serde_json::Value::as_u64);
            figure.name == name && size == measured.size.map(|size| size as u64)
        };
        let unit = ours.iter().find(same).map_or("", |figure| figure.unit);
        let theirs = sized(Figure::new(ref_name, measured.value, unit));
        report.add(theirs.with("placement", place.name()))?;
        for figure in ours.iter().filter(same) {
            let ratio = Figure::new(ratio_name, figure.value / measured.value, "ratio");
            report.add(Figure { params: figure.params.clone(), ..ratio })?;
        }
    }
    Ok(())
}

/// Under which circumstances something is measured.
struct Setting<'a> {
    place: Placement,
    carrier: Carrier,
    runtime: ClientRuntime,
    cluster: &'a Cluster,
}

impl Setting<'_> {
    fn measure(&self, scale: Scale) -> Result<Vec<Figure>, BenchError> {
        let figures = placement::on_client_cpu(self.place, || {
            self.runtime.start()?.block_on(async {
                let client = self.cluster.client().await?;
                let figures = figures(&client, scale).await;
                client.shutdown().await;
                figures
            })
        })?;
        Ok(figures.into_iter().map(|figure| self.on(figure)).collect())
    }

    fn on(&self, figure: Figure) -> Figure {
        figure
            .with("transport", self.carrier.name())
            .with("placement", self.place.name())
            .with("runtime", self.runtime.name())
    }
}

/// All that is measured with one client.
async fn figures(client: &Client, scale: Scale) -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    touch(client, segment(scale)).await?;
    for size in SIZES {
        let mut timed = singles(client, size, count(scale, size)).await?;
        let both = [
            ("get_into_p50_us", "get_into_p99_us", &mut timed.get_into),
            ("get_p50_us", "get_p99_us", &mut timed.get),
            ("put_p50_us", "put_p99_us", &mut timed.put),
        ];
        for (p50, p99, latencies) in both {
            figures.push(Figure::new(p50, latencies.p50_us(), "µs").with("size", size));
            let p99 = Figure::new(p99, latencies.quantile_us(0.99), "µs");
            figures.push(p99.with("size", size));
        }
        if size >= MIB {
            let compared = [
                ("get_into_memcpy_ratio", &mut timed.copy_from, &mut timed.get_into),
                ("put_memcpy_ratio", &mut timed.copy_to, &mut timed.put),
            ];
            for (name, limit, ours) in compared {
                let ratio = limit.p50_us() / ours.p50_us();
                figures.push(Figure::new(name, ratio, "ratio").with("size", size));
            }
        }
        clear(client).await?;
    }
    let mut exist = exist(client, exist_calls(scale)).await?;
    figures.push(Figure::new("exist_p50_us", exist.p50_us(), "µs"));
    let (puts, gets) = batches(client, rounds(scale)).await?;
    for (name, rate) in [("put_batch_per_s", puts), ("get_batch_per_s", gets)] {
        let figure = Figure::new(name, rate, "values/s").with("batch", BATCH);
        figures.push(figure.with("size", BATCH_VALUE));
    }
    clear(client).await?;
    Ok(figures)
}

/// Bytes of the node's segment: room for all that a run puts.
fn segment(scale: Scale) -> usize {
    scale.pick(1 << 30, 1 << 30, 128 << 20)
}

/// Writes to most of the segment, so that no measured call is the first to touch a page:
/// a store that has been up for a while has touched all of them.
async fn touch(client: &Client, segment: usize) -> Result<(), BenchError> {
    const SIZE: usize = 16 * MIB;
    let value: Bytes = Pattern::new(0).bytes(SIZE).into();
    // Less than makes the master evict.
    for n in 0..segment / SIZE * 9 / 10 {
        client.put(&format!("touch-{n}"), value.clone()).await?;
    }
    clear(client).await
}

/// Removes everything, and waits until its space is free again.
pub(super) async fn clear(client: &Client) -> Result<(), BenchError> {
    let start = Instant::now();
    client.remove_all(true).await?;
    while client.cluster_report().await?.totals.used > 0 {
        if start.elapsed() > 100 * SHORT_LEASE {
            return Err(BenchError::wrong("remove_all", "its space does not come back"));
        }
        tokio::time::sleep(SHORT_LEASE / 10).await;
    }
    Ok(())
}

/// The number of exist calls.
fn exist_calls(scale: Scale) -> usize {
    scale.pick(10_000, 2_000, 20)
}

/// The number of batches to put and get.
fn rounds(scale: Scale) -> usize {
    scale.pick(500, 100, 3)
}

/// The number of values of a size to put and get.
fn count(scale: Scale, size: usize) -> usize {
    let bytes: usize = scale.pick(512 << 20, 128 << 20, 16 << 20);
    (bytes / size).clamp(scale.pick(40, 10, 1), scale.pick(2_000, 1_000, 10))
}

#[derive(Default)]
struct Timed {
    put: Latencies,
    get_into: Latencies,
    get: Latencies,
    /// Plain copies of the values to memory of their own, and back.
    copy_to: Latencies,
    copy_from: Latencies,
}

/// Puts values, gets each back in both ways and checks it. They stay. Large ones are copied to as many places of
/// this process and back in between.
async fn singles(client: &Client, size: usize, count: usize) -> Result<Timed, BenchError> {
    let target = Memory::allocate(size)?;
    let mut found = vec![0; size];
    // Mapped now, so that no measured get is the first to touch a page.
    target.whole().copy_from(0, &found).expect("the same length");
    let mut timed = Timed::default();
    // A few values are enough to tell a wrong one, and to make them costs as much
    // as to send them.
    let values: Vec<(Pattern, Bytes)> =
        (0..4).map(|seed| (Pattern::new(seed), Pattern::new(seed).bytes(size).into())).collect();
    let warm_up = count.div_ceil(10);
    let mut places = match size >= MIB {
        true => vec![1; (count + warm_up) * size],
        false => Vec::new(),
    };
    let mut places = places.chunks_mut(size);
    for turn in 0..count + warm_up {
        let (pattern, value) = &values[turn % values.len()];
        if let Some(place) = places.next() {
            let start = Instant::now();
            place.copy_from_slice(value);
            let copied_to = start.elapsed();
            let start = Instant::now();
            found.copy_from_slice(core::hint::black_box(&*place));
            let copied_from = start.elapsed();
            if turn >= warm_up {
                timed.copy_to.add(copied_to);
                timed.copy_from.add(copied_from);
            }
        }
        let key = format!("single-{size}-{turn}");
        let value = value.clone();
        let start = Instant::now();
        let outcome = client.put(&key, value).await?;
        let put = start.elapsed();
        if outcome != PutOutcome::Stored {
            return Err(BenchError::wrong("put", format!("{outcome:?} for a new key")));
        }
        let start = Instant::now();
        let len = client.get_into(&key, &target.whole()).await?;
        let get_into = start.elapsed();
        if len != size as u64 {
            return Err(BenchError::wrong("get_into", format!("{len} of {size} bytes")));
        }
        target.whole().copy_to(0, &mut found).expect("the same length");
        pattern.check("get_into", 0, &found)?;
        let start = Instant::now();
        let got = client.get(&key).await?;
        let get = start.elapsed();
        if got.len() != size {
            return Err(BenchError::wrong("get", format!("{} of {size} bytes", got.len())));
        }
        pattern.check("get", 0, &got)?;
        if turn >= warm_up {
            timed.put.add(put);
            timed.get_into.add(get_into);
            timed.get.add(get);
        }
    }
    Ok(timed)
}

/// Asks for a key that is there, over and over.
async fn exist(client: &Client, count: usize) -> Result<Latencies, BenchError> {
    client.put("exist", Bytes::from_static(b"yes")).await?;
    let mut latencies = Latencies::default();
    let warm_up = count / 10;
    for turn in 0..count + warm_up {
        let start = Instant::now();
        let there = client.exist("exist").await?;
        let took = start.elapsed();
        if !there {
            return Err(BenchError::wrong("exist", "no for a key that was put"));
        }
        if turn >= warm_up {
            latencies.add(took);
        }
    }
    Ok(latencies)
}

/// Values per second, put and got in batches. They stay.
async fn batches(client: &Client, rounds: usize) -> Result<(f64, f64), BenchError> {
    const SIZE: usize = BATCH_VALUE;
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
    }
    Ok((put.rate_of(BATCH as f64), get.rate_of(BATCH as f64)))
}
