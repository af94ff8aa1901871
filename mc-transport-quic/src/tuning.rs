//! Parameters of QUIC and of UDP sockets.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::congestion::CubicConfig;
use quinn::{EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use socket2::{Domain, Socket, Type};

use super::config::QuicConfig;
use super::error::StartError;

/// Largest UDP payload with which quinn's batches of ten fit in the 64 KiB that one
/// system call may segment; with more it fails, and the rate falls to nothing.
pub(super) const MAX_OFFLOADED_MTU: u16 = 6500;

/// The packet size that every path carries (RFC 9000, section 14).
const MIN_MTU: u16 = 1200;

/// Largest UDP payload that is set; a datagram has 65 535 bytes with its headers.
const MAX_MTU: u16 = 65_000;

/// Streams that a peer may have open at a time in one connection.
pub(super) const MAX_STREAMS: u32 = 128;

/// Streams that a client has open at a time in one connection. Fewer than the server
/// allows, so that it never waits for one that is closing.
pub(super) const STREAMS: usize = 64;

/// Bytes sent before the first acknowledgement; at least one packet of any size, as
/// nothing would ever be sent otherwise.
const INITIAL_WINDOW: u64 = 64 << 10;

/// The same on one host, where nothing but the peer's socket buffer is in the way.
const LOOPBACK_INITIAL_WINDOW: u64 = 1 << 20;

/// The assumed round trip until it is measured; the value of quinn for hosts
/// far away, and on one host enough for a busy machine.
const LOOPBACK_RTT: Duration = Duration::from_millis(20);

/// Room asked for in the buffers of a UDP socket; the system gives less where it is
/// told to.
const SOCKET_BUFFER: usize = 8 << 20;

/// Checks what can be wrong by itself.
pub(super) fn check(config: &QuicConfig) -> Result<(), StartError> {
    let wrong = |setting, expected| Err(StartError::BadSetting { setting, expected });
    if !(MIN_MTU..=MAX_MTU).contains(&config.max_mtu) {
        return wrong("max_mtu", "1200 to 65000 bytes");
    }
    if !(64 << 10..=1 << 30).contains(&config.window.as_u64()) {
        return wrong("window", "64 KiB to 1 GiB");
    }
    if IdleTimeout::try_from(config.idle_timeout).is_err() || config.idle_timeout.is_zero() {
        return wrong("idle_timeout", "a millisecond to some years");
    }
    if config.stall_timeout.is_zero() || config.connect_timeout.is_zero() {
        return wrong("stall_timeout and connect_timeout", "more than nothing");
    }
    Ok(())
}

/// Parameters for connections with peers of this host, and with all others.
#[derive(Clone)]
pub(super) struct Paths {
    loopback: Arc<TransportConfig>,
    network: Arc<TransportConfig>,
}

impl Paths {
    /// The paths of the side that is reached. `config` was [checked](check).
    pub(super) fn of_server(config: &QuicConfig) -> Self {
        Self::new(config, None)
    }

    /// The paths of the side that reaches out, which keeps the connection and the mappings
    /// of NAT on its way alive.
    pub(super) fn of_client(config: &QuicConfig) -> Self {
        Self::new(config, Some(config.idle_timeout / 3))
    }

    fn new(config: &QuicConfig, keep_alive: Option<Duration>) -> Self {
        let [loopback, network] = [true, false].map(|loopback| {
            let mut path = path(config, loopback);
            path.keep_alive_interval(keep_alive);
            Arc::new(path)
        });
        Self { loopback, network }
    }

    pub(super) fn to(&self, address: IpAddr) -> Arc<TransportConfig> {
        let path =
            if address.to_canonical().is_loopback() { &self.loopback } else { &self.network };
        Arc::clone(path)
    }
}

fn path(config: &QuicConfig, loopback: bool) -> TransportConfig {
    let window = config.window.as_u64();
    let in_flight = VarInt::from_u64(window).expect("the window was checked");
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(config.max_mtu);
    let mut cubic = CubicConfig::default();
    cubic.initial_window(if loopback { LOOPBACK_INITIAL_WINDOW } else { INITIAL_WINDOW });
    let idle = IdleTimeout::try_from(config.idle_timeout).expect("the timeout was checked");

    let mut path = TransportConfig::default();
    path.max_concurrent_bidi_streams(MAX_STREAMS.into())
        .max_concurrent_uni_streams(0_u32.into())
        .datagram_receive_buffer_size(None)
        .stream_receive_window(in_flight)
        .receive_window(in_flight)
        .send_window(window)
        .max_idle_timeout(Some(idle))
        .enable_segmentation_offload(config.max_mtu <= MAX_OFFLOADED_MTU)
        .mtu_discovery_config(Some(discovery))
        .congestion_controller_factory(Arc::new(cubic));
    if loopback {
        // Probing takes a while, and there is nothing to be found out.
        path.initial_mtu(config.max_mtu).initial_rtt(LOOPBACK_RTT);
    }
    path
}

/// Parameters of a socket's endpoint.
pub(super) fn endpoint(config: &QuicConfig) -> EndpointConfig {
    let mut endpoint = EndpointConfig::default();
    endpoint
        .max_udp_payload_size(config.max_mtu)
        .expect("the MTU was checked to be more than the least");
    endpoint
}

/// A UDP socket bound to `address`, with as much room as the system gives.
pub(super) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    let mut room = SOCKET_BUFFER;
    // Linux cuts what is too much; others refuse it.
    while room > 64 << 10 && socket.set_recv_buffer_size(room).is_err() {
        room /= 2;
    }
    while room > 64 << 10 && socket.set_send_buffer_size(room).is_err() {
        room /= 2;
    }
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        // Whatever the system's default: peers of both families are to reach it.
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}
