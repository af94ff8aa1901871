//! The time of a put into memory that was never written.

use std::io::Write;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_store::{Client, PutOutcome};

use super::cluster::{Carrier, Plan};
use super::{KIB, MIB};
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::latency::Latencies;
use crate::pattern::Pattern;
use crate::placement::{self, Placement};
use crate::process::ClientRuntime;
use crate::scale::Scale;

/// How long the segment has been mounted before the first put.
const MOUNTED: Duration = Duration::from_secs(5);

/// Bytes of a value, and how many are put.
const SIZES: [(usize, usize); 3] = [(64 * KIB, 200), (MIB, 100), (16 * MIB, 8)];

/// Prints latencies of puts into a segment that was mounted [`MOUNTED`] ago and never touched, and
/// their ratio to puts into the same places once more.
pub(super) fn run<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    for place in placement::possible(&[Placement::Same, Placement::Cross])? {
        for carrier in [Carrier::Tcp, Carrier::Shm] {
            let segment = scale.pick(2 << 30, 2 << 30, 128 << 20);
            let plan = Plan::new(place, carrier, segment);
            let cluster = Plan { lease: Some(super::cluster::SHORT_LEASE), ..plan }.start()?;
            std::thread::sleep(scale.pick(MOUNTED, MOUNTED, Duration::from_millis(100)));
            let figures = placement::on_client_cpu(place, || {
                ClientRuntime::Single.start()?.block_on(async {
                    let client = cluster.client().await?;
                    let figures = figures(&client, scale).await;
                    client.shutdown().await;
                    figures
                })
            })?;
            for figure in figures {
                let figure = figure.with("transport", carrier.name());
                report.add(figure.with("placement", place.name()))?;
            }
        }
    }
    Ok(())
}

async fn figures(client: &Client, scale: Scale) -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    let mut fresh = Vec::new();
    for (size, count) in SIZES {
        fresh.push(puts(client, "fresh", size, scale.pick(count, count, 1)).await?);
    }
    super::latency::clear(client).await?;
    // The same bytes in the same order, into the same places.
    for ((size, count), mut fresh) in SIZES.into_iter().zip(fresh) {
        let mut warm = puts(client, "warm", size, scale.pick(count, count, 1)).await?;
        let ratio = fresh.p50_us() / warm.p50_us();
        figures.push(Figure::new("fresh_put_p50_us", fresh.p50_us(), "µs").with("size", size));
        figures.push(Figure::new("fresh_put_ratio", ratio, "ratio").with("size", size));
    }
    super::latency::clear(client).await?;
    Ok(figures)
}

async fn puts(
    client: &Client,
    name: &str,
    size: usize,
    count: usize,
) -> Result<Latencies, BenchError> {
    let value: Bytes = Pattern::new(7).bytes(size).into();
    let mut latencies = Latencies::default();
    for n in 0..count {
        let start = Instant::now();
        let outcome = client.put(&format!("{name}-{size}-{n}"), value.clone()).await?;
        latencies.add(start.elapsed());
        if outcome != PutOutcome::Stored {
            return Err(BenchError::wrong("put", format!("{outcome:?} for a new key")));
        }
    }
    let read = client.get(&format!("{name}-{size}-{}", count - 1)).await?;
    Pattern::new(7).check("get", 0, &read)?;
    Ok(latencies)
}
