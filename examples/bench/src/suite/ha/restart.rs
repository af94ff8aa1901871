//! A master with many objects that is killed and started again.

use std::io::Write;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::try_join_all;
use mc_meta::{PutEnd, ReplicateConfig};
use mc_rpc::{ClientConfig, MasterClient, PutStartItem};
use mc_store::{Client, PutOutcome};
use mc_types::{ClientId, KeyRef};

use super::super::keys::KeyWriter;
use super::super::segments;
use super::super::store::{Carrier, Keeping, Plan};
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::pattern::Pattern;
use crate::placement::Placement;
use crate::scale::Scale;

/// Bytes of the object that is read.
pub(super) const VALUE: usize = 64 << 10;
pub(super) const NAME: &str = "restart";

/// Bytes of each of the others, which are only booked.
const BOOKED: u64 = 4 << 10;

/// Callers, and keys of each of their calls.
const CALLERS: u64 = 4;
const BATCH: u64 = 1000;

const SEGMENTS: u32 = 16;

/// When nothing was read by then, nothing will be.
const PATIENCE: Duration = Duration::from_secs(120);

/// Longer than the time after which changes are on disk.
const DURABLE: Duration = Duration::from_secs(2);

/// Prints the time from the start of a master to the first object that is read.
pub(super) fn run<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let keys = scale.pick(10_000_000, 200_000, 4_000);
    let directory = tempfile::tempdir()?;
    let plan = Plan::new(Placement::Free, Carrier::Tcp, 64 << 20);
    let plan = plan.kept(directory.path().join("metadata"), Keeping::Async);
    let mut cluster = plan.start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let client = runtime.block_on(cluster.client())?;
    let pattern = Pattern::new(1);
    let value = Bytes::from(pattern.bytes(VALUE));
    if runtime.block_on(client.put(NAME, value))? != PutOutcome::Stored {
        return Err(BenchError::wrong("put", "the object is there already"));
    }
    runtime.block_on(book(&cluster.master_address(), keys))?;
    // The state of a journal cannot be asked for by RPC.
    std::thread::sleep(DURABLE);
    cluster.kill_master()?;
    let started = Instant::now();
    // The process says that it is ready when it answers calls.
    cluster.start_master_again()?;
    let ready = started.elapsed();
    runtime.block_on(read(&client, &pattern, started))?;
    let first_get = started.elapsed();
    runtime.block_on(client.shutdown());
    let figure = Figure::new("restart_first_get_s", first_get.as_secs_f64(), "s");
    report.add(figure.with("keys", keys).with("ready_s", ready.as_secs_f64()))
}

/// Gets the object again and again until it is there.
pub(super) async fn read(
    client: &Client,
    pattern: &Pattern,
    started: Instant,
) -> Result<(), BenchError> {
    loop {
        match client.get(NAME).await {
            Ok(got) if got.len() == VALUE => return pattern.check("get", 0, &got),
            Ok(got) => {
                return Err(BenchError::wrong("get", format!("{} of {VALUE} bytes", got.len())));
            }
            Err(error) if started.elapsed() > PATIENCE => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Books objects in segments that no node serves.
pub(super) async fn book(master: &str, keys: u64) -> Result<(), BenchError> {
    let (node, writer) = (ClientId::from_u128(fastrand::u128(..)), ClientId::from_u128(7));
    let client = MasterClient::connect(master, ClientConfig::default()).await?;
    for number in 0..SEGMENTS {
        let spec = segments::spec(number, (keys / 8 + 1) * BOOKED)?;
        client.mount_segment(node, &spec).await?;
    }
    let pinging = client.clone();
    let heartbeat = tokio::spawn(async move {
        loop {
            // A master that is gone shows in the puts.
            let _ = pinging.ping(node).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let callers = (0..CALLERS).map(|caller| {
        let client = client.clone();
        async move {
            let first = (caller * BATCH..keys).step_by((CALLERS * BATCH) as usize);
            for first in first {
                put(&client, writer, first..keys.min(first + BATCH)).await?;
            }
            Ok::<_, BenchError>(())
        }
    });
    let booked = try_join_all(callers).await;
    heartbeat.abort();
    booked.map(drop)
}

async fn put(
    client: &MasterClient,
    writer: ClientId,
    numbers: core::ops::Range<u64>,
) -> Result<(), BenchError> {
    let refused = |refusal| BenchError::Rpc(mc_rpc::RpcError::Refused(refusal));
    let mut writers = vec![KeyWriter::new(1); BATCH as usize];
    let names: Vec<KeyRef<'_>> =
        writers.iter_mut().zip(numbers).map(|(names, number)| names.key(number)).collect();
    let slice_lengths = &[BOOKED];
    let puts: Vec<_> = names.iter().map(|key| PutStartItem::new(*key, slice_lengths)).collect();
    let config = ReplicateConfig::default();
    let grants = client.batch_put_start(writer, &config, &puts).await?;
    let mut ends = Vec::with_capacity(grants.len());
    for (key, grant) in names.iter().zip(grants) {
        ends.push(PutEnd::new(*key, grant.map_err(refused)?.handle));
    }
    for ended in client.batch_put_end(writer, &ends).await? {
        ended.map_err(refused)?;
    }
    Ok(())
}
