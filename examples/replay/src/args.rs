//! The command line.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;
use mc_cli::UsageError;
use mc_evict::PolicyKind;
use mc_store::{NodeConfig, Protocol};
use mc_types::{ByteSize, ParseByteSizeError};

use crate::tier::{Tier, TierKind};

/// The largest block, which is the largest transfer a node accepts by default.
const MAX_BLOCK: ByteSize = ByteSize::gib(1);

/// The largest block that a node's local disk takes; see `LocalDiskOptions::size`.
const MAX_DISK_BLOCK: ByteSize = ByteSize::mib(128);

/// Bytes that a block takes on a disk beside its content, at most.
const DISK_OVERHEAD: u64 = 4096;

/// The smallest disk of a node.
const MIN_DISK: u64 = 64 << 20;

/// A pool for more than this many times the trace is a mistake in the command line.
const MAX_FRACTION: f64 = 1000.0;

/// Replays a request trace through a KV-cache cluster and checks every byte.
///
/// Without arguments it starts a master and three storage nodes in this process,
/// connected by TCP on the loopback interface, and lets prefill workers serve the
/// trace: for each request they look up the longest cached prefix, get and verify
/// its blocks, and put the missing blocks. A block's content is computed from its
/// hash id, so that every byte that is read can be checked. The exit code is 1 if a
/// byte is wrong.
#[derive(Debug, Parser)]
#[command(name = "mc-replay", version)]
pub(crate) struct Args {
    /// Trace to replay: JSON lines, plain or gzip-compressed [default: the
    /// conversation trace that is built in]
    #[arg(long, value_name = "FILE", help_heading = "Load")]
    pub(crate) trace: Option<PathBuf>,

    /// Replay only the first N requests
    #[arg(long, value_name = "N", help_heading = "Load")]
    pub(crate) limit: Option<NonZeroU64>,

    /// Bytes in each block
    #[arg(long = "block_bytes", value_name = "SIZE", default_value = "128KB", value_parser = mc_cli::parse_positive_size, help_heading = "Load")]
    pub(crate) block_bytes: ByteSize,

    /// Prefill workers; each has its own connections and serves one request at a time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Load")]
    pub(crate) workers: u32,

    /// Replay the trace's arrival times, X times faster; 0 replays without
    /// waiting
    #[arg(long, value_name = "X", default_value = "0", value_parser = parse_speedup, help_heading = "Load")]
    pub(crate) speedup: f64,

    /// Replicas of each block
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), help_heading = "Load")]
    pub(crate) replicas: u32,

    /// Use the running cluster of this master, and start no cluster. Also several masters with ';'
    /// or ',' between them, or etcd://host:port;host:port/cluster
    #[arg(long, visible_alias = "master_server_address", value_name = "ADDRESS", conflicts_with_all = ["capacity", "nodes", "lease_ttl", "tier", "eviction_policy", "high_watermark"], help_heading = "Cluster")]
    pub(crate) master: Option<String>,

    /// Credentials for that master
    #[command(flatten)]
    pub(crate) credentials: mc_cli::CredentialArgs,

    /// Storage nodes to start
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=256), help_heading = "Cluster")]
    pub(crate) nodes: u32,

    /// Memory of all nodes together: a size (2GB), or with a decimal point the fraction
    /// of the trace's distinct blocks that fits (0.2)
    #[arg(long, value_name = "SIZE|PART", default_value = "0.2", help_heading = "Cluster")]
    pub(crate) capacity: Capacity,

    /// Keep the blocks for which memory has no room in a directory: ssd:DIR gives each node a disk
    /// there, dfs:DIR has all clients share it. The replay makes a directory of its own in DIR and
    /// removes it at the end; it takes as many bytes as the trace's distinct blocks
    #[arg(long, value_name = "KIND:DIR", help_heading = "Cluster")]
    pub(crate) tier: Option<Tier>,

    /// Time for which a read protects a block from eviction. It must only outlast a read,
    /// which takes milliseconds here. The replay compresses an hour into seconds: with
    /// the usual 5s a block would be protected for many minutes of the trace, and other
    /// blocks would be evicted in its place
    #[arg(id = "lease_ttl", long = "default_kv_lease_ttl", value_name = "TIME", default_value = "200ms", value_parser = mc_cli::parse_duration, help_heading = "Cluster")]
    pub(crate) lease_ttl: Duration,

    /// Which blocks make room for others: adaptive, lru, fifo, s3_fifo, sieve, w_tinylfu or prefix
    #[arg(id = "eviction_policy", long = "eviction_policy", value_name = "NAME", default_value_t = PolicyKind::default(), help_heading = "Cluster")]
    pub(crate) eviction_policy: PolicyKind,

    /// Evict when more than this fraction of the memory is in use; with 1, when a put finds no room
    #[arg(id = "high_watermark", long = "eviction_high_watermark_ratio", value_name = "0..1", default_value_t = 0.95, value_parser = mc_cli::parse_fraction, help_heading = "Cluster")]
    pub(crate) high_watermark: f64,

    /// Transfer all bytes over this protocol, tcp, quic or rdma, also where memory could be shared;
    /// quic needs --transfer_tls_ca, _cert and _key, for localhost or 127.0.0.1 if this process
    /// starts the cluster, and rdma a build with the feature rdma
    #[arg(long, value_name = "NAME", help_heading = "Network")]
    pub(crate) protocol: Option<Protocol>,

    /// Network devices to use together, separated by commas
    #[arg(
        long = "device_name",
        value_name = "NAMES",
        default_value = "",
        hide_default_value = true,
        help_heading = "Network"
    )]
    pub(crate) device_name: String,

    /// Certificates under which bytes travel
    #[command(flatten)]
    pub(crate) transfer: mc_cli::TransferArgs,

    /// Print one JSON object instead of the table
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// Where to replay to.
#[derive(Debug, PartialEq)]
pub(crate) enum Target {
    /// A running cluster.
    Running {
        /// Its master, as for `ClientBuilder::master`.
        master: String,
    },
    /// A cluster to start.
    Own(Plan),
}

/// A cluster to start.
#[derive(Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) nodes: u32,
    /// Memory of each node.
    pub(crate) segment: ByteSize,
    /// Room on the disk of each node, where nodes have disks: twice its share of all distinct
    /// blocks, because shares are not equal and a disk deletes its oldest objects when it fills up.
    pub(crate) disk: ByteSize,
    pub(crate) lease_ttl: Duration,
    pub(crate) eviction_policy: PolicyKind,
    /// The part of the memory above which the master evicts.
    pub(crate) high_watermark: f64,
}

impl Args {
    /// The transports of every client and node.
    ///
    /// # Errors
    /// [`UsageError`] when there is something wrong with the certificates.
    pub(crate) fn node(&self) -> Result<NodeConfig, UsageError> {
        let mut node = self.transfer.node_config(&mc_cli::PathArgs {
            protocol: self.protocol,
            device_name: self.device_name.clone(),
        })?;
        if self.protocol.is_some() {
            node.disable_shared_memory();
        }
        Ok(node)
    }

    /// The cluster to use for a trace with so many distinct blocks.
    ///
    /// # Errors
    /// [`UsageError`] when the pool would be empty, too small or absurd.
    pub(crate) fn target(&self, distinct_blocks: u64) -> Result<Target, UsageError> {
        if let Some(master) = &self.master {
            return Ok(Target::Running { master: master.clone() });
        }
        let total = self.capacity.bytes(distinct_blocks, self.block_bytes, self.replicas);
        let share = total.div_ceil(u64::from(self.nodes));
        // Whole blocks, so that no node has an edge that nothing fits into.
        let block = self.block_bytes.as_u64();
        let segment = share.checked_next_multiple_of(block).filter(|_| share >= block);
        let Some(segment) = segment else {
            return Err(UsageError::new(format!(
                "--capacity {} gives each of {} nodes {}, and a block takes {}; give at least {}",
                self.capacity,
                self.nodes,
                ByteSize::bytes(share),
                self.block_bytes,
                ByteSize::bytes(block.saturating_mul(self.nodes.into())),
            )));
        };
        if self.lease_ttl.is_zero() {
            return Err(UsageError::new(
                "--default_kv_lease_ttl: '0' is refused: blocks need protection while they are \
                 read; write a duration such as 200ms",
            ));
        }
        let is_ssd = self.tier.as_ref().is_some_and(|tier| tier.kind == TierKind::Ssd);
        if is_ssd && self.block_bytes > MAX_DISK_BLOCK {
            return Err(UsageError::new(format!(
                "--block_bytes: {} is refused: with --tier=ssd:DIR a block has at most {MAX_DISK_BLOCK}",
                self.block_bytes
            )));
        }
        Ok(Target::Own(Plan {
            nodes: self.nodes,
            segment: ByteSize::bytes(segment),
            disk: self.disk(distinct_blocks),
            lease_ttl: self.lease_ttl,
            eviction_policy: self.eviction_policy,
            high_watermark: self.high_watermark,
        }))
    }

    /// Room on the disk of each node.
    fn disk(&self, distinct_blocks: u64) -> ByteSize {
        let block = self.block_bytes.as_u64().saturating_add(DISK_OVERHEAD);
        let all = distinct_blocks.saturating_mul(block).saturating_mul(self.replicas.into());
        let share = all.div_ceil(self.nodes.into());
        // No object may have more than a sixteenth of a disk.
        let least = block.saturating_mul(32).max(MIN_DISK);
        ByteSize::bytes(share.saturating_mul(2).max(least))
    }

    /// Bytes in a block, as a length in memory.
    ///
    /// # Errors
    /// [`UsageError`] when no node would accept such a block.
    pub(crate) fn block_len(&self) -> Result<usize, UsageError> {
        let fits = (self.block_bytes <= MAX_BLOCK).then(|| self.block_bytes.as_u64().try_into());
        match fits {
            Some(Ok(len)) => Ok(len),
            _ => Err(UsageError::new(format!(
                "--block_bytes: {} is refused: a block has at most {MAX_BLOCK}",
                self.block_bytes
            ))),
        }
    }
}

/// Memory of all nodes together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Capacity {
    /// So many bytes.
    Size(ByteSize),
    /// Room for this part of the trace's distinct blocks, with all their replicas.
    Part(f64),
}

impl Capacity {
    /// Bytes for a trace with so many distinct blocks, at most `u64::MAX`.
    fn bytes(self, distinct_blocks: u64, block: ByteSize, replicas: u32) -> u64 {
        match self {
            Self::Size(size) => size.as_u64(),
            // Exact below 2^53 blocks, and a float larger than any u64 becomes the
            // largest.
            Self::Part(part) => ((distinct_blocks as f64 * part).ceil() as u64)
                .saturating_mul(block.as_u64())
                .saturating_mul(replicas.into()),
        }
    }
}

impl FromStr for Capacity {
    type Err = ParseCapacityError;

    fn from_str(text: &str) -> Result<Self, ParseCapacityError> {
        let text = text.trim();
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if is_number && text.contains('.') {
            let part: f64 = text.parse().map_err(|_| ParseCapacityError::NotAPart)?;
            return match part {
                0.0 => Err(ParseCapacityError::Zero),
                part if part > MAX_FRACTION => Err(ParseCapacityError::PartTooLarge),
                part => Ok(Self::Part(part)),
            };
        }
        match text.parse::<ByteSize>().map_err(ParseCapacityError::NotASize)? {
            size if size.as_u64() == 0 => Err(ParseCapacityError::Zero),
            size => Ok(Self::Size(size)),
        }
    }
}

impl std::fmt::Display for Capacity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Size(size) => size.fmt(f),
            Self::Part(part) => write!(f, "{part:?}"),
        }
    }
}

/// Why a text is no capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ParseCapacityError {
    #[error("{0}, or a part of the trace's blocks such as 0.2")]
    NotASize(ParseByteSizeError),
    #[error("expected a part of the trace's blocks such as 0.2, or a size such as 2GB")]
    NotAPart,
    #[error("the nodes need memory; write a size such as 2GB or a part such as 0.2")]
    Zero,
    #[error(
        "more than {MAX_FRACTION} times the trace; write a size such as 2GB or a part such as 0.2"
    )]
    PartTooLarge,
}

fn parse_speedup(text: &str) -> Result<f64, ParseSpeedupError> {
    match text.trim().parse::<f64>() {
        Ok(factor) if factor.is_finite() && factor >= 0.0 => Ok(factor),
        _ => Err(ParseSpeedupError),
    }
}

/// A text is no factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a factor such as 100, or 0 to replay without waiting")]
struct ParseSpeedupError;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(args: &[&str]) -> Result<Args, mc_cli::Refusal> {
        mc_cli::parse_from(std::iter::once("mc-replay").chain(args.iter().copied()).map(Into::into))
    }

    fn plan(args: &[&str], distinct: u64) -> Result<Plan, UsageError> {
        match parse(args).unwrap().target(distinct)? {
            Target::Own(plan) => Ok(plan),
            Target::Running { .. } => panic!("not asked for"),
        }
    }

    #[test]
    fn capacities_are_sizes_or_parts() {
        for (text, capacity) in [
            ("2GB", Capacity::Size(ByteSize::gib(2))),
            ("1.5 GB", Capacity::Size(ByteSize::mib(1536))),
            ("2", Capacity::Size(ByteSize::bytes(2))),
            ("0.2", Capacity::Part(0.2)),
            ("2.0", Capacity::Part(2.0)),
            (".5", Capacity::Part(0.5)),
        ] {
            assert_eq!(text.parse(), Ok(capacity), "{text}");
        }
        for text in ["0", "0.0", "0GB"] {
            assert_eq!(text.parse::<Capacity>(), Err(ParseCapacityError::Zero), "{text}");
        }
        for text in ["", ".", "1.2.3", "-1", "-0.2", "NaN", "inf", "1e3", "99999.0", "20%"] {
            assert!(text.parse::<Capacity>().is_err(), "{text}");
        }
    }

    #[test]
    fn segments_are_whole_blocks() {
        let plan_ = plan(&["--capacity=0.2", "--block-bytes=64KB"], 1001).unwrap();
        // 201 blocks on three nodes.
        assert_eq!((plan_.nodes, plan_.segment), (3, ByteSize::kib(67 * 64)));
        let doubled =
            plan(&["--capacity=0.2", "--block-bytes=64KB", "--replicas=2"], 1001).unwrap();
        assert_eq!(doubled.segment, ByteSize::kib(134 * 64));
    }

    #[test]
    fn pools_without_room_are_refused() {
        let error = plan(&["--capacity=64KB", "--block-bytes=64KB"], 10).unwrap_err().to_string();
        assert!(error.contains("at least 192.00 KB"), "{error}");
        assert!(plan(&["--capacity=16777215TB", "--nodes=1", "--block-bytes=3"], 10).is_ok());
        assert!(plan(&["--default_kv_lease_ttl=0"], 1000).is_err());
        assert!(parse(&["--block-bytes=2GB"]).unwrap().block_len().is_err());
    }

    #[test]
    fn disks_have_room_for_all_blocks() {
        let disk = |args: &[&str], distinct| plan(args, distinct).unwrap().disk.as_u64();
        assert!(disk(&["--tier=ssd:/d", "--replicas=2"], 3000) >= 2 * 2 * 1000 * (128 << 10));
        assert_eq!(disk(&["--tier=ssd:/d", "--capacity=2.0"], 10), MIN_DISK);
        let large = ["--tier=ssd:/d", "--block-bytes=128MB", "--capacity=1GB"];
        assert!(disk(&large, 1) > 16 * (128 << 20));
        let larger = ["--tier=ssd:/d", "--block-bytes=129MB", "--capacity=1GB"];
        let error = plan(&larger, 1).unwrap_err().to_string();
        assert!(error.contains("at most 128.00 MB"), "{error}");
        assert!(plan(&["--tier=dfs:/d", "--block-bytes=129MB", "--capacity=1GB"], 1).is_ok());
    }

    #[test]
    fn tiers_are_parsed_and_mistakes_are_named() {
        let tier = parse(&["--tier=dfs:/mnt/dfs"]).unwrap().tier;
        assert_eq!(tier, Some(Tier { kind: TierKind::Dfs, directory: "/mnt/dfs".into() }));
        assert_eq!(parse(&[]).unwrap().tier, None);
        for text in ["--tier=/mnt/ssd", "--tier=disk:/mnt", "--tier=ssd:", "--tier="] {
            let refusal = parse(&[text]).unwrap_err().to_string();
            assert!(refusal.contains("ssd:/mnt/ssd"), "{refusal}");
        }
    }

    #[test]
    fn a_running_cluster_has_its_own_shape() {
        let args = parse(&["--master=h:1"]).unwrap();
        assert_eq!(args.target(1).unwrap(), Target::Running { master: "h:1".into() });
        for other in [
            "--nodes=1",
            "--capacity=1GB",
            "--default-kv-lease-ttl=1s",
            "--tier=ssd:/d",
            "--eviction-policy=fifo",
        ] {
            let refusal = parse(&["--master=h:1", other]).unwrap_err().to_string();
            assert!(refusal.contains("cannot be used with"), "{refusal}");
        }
    }

    #[test]
    fn counts_have_bounds() {
        for flag in [
            "--workers=0",
            "--workers=1025",
            "--nodes=0",
            "--replicas=0",
            "--limit=0",
            "--speedup=-1",
            "--speedup=NaN",
            "--block-bytes=0",
            "--block-bytes=x",
        ] {
            assert!(parse(&[flag]).is_err(), "{flag}");
        }
    }

    proptest! {
        #[test]
        fn a_part_has_room_for_its_blocks(
            part in 0.001f64..10.0, distinct in 1000u64..1_000_000, block in 1u64..1 << 20, nodes in 1u32..8
        ) {
            let capacity = Capacity::Part(part);
            let args = Args {
                capacity, nodes, block_bytes: ByteSize::bytes(block), ..parse(&[]).unwrap()
            };
            if let Ok(Target::Own(plan)) = args.target(distinct) {
                let blocks = plan.segment.as_u64() / block * u64::from(nodes);
                let wanted = (distinct as f64 * part).ceil() as u64;
                prop_assert_eq!(plan.segment.as_u64() % block, 0);
                prop_assert!(blocks >= wanted && blocks < wanted + 2 * u64::from(nodes));
            }
        }

        #[test]
        fn no_capacity_panics(text in "\\PC{0,12}") {
            let _ = text.parse::<Capacity>();
        }
    }
}
