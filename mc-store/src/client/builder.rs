//! How a client is described and started.

mod start;

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mc_environment::{Environment, System};
use mc_rpc::ClientConfig;
#[cfg(feature = "encryption")]
use mc_tier::KeySource;
use mc_tier::{BucketPlace, DirectorySettings, FolderMode, SharedPlace, SyncPolicy, Tier};
use mc_transport::tcp::TcpConfig;
use mc_transport::{Memory, MemoryOptions, NodeConfig};
use mc_types::{BoxFuture, ByteSize, MediaType};

use super::Client;
use super::hot_cache::HotCacheConfig;
use super::settings::{BelowMemory, Pulse, Settings};
use super::tiers::local_disk::{LocalDiskOptions, OwnPlace, OwnTier};
use crate::error::StartError;
use crate::local_host::LocalHost;

const NOTHING: ByteSize = ByteSize::bytes(0);

/// The software as a master's operator sees it, where the application says nothing of its own.
pub(crate) const SOFTWARE: &str = concat!("mc-store/", env!("CARGO_PKG_VERSION"));

/// How long a put may take. A master that fails over takes up to ten seconds of it, and each of four
/// placements on peers that stall ten more: only what would not end soon anyway is cancelled.
const PUT_TIMEOUT: Duration = Duration::from_secs(60);

/// Describes a [`Client`].
///
/// ```no_run
/// # async fn f() -> Result<(), mc_store::StartError> {
/// use mc_store::{ByteSize, Client};
/// let client = Client::builder()
///     .master("10.0.0.1:50051")
///     .segment_size(ByteSize::gib(4)) // without it: a pure client
///     .connect()
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientBuilder {
    master: Option<String>,
    segment_size: ByteSize,
    local_buffer: Option<ByteSize>,
    hot_cache: HotCacheConfig,
    segment_name: Option<String>,
    listen: Option<SocketAddr>,
    advertise: Option<IpAddr>,
    advertise_also: Vec<String>,
    host_name: Option<String>,
    #[cfg(feature = "http")]
    http: Option<SocketAddr>,
    node: NodeConfig,
    memory: MemoryOptions,
    medium: MediaType,
    device: u32,
    keep_segment: bool,
    shared_tier: Option<Arc<dyn Tier>>,
    storage_root: Option<PathBuf>,
    shared_bucket: Option<BucketPlace>,
    files: DirectorySettings,
    #[cfg(feature = "encryption")]
    tier_keys: Option<KeySource>,
    own_place: Option<OwnPlace>,
    tells_reads: bool,
    settings: Settings,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        let environment: Arc<dyn Environment> = Arc::new(System);
        let clock = environment.clock();
        let mut rpc = ClientConfig::default();
        rpc.software = SOFTWARE.into();
        Self {
            master: None,
            segment_size: ByteSize::bytes(0),
            local_buffer: None,
            hot_cache: HotCacheConfig::default(),
            segment_name: None,
            listen: None,
            advertise: None,
            advertise_also: Vec::new(),
            host_name: None,
            #[cfg(feature = "http")]
            http: None,
            node: NodeConfig::new(TcpConfig::default()),
            memory: Memory::options(),
            medium: MediaType::Dram,
            device: 0,
            keep_segment: false,
            shared_tier: None,
            storage_root: None,
            shared_bucket: None,
            files: DirectorySettings::default(),
            #[cfg(feature = "encryption")]
            tier_keys: None,
            own_place: None,
            tells_reads: true,
            settings: Settings {
                put_wait: Duration::from_secs(1),
                put_timeout: PUT_TIMEOUT,
                below_memory: BelowMemory::default(),
                local_copy: true,
                environment,
                clock,
                origin: clock.now(),
                tickets: true,
                metrics: true,
                metrics_interval: Duration::ZERO,
                metrics_labels: Vec::new(),
                pulse: Pulse {
                    master: String::new(),
                    rpc,
                    interval: Duration::from_secs(1),
                    peers: None,
                    #[cfg(feature = "tls")]
                    certificates: Vec::new(),
                },
                shares: false,
            },
        }
    }
}

impl ClientBuilder {
    /// Where the master is: `host:port`, `unix:/path`, or several with `;` or `,` between them, of
    /// which one leads; or `etcd://host:port;host:port/cluster`, the etcd in which the masters of a
    /// cluster elect their leader (feature `etcd`, see [`EtcdResolver`](crate::EtcdResolver)). The
    /// client follows when another master leads.
    pub fn master(mut self, address: impl Into<String>) -> Self {
        self.master = Some(address.into());
        self
    }

    /// Whether peers show a ticket of the master for every byte that they read or write in
    /// this client's segments: for an extent, a direction and a time, which this client
    /// verifies. They do unless this says `false`. Then a peer that was told of one object in a
    /// segment can read and write all of it until it is unmounted, and what a slow writer
    /// sends after its grant has ended is not refused; for an application whose members all
    /// trust each other, and that cannot spare 100 ns for each operation.
    pub fn tickets(mut self, tickets: bool) -> Self {
        self.settings.tickets = tickets;
        self
    }

    /// Whether calls tell the master which reads of this client are over, so that it gives the space
    /// of objects that are removed by force or replaced to others as soon as no client reads it. They do
    /// unless this says `false`, as for an application that reads on its own where the master said
    /// that an object is: then that space is kept for as long as a read may last.
    pub fn tells_reads(mut self, tells_reads: bool) -> Self {
        self.tells_reads = tells_reads;
        self
    }

    /// How much memory to contribute from the start. The default, nothing, makes a pure
    /// client. [`Client::mount_segment`] contributes more, or later.
    pub fn segment_size(mut self, size: ByteSize) -> Self {
        self.segment_size = size;
        self
    }

    /// The memory that values are read into by calls that return them
    /// ([`Client::get`] and its like), which borrow from it. Pages are taken from the
    /// system when they are first used, and kept. A value that finds no room gets memory
    /// of its own, which takes longer. The default is 256 MiB.
    ///
    /// Size 0 makes a pure server, see [`ClientRole`](super::ClientRole): its requests are refused.
    ///
    /// ```
    /// # mc_cluster_testkit::with_master(|master| async move {
    /// use mc_store::{ByteSize, Client, ClientRole, GetError};
    /// let server = Client::builder()
    ///     .master(master)
    ///     .listen("127.0.0.1:0".parse()?)
    ///     .segment_size(ByteSize::mib(1))
    ///     .local_buffer(ByteSize::bytes(0))
    ///     .connect()
    ///     .await?;
    /// assert_eq!(server.role(), ClientRole::PureServer);
    /// assert!(matches!(server.get("key").await, Err(GetError::PureServer)));
    /// # server.shutdown().await;
    /// # Ok(()) });
    /// ```
    pub fn local_buffer(mut self, size: ByteSize) -> Self {
        self.local_buffer = Some(size);
        self
    }

    /// Keeps values that this client gets again and again in memory of its own, beside the
    /// cluster's. The master is still asked for each get, and a value is used only if the
    /// key still has it, so what is read is never stale; only the transfer is saved. The
    /// default is no cache.
    ///
    /// ```
    /// # mc_cluster_testkit::with_master(|master| async move {
    /// use mc_store::{ByteSize, Client, HotCacheConfig};
    /// let client = Client::builder()
    ///     .master(master)
    ///     .hot_cache(HotCacheConfig::new(ByteSize::mib(64)))
    ///     .connect()
    ///     .await?;
    /// # client.shutdown().await;
    /// # Ok(()) });
    /// ```
    pub fn hot_cache(mut self, config: HotCacheConfig) -> Self {
        self.hot_cache = config;
        self
    }

    /// The name by which puts can prefer the segment. The default is the address
    /// where it is served, with the [host's name](Self::host_name) if that is said.
    pub fn segment_name(mut self, name: impl Into<String>) -> Self {
        self.segment_name = Some(name.into());
        self
    }

    /// Where to serve segments. A client that begins without one accepts peers only when
    /// this is said, and [can be given](Client::mount_segment) segments later only then.
    /// The default, with a segment, is any port on every address.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = Some(address);
        self
    }

    /// The address of this host to tell peers. The default is the one to listen
    /// on or, when that is every address, the one from which the master is
    /// reached.
    pub fn advertise(mut self, address: IpAddr) -> Self {
        self.advertise = Some(address);
        self.advertise_also.clear();
        self
    }

    /// Advertises a host that its user named: its [address](Self::advertise), its
    /// [name](Self::host_name), and the ways that peers try when that address does not answer,
    /// which are its other addresses and then the name, looked up by them. Where to
    /// [listen](Self::listen) is said apart.
    pub fn host(mut self, host: &LocalHost) -> Self {
        self.advertise = host.advertise();
        self.advertise_also = host.advertise_also().collect();
        self.host_name = host.name().map(str::to_owned);
        self
    }

    /// The name of this host in the names of segments that are given none, which are `NAME:PORT`, with
    /// the port that they are served at. Peers connect to the [address](Self::advertise). The default
    /// is the address.
    pub fn host_name(mut self, name: impl Into<String>) -> Self {
        self.host_name = Some(name.into());
        self
    }

    /// How often to tell the master that this client lives. The default is one
    /// second; keep it well below the master's client TTL. Less than a millisecond is one.
    pub fn heartbeat_interval(mut self, interval: Duration) -> Self {
        self.settings.pulse.interval = interval.max(Duration::from_millis(1));
        self
    }

    /// How long a put waits for room before it fails: when everything that could be evicted is
    /// being read, and when no segment is mounted, as right after the master's restart. The
    /// default is one second.
    pub fn put_wait(mut self, wait: Duration) -> Self {
        self.settings.put_wait = wait;
        self
    }

    /// How long a put may take in all, beside the time that it waits for room
    /// ([`put_wait`](Self::put_wait)); less than a millisecond is one. A put that takes longer fails
    /// with [`PutError::TimedOut`](crate::PutError::TimedOut), and the memory that it names is not read
    /// any more: for callers who use it again after a time of their own, which must be longer. The
    /// default is 60 seconds. A batch has the time of one put.
    pub fn put_timeout(mut self, timeout: Duration) -> Self {
        self.settings.put_timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// How long a read from this client's [local disk](Self::local_disk) may take; less than a millisecond is
    /// one. An object that is nowhere else counts as missing after that, with
    /// [`GetError::TierTimedOut`](crate::GetError::TierTimedOut), and the rest of a batch is returned. A
    /// read of more than 8 MiB has this time for each 8 MiB. The default is 1.5 seconds.
    ///
    /// A disk that three reads in a row got no answer from is left alone for a second, and for up to half
    /// a minute when it goes on; then one read finds out whether it answers again.
    pub fn local_disk_timeout(mut self, timeout: Duration) -> Self {
        self.settings.below_memory.local_disk = timeout.max(Duration::from_millis(1));
        self
    }

    /// As [`local_disk_timeout`](Self::local_disk_timeout), for reads from disks of peers, each of which is left
    /// alone by itself.
    pub fn peer_disk_timeout(mut self, timeout: Duration) -> Self {
        self.settings.below_memory.peer_disk = timeout.max(Duration::from_millis(1));
        self
    }

    /// As [`local_disk_timeout`](Self::local_disk_timeout), for reads from the shared tier.
    pub fn shared_tier_timeout(mut self, timeout: Duration) -> Self {
        self.settings.below_memory.shared_tier = timeout.max(Duration::from_millis(1));
        self
    }

    /// Whether objects in this client's own segment are copied directly instead
    /// of through a socket. The default is yes.
    pub fn local_copy(mut self, yes: bool) -> Self {
        self.settings.local_copy = yes;
        self
    }

    /// Whether to count and time calls, for [`Client::metrics`]. The default is yes; it
    /// costs some 60 ns a call, most of them for looking at the clock.
    pub fn metrics(mut self, yes: bool) -> Self {
        self.settings.metrics = yes;
        self
    }

    /// How often to log the figures in one line, at level `INFO`. The default, zero, is
    /// never.
    pub fn metrics_interval(mut self, interval: Duration) -> Self {
        self.settings.metrics_interval = interval;
        self
    }

    /// A label that every figure carries in the text for Prometheus, such as `cluster_id`.
    /// [`connect`](Self::connect) refuses a name that Prometheus does not take.
    pub fn metrics_label(mut self, name: impl Into<Box<str>>, value: impl Into<Box<str>>) -> Self {
        self.settings.metrics_labels.push((name.into(), value.into()));
        self
    }

    /// Where to serve pages over HTTP: `/health`, `/metrics` for Prometheus and
    /// `/metrics/summary`. Every client that reaches the port may read them. The default is nowhere;
    /// Mooncake uses port 9300.
    #[cfg(feature = "http")]
    pub fn http(mut self, address: SocketAddr) -> Self {
        self.http = Some(address);
        self
    }

    /// When a file on the shared tier is durable, where the master plans files; see
    /// [`SyncPolicy`]. By default [`SyncPolicy::Auto`].
    pub fn file_sync(mut self, policy: SyncPolicy) -> Self {
        self.files.sync = policy;
        self
    }

    /// The permissions of folders that this client makes in the directory of the shared tier, and of its
    /// files, for clusters whose clients run as several users: such as `2770` for those of one group. By
    /// default what the process's umask says.
    pub fn dfs_mode(mut self, mode: FolderMode) -> Self {
        self.files.mode = Some(mode);
        self
    }

    /// Where the file system of the shared tier is mounted on this host, instead of at the path that the
    /// master names; it must exist.
    ///
    /// Under a master that names no directory, such as one of Mooncake's first versions, the client
    /// writes a file for each object that it puts all the same, and reads it when the master does not
    /// have the object. The master knows nothing of these files: a removal deletes one only if the
    /// client that removes has the directory, too, [`find`](Client::find) and
    /// [`describe`](Client::describe) do not see them, and the oldest go when less than a tenth of the
    /// file system is free.
    ///
    /// Without effect beside [`shared_tier`](Self::shared_tier).
    pub fn storage_root(mut self, directory: impl Into<PathBuf>) -> Self {
        self.storage_root = Some(directory.into());
        self
    }

    /// How this host names the place of the shared tier, where that is not as the master names it: a directory,
    /// as [`storage_root`](Self::storage_root), or the master's bucket, such as at another endpoint. A bucket has
    /// no effect under a master that names none.
    ///
    /// Buckets need the feature `s3`. Their credentials are those of the environment: the variables `AWS_*`, the
    /// files `~/.aws/credentials` and `~/.aws/config`, or the role of the machine.
    pub fn shared_place(mut self, place: SharedPlace) -> Self {
        match place {
            SharedPlace::Directory(directory) => self.storage_root = Some(directory),
            SharedPlace::Bucket(bucket) => self.shared_bucket = Some(bucket),
        }
        self
    }

    /// Keeps the files that the master plans on a tier of the application's own, such as an object
    /// store, and not in the directory that the master names. All clients of the cluster must use the
    /// same.
    pub fn shared_tier(mut self, tier: Arc<dyn Tier>) -> Self {
        self.shared_tier = Some(tier);
        self
    }

    /// Encrypts objects below memory, in files, on disks and in buckets, with the keys of their tenants: those in a
    /// file, or those that a program prints; see [`TierKeys`](crate::TierKeys) for the list, and for how keys are replaced. Objects
    /// of tenants without a key stay in clear, and nothing is encrypted by default.
    ///
    /// A reader of an object on the shared tier needs its tenant's key. The disk of a client has objects of all
    /// tenants; peers read them through that client, which alone needs their keys. Files that the master does not
    /// know of ([`storage_root`](Self::storage_root) under a master that names none) cannot be encrypted: a client
    /// with keys keeps none.
    #[cfg(feature = "encryption")]
    pub fn tier_keys(mut self, source: KeySource) -> Self {
        self.tier_keys = Some(source);
        self
    }

    /// Keeps objects on a disk of this host, such as an SSD, when memory has no room for them: those that
    /// this client holds in memory, if the master wants so
    /// ([`MasterConfig::local_disk`](mc_meta::MasterConfig::local_disk)). Peers read them from this
    /// client, which must [listen](Self::listen). They outlast the client: its next one on the same
    /// directory has them again.
    pub fn local_disk(mut self, options: LocalDiskOptions) -> Self {
        self.own_place = Some(OwnPlace::Directory(options));
        self
    }

    /// As [`local_disk`](Self::local_disk), on a tier of the application's own, such as a log on a raw
    /// device, in place of a log in a directory.
    ///
    /// ```no_run
    /// use std::path::Path;
    /// use std::sync::Arc;
    ///
    /// use mc_store::{ByteSize, Client, OwnTier};
    /// use mc_tier::{FileBackend, LogSettings, LogTier};
    /// use mc_types::LocalDiskId;
    ///
    /// # async fn f(id: LocalDiskId) -> Result<(), Box<dyn std::error::Error>> {
    /// let size = ByteSize::gib(100);
    /// let log = LogTier::open(FileBackend::open(Path::new("/ssd"), size)?, LogSettings::default())?;
    /// let tier = OwnTier::new(Arc::new(log), size, id);
    /// let node = Client::builder().master("10.0.0.1:50051").own_tier(tier).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn own_tier(mut self, tier: OwnTier) -> Self {
        self.own_place = Some(OwnPlace::Tier(tier));
        self
    }

    /// Sets the client's environment: its clock, its randomness, its threads and the network to the
    /// master. The default is [`System`]; [`Environment`] tells how to simulate a cluster.
    pub fn environment(mut self, environment: Arc<dyn Environment>) -> Self {
        self.settings.clock = environment.clock();
        self.settings.origin = self.settings.clock.now();
        self.settings.environment = environment;
        self
    }

    /// Names the software that this client is part of, with its version, such as `my-engine/1.2`, for the
    /// operator of the master. [`rpc`](Self::rpc) says it anew.
    pub fn software(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.settings.pulse.rpc.software = name.into();
        self
    }

    /// Settings of the connection to the master.
    pub fn rpc(mut self, config: ClientConfig) -> Self {
        self.settings.pulse.rpc = config;
        self
    }

    /// The transports that bytes take, and their settings: TCP, QUIC, memory shared with processes
    /// of this host, [transports of your own](NodeConfig::with_transport); encryption, network
    /// cards, time-outs. Where to listen and what to tell peers is said by
    /// [`listen`](Self::listen) and [`advertise`](Self::advertise).
    pub fn node(mut self, config: NodeConfig) -> Self {
        self.node = config;
        self
    }

    /// Sets the kind of memory of the segment: huge pages, a NUMA node, populated from the start,
    /// or a file. The default is plain memory; except for a file it can be shared with processes of
    /// this host unless [`node`](Self::node) says otherwise.
    pub fn segment_memory(mut self, options: MemoryOptions) -> Self {
        self.memory = options;
        self
    }

    /// Sets the medium of the segment's memory; see [`SegmentOptions::medium`](crate::SegmentOptions::medium).
    pub fn segment_medium(mut self, medium: MediaType) -> Self {
        self.medium = medium;
        self
    }

    /// The GPU whose memory the segment takes; see [`SegmentOptions::device`](crate::SegmentOptions::device).
    pub fn segment_device(mut self, number: u32) -> Self {
        self.device = number;
        self
    }

    /// Whether the segment, with all that it holds, is for the next process that has its
    /// [file](MemoryOptions::file): the next client of this setting takes the segment over, whether this one
    /// [shuts down](Client::shutdown) or is killed. The default is no: the objects end with the client.
    ///
    /// A next client of the same size, name, medium and endpoint, on a host that runs on, opens the memory
    /// as this one did, has this one's [id](Client::id), and asks the master for the segment, which
    /// knows it for as long as a silent client may take to return. Otherwise its
    /// segment begins empty, and a line in the log says why. While this client has the file, the next
    /// one waits, for up to 30 seconds. What peers had under way when this client ended, they begin again or fail with.
    ///
    /// The keys that open the memory are in a file beside it, `FILE.life`, that only this user can read. It
    /// goes as soon as the segment is [unmounted](Client::unmount_segment) or the master has forgotten it. To give the
    /// memory back for good, shut the client down and remove both files, after a
    /// [drain](Client::drain) if objects are to stay.
    ///
    /// Needs [memory of a file](Self::segment_memory), a port to [listen](Self::listen) at that is not 0, and
    /// transports without RDMA; the client has no other segments. Linux only.
    pub fn keep_segment(mut self, keep: bool) -> Self {
        self.keep_segment = keep;
        self
    }

    /// Whether the client will serve segments, at once or when they are mounted.
    fn accepts_peers(&self) -> bool {
        self.listen.is_some() || self.segment_size > NOTHING
    }

    /// Whether the client will serve anybody, peers or readers of its pages, while the
    /// application calls nothing.
    pub(crate) fn serves(&self) -> bool {
        #[cfg(feature = "http")]
        if self.http.is_some() {
            return true;
        }
        self.accepts_peers()
    }

    /// Joins the cluster: connects to the master and, with a segment, serves and
    /// mounts it. Must be called in a tokio runtime, whose tasks then serve the
    /// segment.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running then.
    pub fn connect(self) -> BoxFuture<'static, Result<Client, StartError>> {
        Box::pin(self.start())
    }
}
