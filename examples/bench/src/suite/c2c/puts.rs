//! The cost of conversions for the puts whose objects are converted, and for others.

use std::io::Write;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_store::{Client, Put, PutOutcome, ReplicateConfig};
use serde_json::json;

use super::{DIM, projectors};
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::placement::Placement;
use crate::process::ClientRuntime;
use crate::scale::Scale;
use crate::suite::store::{Carrier, Cluster, Plan};

/// Heads of the models.
const HEADS: usize = 8;

/// Bytes of an object.
const SIZE: usize = 1 << 20;

/// Batches of keys and values of each kind: those that fill the queue, and those that are timed.
const BATCHES: usize = 8;

/// Time after which conversions are under way.
const HEAD_START: Duration = Duration::from_millis(20);

/// Rest before a round, so that both sides begin with an idle machine.
const REST: Duration = Duration::from_millis(50);

/// Time limit for conversions.
const PATIENCE: Duration = Duration::from_secs(30);

/// Prints the latency of puts while objects are converted over that without conversions.
pub(super) fn run<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    // An object has 128 tokens of models of full size.
    let (layers, dim) = (scale.pick(4, 4, 1), scale.pick(DIM, DIM, 32));
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("projector.bin");
    std::fs::write(&file, projectors::bin(layers, dim))?;
    let shape = |id| {
        let head_dim = dim / HEADS;
        json!({"model_id": id, "num_layers": layers, "num_kv_heads": HEADS, "head_dim": head_dim})
    };
    let rules = json!({
        "models": [shape("a"), shape("b")],
        "rules": [{
            "source_model": "a", "source_model_name": "org/A",
            "target_model": "b", "target_model_name": "org/B",
            "projector_file": file,
        }],
    });
    let plan = Plan::new(Placement::Free, Carrier::Tcp, 1 << 30);
    let clusters = [plan.clone().start()?, plan.with_c2c(rules.to_string()).start()?];
    let rounds = scale.pick(100, 40, 2);
    let mut sides = ClientRuntime::Multi.start()?.block_on(async {
        let mut sides =
            [C2cSide::connect(&clusters[0]).await?, C2cSide::connect(&clusters[1]).await?];
        // The first conversion reads the weights.
        for side in &mut sides {
            side.round().await?;
            side.samples = [const { Vec::new() }; 2];
        }
        for _ in 0..rounds {
            for side in &mut sides {
                side.round().await?;
            }
        }
        for side in &sides {
            side.client.shutdown().await;
        }
        Ok::<_, BenchError>(sides)
    })?;
    for (kind, objects) in ["converted", "others"].into_iter().enumerate() {
        let with = |figure: Figure| figure.with("size", SIZE).with("objects", objects);
        let [off, on] = sides.each_mut().map(|side| median(&mut side.samples[kind]) * 1e6);
        for (c2c, micros) in [("off", off), ("on", on)] {
            report.add(with(Figure::new("put_p50_us", micros, "µs")).with("c2c", c2c))?;
        }
        report.add(with(Figure::new("put_latency_ratio", on / off, "ratio")))?;
    }
    Ok(())
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A client of a cluster with conversions, or of one without.
struct C2cSide {
    client: Client,
    value: Bytes,
    next: u64,
    /// Seconds that puts took: of objects that are converted, and of others.
    samples: [Vec<f64>; 2],
}

impl C2cSide {
    async fn connect(cluster: &Cluster) -> Result<Self, BenchError> {
        let client = cluster.client().await?;
        let value = vec![0x3c; SIZE].into();
        Ok(Self { client, value, next: 0, samples: [const { Vec::new() }; 2] })
    }

    /// Puts objects to be converted, then more of them and others in turn while the first ones are
    /// converted, and waits until all are.
    async fn round(&mut self) -> Result<(), BenchError> {
        tokio::time::sleep(REST).await;
        for _ in 0..BATCHES {
            self.put("org/A").await?;
        }
        tokio::time::sleep(HEAD_START).await;
        for _ in 0..BATCHES {
            for (kind, model) in ["org/A", "other"].into_iter().enumerate() {
                let seconds = self.put(model).await?;
                if self.client.metrics().c2c.is_none_or(|c2c| c2c.queued > 0) {
                    self.samples[kind].push(seconds);
                }
            }
        }
        let deadline = Instant::now() + PATIENCE;
        while let Some(c2c) = self.client.metrics().c2c {
            let skipped: u64 = c2c.skipped.iter().map(|(_, count)| count).sum();
            if skipped > 0 || Instant::now() > deadline {
                return Err(BenchError::wrong("converting", format!("{c2c:?}")));
            }
            if c2c.queued == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Puts keys and values of one block; returns the seconds that it took.
    async fn put(&mut self, model: &str) -> Result<f64, BenchError> {
        let number = self.next;
        self.next += 1;
        let keys = ["k", "v"].map(|part| format!("{model}_{number:x}_0_{part}"));
        let puts = keys.iter().map(|key| Put::new(key, self.value.clone())).collect();
        let begin = Instant::now();
        let outcomes = self.client.batch_put(puts, &ReplicateConfig::default()).await;
        let seconds = begin.elapsed().as_secs_f64();
        for outcome in outcomes {
            let outcome = outcome?;
            if outcome != PutOutcome::Stored {
                return Err(BenchError::wrong("put", format!("{outcome:?} for a new key")));
            }
        }
        Ok(seconds)
    }
}
