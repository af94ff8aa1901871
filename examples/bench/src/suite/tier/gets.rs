//! Reads through the store: of objects in memory, and of those that only a tier below it has.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_store::{ByteSize, Client, GetInto, Memory, ObjectDescription, PutOutcome, ReplicateConfig};
use rustix::fs::{Advice, fadvise};

use super::{TierOptions, as_text};
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::interrupt;
use crate::latency::Latencies;
use crate::pattern::Pattern;
use crate::placement::Placement;
use crate::process::ClientRuntime;
use crate::scale::Scale;
use crate::suite::store::{Carrier, Cluster, DiskPlan, Plan, connect};

/// Bytes of an object.
const SIZE: usize = 1 << 20;

/// Objects of a batch: as many as a client reads from tiers at a time.
const BATCH: usize = 32;

/// The segment of the client that reads its local disk.
const OWN: &str = "own";

/// Time limit for objects to be written below memory, and to leave memory.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time between two looks at whether they are.
const PAUSE: Duration = Duration::from_millis(10);

/// Prints how long reads take, and the rate of batches: from memory of a node, from its disk, from the client's
/// local disk, and from the shared tier.
pub(super) fn run<W: Write>(
    scale: Scale,
    options: &TierOptions,
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    let amounts = Amounts {
        objects: scale.pick(256, 128, BATCH),
        passes: scale.pick(5, 1, 1),
        segment: scale.pick(1 << 30, 512 << 20, 128 << 20),
    };
    // Removed after the clusters have ended.
    let directory = options.make_directory()?;
    let plan = Plan::new(Placement::Free, Carrier::Tcp, amounts.segment);
    let cluster = plan.clone().with_shared_tier(&as_text(directory.path())?).start()?;
    let reading = interrupt::or_asked(from_shared_tier(&cluster, amounts));
    let figures = ClientRuntime::Multi.start()?.block_on(reading)?;
    figures.into_iter().try_for_each(|figure| report.add(figure))?;
    drop(cluster);

    let directories = [options.make_directory()?, options.make_directory()?];
    let [node, own] = directories.each_ref().map(|directory| DiskPlan {
        directory: directory.path().to_owned(),
        // With room for what is not objects, and far from making room.
        size: (2 * amounts.objects * SIZE + (256 << 20)) as u64,
    });
    let cluster = plan.with_disk(node).start()?;
    let reading = interrupt::or_asked(from_disks(&cluster, &own, amounts));
    let figures = ClientRuntime::Multi.start()?.block_on(reading)?;
    figures.into_iter().try_for_each(|figure| report.add(figure))
}

#[derive(Clone, Copy, Debug)]
struct Amounts {
    objects: usize,
    /// How often each object is read, alone and in batches.
    passes: usize,
    /// Bytes of a segment, which has room for twice as many objects.
    segment: usize,
}

/// Where objects are when they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In memory of a node, over TCP.
    Memory,
    /// On the disk of a node, over TCP.
    NodeDisk,
    /// On the client's local disk.
    LocalDisk,
    /// In files, which the page cache has.
    CachedFiles,
    /// In files that the page cache does not have.
    Files,
}

impl Place {
    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::NodeDisk => "node_disk",
            Self::LocalDisk => "own_disk",
            Self::CachedFiles | Self::Files => "shared_tier",
        }
    }

    /// Adds to a figure from where it reads.
    fn on(self, figure: Figure) -> Figure {
        let figure = figure.with("from", self.name()).with("size", SIZE);
        match self {
            Self::CachedFiles | Self::Files => figure.with("page_cache", self == Self::CachedFiles),
            Self::Memory | Self::NodeDisk | Self::LocalDisk => figure,
        }
    }

    /// Reads from this place that the client has counted and that have not failed; `None` where
    /// others count them.
    fn reads(self, client: &Client) -> Option<u64> {
        let metrics = client.metrics();
        let tier = match self {
            Self::Memory | Self::NodeDisk => None,
            Self::LocalDisk => metrics.local_disk,
            Self::CachedFiles | Self::Files => metrics.shared_tier,
        };
        tier.map(|tier| tier.reads.count() - tier.failed_reads - tier.missing)
    }
}

async fn from_shared_tier(cluster: &Cluster, amounts: Amounts) -> Result<Vec<Figure>, BenchError> {
    let client = cluster.client().await?;
    let put = async |name| {
        let config = ReplicateConfig::default();
        let objects = Objects::put(client.clone(), name, amounts, &config).await?;
        if client.flush_files(PATIENCE).await {
            return Ok(objects);
        }
        Err(BenchError::wrong("writing files", format!("not done after {PATIENCE:?}")))
    };
    let mut figures = put("memory").await?.read(Place::Memory).await?;
    // Others: those that were read stay in memory until their leases end.
    let objects = put("files").await?;
    objects.leave_memory(|object| object.file.is_some()).await?;
    figures.extend(objects.read(Place::CachedFiles).await?);
    figures.extend(objects.read(Place::Files).await?);
    client.shutdown().await;
    Ok(figures)
}

async fn from_disks(
    cluster: &Cluster,
    own: &DiskPlan,
    amounts: Amounts,
) -> Result<Vec<Figure>, BenchError> {
    let is_in_tier = |object: &ObjectDescription| !object.local_disks.is_empty();
    let client = cluster.client().await?;
    let objects = Objects::put(client, "node", amounts, &ReplicateConfig::default()).await?;
    objects.wait_for_disks(amounts.objects).await?;
    objects.leave_memory(is_in_tier).await?;
    let mut figures = objects.read(Place::NodeDisk).await?;
    objects.client.shutdown().await;

    let builder = cluster.builder().listen((std::net::Ipv4Addr::LOCALHOST, 0).into());
    let builder = builder.segment_size(ByteSize::bytes(amounts.segment as u64)).segment_name(OWN);
    let client = connect(builder.local_disk(own.options())).await?;
    let objects =
        Objects::put(client, OWN, amounts, &ReplicateConfig::default().prefer(OWN)).await?;
    objects.wait_for_disks(2 * amounts.objects).await?;
    objects.leave_memory(is_in_tier).await?;
    figures.extend(objects.read(Place::LocalDisk).await?);
    objects.client.shutdown().await;
    Ok(figures)
}

/// Objects that a client has put and reads.
struct Objects {
    client: Client,
    keys: Vec<String>,
    /// Where reads put the bytes of a batch.
    target: Memory,
    passes: usize,
}

impl Objects {
    async fn put(
        client: Client,
        name: &str,
        amounts: Amounts,
        config: &ReplicateConfig,
    ) -> Result<Self, BenchError> {
        let target = Memory::allocate(BATCH * SIZE)?;
        // Mapped now, so that no measured read is the first to touch a page.
        target.whole().copy_from(0, &vec![0; BATCH * SIZE]).expect("the same length");
        let keys: Vec<String> = (0..amounts.objects).map(|n| format!("{name}-{n}")).collect();
        for (number, key) in keys.iter().enumerate() {
            let value: Bytes = Pattern::new(number as u64).bytes(SIZE).into();
            let outcome = client.put_with(key, value, config).await?;
            if outcome != PutOutcome::Stored {
                return Err(BenchError::wrong("put", format!("{outcome:?} for a new key")));
            }
        }
        Ok(Self { client, keys, target, passes: amounts.passes })
    }

    /// Waits until nodes have written so many objects to their disks.
    async fn wait_for_disks(&self, objects: usize) -> Result<(), BenchError> {
        let start = Instant::now();
        loop {
            let written = self.client.cluster_report().await?.totals.offload_written;
            if written == objects as u64 {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                let found = format!("{written} of {objects} objects are written");
                return Err(BenchError::wrong("writing to disks", found));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Takes the objects out of memory, and checks that they are on a tier.
    async fn leave_memory(
        &self,
        is_on_tier: impl Fn(&ObjectDescription) -> bool,
    ) -> Result<(), BenchError> {
        let keys: Vec<&str> = self.keys.iter().map(String::as_str).collect();
        let segment = self.client.describe(keys[0]).await?.replicas.pop();
        let segment = segment.ok_or_else(|| BenchError::wrong("put", "nothing is in memory"))?;
        let start = Instant::now();
        loop {
            // Those that have just been read or written stay for a moment.
            self.client.clear_replicas(&keys, Some(&segment.segment_name)).await?;
            let objects = self.client.batch_describe(&keys).await?;
            let is_below = |object: &ObjectDescription| object.replicas.is_empty();
            let objects: Vec<ObjectDescription> =
                objects.into_iter().collect::<Result<_, _>>().map_err(|refusal| {
                    BenchError::wrong("taking objects out of memory", refusal.to_string())
                })?;
            if let Some(lost) = objects.iter().find(|object| !is_on_tier(object)) {
                return Err(BenchError::wrong("writing below memory", format!("{lost:?}")));
            }
            if objects.iter().all(is_below) {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err(BenchError::wrong("taking objects out of memory", "some stay"));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Reads all objects from where they are: one after the other, then in batches.
    async fn read(&self, place: Place) -> Result<Vec<Figure>, BenchError> {
        let files = self.files(place).await?;
        let before = place.reads(&self.client);
        let (mut single, mut batch) = (Latencies::default(), Latencies::default());
        let mut order: Vec<usize> = (0..self.keys.len()).collect();
        for _ in 0..self.passes {
            fastrand::shuffle(&mut order);
            drop_from_cache(&files)?;
            for &number in &order {
                single.add(self.read_together(&[number]).await?);
            }
            fastrand::shuffle(&mut order);
            drop_from_cache(&files)?;
            for numbers in order.chunks_exact(BATCH) {
                batch.add(self.read_together(numbers).await?);
            }
        }
        let count = single.len() + batch.len() * BATCH;
        let reads = place.reads(&self.client).zip(before).map(|(after, before)| after - before);
        if let Some(reads) = reads.filter(|reads| *reads != count as u64) {
            let found = format!("{reads} of {count} reads were from {}", place.name());
            return Err(BenchError::wrong("get", found));
        }
        let rate = batch.rate_of((BATCH * SIZE) as f64) / 1e9;
        let figures = [
            Figure::new("get_into_p50_us", single.p50_us(), "µs"),
            Figure::new("get_into_p99_us", single.quantile_us(0.99), "µs"),
            Figure::new("get_batch_gbps", rate, "GB/s").with("batch", BATCH),
        ];
        Ok(figures.map(|figure| place.on(figure)).into())
    }

    /// Reads objects by one call, and compares all of their bytes.
    async fn read_together(&self, numbers: &[usize]) -> Result<Duration, BenchError> {
        let part = |at: usize| self.target.slice(at * SIZE, SIZE).expect("room for a batch");
        let (took, lens) = match numbers {
            [number] => {
                let (key, target) = (&self.keys[*number], part(0));
                let start = Instant::now();
                let len = self.client.get_into(key, &target).await;
                (start.elapsed(), vec![len])
            }
            _ => {
                let get =
                    |(at, number): (usize, &usize)| GetInto::new(&self.keys[*number], part(at));
                let gets = numbers.iter().enumerate().map(get).collect();
                let start = Instant::now();
                let lens = self.client.batch_get_into(gets).await;
                (start.elapsed(), lens)
            }
        };
        let mut found = vec![0; SIZE];
        for (at, (number, len)) in numbers.iter().zip(lens).enumerate() {
            let len = len?;
            if len != SIZE as u64 {
                return Err(BenchError::wrong("get_into", format!("{len} of {SIZE} bytes")));
            }
            part(at).copy_to(0, &mut found).expect("the same length");
            Pattern::new(*number as u64).check("get_into", 0, &found)?;
        }
        Ok(took)
    }

    /// The files that are to be read from the disk; none, where the page cache has no part in it, or
    /// may.
    async fn files(&self, place: Place) -> Result<Vec<PathBuf>, BenchError> {
        if place != Place::Files {
            return Ok(Vec::new());
        }
        let mut files = Vec::with_capacity(self.keys.len());
        for key in &self.keys {
            let generation = self.client.describe(key).await?.generation;
            let path = self.client.file_path(key, generation);
            files.push(path.ok_or_else(|| BenchError::wrong("file_path", "there is none"))?);
        }
        Ok(files)
    }
}

/// Drops files from the page cache.
fn drop_from_cache(files: &[PathBuf]) -> Result<(), BenchError> {
    for path in files {
        let file = File::open(path)?;
        // What is not on the disk yet stays.
        file.sync_data()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}
