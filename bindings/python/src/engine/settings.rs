//! The settings of an engine.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mc_store::{ClientConfig, Protocol};
use mc_transport::NodeConfig;

use super::error::EngineError;

/// The metadata server of engines that find each other by "host:port".
const PEER_TO_PEER: &str = "P2PHANDSHAKE";

/// The port of an engine whose name has none, where names are those of a metadata server:
/// Mooncake's.
const DEFAULT_PORT: u16 = 12_001;

/// Time limit of a transfer unless `MC_TRANSFER_TIMEOUT` says another.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest name of a host: that of the domain name system.
const MAX_HOST_LEN: usize = 253;

/// The settings of `initialize`, checked.
#[derive(Debug)]
pub(super) struct Settings {
    /// The name or address by which peers reach this host.
    pub(super) host: String,
    /// The port for peers to ask at; 0 for any.
    pub(super) port: u16,
    /// Whether another port will do.
    pub(super) any_port_will_do: bool,
    /// Where to listen.
    pub(super) bind: IpAddr,
    /// Time limit of a transfer.
    pub(super) timeout: Duration,
    config: ClientConfig,
}

impl Settings {
    /// Checks the arguments of `initialize`; `metadata_type` is that of `initialize_ext`.
    pub(super) fn new(
        local_hostname: &str,
        metadata_server: &str,
        protocol: &str,
        device_name: &str,
        metadata_type: Option<&str>,
    ) -> Result<Self, EngineError> {
        let protocol: Protocol = protocol
            .parse()
            .map_err(|_| EngineError::UnknownProtocol { name: protocol.to_owned() })?;
        let bad_host = || EngineError::BadHost { text: local_hostname.to_owned() };
        let (host, port) = split(local_hostname).ok_or_else(bad_host)?;
        let variable = |name: &str| name.starts_with("MC_").then(|| std::env::var_os(name))?;
        let mut config = ClientConfig::default().apply_vars(variable)?;
        config.protocol = Some(protocol);
        config.device_name = ClientConfig::device_names(device_name).or(config.device_name);
        let peer_to_peer = metadata_server == PEER_TO_PEER || metadata_type == Some("p2p");
        if !peer_to_peer {
            warn_of_metadata_server(metadata_server);
        }
        let bind = bind_address(host);
        if host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified()) {
            return Err(bad_host());
        }
        Ok(Self {
            host: host.to_owned(),
            port: port.unwrap_or(if peer_to_peer { 0 } else { DEFAULT_PORT }),
            any_port_will_do: peer_to_peer,
            bind,
            timeout: transfer_timeout(),
            config,
        })
    }

    /// Returns the error of an engine that cannot listen.
    pub(super) fn not_listening(&self, source: io::Error) -> EngineError {
        EngineError::Listen { address: SocketAddr::from((self.bind, self.port)), source }
    }

    /// Returns the transports of the engine's node. Reads the files of certificates.
    pub(super) fn node_config(&self) -> Result<NodeConfig, EngineError> {
        let mut node = self.config.node_config()?;
        node.accept_peers((self.bind, 0).into(), vec![self.host.clone()]);
        Ok(node)
    }
}

/// Splits the session of a peer into host and port.
pub(super) fn parse_session(session: &str) -> Option<(&str, u16)> {
    let (host, port) = split(session)?;
    Some((host, port.unwrap_or(DEFAULT_PORT))).filter(|(_, port)| *port != 0)
}

/// Splits "host", "host:port", "[address]:port" or an address; `None` if the text is none of them.
/// The host has no brackets.
fn split(text: &str) -> Option<(&str, Option<u16>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        host.parse::<Ipv6Addr>().ok()?;
        return match rest.strip_prefix(':') {
            Some(port) => Some((host, Some(port.parse().ok()?))),
            None => rest.is_empty().then_some((host, None)),
        };
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Some((text, None));
    }
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(port.parse().ok()?)),
        None => (text, None),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_host = !host.is_empty() && host.len() <= MAX_HOST_LEN && host.bytes().all(is_name);
    is_host.then_some((host, port))
}

/// Returns where to listen: at the loopback address if peers are told that one, which others cannot
/// reach anyway, and otherwise at all addresses; or as `MC_TCP_BIND_ADDRESS` says.
fn bind_address(host: &str) -> IpAddr {
    if let Ok(text) = std::env::var("MC_TCP_BIND_ADDRESS")
        && !text.is_empty()
    {
        match text.parse() {
            Ok(address) => return address,
            Err(_) => tracing::warn!("MC_TCP_BIND_ADDRESS is ignored: {text:?} is not an address"),
        }
    }
    match host.parse::<IpAddr>() {
        Ok(address) if address.is_loopback() => address,
        Ok(IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        Err(_) if host == "localhost" => Ipv4Addr::LOCALHOST.into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    }
}

fn transfer_timeout() -> Duration {
    let Ok(text) = std::env::var("MC_TRANSFER_TIMEOUT") else { return TRANSFER_TIMEOUT };
    match text.trim().parse::<u32>() {
        Ok(seconds) if seconds > 0 => Duration::from_secs(seconds.into()),
        _ if text.is_empty() => TRANSFER_TIMEOUT,
        _ => {
            tracing::warn!("MC_TRANSFER_TIMEOUT is ignored: {text:?} is not a number of seconds");
            TRANSFER_TIMEOUT
        }
    }
}

/// Logs, once in a process, that no metadata server is asked.
fn warn_of_metadata_server(server: &str) {
    // Not a `Once`: a child forked during its call would wait for it forever.
    static IS_WARNED: AtomicBool = AtomicBool::new(false);
    if !IS_WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "the metadata server {server:?} is not used: engines reach each other by the \
             host:port that is the local_hostname of the peer"
        );
    }
}
