//! Settings of the transport.

use std::net::SocketAddr;
use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

use mc_types::ByteSize;

use super::verbs::{Marks, Timing};

/// Settings of an [`RdmaTransport`](super::RdmaTransport).
///
/// ```
/// use std::time::Duration;
/// use mc_transport_rdma::RdmaConfig;
/// let mut config = RdmaConfig::listening("127.0.0.1:0".parse()?);
/// config.devices = vec!["mlx5_0".to_owned(), "mlx5_1:2".to_owned()];
/// config.stall_timeout = Duration::from_secs(5);
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RdmaConfig {
    /// Where peers connect over TCP to set up queue pairs; `None`, the default, accepts none.
    pub listen: Option<SocketAddr>,
    /// The host that peers are told. Default: the address listened at.
    pub advertise_host: Option<String>,
    /// The devices to use, the best first: names of RDMA devices (`mlx5_0`; `mlx5_0:2` for its
    /// second port) or of their network interfaces. Empty, the default, is all that have an active
    /// port.
    pub devices: Vec<String>,
    /// Devices near this NUMA node come first. Default: the fastest do.
    pub near_numa_node: Option<u32>,
    /// Only peers that know the [secret](super::RdmaTransport::secret) are admitted. Default
    /// `false`.
    pub require_proof: bool,
    /// Queue pairs to a peer for each pair of ports. Default 2.
    pub queue_pairs_per_path: NonZeroUsize,
    /// Requests that a queue pair may have under way. Default 128.
    pub queue_depth: u32,
    /// Bytes of the largest request: an operation that is larger is divided among the queue pairs.
    /// Default 1 MiB.
    pub max_request: ByteSize,
    /// The largest operation, in bytes; the smaller limit of both sides counts. Default 1 GiB.
    pub max_operation: ByteSize,
    /// Memory of a region that is registered with a device in one piece. Default 1 GiB.
    pub registration_chunk: ByteSize,
    /// Registered memory for bytes that lie in memory which is not, such as those of
    /// [`Bytes`](bytes::Bytes). Taken when it is first used. Default 32 MiB.
    pub staging: ByteSize,
    /// Time limit for connecting and the handshake, on either side. Default 5 s.
    pub connect_timeout: Duration,
    /// How long a request may take before its queue pair is closed. Default 10 s.
    pub stall_timeout: Duration,
    /// How long completions are looked for without sleeping. Default 20 µs.
    pub spin: Duration,
    /// Time until the device sends a packet again that was not acknowledged, by the code of the
    /// InfiniBand specification: 4.096 µs times two to this power. Default 14, which is 67 ms.
    pub ack_timeout: u8,
    /// How often it sends a packet again, at most 6. Default 6.
    pub retries: u8,
    /// The address of each port that packets leave from, by its index in the port's table; ports
    /// without one there are not used. Default `None`: the best that carries data.
    pub gid_index: Option<u8>,
    /// The traffic class of packets. With RoCE v2 it is the byte of IP packets whose upper six bits
    /// are the DSCP, by which switches choose a lossless class. Default 0.
    pub traffic_class: u8,
    /// The service level of packets, at most 15: the virtual lane on InfiniBand, the priority of
    /// Ethernet frames with a VLAN. Default 0.
    pub service_level: u8,
    /// The place of the partition key in the table of each port; ports whose table is shorter are
    /// not used. Default 0.
    pub pkey_index: u16,
    /// Routers that a packet may pass on InfiniBand; over Ethernet the kernel takes the number of the
    /// route. Default 64.
    pub hop_limit: NonZeroU8,
    /// Lets devices write memory of this side's own requests in any order until the request completes,
    /// where the library and the device can. What peers write keeps its order. Default `true`.
    pub relaxed_ordering: bool,
    /// Connections of peers at the same time. Default 4096.
    pub max_connections: usize,
}

impl Default for RdmaConfig {
    fn default() -> Self {
        Self {
            listen: None,
            advertise_host: None,
            devices: Vec::new(),
            near_numa_node: None,
            require_proof: false,
            queue_pairs_per_path: NonZeroUsize::MIN.saturating_add(1),
            queue_depth: 128,
            max_request: ByteSize::mib(1),
            max_operation: ByteSize::gib(1),
            registration_chunk: ByteSize::gib(1),
            staging: ByteSize::mib(32),
            connect_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(10),
            spin: Duration::from_micros(20),
            ack_timeout: 14,
            retries: 6,
            gid_index: None,
            traffic_class: 0,
            service_level: 0,
            pkey_index: 0,
            hop_limit: NonZeroU8::new(64).expect("it is not zero"),
            relaxed_ordering: true,
            max_connections: 4096,
        }
    }
}

impl RdmaConfig {
    /// The default settings of a node that accepts peers at `address`.
    #[must_use]
    pub fn listening(address: SocketAddr) -> Self {
        Self { listen: Some(address), ..Self::default() }
    }

    pub(super) fn marks(&self) -> Marks {
        Marks {
            traffic_class: self.traffic_class,
            service_level: self.service_level,
            pkey_index: self.pkey_index,
            hop_limit: self.hop_limit.get(),
        }
    }

    pub(super) fn timing(&self) -> Timing {
        Timing { timeout: self.ack_timeout, retries: self.retries }
    }
}
