//! The ways between masters, etcd and clients, each of which can be cut in either direction.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::Mutex;

use mc_testkit::{EtcdCluster, Flow, Relay};
use tokio::runtime::Runtime;

use crate::MASTERS;

/// The other end of a master's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Etcd,
    Clients,
    Masters,
}

/// The direction in which nothing passes, as seen from the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Out,
    In,
    Both,
}

impl Direction {
    fn is_out(self) -> bool {
        self != Self::In
    }

    fn is_in(self) -> bool {
        self != Self::Out
    }
}

/// Port of every master for calls and for pages: no two share an address.
const RPC_PORT: u16 = 50051;
const PAGES_PORT: u16 = 9003;

/// Chunks of 64 KiB that wait in a relay.
const WAITING: usize = 64;

pub(crate) enum Network {
    Loopback(Loopback),
    Spaces(Spaces),
}

/// Everything on loopback addresses, with relays in between that hold back what is sent.
pub(crate) struct Loopback {
    /// Relays from each master to each member of etcd.
    etcd: Vec<Vec<Relay>>,
    /// Relays from all clients and all other masters to each master.
    clients: Vec<Relay>,
    masters: Vec<Relay>,
}

/// Each master in a network namespace of its own, on a bridge whose other end is this host's, where
/// packets are dropped by blackholes.
pub(crate) struct Spaces {
    /// The commands that undo the cuts.
    mend: Mutex<Vec<Vec<String>>>,
}

impl Network {
    /// Lays the ways on loopback, and starts etcd at their ends.
    pub(crate) fn on_loopback(runtime: &Runtime, members: usize) -> (Self, EtcdCluster) {
        let etcd = EtcdCluster::start(members);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let relay = |from, to| runtime.block_on(Relay::between(from, to, WAITING)).unwrap();
        let to_etcd = |_| (0..members).map(|member| relay(any, etcd.address(member))).collect();
        let to_master = |way: u8, master| {
            relay((loopback(way, master), RPC_PORT).into(), (loopback(0, master), RPC_PORT).into())
        };
        let loopback = Loopback {
            etcd: (0..MASTERS).map(to_etcd).collect(),
            clients: (0..MASTERS).map(|master| to_master(2, master)).collect(),
            masters: (0..MASTERS).map(|master| to_master(1, master)).collect(),
        };
        (Self::Loopback(loopback), etcd)
    }

    /// Lays the ways between namespaces, and starts etcd at their ends.
    ///
    /// # Errors
    /// What this host or user cannot do.
    pub(crate) fn in_namespaces(members: usize) -> Result<(Self, EtcdCluster), String> {
        // Removes what an earlier process of the same number has left, or is dropped below.
        let spaces = Spaces { mend: Mutex::default() };
        spaces.remove();
        ip(&format!("link add {} type bridge", bridge()))?;
        for host in [CLIENTS, ETCD, PAGES] {
            ip(&format!("address add {}/24 dev {}", host_address(host), bridge()))?;
        }
        ip(&format!("link set {} up", bridge()))?;
        for master in 0..MASTERS {
            let (space, cable) = (space(master), format!("{}p{master}", bridge()));
            ip(&format!("netns add {space}"))?;
            ip(&format!("link add {cable} type veth peer name eth0 netns {space}"))?;
            ip(&format!("link set {cable} master {} up", bridge()))?;
            let address = host_address(MASTER + master as u8);
            ip(&format!("-n {space} address add {address}/24 dev eth0"))?;
            ip(&format!("-n {space} link set eth0 up"))?;
            ip(&format!("-n {space} link set lo up"))?;
        }
        let etcd = EtcdCluster::start_at(host_address(ETCD), members);
        Ok((Self::Spaces(spaces), etcd))
    }

    /// The flags that tell a master where it is.
    pub(crate) fn flags(&self, master: usize, etcd: &EtcdCluster) -> Vec<String> {
        let (address, listen, endpoints) = match self {
            Self::Loopback(ways) => {
                let endpoints = ways.etcd[master].iter().map(|relay| relay.address().to_string());
                (loopback(1, master), loopback(0, master), endpoints.collect())
            }
            Self::Spaces(_) => {
                let address = host_address(MASTER + master as u8);
                (address, address, etcd.endpoints())
            }
        };
        vec![
            format!("--rpc_address={address}"),
            format!("--rpc_listen={listen}"),
            format!("--rpc_port={RPC_PORT}"),
            format!("--metrics_host={listen}"),
            format!("--metrics_port={PAGES_PORT}"),
            format!("--etcd_endpoints={}", endpoints.join(";")),
        ]
    }

    /// Returns the command that starts a program on a master's host.
    pub(crate) fn launcher(&self, master: usize) -> Vec<String> {
        match self {
            Self::Loopback(_) => Vec::new(),
            Self::Spaces(_) => ["ip", "netns", "exec", &space(master)].map(str::to_owned).into(),
        }
    }

    /// The way from clients to this master.
    pub(crate) fn for_clients(&self, master: usize) -> SocketAddr {
        match self {
            Self::Loopback(ways) => ways.clients[master].address(),
            Self::Spaces(_) => (host_address(MASTER + master as u8), RPC_PORT).into(),
        }
    }

    /// Where a master's pages are, and from which address of this host no cut is in between.
    pub(crate) fn pages(&self, master: usize) -> (SocketAddr, Ipv4Addr) {
        match self {
            Self::Loopback(_) => ((loopback(0, master), PAGES_PORT).into(), Ipv4Addr::UNSPECIFIED),
            Self::Spaces(_) => {
                let master = host_address(MASTER + master as u8);
                ((master, PAGES_PORT).into(), host_address(PAGES))
            }
        }
    }

    /// Lets nothing pass between a master and one side of it.
    pub(crate) fn cut(&self, master: usize, side: Side, direction: Direction) {
        match self {
            Self::Loopback(ways) => ways.cut(master, side, direction),
            Self::Spaces(spaces) => spaces.cut(master, side, direction),
        }
    }

    /// Mends all that was cut.
    pub(crate) fn mend(&self) {
        match self {
            Self::Loopback(ways) => {
                let etcd = ways.etcd.iter().flatten();
                etcd.chain(&ways.clients).chain(&ways.masters).for_each(Relay::resume);
            }
            Self::Spaces(spaces) => spaces.mend(),
        }
    }
}

impl Loopback {
    fn cut(&self, master: usize, side: Side, direction: Direction) {
        // The node is etcd in one case and the master in the others.
        let (relays, out, into) = match side {
            Side::Etcd => (&self.etcd[master][..], Flow::ToNode, Flow::FromNode),
            Side::Clients => (&self.clients[master..=master], Flow::FromNode, Flow::ToNode),
            Side::Masters => (&self.masters[master..=master], Flow::FromNode, Flow::ToNode),
        };
        for relay in relays {
            if direction.is_out() {
                relay.pause_flow(out);
            }
            if direction.is_in() {
                relay.pause_flow(into);
            }
        }
    }
}

impl Spaces {
    fn cut(&self, master: usize, side: Side, direction: Direction) {
        let this = host_address(MASTER + master as u8);
        let others = (0..MASTERS).filter(|other| *other != master);
        match side {
            Side::Etcd | Side::Clients => {
                let host = host_address(if side == Side::Etcd { ETCD } else { CLIENTS });
                if direction.is_out() {
                    self.block_route(master, host);
                }
                if direction.is_in() {
                    // By the sender's address, which this host has several of.
                    self.block(|word| format!("rule {word} from {host} to {this} type blackhole"));
                }
            }
            Side::Masters => others.for_each(|other| {
                if direction.is_out() {
                    self.block_route(master, host_address(MASTER + other as u8));
                }
                if direction.is_in() {
                    self.block_route(other, this);
                }
            }),
        }
    }

    fn block_route(&self, master: usize, to: Ipv4Addr) {
        let space = space(master);
        self.block(|word| format!("-n {space} route {word} blackhole {to}/32"));
    }

    fn block(&self, command: impl Fn(&str) -> String) {
        // What is blocked already stays so.
        if ip(&command("add")).is_ok() {
            let undo = command("delete").split(' ').map(str::to_owned).collect();
            self.mend.lock().unwrap().push(undo);
        }
    }

    fn mend(&self) {
        for command in self.mend.lock().unwrap().drain(..) {
            ip(&command.join(" ")).expect("what was added can be deleted");
        }
    }

    fn remove(&self) {
        for command in self.mend.lock().unwrap().drain(..) {
            let _ = ip(&command.join(" "));
        }
        for master in 0..MASTERS {
            let _ = ip(&format!("netns delete {}", space(master)));
        }
        let _ = ip(&format!("link delete {}", bridge()));
    }
}

impl Drop for Spaces {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Hosts on the bridge.
const CLIENTS: u8 = 1;
const ETCD: u8 = 2;
const PAGES: u8 = 3;
const MASTER: u8 = 11;

/// Loopback addresses of this process: the master's own (0), the way of the other masters to it (1)
/// and that of its clients (2).
fn loopback(way: u8, master: usize) -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 210 + 10 * way + master as u8, high, low)
}

fn host_address(host: u8) -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(10, 64 + high % 64, low, host)
}

fn bridge() -> String {
    format!("mcb{}", std::process::id())
}

fn space(master: usize) -> String {
    format!("mc-chaos-{}-{master}", std::process::id())
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr)))
}
