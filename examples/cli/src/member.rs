//! How a program joins a cluster as a member that may contribute memory: flags, and the
//! variables that the reference system's sample programs read.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use mc_store::{Client, ClientBuilder, MemoryOptions, NodeConfig};
use mc_transport::topology::{Discovery, Topology, TopologyError};
use mc_transport::{BadVariable, TcpConfig};
use mc_types::ByteSize;

use crate::credentials::CredentialArgs;
use crate::entry::UsageError;

/// The flags, to be flattened into a program's own. A flag goes before its variable.
///
/// `MC_MS_AUTO_DISC`, `MC_MS_FILTERS`, `MC_STORE_USE_HUGEPAGE` and `MC_STORE_HUGEPAGE_SIZE`
/// are heeded, too.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub struct MemberArgs {
    /// The master, as host:port.
    #[arg(
        long = "master_server_address",
        env = "MASTER_SERVER",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:50051"
    )]
    pub master: String,
    /// Accepted for the reference system's sake: the master itself says where segments are.
    #[arg(long = "metadata_server", env = "METADATA_ADDR", value_name = "URL")]
    pub metadata_server: Option<String>,
    /// Memory to contribute; 0 contributes none.
    #[arg(long = "global_segment_size", value_name = "SIZE", default_value = "3200MB")]
    pub segment_size: ByteSize,
    /// Name or address of this host to tell peers, with or without a port [default: the one
    /// that reaches the master, and a free port].
    #[arg(long = "local_hostname", env = "LOCAL_HOSTNAME", value_name = "HOST[:PORT]")]
    pub local_hostname: Option<String>,
    /// How bytes travel; this build knows tcp, and shares memory with processes of its host.
    #[arg(
        long = "protocol",
        env = "PROTOCOL",
        value_name = "NAME",
        default_value = "tcp",
        value_parser = parse_protocol
    )]
    protocol: Protocol,
    /// Devices of protocols that have them; tcp has none and disregards it.
    #[arg(
        long = "device_name",
        env = "DEVICE_NAME",
        value_name = "NAMES",
        default_value = "",
        hide_default_value = true
    )]
    pub device_name: String,
    /// What to show the master.
    #[command(flatten)]
    pub credentials: CredentialArgs,
}

/// How bytes travel between members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp,
}

#[derive(Debug, thiserror::Error)]
#[error("this build has tcp only; write --protocol=tcp or PROTOCOL=tcp, or leave it out")]
struct NotBuilt;

fn parse_protocol(text: &str) -> Result<Protocol, NotBuilt> {
    if text == "tcp" { Ok(Protocol::Tcp) } else { Err(NotBuilt) }
}

/// Why flags and variables do not describe a member.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemberError {
    /// A name or address without a usable address behind it.
    #[error(
        "--local_hostname={host} has no address; write this host's name or IP address, or leave it out"
    )]
    UnknownHost {
        /// What was written.
        host: String,
        /// What the system said.
        source: io::Error,
    },
    /// Credentials that do not fit together.
    #[error(transparent)]
    Credentials(#[from] UsageError),
    /// A variable of the environment has a value that it cannot have.
    #[error(transparent)]
    Variable(#[from] BadVariable),
    /// The network cards that were asked for cannot be used.
    #[error("MC_MS_AUTO_DISC: the network interfaces cannot be chosen")]
    Topology(#[from] TopologyError),
}

impl MemberArgs {
    /// The client that the flags and the environment describe, to be connected.
    ///
    /// # Errors
    /// [`MemberError`]
    pub fn client(&self) -> Result<ClientBuilder, MemberError> {
        let Protocol::Tcp = self.protocol;
        if !self.device_name.trim().is_empty() {
            tracing::debug!(device_name = self.device_name, "tcp uses no device");
        }
        let mut builder = Client::builder()
            .master(&*self.master)
            .rpc(self.credentials.client_config()?)
            .segment_size(self.segment_size)
            .segment_memory(MemoryOptions::from_env()?)
            .node(node()?);
        if let Some(host) = &self.local_hostname {
            let reach = reach(host)?;
            builder = builder.listen(reach.listen);
            if let Some(address) = reach.advertise {
                builder = builder.advertise(address);
            }
        }
        Ok(builder)
    }
}

/// The way of the bytes, over the network cards that the environment asks for.
fn node() -> Result<NodeConfig, MemberError> {
    let discovery = Discovery::from_env()?;
    let mut tcp = TcpConfig::default();
    if discovery.auto {
        let cards = discovery.select(&Topology::read()?)?;
        // One address of each: two would make one card look like two.
        tcp.rails = cards.iter().filter_map(|card| card.addresses.first().copied()).collect();
    }
    Ok(NodeConfig::new(tcp))
}

/// Where to listen and what to tell peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reach {
    listen: SocketAddr,
    advertise: Option<IpAddr>,
}

/// What `HOST` or `HOST:PORT` means. A loopback address is also the only one listened
/// on, since nobody else could use it; otherwise the listener takes every address.
fn reach(text: &str) -> Result<Reach, MemberError> {
    let (host, port) = split(text.trim());
    let unknown = |source| MemberError::UnknownHost { host: text.to_owned(), source };
    let address = (host, port)
        .to_socket_addrs()
        .and_then(|mut addresses| addresses.next().ok_or(io::ErrorKind::NotFound.into()))
        .map_err(unknown)?
        .ip();
    let everywhere = match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let listen = if address.is_loopback() { address } else { everywhere };
    let advertise = (!address.is_unspecified()).then_some(address);
    Ok(Reach { listen: SocketAddr::new(listen, port), advertise })
}

/// Host and port; port 0, which takes a free one, where none is written.
fn split(text: &str) -> (&str, u16) {
    let bare = |host: &str| !host.contains(':') || host.ends_with(']');
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if bare(host) && port.parse::<u16>().is_ok() => {
            (host, port.parse().unwrap_or(0))
        }
        _ => (text, 0),
    };
    (host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host), port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    #[derive(Debug, clap::Parser)]
    struct Args {
        #[command(flatten)]
        member: MemberArgs,
    }

    fn parse(args: &[&str]) -> Result<Args, crate::Refusal> {
        let args = std::iter::once("prog").chain(args.iter().copied());
        crate::parse_from(args.map(OsString::from))
    }

    #[test]
    fn hosts_may_have_ports() {
        let reached = |host: &str| {
            let reach = reach(host).unwrap();
            (reach.listen.to_string(), reach.advertise.map(|address| address.to_string()))
        };
        let told = |address: &str| Some(address.to_owned());
        assert_eq!(reached("127.0.0.1"), ("127.0.0.1:0".into(), told("127.0.0.1")));
        assert_eq!(reached("127.0.0.1:12345"), ("127.0.0.1:12345".into(), told("127.0.0.1")));
        assert_eq!(reached("192.0.2.1:7"), ("0.0.0.0:7".into(), told("192.0.2.1")));
        assert_eq!(reached("0.0.0.0:7"), ("0.0.0.0:7".into(), None));
        assert_eq!(reached("::1"), ("[::1]:0".into(), told("::1")));
        assert_eq!(reached("[::1]:9"), ("[::1]:9".into(), told("::1")));
        for bad in ["", "no such host", "127.0.0.1:70000"] {
            let refusal = reach(bad).unwrap_err().to_string();
            assert!(refusal.contains("IP address, or leave it out"), "{refusal}");
        }
    }

    #[test]
    fn refusals_say_what_to_write() {
        let refusal = parse(&["--protocol=rdma"]).unwrap_err().to_string();
        assert!(refusal.contains("tcp only") && !refusal.contains('\n'), "{refusal}");
        let refusal = parse(&["--global_segment_size=lots"]).unwrap_err().to_string();
        assert!(refusal.contains("such as 4GB") && !refusal.contains('\n'), "{refusal}");
    }

    #[test]
    fn the_reference_system_s_names_are_understood() {
        let flags = ["--device_name=ibp6s0", "--metadata-server=127.0.0.1:2379", "--tenant=t"];
        let member = parse(&flags).unwrap().member;
        assert_eq!(member.device_name, "ibp6s0");
        assert_eq!(member.segment_size, ByteSize::mib(3200));
        assert!(member.client().is_ok());
    }
}
