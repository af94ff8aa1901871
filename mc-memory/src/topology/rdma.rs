//! RDMA devices, from `/sys/class/infiniband`.

use std::path::Path;

use super::gid::{self, Gid};
use super::{Interface, sysfs};

/// A network card that reads and writes remote memory by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaDevice {
    /// The name, `mlx5_0` for example.
    pub name: String,
    /// The ports, by number.
    pub ports: Vec<RdmaPort>,
    /// The NUMA node that the device is attached to; `None` when it has none or
    /// does not know.
    pub numa_node: Option<u32>,
    /// The network interfaces of the same device, by name.
    pub interfaces: Vec<String>,
}

/// A port of an [`RdmaDevice`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaPort {
    /// The number; the first is 1.
    pub number: u8,
    /// Whether it can carry data now.
    pub is_active: bool,
    /// Megabits (10^6 bits) per second.
    pub rate_mbits: Option<u32>,
    /// The kind of network that the port is attached to.
    pub link_layer: LinkLayer,
    /// The local identifier, the address in an InfiniBand subnet; `None` when the port has
    /// none, as on Ethernet.
    pub lid: Option<u16>,
    /// The addresses, by index. At most the first 256 entries of the table are read, and
    /// those that are not in use are left out.
    pub gids: Vec<Gid>,
    /// The network interface of the port: that of the first GID that names one, otherwise
    /// the only interface of a device with one port.
    pub interface: Option<String>,
    /// Bytes of the largest packet of that interface. Those of the port's own packets are
    /// less and are known to the verbs library alone (`active_mtu` of `ibv_query_port`).
    pub interface_mtu: Option<u32>,
}

/// The kind of network that an [`RdmaPort`] is attached to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkLayer {
    /// Ethernet, for RDMA over converged Ethernet (RoCE).
    Ethernet,
    /// InfiniBand.
    InfiniBand,
    /// The system does not tell.
    #[default]
    Unknown,
}

impl RdmaDevice {
    /// Megabits per second of the fastest port that is active.
    #[must_use]
    pub fn rate_mbits(&self) -> Option<u32> {
        self.ports.iter().filter(|port| port.is_active).filter_map(|port| port.rate_mbits).max()
    }

    /// Returns whether a port is active.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.ports.iter().any(|port| port.is_active)
    }
}

impl RdmaPort {
    /// Returns the addresses that a connection should try, the best first:
    ///
    /// 1. RoCE v2 with an address of IPv4: routers forward it, and it is what the networks of
    ///    most clusters are set up for.
    /// 2. RoCE v2 with a global address of IPv6: routers forward it, too.
    /// 3. RoCE v2 with a unique local address (`fc00::/7`): routers of one site forward it.
    /// 4. RoCE v2 with a link-local address (`fe80::/10` or 169.254.0.0/16): it reaches the
    ///    hosts of one link. The kernel makes such an entry from the hardware's address even
    ///    where IPv6 is switched off, and no packet leaves from it then.
    /// 5. RoCE v1 in the same order: no router forwards its frames, whatever the address, and
    ///    a peer that has RoCE v2 alone does not understand them.
    /// 6. What reaches this host only: the loopback addresses (127.0.0.0/8 and `::1`), and all
    ///    addresses of a loopback interface. A device in software on `lo` has no others, so
    ///    that they are tried at last and not left out.
    ///
    /// Both sides of a connection need addresses of the same kind. Addresses of equal rank
    /// keep the order of their indexes, as all addresses of InfiniBand do: index 0 is the
    /// port's own there, and others are aliases.
    ///
    /// ```
    /// use mc_memory::topology::Topology;
    /// for device in &Topology::read()?.rdma_devices {
    ///     for port in &device.ports {
    ///         match port.ranked_gids().first() {
    ///             Some(gid) => println!("{}:{}: {}", device.name, port.number, gid.address),
    ///             None => println!("{}:{} has no address", device.name, port.number),
    ///         }
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn ranked_gids(&self) -> Vec<&Gid> {
        let mut ranked: Vec<&Gid> = self.gids.iter().collect();
        ranked.sort_by_key(|gid| gid.rank());
        ranked
    }

    /// Returns whether the port reaches this host only.
    pub(super) fn is_loopback(&self) -> bool {
        !self.gids.is_empty() && self.gids.iter().all(|gid| gid.is_loopback)
    }

    /// Returns whether the interface called `name` is on this port.
    pub(super) fn has_interface(&self, name: &str) -> bool {
        let of_gids = self.gids.iter().map(|gid| &gid.interface);
        of_gids.chain([&self.interface]).any(|interface| interface.as_deref() == Some(name))
    }
}

/// The devices in the folder `class`; `interfaces` are those of the host.
pub(super) fn read(class: &Path, interfaces: &[Interface]) -> Vec<RdmaDevice> {
    let folders = sysfs::names(class).into_iter().filter(|name| class.join(name).is_dir());
    folders.map(|name| read_one(&class.join(&name), name, interfaces)).collect()
}

fn read_one(folder: &Path, name: String, host: &[Interface]) -> RdmaDevice {
    // Switches alone have a port 0.
    let numbers = sysfs::numbers(&folder.join("ports")).into_iter().filter(|number| *number != 0);
    let mut ports: Vec<RdmaPort> = numbers
        .map(|number| read_port(&folder.join(format!("ports/{number}")), number, host))
        .collect();
    // A card names the interfaces of its PCI function; a device in software names
    // the interface that it sits on.
    let mut interfaces = sysfs::names(&folder.join("device/net"));
    interfaces.extend(sysfs::interface_name(&folder.join("parent")));
    // The interfaces of other entries may be virtual ones on top of these.
    let first_of_port =
        |port: &RdmaPort| gid::interface(&folder.join(format!("ports/{}", port.number)), 0);
    interfaces.extend(ports.iter().filter_map(first_of_port));
    interfaces.sort_unstable();
    interfaces.dedup();
    if let ([port], [interface]) = (&mut *ports, &*interfaces) {
        port.interface.get_or_insert_with(|| interface.clone());
    }
    for port in &mut ports {
        let own = host.iter().find(|candidate| Some(&candidate.name) == port.interface.as_ref());
        port.interface_mtu = own.and_then(|interface| interface.mtu);
    }
    RdmaDevice { ports, numa_node: sysfs::numa_node(&folder.join("device")), interfaces, name }
}

/// The port in `folder`, without what only the whole device tells.
fn read_port(folder: &Path, number: u8, interfaces: &[Interface]) -> RdmaPort {
    // "4: ACTIVE"
    let state = sysfs::text(&folder.join("state"));
    let is_active = state.is_some_and(|state| state.split(':').next() == Some("4"));
    let rate = sysfs::text(&folder.join("rate"));
    let link_layer = match sysfs::text(&folder.join("link_layer")).as_deref() {
        Some("Ethernet") => LinkLayer::Ethernet,
        Some("InfiniBand") => LinkLayer::InfiniBand,
        _ => LinkLayer::Unknown,
    };
    // Zero is no address: it is what a port has that no subnet manager knows.
    let lid = sysfs::hex(&folder.join("lid")).and_then(|lid| u16::try_from(lid).ok());
    let gids = gid::read(folder, link_layer, interfaces);
    RdmaPort {
        number,
        is_active,
        rate_mbits: rate.and_then(|rate| parse_rate(&rate)),
        link_layer,
        lid: lid.filter(|lid| *lid != 0),
        interface: gids.iter().find_map(|gid| gid.interface.clone()),
        interface_mtu: None,
        gids,
    }
}

/// Megabits of a text like `2.5 Gb/sec (1X SDR)`.
fn parse_rate(text: &str) -> Option<u32> {
    let (number, unit) = text.split_once(' ')?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    if !unit.starts_with("Gb/sec") || tenths.len() != 1 {
        return None;
    }
    let (whole, tenths): (u32, u32) = (whole.parse().ok()?, tenths.parse().ok()?);
    whole.checked_mul(1000)?.checked_add(tenths * 100)
}

#[cfg(test)]
mod tests {
    use super::super::Topology;
    use super::super::sysfs::Tree;
    use super::*;

    #[test]
    fn attributes_become_fields() {
        let tree = Tree::new(&[
            ("mlx5_0/ports/1/state", "4: ACTIVE\n"),
            ("mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n"),
            ("mlx5_0/ports/1/gid_attrs/ndevs/0", "eth0\n"),
            ("mlx5_0/ports/2/state", "1: DOWN\n"),
            ("mlx5_0/ports/2/rate", "400 Gb/sec (4X NDR)\n"),
            ("mlx5_0/ports/notes/state", "4: ACTIVE\n"),
            ("mlx5_0/device/numa_node", "1\n"),
            ("mlx5_0/device/net/eth0/mtu", "9000\n"),
            ("mlx5_0/device/net/eth1/mtu", "9000\n"),
            ("rxe0/ports/1/state", "4: ACTIVE\n"),
            ("rxe0/ports/1/rate", "2.5 Gb/sec (1X SDR)\n"),
            ("rxe0/parent", "eth7\n"),
            ("odd/ports/1/state", "?\n"),
            ("odd/ports/1/rate", "9999999999 Gb/sec\n"),
            ("abi_version", "1\n"),
        ]);
        let devices = read(tree.root(), &[]);
        let names: Vec<&str> = devices.iter().map(|device| &*device.name).collect();
        assert_eq!(names, ["mlx5_0", "odd", "rxe0"]);
        let card = &devices[0];
        let ports: Vec<_> =
            card.ports.iter().map(|port| (port.number, port.is_active, port.rate_mbits)).collect();
        assert_eq!(ports, [(1, true, Some(100_000)), (2, false, Some(400_000))]);
        assert_eq!((card.numa_node, card.rate_mbits()), (Some(1), Some(100_000)));
        assert_eq!(card.interfaces, ["eth0", "eth1"]);
        assert!(!devices[1].is_active() && devices[1].ports[0].rate_mbits.is_none());
        assert_eq!(devices[2].interfaces, ["eth7"]);
        assert_eq!((devices[2].rate_mbits(), devices[2].numa_node), (Some(2500), None));
    }

    #[test]
    fn a_port_knows_its_network_and_its_interface() {
        let tree = Tree::new(&[
            ("class/net/eth0/mtu", "9000\n"),
            ("class/net/eth1/mtu", "1500\n"),
            ("class/net/ib0/mtu", "4092\n"),
            // Two ports, each with its interface; entry 0 of the first is not in use.
            ("class/infiniband/mlx4_0/ports/1/link_layer", "Ethernet\n"),
            ("class/infiniband/mlx4_0/ports/1/lid", "0x0\n"),
            ("class/infiniband/mlx4_0/ports/1/gids/0", "::\n"),
            ("class/infiniband/mlx4_0/ports/1/gids/1", "2001:db8::1\n"),
            ("class/infiniband/mlx4_0/ports/1/gid_attrs/types/1", "RoCE v2\n"),
            ("class/infiniband/mlx4_0/ports/1/gid_attrs/ndevs/1", "eth0\n"),
            ("class/infiniband/mlx4_0/ports/2/link_layer", "Ethernet\n"),
            ("class/infiniband/mlx4_0/ports/2/gids/0", "2001:db8::2\n"),
            ("class/infiniband/mlx4_0/ports/2/gid_attrs/types/0", "RoCE v2\n"),
            ("class/infiniband/mlx4_0/ports/2/gid_attrs/ndevs/0", "eth1\n"),
            ("class/infiniband/mlx4_0/device/net/eth0/mtu", "9000\n"),
            ("class/infiniband/mlx4_0/device/net/eth1/mtu", "1500\n"),
            // InfiniBand names no interfaces in its table.
            ("class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n"),
            ("class/infiniband/mlx5_0/ports/1/lid", "0x1f\n"),
            ("class/infiniband/mlx5_0/ports/1/gids/0", "fe80::b8ce:f603:12:3456\n"),
            ("class/infiniband/mlx5_0/device/net/ib0/mtu", "4092\n"),
            // An interface of another network namespace.
            ("class/infiniband/rxe0/ports/1/lid", "0x10000\n"),
            ("class/infiniband/rxe0/parent", "eth9\n"),
        ]);
        let devices = Topology::from_sysfs(tree.root(), &[]).rdma_devices;
        let ports: Vec<_> = devices
            .iter()
            .flat_map(|device| &device.ports)
            .map(|port| (port.link_layer, port.lid, port.interface.as_deref(), port.interface_mtu))
            .collect();
        let expected = [
            (LinkLayer::Ethernet, None, Some("eth0"), Some(9000)),
            (LinkLayer::Ethernet, None, Some("eth1"), Some(1500)),
            (LinkLayer::InfiniBand, Some(0x1f), Some("ib0"), Some(4092)),
            (LinkLayer::Unknown, None, Some("eth9"), None),
        ];
        assert_eq!(ports, expected);
        assert_eq!(devices[0].interfaces, ["eth0", "eth1"]);
    }

    #[test]
    fn ports_and_identifiers_that_mean_nothing_are_left_out() {
        let numbers = ["0", "-1", "+1", "01", "256", "99999999999", "notes", "2"];
        let files = numbers.map(|number| (format!("odd/ports/{number}/state"), "4: ACTIVE"));
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (&**path, *text)).collect();
        let devices = read(Tree::new(&files).root(), &[]);
        assert!(devices[0].ports.iter().map(|port| port.number).eq([2]));
        for lid in ["", "31", "0x", "0x-1", "0x12345", "0xgg", "0x0"] {
            let tree = Tree::new(&[("odd/ports/1/lid", lid), ("odd/parent", "../eth0")]);
            let devices = read(tree.root(), &[]);
            assert_eq!(devices[0].ports[0].lid, None, "{lid}");
            assert!(devices[0].interfaces.is_empty());
        }
    }

    #[test]
    fn rates_that_mean_nothing_are_unknown() {
        for text in ["", "100", "100 Mb/sec", "x Gb/sec", "1.x Gb/sec", "1.25 Gb/sec", "-1 Gb/sec"]
        {
            assert_eq!(parse_rate(text), None, "{text}");
        }
        assert_eq!(parse_rate("4294968 Gb/sec"), None);
    }
}
