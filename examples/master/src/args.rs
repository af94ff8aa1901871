//! The command line.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::num::NonZero;
use std::time::Duration;

use clap::ArgAction;
use mc_cli::{
    MAX_THREADS, ParseDurationError, ServerArgs, parse_duration, parse_fraction, parse_thread_count,
};
use mc_evict::{PolicyKind, UnknownPolicy};
use mc_lease::SoftPinFrom;
use mc_meta::{
    AllocationStrategy, DefaultQuota, MAX_QUOTA, MasterConfig, MemoryAllocator, TaskConfig,
    UnknownStrategy,
};
use mc_types::ByteSize;

use crate::access::AccessArgs;
use crate::c2c::C2cArgs;
use crate::cluster::ClusterArgs;
use crate::connections::ConnectionArgs;
use crate::events::EventArgs;
use crate::interface::{InterfaceAddress, parse_interface};
use crate::journal::JournalArgs;
use crate::storage::StorageArgs;

/// Keeps the metadata of a KV-cache store: where each object is, where memory is free,
/// and what to evict. Object bytes never pass through it.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "mc-master", version)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Port that clients connect to; 0 means a free port.
    #[arg(
        long = "rpc_port",
        alias = "port",
        value_name = "PORT",
        default_value_t = 50051,
        help_heading = "General"
    )]
    rpc_port: u16,
    /// Address to listen on, and with --enable_ha the one by which clients and other masters reach
    /// this one.
    #[arg(
        long = "rpc_address",
        value_name = "HOST",
        default_value = "0.0.0.0",
        value_parser = parse_host,
        help_heading = "General"
    )]
    rpc_address: IpAddr,
    /// Network interface whose first address takes the place of --rpc_address [default: none].
    #[arg(
        long = "rpc_interface",
        value_name = "NAME",
        default_value = "",
        hide_default_value = true,
        value_parser = parse_interface,
        help_heading = "General"
    )]
    rpc_interface: InterfaceAddress,
    /// Threads that answer calls (--max_threads is the same). Default: one for each CPU, at
    /// least 4.
    #[arg(
        long = "rpc_thread_num",
        alias = "max_threads",
        value_name = "N",
        default_value_t = default_threads(),
        value_parser = parse_thread_count,
        help_heading = "General"
    )]
    pub(crate) threads: usize,
    /// HTTP port of /metrics, /health, and pages about objects and segments; 0 means a free port.
    #[arg(
        long = "metrics_port",
        value_name = "PORT",
        default_value_t = 9003,
        help_heading = "General"
    )]
    metrics_port: u16,
    /// Address of the metrics port.
    #[arg(
        long = "metrics_host",
        value_name = "HOST",
        default_value = "0.0.0.0",
        value_parser = parse_host,
        help_heading = "General"
    )]
    metrics_host: IpAddr,
    /// Log one summary line every 10 seconds.
    #[arg(
        long = "enable_metric_reporting",
        default_value_t = true,
        action = ArgAction::Set,
        help_heading = "General"
    )]
    pub(crate) metric_reporting: bool,

    /// Store small values for Mooncake's clients, which find each other's memory by
    /// them: GET, PUT and DELETE of /metadata?key=… over HTTP. mc-store's clients do not need it.
    #[arg(
        long = "enable_http_metadata_server",
        default_value_t = false,
        num_args = 0..=1,
        default_missing_value = "true",
        action = ArgAction::Set,
        help_heading = "General"
    )]
    metadata_server: bool,
    /// Port of the metadata server; 0 means a free port.
    #[arg(
        long = "http_metadata_server_port",
        value_name = "PORT",
        default_value_t = 8080,
        help_heading = "General"
    )]
    metadata_port: u16,
    /// Address of the metadata server.
    #[arg(
        long = "http_metadata_server_host",
        value_name = "HOST",
        default_value = "0.0.0.0",
        value_parser = parse_host,
        help_heading = "General"
    )]
    metadata_host: IpAddr,

    #[command(flatten)]
    pub(crate) access: AccessArgs,

    #[command(flatten)]
    pub(crate) connections: ConnectionArgs,

    #[command(flatten)]
    pub(crate) events: EventArgs,
    #[command(flatten)]
    pub(crate) c2c: C2cArgs,
    #[command(flatten)]
    pub(crate) journal: JournalArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) storage: StorageArgs,

    /// Time for which exist and get protect an object from removal and eviction.
    #[arg(
        long = "default_kv_lease_ttl",
        value_name = "MS|DURATION",
        default_value = "5s",
        value_parser = parse_duration,
        help_heading = "Leases and pins"
    )]
    lease_ttl: Duration,
    /// Duration of a soft pin whose put gives none.
    #[arg(
        long = "default_kv_soft_pin_ttl",
        value_name = "MS|DURATION",
        default_value = "30m",
        value_parser = parse_duration,
        help_heading = "Leases and pins"
    )]
    soft_pin_ttl: Duration,
    /// Longest soft pin that a put may ask for.
    #[arg(
        long = "max_kv_soft_pin_ttl",
        value_name = "MS|DURATION",
        default_value = "24h",
        value_parser = parse_duration,
        help_heading = "Leases and pins"
    )]
    max_soft_pin_ttl: Duration,
    /// Start of a soft pin's time: last_access, so that the pin lasts while the
    /// object is in use, or commit, the end of the put.
    #[arg(
        long = "soft_pin_from",
        value_name = "NAME",
        default_value = "last_access",
        value_parser = parse_soft_pin_from,
        help_heading = "Leases and pins"
    )]
    soft_pin_from: SoftPinFrom,
    /// Remove each object this long after it was first read, unless it is pinned; 0 lets one
    /// reader have it. Default: reading never removes an object.
    #[arg(
        long = "ttl_after_get",
        value_name = "MS|DURATION",
        value_parser = parse_duration,
        help_heading = "Leases and pins"
    )]
    ttl_after_get: Option<Duration>,
    /// Evict soft-pinned objects when no other object can be evicted.
    #[arg(
        long = "allow_evict_soft_pinned_objects",
        default_value_t = true,
        action = ArgAction::Set,
        help_heading = "Leases and pins"
    )]
    allow_evict_soft_pinned_objects: bool,

    /// Allocator of a segment's memory: offset (exact sizes) or cachelib (size
    /// classes in slabs of 4 MB, which no object can exceed).
    #[arg(
        long = "memory_allocator",
        value_name = "NAME",
        default_value_t = MemoryAllocator::default(),
        help_heading = "Placement"
    )]
    memory_allocator: MemoryAllocator,

    /// Order in which segments are tried for a new replica: random, round_robin,
    /// free_ratio_first, least_fragmented or local_first.
    #[arg(
        long = "allocation_strategy",
        value_name = "NAME",
        default_value_t = AllocationStrategy::default(),
        value_parser = parse_strategy,
        help_heading = "Placement"
    )]
    allocation_strategy: AllocationStrategy,

    /// Eviction policy: adaptive (follows the best of six rules, lru among them), lru, fifo,
    /// s3_fifo, sieve, w_tinylfu or prefix (blocks that no other block continues, least recently
    /// used first).
    #[arg(
        long = "eviction_policy",
        value_name = "NAME",
        default_value_t = PolicyKind::default(),
        value_parser = parse_policy,
        help_heading = "Eviction"
    )]
    eviction_policy: PolicyKind,
    /// Evict when more than this fraction of all memory is in use.
    #[arg(
        long = "eviction_high_watermark_ratio",
        value_name = "0..1",
        default_value_t = 0.95,
        value_parser = parse_fraction,
        help_heading = "Eviction"
    )]
    pub(crate) eviction_high_watermark_ratio: f64,
    /// Fraction of all memory to free at a time.
    #[arg(
        long = "eviction_ratio",
        value_name = "0..1",
        default_value_t = 0.05,
        value_parser = parse_fraction,
        help_heading = "Eviction"
    )]
    pub(crate) eviction_ratio: f64,

    /// Isolate tenants: each caller sees only the objects of its tenant, and puts within
    /// the tenant's quota. Default: true with --access_file, otherwise false.
    #[arg(
        long = "enable_multi_tenants",
        num_args = 0..=1,
        default_missing_value = "true",
        action = ArgAction::Set,
        help_heading = "Tenants"
    )]
    multi_tenants: Option<bool>,
    /// Quota of each tenant without one of its own (`mc-ctl quota set`): a size, unlimited, or
    /// none, with which the tenant cannot put.
    #[arg(
        long = "default_tenant_quota",
        value_name = "SIZE",
        default_value = "unlimited",
        value_parser = parse_default_quota,
        help_heading = "Tenants"
    )]
    default_tenant_quota: DefaultQuota,

    /// Maximum number of queued copy and move tasks.
    #[arg(
        long = "max_total_pending_tasks",
        value_name = "N",
        default_value_t = TaskConfig::default().max_pending,
        help_heading = "Tasks"
    )]
    max_pending_tasks: usize,
    /// Maximum number of tasks that clients work on.
    #[arg(
        long = "max_total_processing_tasks",
        value_name = "N",
        default_value_t = TaskConfig::default().max_processing,
        help_heading = "Tasks"
    )]
    max_processing_tasks: usize,
    /// Number of ended tasks that can still be queried; at least 1.
    #[arg(
        long = "max_total_finished_tasks",
        value_name = "N",
        default_value_t = TaskConfig::default().max_finished,
        help_heading = "Tasks"
    )]
    max_finished_tasks: usize,
    /// Timeout for a queued task that no client fetched; 0 for never.
    #[arg(
        long = "pending_task_timeout_sec",
        value_name = "SECONDS",
        default_value = "300",
        value_parser = parse_seconds,
        help_heading = "Tasks"
    )]
    pending_task_timeout: Duration,
    /// Timeout for a task that a client fetched; 0 for never.
    #[arg(
        long = "processing_task_timeout_sec",
        value_name = "SECONDS",
        default_value = "300",
        value_parser = parse_seconds,
        help_heading = "Tasks"
    )]
    processing_task_timeout: Duration,
    /// Retries for a task whose target is full.
    #[arg(
        long = "max_retry_attempts",
        value_name = "N",
        default_value_t = TaskConfig::default().max_retry_attempts,
        help_heading = "Tasks"
    )]
    max_retry_attempts: u32,

    /// Age at which an unfinished put no longer blocks another put of its key.
    #[arg(
        long = "put_start_discard_timeout_sec",
        value_name = "SECONDS",
        default_value = "30",
        value_parser = parse_seconds,
        help_heading = "Timeouts and failure detection"
    )]
    put_start_discard_timeout: Duration,
    /// Age at which the space of an unfinished put is freed; not less than the discard timeout.
    #[arg(
        long = "put_start_release_timeout_sec",
        value_name = "SECONDS",
        default_value = "600",
        value_parser = parse_seconds,
        help_heading = "Timeouts and failure detection"
    )]
    put_start_release_timeout: Duration,
    /// Time without a heartbeat after which a node's segments are suspended: their objects
    /// cannot be read, and nothing is put there.
    #[arg(
        long = "client_ttl",
        aliases = ["client_live_ttl_sec", "client_active_ttl_sec"],
        value_name = "SECONDS",
        default_value = "10",
        value_parser = parse_seconds,
        help_heading = "Timeouts and failure detection"
    )]
    client_ttl: Duration,
    /// Time for which suspended segments wait for their node to return;
    /// 0 discards them at once.
    #[arg(
        long = "client_return_timeout",
        alias = "client_suspicion_ttl_sec",
        value_name = "SECONDS",
        default_value = "600",
        value_parser = parse_seconds,
        help_heading = "Timeouts and failure detection"
    )]
    client_return_timeout: Duration,
}

impl Args {
    /// The address for calls.
    pub(crate) fn rpc_address(&self) -> SocketAddr {
        SocketAddr::new(self.rpc_interface.0.unwrap_or(self.rpc_address), self.rpc_port)
    }

    /// The address for metrics.
    pub(crate) fn metrics_address(&self) -> SocketAddr {
        SocketAddr::new(self.metrics_host, self.metrics_port)
    }

    /// The address for values of Mooncake's clients, if any.
    pub(crate) fn metadata_address(&self) -> Option<SocketAddr> {
        self.metadata_server.then(|| SocketAddr::new(self.metadata_host, self.metadata_port))
    }

    /// Warns of settings that are accepted and seldom meant.
    pub(crate) fn warn_of_doubtful_settings(&self) {
        if self.eviction_high_watermark_ratio == 0.0 {
            tracing::warn!(
                "--eviction_high_watermark_ratio=0 evicts every object that nobody may be reading, \
                 however much room there is; write the part of memory to fill, such as 0.95"
            );
        }
        if self.eviction_ratio == 0.0 {
            tracing::warn!(
                "--eviction_ratio=0 frees nothing ahead of puts: each one that finds no room waits \
                 for its own; write the part of memory to free at a time, such as 0.05"
            );
        }
    }

    /// The settings of the state machine.
    pub(crate) fn master_config(&self) -> MasterConfig {
        let mut config = MasterConfig::default();
        config.allocation_strategy = self.allocation_strategy;
        config.memory_allocator = self.memory_allocator;
        config.lease_ttl = self.lease_ttl;
        config.soft_pin_ttl = self.soft_pin_ttl;
        config.max_soft_pin_ttl = self.max_soft_pin_ttl;
        config.allow_evict_soft_pinned_objects = self.allow_evict_soft_pinned_objects;
        config.eviction_high_watermark_ratio = self.eviction_high_watermark_ratio;
        config.eviction_ratio = self.eviction_ratio;
        config.client_ttl = self.client_ttl;
        config.client_return_timeout = self.client_return_timeout;
        config.ttl_after_get = self.ttl_after_get;
        config.eviction_policy = self.eviction_policy;
        config.soft_pin_from = self.soft_pin_from;
        config.put_start_discard_timeout = self.put_start_discard_timeout;
        config.put_start_release_timeout = self.put_start_release_timeout;
        // With any list: one that names no tenant now may do so when it is read again.
        config.multi_tenant = self.multi_tenants.unwrap_or(self.access.access_file.is_some());
        config.default_tenant_quota = self.default_tenant_quota;
        config.tasks.max_pending = self.max_pending_tasks;
        config.tasks.max_processing = self.max_processing_tasks;
        config.tasks.max_finished = self.max_finished_tasks;
        config.tasks.pending_timeout = self.pending_task_timeout;
        config.tasks.processing_timeout = self.processing_task_timeout;
        config.tasks.max_retry_attempts = self.max_retry_attempts;
        self.storage.apply(&mut config);
        config
    }
}

#[derive(Debug, thiserror::Error)]
#[error("write an IP address such as 0.0.0.0, 127.0.0.1 or ::, or a name of this host")]
pub(crate) struct NoSuchHost;

/// An address, or that of a name: the first of IPv4 that it has, else the first.
pub(crate) fn parse_host(text: &str) -> Result<IpAddr, NoSuchHost> {
    let text = text.trim();
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if text.is_empty() || text.contains(char::is_whitespace) {
        return Err(NoSuchHost);
    }
    let found = (text, 0).to_socket_addrs().map_err(|_| NoSuchHost)?;
    let found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or(NoSuchHost)
}

fn parse_strategy(name: &str) -> Result<AllocationStrategy, UnknownStrategy> {
    name.trim().parse()
}

fn parse_policy(name: &str) -> Result<PolicyKind, UnknownPolicy> {
    name.trim().parse()
}

#[derive(Debug, thiserror::Error)]
#[error("write a size of at least 1 byte such as 10GB, unlimited, or none")]
struct NoSuchQuota;

fn parse_default_quota(text: &str) -> Result<DefaultQuota, NoSuchQuota> {
    match text.trim() {
        "unlimited" => Ok(DefaultQuota::Unlimited),
        "none" => Ok(DefaultQuota::Denied),
        size => {
            let bytes = size.parse().map_err(|_| NoSuchQuota).map(ByteSize::as_u64)?;
            if (1..=MAX_QUOTA).contains(&bytes) {
                Ok(DefaultQuota::Bytes(bytes))
            } else {
                Err(NoSuchQuota)
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("choose last_access or commit")]
struct NoSuchStart;

fn parse_soft_pin_from(name: &str) -> Result<SoftPinFrom, NoSuchStart> {
    match name.trim() {
        "last_access" => Ok(SoftPinFrom::LastAccess),
        "commit" => Ok(SoftPinFrom::Commit),
        _ => Err(NoSuchStart),
    }
}

/// One for each CPU, and not fewer than Mooncake has.
fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(4, NonZero::get).clamp(4, MAX_THREADS)
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BadSeconds {
    #[error("expected seconds or a suffix, such as 10, 1500ms or 2m")]
    Malformed,
    #[error(transparent)]
    Duration(ParseDurationError),
}

/// Flags that count in seconds take a bare number as such; with a suffix they are
/// durations like all others.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, BadSeconds> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return parse_duration(&format!("{text}s")).map_err(BadSeconds::Duration);
    }
    parse_duration(text).map_err(|error| match error {
        ParseDurationError::Malformed => BadSeconds::Malformed,
        error => BadSeconds::Duration(error),
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn parse(args: &[&str]) -> Result<Args, mc_cli::Refusal> {
        let args = std::iter::once("mc-master").chain(args.iter().copied());
        mc_cli::parse_from(args.map(OsString::from))
    }

    #[test]
    fn without_flags_the_library_s_defaults_hold() {
        let args = parse(&[]).unwrap();
        assert_eq!(args.master_config(), MasterConfig::default());
        assert_eq!(args.rpc_address().to_string(), "0.0.0.0:50051");
        assert_eq!(args.metrics_address().to_string(), "0.0.0.0:9003");
        assert!(args.threads >= 4 && args.metric_reporting);
    }

    #[test]
    fn old_names_are_understood() {
        let args =
            parse(&["--port=7", "-max_threads", "2", "--noenable-metric-reporting"]).unwrap();
        assert_eq!((args.rpc_address().port(), args.threads), (7, 2));
        assert!(!args.metric_reporting);
    }

    #[test]
    fn every_setting_reaches_the_master() {
        let args = parse(&[
            "--allocation-strategy=local_first",
            "--memory-allocator=cachelib",
            "--default-kv-lease-ttl=250ms",
            "--default_kv_soft_pin_ttl=9000",
            "--allow_evict_soft_pinned_objects=false",
            "--eviction_high_watermark_ratio=0.8",
            "--eviction_ratio=0.1",
            "--put_start_discard_timeout_sec=3",
            "--put_start_release_timeout_sec=4",
            "--client_ttl=1500ms",
            "--client-return-timeout=5",
            "--ttl_after_get=7s",
            "--eviction-policy=s3_fifo",
            "--soft_pin_from=commit",
            "--enable_multi_tenants",
            "--default_tenant_quota=2KB",
            "--max_total_pending_tasks=11",
            "--max_total_processing_tasks=12",
            "--max-total-finished-tasks=13",
            "--pending_task_timeout_sec=14",
            "--processing_task_timeout_sec=15",
            "--max_retry_attempts=16",
        ]);
        let config = args.unwrap().master_config();
        let mut expected = MasterConfig::default();
        expected.allocation_strategy = AllocationStrategy::LocalFirst;
        expected.memory_allocator = MemoryAllocator::Slab;
        expected.lease_ttl = Duration::from_millis(250);
        expected.soft_pin_ttl = Duration::from_secs(9);
        expected.allow_evict_soft_pinned_objects = false;
        expected.eviction_high_watermark_ratio = 0.8;
        expected.eviction_ratio = 0.1;
        expected.put_start_discard_timeout = Duration::from_secs(3);
        expected.put_start_release_timeout = Duration::from_secs(4);
        expected.client_ttl = Duration::from_millis(1500);
        expected.client_return_timeout = Duration::from_secs(5);
        expected.ttl_after_get = Some(Duration::from_secs(7));
        expected.eviction_policy = PolicyKind::S3Fifo;
        expected.soft_pin_from = SoftPinFrom::Commit;
        expected.multi_tenant = true;
        expected.default_tenant_quota = DefaultQuota::Bytes(2048);
        expected.tasks.max_pending = 11;
        expected.tasks.max_processing = 12;
        expected.tasks.max_finished = 13;
        expected.tasks.pending_timeout = Duration::from_secs(14);
        expected.tasks.processing_timeout = Duration::from_secs(15);
        expected.tasks.max_retry_attempts = 16;
        assert_eq!(config, expected);
    }

    #[test]
    fn every_allocation_strategy_has_a_name() {
        for strategy in AllocationStrategy::ALL {
            let flag = format!("--allocation_strategy={strategy}");
            let config = parse(&[&flag]).unwrap().master_config();
            assert_eq!(config.allocation_strategy, strategy);
        }
        let refusal = parse(&["--allocation_strategy=best"]).unwrap_err().to_string();
        assert!(refusal.contains("choose random, round_robin"), "{refusal}");
        let refusal = parse(&["--memory_allocator=best"]).unwrap_err().to_string();
        assert!(refusal.contains("choose offset or cachelib"), "{refusal}");
    }

    #[test]
    fn every_eviction_policy_has_a_name() {
        for &policy in PolicyKind::ALL {
            let flag = format!("--eviction_policy={policy}");
            let config = parse(&[&flag]).unwrap().master_config();
            assert_eq!(config.eviction_policy, policy);
        }
        let refusal = parse(&["--eviction_policy=best"]).unwrap_err().to_string();
        assert!(refusal.contains("there are adaptive, lru, fifo"), "{refusal}");
        let refusal = parse(&["--soft_pin_from=birth"]).unwrap_err().to_string();
        assert!(refusal.contains("choose last_access or commit"), "{refusal}");
        // Given without a need, the default is what holds anyway.
        let config = parse(&["--soft_pin_from=last_access"]).unwrap().master_config();
        assert_eq!(config, MasterConfig::default());
    }

    #[test]
    fn an_access_list_keeps_tenants_apart() {
        let config = |args: &[&str]| parse(args).unwrap().master_config();
        assert!(!config(&[]).multi_tenant);
        assert!(config(&["--access_file=list"]).multi_tenant);
        assert!(!config(&["--access_file=list", "--enable_multi_tenants=false"]).multi_tenant);
        let default = |value: &str| {
            config(&[&format!("--default_tenant_quota={value}")]).default_tenant_quota
        };
        assert_eq!(default("unlimited"), DefaultQuota::Unlimited);
        assert_eq!(default("none"), DefaultQuota::Denied);
        for value in ["0", "-1", "much", "", "9223372036854775808"] {
            let refusal = parse(&[&format!("--default_tenant_quota={value}")]).unwrap_err();
            assert!(refusal.to_string().contains("unlimited, or none"), "{refusal}");
        }
    }

    #[test]
    fn zero_is_a_time_too() {
        let config = parse(&["--client_return_timeout=0", "--ttl_after_get=0"]).unwrap();
        let config = config.master_config();
        assert_eq!(config.client_return_timeout, Duration::ZERO);
        assert_eq!(config.ttl_after_get, Some(Duration::ZERO));
        assert_eq!(config.validate(), Ok(()));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for args in [
            "--eviction_ratio=7",
            "--rpc_port=70000",
            "--rpc_address=no where",
            "--rpc_address=",
            "--max_threads=0",
            "--client_ttl=soon",
            "--client_return_timeout=later",
            "--ttl_after_get=-1",
            "--eviction_policy=",
            "--soft_pin_from",
            "--client_ttl=99999999999999999999",
            "--default_kv_lease_ttl=5 parsecs",
            "--enable_ha=perhaps",
            "--replication=most",
            "--unclean_takeover_after=soon",
            "--durability=some",
            "--durability_bound=0",
            "--snapshot_interval=0",
            "--tls_cert=a.pem",
            "--tls_key=a.key",
            "--tls_client_ca=ca.pem",
            "--access_file",
            "--rpc_max_connections=0",
            "--rpc_max_connections=1000001",
            "--rpc_max_connections_per_address=0",
            "--rpc_max_connections_per_address=-1",
            "--rpc_idle_timeout=0",
            "--rpc_idle_timeout=999ms",
            "--rpc_idle_timeout=8d",
            "--rpc_idle_timeout=169h",
        ] {
            let refusal = parse(&[args]).expect_err(args).to_string();
            assert!(!refusal.contains('\n'), "{refusal}");
        }
    }
}
