//! The cost of verifiable parts of values: puts whose writer notes and tells the checksums of the
//! slices' fronts, beside puts that tell one checksum.

use std::io::Write;
use std::time::{Duration, Instant};

use mc_meta::{PutEnd, ReplicateConfig};
use mc_rpc::{PutStartItem, Refusal};
use mc_store::{Client, Memory};
use mc_transport::{Link as _, Node, Operation, RemoteSpan, Transferred, Transport as _};
use mc_types::{ClientId, KeyRef};

use super::MIB;
use super::cluster::{Carrier, Plan, SHORT_LEASE};
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::latency::Latencies;
use crate::pattern::Pattern;
use crate::placement::{self, Placement};
use crate::process::ClientRuntime;
use crate::scale::Scale;

const SIZES: [usize; 2] = [MIB, 16 * MIB];

/// Prints by carrier and size which part of the throughput of put and get without checksums
/// of the slices' fronts is left with them.
pub(super) fn run<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let place = Placement::Same;
    for carrier in [Carrier::Tcp, Carrier::Shm] {
        let plan = Plan::new(place, carrier, scale.pick(1 << 30, 1 << 30, 512 << 20));
        let cluster = Plan { lease: Some(SHORT_LEASE), ..plan }.start()?;
        for size in SIZES {
            let bytes: usize = scale.pick(4 << 30, 1 << 30, 32 << 20);
            let turns = (bytes / size).clamp(2, 1_000);
            let ratio = placement::on_client_cpu(place, || {
                ClientRuntime::Single.start()?.block_on(async {
                    let client = cluster.client().await?;
                    let node = Node::start(carrier.node()).await;
                    let node = node.map_err(|error| BenchError::start("node")(error.into()))?;
                    let ratio = measure(&client, &node, size, turns).await;
                    node.shutdown().await;
                    client.shutdown().await;
                    ratio
                })
            })?;
            let figure = Figure::new("range_verify_ratio", ratio, "ratio").with("size", size);
            let figure = figure.with("transport", carrier.name());
            report.add(figure.with("placement", place.name()))?;
        }
    }
    Ok(())
}

/// Puts and gets with and without in turn, so that both meet the same machine.
async fn measure(
    client: &Client,
    node: &Node,
    size: usize,
    turns: usize,
) -> Result<f64, BenchError> {
    let value = Memory::allocate(size)?;
    value.whole().copy_from(0, &Pattern::new(1).bytes(size)).expect("the same length");
    let target = Memory::allocate(size)?;
    target.whole().copy_from(0, &vec![0; size]).expect("the same length");
    let (mut with, mut without) = (Latencies::default(), Latencies::default());
    let warm_up = turns.div_ceil(10);
    for turn in 0..turns + warm_up {
        // Which goes first changes, too.
        for has_prefixes in [turn % 2 == 0, turn % 2 == 1] {
            let key = format!("verify-{size}-{turn}-{has_prefixes}");
            let took = put_and_get(client, node, &key, &value, &target, has_prefixes).await?;
            client.remove(&key, true).await?;
            if turn >= warm_up {
                if has_prefixes { with.add(took) } else { without.add(took) }
            }
        }
    }
    let mut found = vec![0; size];
    target.whole().copy_to(0, &mut found).expect("the same length");
    Pattern::new(1).check("get_into", 0, &found)?;
    Ok(without.p50_us() / with.p50_us())
}

async fn put_and_get(
    client: &Client,
    node: &Node,
    key: &str,
    value: &Memory,
    target: &Memory,
    has_prefixes: bool,
) -> Result<Duration, BenchError> {
    let wrong = |refusal: Refusal| BenchError::wrong("put", refusal.to_string());
    let (id, master) = (ClientId::from_u128(14), client.master());
    let name = KeyRef::new(key).map_err(|error| BenchError::wrong("put", error.to_string()))?;
    let config = ReplicateConfig::default();
    let begun = Instant::now();
    let lengths = [value.len() as u64];
    let put = PutStartItem::new(name, &lengths);
    let grant = master.batch_put_start(id, &config, &[put]).await?.remove(0).map_err(wrong)?;
    let replica = &grant.replicas[0];
    let link = node.connect(&replica.segment.endpoint).await?;
    let to = RemoteSpan::new(replica.segment.remote_key, replica.extent);
    let write = Operation::write(value.whole(), to.with_ticket(replica.ticket));
    let write = if has_prefixes { write.checkpointed() } else { write.checksummed() };
    let Transferred { checksum, slices, .. } = link.submit(vec![write]).await.remove(0)?;
    let checksum = checksum.as_slice();
    let (checksums, prefixes) = match &slices {
        Some(sums) => (&sums.checksums[..], &sums.prefixes[..]),
        None => (checksum, &[][..]),
    };
    let end = PutEnd { checksums, prefixes, ..PutEnd::new(name, grant.handle) };
    master.batch_put_end(id, &[end]).await?.remove(0).map_err(wrong)?;
    let len = client.get_into(key, &target.whole()).await?;
    let took = begun.elapsed();
    if len != value.len() as u64 {
        return Err(BenchError::wrong("get_into", format!("{len} of {} bytes", value.len())));
    }
    Ok(took)
}
