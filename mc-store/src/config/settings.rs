//! The settings that there are: each with its key, its other names, its variable, and
//! what reads its value.

use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU8, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use mc_evict::PolicyKind;
use mc_tier::{FolderMode, SyncPolicy};
use mc_transport::HugePageSize;
use mc_types::{ByteSize, MediaType};
use serde_json::Value;

use super::Protocol;
use super::value::{self, Expected};

/// The names of a setting of a [`ClientConfig`], and its default.
///
/// ```
/// use mc_store::ClientConfig;
/// let master = &ClientConfig::settings()[0];
/// assert_eq!((master.key(), master.variable()), ("master", "MOONCAKE_MASTER"));
/// assert!(master.names().any(|name| name == "master_server_address"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    pub(super) key: &'static str,
    /// Keys that mean the same, as other systems' files have them.
    pub(super) aliases: &'static [&'static str],
    pub(super) variable: &'static str,
    pub(super) default: &'static str,
}

impl Setting {
    /// The key in files.
    #[must_use]
    pub const fn key(&self) -> &'static str {
        self.key
    }

    /// The variable of the environment.
    #[must_use]
    pub const fn variable(&self) -> &'static str {
        self.variable
    }

    /// The default as `docs/configuration.md` describes it: a value, or words where it depends.
    #[must_use]
    pub const fn default(&self) -> &'static str {
        self.default
    }

    /// Every name that it has in files, the key first.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        std::iter::once(self.key).chain(self.aliases.iter().copied())
    }
}

macro_rules! settings {
    ($(
        $(#[$doc:meta])*
        $field:ident: $type:ty = $key:literal $(or $alias:literal)*, $variable:literal, $read:path, $default:literal;
    )*) => {
        /// Everything about a client that can be written down.
        ///
        /// A setting that is `None` leaves the default of
        /// [`ClientBuilder`](crate::ClientBuilder). The keys of files and the variables of
        /// the environment are named with each field and listed, with their defaults, in
        /// `docs/configuration.md`.
        ///
        /// ```
        /// use mc_store::{ByteSize, ClientConfig};
        /// let text = r#"{"master_server_address": "10.0.0.1:50051", "global_segment_size": "4GB"}"#;
        /// let variables = |name: &str| (name == "MC_STORE_MEMCPY").then(|| "0".into());
        /// let mut config = ClientConfig::from_json(text)?.apply_vars(variables)?;
        /// assert_eq!(config.global_segment_size, Some(ByteSize::gib(4)));
        /// assert_eq!(config.local_memcpy, Some(false));
        /// config.segment_name = Some("node-7".into());
        /// # Ok::<(), mc_store::ConfigError>(())
        /// ```
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct ClientConfig {
            $(
                $(#[$doc])*
                #[doc = ""]
                #[doc = concat!(
                    "In files `", $key, "`" $(, ", or `", $alias, "`")*,
                    "; the variable `", $variable, "`."
                )]
                pub $field: Option<$type>,
            )*
        }

        /// All of them.
        pub(super) const SETTINGS: &[Setting] = &[$(
            Setting {
                key: $key,
                aliases: &[$($alias),*],
                variable: $variable,
                default: $default,
            },
        )*];

        impl ClientConfig {
            /// Takes a value for the setting with this key.
            pub(super) fn set(&mut self, key: &'static str, value: &Value) -> Result<(), Expected> {
                match key {
                    $($key => self.$field = Some($read(value)?),)*
                    _ => unreachable!("the key of a setting"),
                }
                Ok(())
            }

            /// The same with every setting of `other` that is not `None` in place of its
            /// own.
            #[must_use]
            pub fn overridden_by(self, other: Self) -> Self {
                Self { $($field: other.$field.or(self.$field),)* }
            }
        }
    };
}

settings! {
    /// Where the master is: `host:port`, `unix:/path`, or several with `;` or `,` between them; or
    /// `etcd://host:port;host:port/cluster`.
    master: String = "master" or "master_server_address" or "master_server_addr",
        "MOONCAKE_MASTER", value::text, "none; required";
    /// The name or address of this host that peers are told, with or without the port to
    /// serve at. A loopback address is also the only one that is listened on. Looked at
    /// only with a segment.
    local_hostname: String = "local_hostname", "MOONCAKE_LOCAL_HOSTNAME", value::text, "the address from which the master is reached";
    /// Where to serve the segment.
    listen: SocketAddr = "listen", "MC_STORE_LISTEN", value::socket, "a free port of every address";
    /// How much memory to contribute; 0 makes a pure client.
    global_segment_size: ByteSize = "global_segment_size", "MOONCAKE_GLOBAL_SEGMENT_SIZE",
        value::size, "0";
    /// The name by which puts can prefer the segment.
    segment_name: String = "segment_name", "MC_STORE_SEGMENT_NAME", value::text,
        "local_hostname and the port that serves the segment";
    /// The file that backs the segment's memory; excludes huge pages and a NUMA node.
    segment_file: PathBuf = "segment_file", "MC_STORE_SEGMENT_FILE", value::path, "plain memory";
    /// Whether the segment, with all that it holds, is for the next process with its `segment_file`. Needs
    /// a `segment_file` and a fixed port to listen at.
    keep_segment: bool = "keep_segment", "MC_STORE_KEEP_SEGMENT", value::flag, "false";
    /// The medium of the segment's memory; `ssd` needs a `segment_file`, and `vram` a GPU or a
    /// `segment_file`.
    segment_medium: MediaType = "segment_medium", "MC_STORE_SEGMENT_MEDIUM", value::medium, "dram";
    /// The number of the GPU whose memory a segment of `vram` takes.
    segment_device: u32 = "segment_device", "MC_STORE_SEGMENT_DEVICE", value::device_number, "0";
    /// Where the file system of the shared tier is mounted on this host. Files are kept there also under
    /// a master that names no directory.
    storage_root_dir: PathBuf = "storage_root_dir", "MOONCAKE_STORAGE_ROOT_DIR", value::path, "the path that the master names";
    /// How this host names the place of the shared tier, `dfs:DIR` or `s3://BUCKET/PREFIX?endpoint=URL`, where that is
    /// not as the master names it. A directory goes before `storage_root_dir`.
    shared_tier: String = "shared_tier", "MC_STORE_SHARED_TIER", value::text, "the place that the master names";
    /// When the files of the shared tier are durable.
    file_sync: SyncPolicy = "file_sync", "MC_STORE_FILE_SYNC", value::file_sync, "auto";
    /// The permissions of folders and files that the client makes in the shared tier.
    dfs_mode: FolderMode = "dfs_mode", "MC_STORE_DFS_MODE", value::folder_mode, "as the umask says";
    /// The file with the keys that objects are encrypted with below memory, or `exec:` and a program that prints
    /// them.
    tier_keys: String = "tier_keys", "MC_STORE_TIER_KEYS", value::text, "nothing is encrypted";
    /// Whether to keep objects on a disk of this host, too, when the master wants that. Needs
    /// `ssd_offload_path`.
    enable_ssd_offload: bool = "enable_ssd_offload", "MOONCAKE_OFFLOAD_ENABLED", value::flag, "false";
    /// The directory of that disk.
    ssd_offload_path: PathBuf = "ssd_offload_path", "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",
        value::path, "none";
    /// The bytes that objects may take there.
    ssd_offload_size: ByteSize = "ssd_offload_size", "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES",
        value::size, "90 % of the free space";
    /// The memory for values that this client itself reads; 0 makes a pure server.
    local_buffer_size: ByteSize = "local_buffer_size", "MOONCAKE_LOCAL_BUFFER_SIZE",
        value::size, "256MB";
    /// Memory for values that this client gets again and again; 0 is no such cache.
    local_hot_cache_size: ByteSize = "local_hot_cache_size", "MC_STORE_LOCAL_HOT_CACHE_SIZE",
        value::size, "0";
    /// The longest value that the cache keeps.
    local_hot_block_size: ByteSize = "local_hot_block_size", "MC_STORE_LOCAL_HOT_BLOCK_SIZE",
        value::size, "16MB";
    /// How often a key must have been asked for lately before the cache keeps its value.
    local_hot_admission_threshold: u32 = "local_hot_admission_threshold",
        "MC_STORE_LOCAL_HOT_ADMISSION_THRESHOLD", value::times, "2";
    /// Which values of the cache make room for others.
    local_hot_cache_policy: PolicyKind = "local_hot_cache_policy",
        "MC_STORE_LOCAL_HOT_CACHE_POLICY", value::policy, "lru";
    /// Not supported; must be `false`.
    local_hot_cache_use_shm: bool = "local_hot_cache_use_shm",
        "MC_STORE_LOCAL_HOT_CACHE_USE_SHM", value::never, "false";
    /// Whether values are checked. They always are, so that this is without effect, which is
    /// logged when it is `false`.
    checksum: bool = "checksum", "MOONCAKE_STORE_CHECKSUM", value::flag, "true";
    /// How bytes travel between hosts.
    protocol: Protocol = "protocol", "MOONCAKE_PROTOCOL", value::protocol, "tcp";
    /// Whether processes of one host share memory instead of sending bytes.
    shared_memory: bool = "shared_memory", "MC_STORE_SHARED_MEMORY", value::flag, "true";
    /// The threads that share the copy of a long value on this host, the caller's among them.
    copy_threads: NonZeroUsize = "copy_threads", "MC_STORE_COPY_THREADS", value::copy_threads, "2, or 1 on a host with one CPU";
    /// The network devices to use together, when they are not looked for.
    device_name: Vec<String> = "device_name", "MOONCAKE_DEVICE", value::names, "the system chooses";
    /// Whether to look for network devices and use them together.
    auto_discovery: bool = "auto_discovery", "MC_MS_AUTO_DISC", value::flag, "false";
    /// The devices that may be found; all when empty.
    device_filters: Vec<String> = "device_filters", "MC_MS_FILTERS", value::names, "all";
    /// The address of RDMA ports, by its index in the port's table.
    rdma_gid_index: u8 = "rdma_gid_index", "MC_GID_INDEX", value::gid_index, "chosen";
    /// The traffic class of RDMA packets: with RoCE v2 the DSCP times four.
    rdma_traffic_class: u8 = "rdma_traffic_class", "MC_IB_TC", value::traffic_class, "0";
    /// The service level of RDMA packets.
    rdma_service_level: u8 = "rdma_service_level", "MC_IB_SL", value::service_level, "0";
    /// The partition of RDMA, by its index in each port's table of keys.
    rdma_pkey_index: u16 = "rdma_pkey_index", "MC_PKEY_INDEX", value::pkey_index, "0";
    /// Routers that an RDMA packet may pass on InfiniBand.
    rdma_hop_limit: NonZeroU8 = "rdma_hop_limit", "MC_STORE_RDMA_HOP_LIMIT", value::hop_limit, "64";
    /// Whether RDMA devices may write memory in any order until a request completes.
    rdma_relaxed_ordering: bool = "rdma_relaxed_ordering", "MC_IB_PCI_RELAXED_ORDERING",
        value::relaxed_ordering, "true";
    /// Connections to each peer.
    links_per_peer: NonZeroUsize = "links_per_peer", "MC_STORE_LINKS_PER_PEER",
        value::connections, "1";
    /// How long connecting to a peer may take.
    transfer_connect_timeout: Duration = "transfer_connect_timeout_ms",
        "MC_STORE_TRANSFER_CONNECT_TIMEOUT_MS", value::time_ms, "5000";
    /// How long a peer may go without progress.
    transfer_stall_timeout: Duration = "transfer_stall_timeout_ms",
        "MC_STORE_TRANSFER_STALL_TIMEOUT_MS", value::time_ms, "5000";
    /// Most connections of peers at a time.
    transfer_max_connections: NonZeroUsize = "transfer_max_connections",
        "MC_STORE_TRANSFER_MAX_CONNECTIONS", value::places, "16384";
    /// Most connections of peers of one address at a time.
    transfer_max_connections_per_address: NonZeroUsize = "transfer_max_connections_per_address",
        "MC_STORE_TRANSFER_MAX_CONNECTIONS_PER_ADDRESS", value::places, "16384";
    /// The authorities whose certificates peers must have (PEM). With it, all transfers between
    /// hosts are encrypted.
    transfer_tls_ca: PathBuf = "transfer_tls_ca", "MC_STORE_TRANSFER_TLS_CA", value::path, "none";
    /// The certificate to show to peers, with its chain (PEM), for the host that they are told.
    transfer_tls_cert: PathBuf = "transfer_tls_cert", "MC_STORE_TRANSFER_TLS_CERT", value::path, "none";
    /// The private key of that certificate (PEM, without a pass phrase).
    transfer_tls_key: PathBuf = "transfer_tls_key", "MC_STORE_TRANSFER_TLS_KEY", value::path, "none";
    /// Where Mooncake keeps its metadata. Accepted for its files' sake and
    /// without effect, which is logged: the master itself says where segments are.
    metadata_server: String = "metadata_server", "MOONCAKE_TE_META_DATA_SERVER", value::text, "none";
    /// Whether the segment is made of huge pages, if the system has enough of them.
    use_hugepage: bool = "use_hugepage", "MC_STORE_USE_HUGEPAGE", value::flag, "false";
    /// The size of huge pages.
    hugepage_size: HugePageSize = "hugepage_size", "MC_STORE_HUGEPAGE_SIZE", value::page_size, "2M";
    /// The NUMA node that the segment's memory is taken from.
    numa_node: u32 = "numa_node", "MC_STORE_NUMA_SOCKET_ID", value::node_number, "any";
    /// How often to tell the master that this client lives.
    heartbeat_interval: Duration = "heartbeat_interval_ms", "MC_STORE_HEARTBEAT_INTERVAL_MS",
        value::time_ms, "1000";
    /// How long a put waits for room.
    put_wait: Duration = "put_wait_ms", "MC_STORE_PUT_WAIT_MS", value::wait_ms, "1000";
    /// How long a put may take beside that.
    put_timeout: Duration = "put_timeout_ms", "MC_STORE_PUT_TIMEOUT_MS", value::time_ms, "60000";
    /// How long a read from the client's local disk may take.
    local_disk_timeout: Duration = "own_disk_timeout_ms", "MC_STORE_OWN_DISK_TIMEOUT_MS", value::time_ms, "1500";
    /// How long a read from a peer's disk may take.
    peer_disk_timeout: Duration = "peer_disk_timeout_ms", "MC_STORE_PEER_DISK_TIMEOUT_MS",
        value::time_ms, "1500";
    /// How long a read from the shared tier may take.
    shared_tier_timeout: Duration = "shared_tier_timeout_ms", "MC_STORE_SHARED_TIER_TIMEOUT_MS",
        value::time_ms, "1500";
    /// Whether objects in this client's own segment are copied directly.
    local_memcpy: bool = "local_memcpy", "MC_STORE_MEMCPY", value::flag, "true";
    /// Whether calls are counted and timed.
    client_metric: bool = "client_metric", "MC_STORE_CLIENT_METRIC", value::flag, "true";
    /// How often the figures are logged; 0 is never.
    client_metric_interval: Duration = "client_metric_interval_s",
        "MC_STORE_CLIENT_METRIC_INTERVAL", value::wait_s, "0";
    /// Whether to serve pages over HTTP: `/health`, `/metrics`, `/metrics/summary`. Needs the
    /// feature `http`.
    enable_client_http_server: bool = "enable_client_http_server",
        "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER", value::flag, "false";
    /// The address to serve the pages at.
    client_http_host: IpAddr = "client_http_host", "MC_STORE_CLIENT_HTTP_HOST", value::address, "0.0.0.0";
    /// The port to serve the pages at; 0 takes a free one.
    client_http_port: u16 = "client_http_port", "MOONCAKE_CLIENT_HTTP_PORT", value::port, "9300";
    /// The cluster's name: the label `cluster_id` of every figure, and the cluster in etcd where
    /// `master` names an etcd but no cluster.
    cluster_id: String = "cluster_id", "MC_STORE_CLUSTER_ID", value::text, "none";
    /// The user to show to etcd.
    etcd_user: String = "etcd_user", "MC_STORE_ETCD_USER", value::text, "none";
    /// The file with that user's password.
    etcd_password_file: PathBuf = "etcd_password_file", "MC_STORE_ETCD_PASSWORD_FILE", value::path, "none";
    /// The authorities whose certificates etcd may have (PEM).
    etcd_tls_ca: PathBuf = "etcd_tls_ca", "MC_STORE_ETCD_TLS_CA", value::path, "none";
    /// The certificate to show to etcd, with its chain (PEM).
    etcd_tls_cert: PathBuf = "etcd_tls_cert", "MC_STORE_ETCD_TLS_CERT", value::path, "none";
    /// The private key of that certificate (PEM, without a pass phrase).
    etcd_tls_key: PathBuf = "etcd_tls_key", "MC_STORE_ETCD_TLS_KEY", value::path, "none";
    /// The name in etcd's certificates, when it is not the host in `master`.
    etcd_tls_server_name: String = "etcd_tls_server_name", "MC_STORE_ETCD_TLS_SERVER_NAME",
        value::text, "the host in master";
    /// How long one call to the master may take, further attempts included.
    rpc_timeout: Duration = "rpc_timeout_ms", "MC_RPC_TIMEOUT_MS", value::time_ms, "10000";
    /// How long connecting to the master may take.
    rpc_connect_timeout: Duration = "rpc_connect_timeout_ms", "MC_RPC_CONNECT_TIMEOUT_MS",
        value::time_ms, "3000";
    /// How long calls wait for a master that cannot be connected to before it is known to be down.
    rpc_outage_timeout: Duration = "rpc_outage_timeout_ms", "MC_RPC_OUTAGE_TIMEOUT_MS",
        value::time_ms, "4000, at most rpc_timeout_ms; with several masters or etcd://, rpc_timeout_ms";
    /// How calls to the master travel.
    rpc_protocol: Protocol = "rpc_protocol", "MC_RPC_PROTOCOL", value::rpc_protocol, "tcp";
    /// Most connections to the master.
    rpc_connections: NonZeroUsize = "rpc_connections", "MC_STORE_RPC_CONNECTIONS",
        value::connections, "1";
    /// The file of the token to show to the master.
    token_file: PathBuf = "token_file", "MC_STORE_TOKEN_FILE", value::path, "none";
    /// The tenant to act for.
    tenant_id: String = "tenant_id", "MOONCAKE_TENANT_ID", value::text, "the tenant of the token or certificate";
    /// Speak TLS with the master, and trust certificates of these authorities (PEM).
    tls_ca: PathBuf = "tls_ca", "MC_STORE_TLS_CA", value::path, "none";
    /// The certificate to show to the master, with its chain (PEM).
    tls_cert: PathBuf = "tls_cert", "MC_STORE_TLS_CERT", value::path, "none";
    /// The certificate's private key (PEM, without a pass phrase).
    tls_key: PathBuf = "tls_key", "MC_STORE_TLS_KEY", value::path, "none";
    /// The name in the master's certificate, when it is not the one in its address.
    tls_server_name: String = "tls_server_name", "MC_STORE_TLS_SERVER_NAME", value::text, "the host in master";
}
