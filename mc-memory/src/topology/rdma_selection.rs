//! The choice of the ports of RDMA devices to use.

use std::cmp::Reverse;
use std::fmt;

use super::{Discovery, Gid, LinkLayer, RdmaDevice, RdmaPort, Topology, TopologyError};

/// A port that [`Discovery::select_rdma`] selected. It is shown as `mlx5_0:1`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SelectedRdmaPort {
    /// The device.
    pub device: RdmaDevice,
    /// The port, which is one of the device's.
    pub port: RdmaPort,
    /// The network interfaces by whose names the port was selected; empty if it was not
    /// selected by one.
    pub interfaces: Vec<String>,
}

impl SelectedRdmaPort {
    /// Returns the addresses that a connection should try, the best first, see
    /// [`RdmaPort::ranked_gids`]. If the port was selected by the name of an interface that
    /// has some of them, they are those alone: packets from the others may leave into
    /// another network, such as another VLAN.
    #[must_use]
    pub fn ranked_gids(&self) -> Vec<&Gid> {
        let is_named = |gid: &&Gid| {
            gid.interface.as_ref().is_some_and(|interface| self.interfaces.contains(interface))
        };
        let all = self.port.ranked_gids();
        let named: Vec<&Gid> = all.iter().copied().filter(is_named).collect();
        if named.is_empty() { all } else { named }
    }
}

impl fmt::Display for SelectedRdmaPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&port_name(&self.device, &self.port))
    }
}

impl Discovery {
    /// Returns the ports of RDMA devices to use: those that are active. The fastest come
    /// first, or with [`nearest`](Self::nearest) the nearest and among them the fastest; those
    /// that do not know their node or speed come last.
    ///
    /// The name of a device stands for all its ports, `mlx5_0:2` for one port, and the name of
    /// a network interface for the ports that it is on. A name that selects no usable
    /// port while others do is logged as a warning.
    ///
    /// Without names, ports that reach this host only, as those of a device in software on `lo`, are
    /// used if there are no others. A RoCE port without an address is not used, because it
    /// cannot connect.
    ///
    /// # Errors
    /// As [`select`](Self::select).
    ///
    /// ```
    /// use mc_memory::topology::{Discovery, Topology};
    /// let discovery = Discovery::of_devices("mlx5_0,mlx5_1:2".split(','));
    /// match discovery.select_rdma(&Topology::read()?) {
    ///     Ok(ports) => {
    ///         for port in ports {
    ///             println!("{port}: {:?}", port.ranked_gids());
    ///         }
    ///     }
    ///     Err(error) => println!("no RDMA: {error}"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn select_rdma(&self, topology: &Topology) -> Result<Vec<SelectedRdmaPort>, TopologyError> {
        if !self.auto {
            return Ok(Vec::new());
        }
        self.check_filters(topology)?;
        let usable = ports(topology).filter(|(_, port)| obstacle(port).is_none());
        let named = usable.filter_map(|(device, port)| {
            let interfaces = self.interfaces_of_named(device, port)?;
            Some(SelectedRdmaPort { device: device.clone(), port: port.clone(), interfaces })
        });
        let mut selected: Vec<SelectedRdmaPort> = named.collect();
        if selected.is_empty() {
            return Err(TopologyError::NoneUsable { seen: self.obstacles(topology) });
        }
        for name in &self.filters {
            if !selected.iter().any(|it| stands_for(name, &it.device, &it.port)) {
                let obstacles = obstacles_of(name, topology).join(", ");
                tracing::warn!("no RDMA port of {name:?} is used: {obstacles}");
            }
        }
        if self.filters.is_empty() && selected.iter().any(|it| !it.port.is_loopback()) {
            selected.retain(|it| !it.port.is_loopback());
        }
        selected.sort_by_cached_key(|it| {
            let distance = self.distance(topology, it.device.numa_node);
            (distance, Reverse(it.port.rate_mbits), it.device.name.clone(), it.port.number)
        });
        Ok(selected)
    }

    /// The names of interfaces that stand for this port, none if the device or the port is
    /// named itself or all may be used; `None` if no name stands for it.
    fn interfaces_of_named(&self, device: &RdmaDevice, port: &RdmaPort) -> Option<Vec<String>> {
        let names_port = |name: &String| *name == device.name || is_port(name, device, port);
        if self.filters.is_empty() || self.filters.iter().any(names_port) {
            return Some(Vec::new());
        }
        let mut interfaces = self.filters.clone();
        interfaces.retain(|name| is_on_port(name, device, port));
        interfaces.sort_unstable();
        interfaces.dedup();
        Some(interfaces).filter(|interfaces| !interfaces.is_empty())
    }

    /// Returns, for each device, the reason why it cannot be used.
    fn obstacles(&self, topology: &Topology) -> Vec<String> {
        let devices = &topology.rdma_devices;
        if self.filters.is_empty() {
            return devices.iter().flat_map(|it| obstacles_of(&it.name, topology)).collect();
        }
        let named = self.filters.iter().flat_map(|name| obstacles_of(name, topology));
        let is_named = |device: &RdmaDevice| {
            self.filters.iter().any(|name| {
                name == &device.name || device.ports.iter().any(|it| stands_for(name, device, it))
            })
        };
        let others = devices.iter().filter(|device| !is_named(device));
        named.chain(others.map(|it| format!("{} (not among the names given)", it.name))).collect()
    }
}

/// The ports of all devices.
pub(super) fn ports(topology: &Topology) -> impl Iterator<Item = (&RdmaDevice, &RdmaPort)> {
    let devices = topology.rdma_devices.iter();
    devices.flat_map(|device| device.ports.iter().map(move |port| (device, port)))
}

/// Returns the reasons why the ports that `name` selects cannot be used.
fn obstacles_of(name: &str, topology: &Topology) -> Vec<String> {
    let ports = ports(topology).filter(|(device, port)| stands_for(name, device, port));
    let obstacles: Vec<String> = ports
        .filter_map(|(device, port)| {
            Some(format!("{} ({})", port_name(device, port), obstacle(port)?))
        })
        .collect();
    if !obstacles.is_empty() {
        return obstacles;
    }
    let is_device = topology.rdma_devices.iter().any(|device| device.name == name);
    let missing = if is_device { "a port" } else { "an RDMA device" };
    vec![format!("{name} (without {missing})")]
}

/// Returns the reason why `port` cannot be used; `None` if it can.
fn obstacle(port: &RdmaPort) -> Option<&'static str> {
    if !port.is_active {
        Some("not active")
    } else if port.link_layer == LinkLayer::Ethernet && port.gids.is_empty() {
        Some("without an address (GID)")
    } else {
        None
    }
}

/// Whether `name` is one of the device, of its port or of an interface on the port.
fn stands_for(name: &str, device: &RdmaDevice, port: &RdmaPort) -> bool {
    name == device.name || is_port(name, device, port) || is_on_port(name, device, port)
}

/// The name of the port: the device, a colon and the number.
pub(super) fn port_name(device: &RdmaDevice, port: &RdmaPort) -> String {
    format!("{}:{}", device.name, port.number)
}

/// Whether `name` is that of the port.
pub(super) fn is_port(name: &str, device: &RdmaDevice, port: &RdmaPort) -> bool {
    name == port_name(device, port)
}

/// Whether the interface called `name` is on the port: one that no port names is on all.
pub(super) fn is_on_port(name: &str, device: &RdmaDevice, port: &RdmaPort) -> bool {
    if device.ports.iter().any(|port| port.has_interface(name)) {
        return port.has_interface(name);
    }
    device.interfaces.iter().any(|interface| interface == name)
}

#[cfg(test)]
mod tests {
    use super::super::sysfs::Tree;
    use super::*;

    /// The attributes of a port: device and number, link layer, state, rate, and the
    /// interface and address of its entry 0.
    fn port(port: &str, fields: [&str; 5]) -> Vec<(String, String)> {
        let (device, number) = port.split_once(':').unwrap();
        let names =
            ["link_layer", "state", "rate", "gid_attrs/ndevs/0", "gids/0", "gid_attrs/types/0"];
        let fields = fields.into_iter().chain(["RoCE v2"]);
        let file = |name: &str| format!("class/infiniband/{device}/ports/{number}/{name}");
        names.into_iter().zip(fields).map(|(name, text)| (file(name), text.to_owned())).collect()
    }

    /// A host of two sockets: a card of two ports on each, one of InfiniBand, and what cannot
    /// be used or only as a last resort.
    fn host() -> Topology {
        const UP: &str = "4: ACTIVE";
        const ROCE: &str = "Ethernet";
        let mut files = Vec::new();
        files.extend(port("mlx4_0:1", [ROCE, UP, "40 Gb/sec", "eth0", "::ffff:192.0.2.1"]));
        files.extend(port("mlx4_0:2", [ROCE, UP, "10 Gb/sec", "eth1", "::ffff:192.0.2.2"]));
        files.extend(port("mlx5_0:1", [ROCE, UP, "400 Gb/sec", "eth2", "::ffff:192.0.2.3"]));
        files.extend(port("mlx5_0:2", [ROCE, "1: DOWN", "400 Gb/sec", "eth3", "fe80::1"]));
        files.extend(port("mlx5_1:1", ["InfiniBand", UP, "400 Gb/sec", "", "fe80::2"]));
        files.extend(port("mlx5_2:1", [ROCE, UP, "400 Gb/sec", "eth4", "::"]));
        files.extend(port("rxe_lo:1", [ROCE, UP, "2.5 Gb/sec", "lo", "::ffff:127.0.0.1"]));
        let mut file = |path: &str, text: &str| files.push((path.to_owned(), text.to_owned()));
        // A virtual interface on top of the one of mlx5_0:1.
        for (name, text) in [("gids", "::ffff:198.51.100.3"), ("gid_attrs/types", "RoCE v2")] {
            file(&format!("class/infiniband/mlx5_0/ports/1/{name}/1"), text);
        }
        file("class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/1", "eth2.7");
        for (device, node) in [("mlx4_0", "0"), ("mlx5_0", "1"), ("mlx5_1", "1")] {
            file(&format!("class/infiniband/{device}/device/numa_node"), node);
        }
        file("class/infiniband/mlx5_1/device/net/ib0/mtu", "4092");
        file("class/infiniband/bare/node_type", "1: CA");
        for name in ["eth0", "eth1", "eth2", "eth2.7", "eth3", "eth4", "eth5", "ib0"] {
            file(&format!("class/net/{name}/flags"), "0x1003");
        }
        file("class/net/lo/flags", "0x9");
        for (node, distances) in [("node0", "10 21"), ("node1", "21 10")] {
            file(&format!("devices/system/node/{node}/distance"), distances);
        }
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (&**path, &**text)).collect();
        let names = ["eth0", "eth1", "eth2", "eth2.7", "eth3", "eth4", "eth5", "ib0", "lo"];
        let address = |name: &str| (name.to_owned(), "192.0.2.1".parse().unwrap());
        Topology::from_sysfs(Tree::new(&files).root(), &names.map(address))
    }

    fn of(names: &str) -> Discovery {
        Discovery::of_devices(names.split(','))
    }

    fn selected(discovery: &Discovery) -> Vec<String> {
        let selected = discovery.select_rdma(&host()).unwrap();
        selected.iter().map(ToString::to_string).collect()
    }

    fn refused(names: &str) -> TopologyError {
        of(names).select_rdma(&host()).unwrap_err()
    }

    fn addresses(names: &str) -> Vec<String> {
        let selected = of(names).select_rdma(&host()).unwrap();
        let gids = selected.iter().flat_map(SelectedRdmaPort::ranked_gids);
        gids.map(|gid| gid.address.to_string()).collect()
    }

    #[test]
    fn without_names_all_usable_ports_are_selected() {
        let all = ["mlx5_0:1", "mlx5_1:1", "mlx4_0:1", "mlx4_0:2"];
        for names in ["", " , "] {
            assert_eq!(selected(&of(names)), all);
        }
        assert_eq!(selected(&Discovery::of_devices::<&str>([])), all);
        let near = ["mlx4_0:1", "mlx4_0:2", "mlx5_0:1", "mlx5_1:1"];
        assert_eq!(selected(&of("").nearest(0)), near);
    }

    #[test]
    fn names_select_devices_and_ports_in_the_usual_order() {
        assert_eq!(selected(&of("mlx4_0,mlx5_1")), ["mlx5_1:1", "mlx4_0:1", "mlx4_0:2"]);
        assert_eq!(selected(&of("mlx4_0:2")), ["mlx4_0:2"]);
        assert_eq!(selected(&of("mlx4_0:2,mlx4_0,mlx4_0:2")), ["mlx4_0:1", "mlx4_0:2"]);
        assert_eq!(selected(&of("mlx4_0:2,mlx5_0:1").nearest(0)), ["mlx4_0:2", "mlx5_0:1"]);
        assert_eq!(selected(&of("mlx5_0:2,mlx5_2,mlx4_0:1")), ["mlx4_0:1"], "others are unusable");
    }

    #[test]
    fn an_interface_stands_for_the_port_that_it_is_on() {
        assert_eq!(selected(&of("eth1")), ["mlx4_0:2"]);
        assert_eq!(selected(&of("ib0,eth0")), ["mlx5_1:1", "mlx4_0:1"]);
        assert_eq!(selected(&of("eth5,eth0")), ["mlx4_0:1"]);
    }

    #[test]
    fn an_interface_of_no_port_stands_for_the_whole_device() {
        let tree = Tree::new(&[
            ("class/infiniband/mlx4_0/ports/1/state", "4: ACTIVE"),
            ("class/infiniband/mlx4_0/ports/2/state", "4: ACTIVE"),
            ("class/infiniband/mlx4_0/device/net/ib0/mtu", "4092"),
            ("class/net/ib0/mtu", "4092"),
        ]);
        let selected = of("ib0").select_rdma(&Topology::from_sysfs(tree.root(), &[])).unwrap();
        assert!(selected.iter().map(|it| it.port.number).eq([1, 2]));
        assert_eq!(selected[0].interfaces, ["ib0"]);
    }

    #[test]
    fn the_name_of_an_interface_selects_its_addresses() {
        assert_eq!(addresses("mlx5_0"), ["::ffff:192.0.2.3", "::ffff:198.51.100.3"]);
        assert_eq!(addresses("eth2"), ["::ffff:192.0.2.3"]);
        assert_eq!(addresses("eth2.7"), ["::ffff:198.51.100.3"]);
        assert_eq!(addresses("eth2.7,eth2").len(), 2);
        assert_eq!(addresses("eth2.7,mlx5_0:1").len(), 2);
        assert_eq!(addresses("ib0"), ["fe80::2"], "InfiniBand does not tell the interface");
    }

    #[test]
    fn the_loopback_is_used_when_it_is_named_or_alone() {
        assert_eq!(selected(&of("lo")), ["rxe_lo:1"]);
        assert_eq!(selected(&of("rxe_lo,mlx5_0")), ["mlx5_0:1", "rxe_lo:1"]);
        let mut host = host();
        host.rdma_devices.retain(|device| device.name == "rxe_lo");
        let selected = of("").select_rdma(&host).unwrap();
        assert_eq!(selected.iter().map(ToString::to_string).collect::<Vec<_>>(), ["rxe_lo:1"]);
    }

    #[test]
    fn names_that_do_not_exist_are_errors() {
        for names in ["mlx5_9", "mlx5_0,mlx5_9", "eth0:1", "mlx5_9:1", "mlx5", ":1", ":"] {
            let error = refused(names);
            let name = names.rsplit(',').next().unwrap();
            let expected = format!("this host has no device {name:?}; its devices: bare, eth0, ");
            assert!(error.to_string().starts_with(&expected), "{error}");
            assert!(!error.to_string().contains("MC_MS_FILTERS"), "{error}");
        }
        for name in ["mlx5_0:3", "mlx5_0:", "mlx5_0:01", "mlx5_0:+1", "mlx5_0:257", "mlx5_0:1:1"] {
            let expected =
                format!("this host has no device {name:?}; its devices: mlx5_0:1, mlx5_0:2");
            assert_eq!(refused(name).to_string(), expected);
        }
        assert!(of("mlx5_9").select_rdma(&Topology::default()).is_err());
    }

    #[test]
    fn each_device_says_why_it_is_not_used() {
        let seen = |names: &str| match refused(names) {
            TopologyError::NoneUsable { seen } => seen,
            other => panic!("{other}"),
        };
        let others = "mlx4_0 (not among the names given)".to_owned();
        let with = |names: &str, expected: &[&str]| {
            let seen = seen(names);
            assert_eq!(seen[..expected.len()], *expected);
            assert!(seen.contains(&others), "{seen:?}");
            assert_eq!(seen.iter().filter(|it| it.starts_with("mlx5_0")).count(), 1, "{seen:?}");
        };
        with("mlx5_0:2", &["mlx5_0:2 (not active)"]);
        with("eth3", &["mlx5_0:2 (not active)"]);
        with("mlx5_2", &["mlx5_2:1 (without an address (GID))"]);
        with("eth5,bare", &["eth5 (without an RDMA device)", "bare (without a port)"]);
        let mut host = host();
        host.rdma_devices.retain(|device| device.name == "bare" || device.name == "mlx5_2");
        let error = of("").select_rdma(&host).unwrap_err();
        let expected = "bare (without a port), mlx5_2:1 (without an address (GID))";
        assert!(error.to_string().ends_with(expected), "{error}");
        let error = of("").select_rdma(&Topology::default()).unwrap_err();
        assert!(error.to_string().contains("none at all"), "{error}");
    }

    #[test]
    fn nothing_is_selected_while_discovery_is_off() {
        assert!(Discovery::default().select_rdma(&host()).unwrap().is_empty());
    }

    #[test]
    fn a_name_of_a_port_stands_for_its_interface() {
        let interfaces = |names: &str| {
            let selected = of(names).select(&host()).unwrap();
            selected.into_iter().map(|interface| interface.name).collect::<Vec<_>>()
        };
        assert_eq!(interfaces("mlx4_0"), ["eth0", "eth1"]);
        assert_eq!(interfaces("mlx4_0:2"), ["eth1"]);
        assert_eq!(interfaces("mlx5_0:1"), ["eth2"]);
        assert_eq!(interfaces("mlx5_1:1"), ["ib0"]);
        assert!(of("mlx4_0:3").select(&host()).is_err());
    }
}
