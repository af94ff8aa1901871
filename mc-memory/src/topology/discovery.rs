//! The choice of the devices to use.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ffi::OsString;

use super::rdma_selection::{is_on_port, is_port, port_name, ports};
use super::{Interface, RdmaDevice, Topology, TopologyError};
use crate::environment::{self, BadVariable};

/// Rules for choosing among the devices of a host.
///
/// ```
/// use mc_memory::topology::{Discovery, Topology};
/// let variables = |name: &str| match name {
///     "MC_MS_AUTO_DISC" => Some("1".into()),
///     "MC_MS_FILTERS" => Some("lo".into()),
///     _ => None,
/// };
/// let discovery = Discovery::from_variables(variables)?;
/// for interface in discovery.select(&Topology::read()?)? {
///     println!("{} at {:?}", interface.name, interface.addresses);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Discovery {
    /// Whether to look for devices at all. When not, nothing is selected, and
    /// whatever address the caller was configured with stands.
    pub auto: bool,
    /// The names of the devices that may be used; all when empty. A name of an
    /// RDMA device also stands for its network interfaces, and the other way
    /// round. `mlx5_0:2` is port 2 of RDMA device `mlx5_0`.
    pub filters: Vec<String>,
    /// Devices near this NUMA node come first.
    pub near: Option<u32>,
}

impl Discovery {
    /// The devices that a user names, whatever the environment says: `names` are the
    /// [`filters`](Self::filters), without blanks around them and without empty ones. If there
    /// are none, all devices may be used.
    ///
    /// ```
    /// use mc_memory::topology::Discovery;
    /// let discovery = Discovery::of_devices("mlx5_0, mlx5_1:2".split(','));
    /// assert!(discovery.auto);
    /// assert_eq!(discovery.filters, ["mlx5_0", "mlx5_1:2"]);
    /// ```
    #[must_use]
    pub fn of_devices<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
        let names = names.into_iter().map(|name| name.as_ref().trim().to_owned());
        let filters = names.filter(|name| !name.is_empty()).collect();
        Self { auto: true, filters, near: None }
    }

    /// The settings of the environment, see [`from_variables`](Self::from_variables).
    ///
    /// # Errors
    /// [`BadVariable`] when a variable has a value that means nothing.
    pub fn from_env() -> Result<Self, BadVariable> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// The settings of the environment, with `lookup` in place of
    /// [`std::env::var_os`]: `MC_MS_AUTO_DISC` (`1`, `true`, `yes` or `on`, or `0`,
    /// `false`, `no` or `off`, in any case; off when unset or empty) is
    /// [`auto`](Self::auto), `MC_MS_FILTERS` (names with commas between) the
    /// [`filters`](Self::filters). Filters without discovery do nothing, which is
    /// logged as a warning.
    ///
    /// # Errors
    /// [`BadVariable`] when `MC_MS_AUTO_DISC` has another value.
    pub fn from_variables(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, BadVariable> {
        let auto = environment::flag(&lookup, "MC_MS_AUTO_DISC")?;
        let filters = environment::value(&lookup, "MC_MS_FILTERS", "names", |text| {
            let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
            Some(names.map(str::to_owned).collect::<Vec<_>>())
        })?;
        let filters = filters.unwrap_or_default();
        if !auto && !filters.is_empty() {
            tracing::warn!("MC_MS_FILTERS does nothing unless MC_MS_AUTO_DISC=1 is set, too");
        }
        Ok(Self { auto, filters, near: None })
    }

    /// The same with devices near NUMA node `node` first.
    #[must_use]
    pub fn nearest(mut self, node: u32) -> Self {
        self.near = Some(node);
        self
    }

    /// The network interfaces to use: those that are up and have an address, the
    /// fastest first. The loopback is one of them only when a filter names it.
    /// With [`nearest`](Self::nearest) the distance counts before the speed;
    /// devices that do not know their node or speed come last.
    ///
    /// # Errors
    /// [`TopologyError::NoSuchDevice`] when a filter names nothing that exists on this host, and
    /// [`TopologyError::NoneUsable`] when nothing is left.
    pub fn select(&self, topology: &Topology) -> Result<Vec<Interface>, TopologyError> {
        if !self.auto {
            return Ok(Vec::new());
        }
        self.check_filters(topology)?;
        let judged = topology.interfaces.iter().map(|interface| {
            let named = self.names(&interface.name)
                || topology.rdma_devices.iter().any(|device| self.names_below(device, interface));
            let obstacle = if !named && !self.filters.is_empty() {
                Some("not among the names given")
            } else if interface.is_loopback && !named {
                Some("the loopback, which only a filter selects")
            } else if !interface.is_up {
                Some("down")
            } else if interface.addresses.is_empty() {
                Some("without an address")
            } else {
                None
            };
            (interface, obstacle)
        });
        let mut selected = usable(judged, |interface| &interface.name)?;
        selected.sort_by_key(|interface| {
            let distance = self.distance(topology, interface.numa_node);
            (distance, Reverse(interface.speed_mbits), interface.name.clone())
        });
        Ok(selected)
    }

    fn names(&self, device: &str) -> bool {
        self.filters.iter().any(|filter| filter == device)
    }

    /// Whether a filter names the RDMA device, or a port of it, that `interface` belongs to.
    fn names_below(&self, device: &RdmaDevice, interface: &Interface) -> bool {
        if !device.interfaces.contains(&interface.name) {
            return false;
        }
        let mut ports =
            device.ports.iter().filter(|port| is_on_port(&interface.name, device, port));
        self.names(&device.name)
            || ports.any(|port| self.filters.iter().any(|name| is_port(name, device, port)))
    }

    /// # Errors
    /// [`TopologyError::NoSuchDevice`] when a filter names nothing that exists.
    pub(super) fn check_filters(&self, topology: &Topology) -> Result<(), TopologyError> {
        let interfaces = topology.interfaces.iter().map(|interface| &*interface.name);
        let devices = topology.rdma_devices.iter().map(|device| &*device.name);
        let exist: BTreeSet<&str> = interfaces.chain(devices).collect();
        let devices = &topology.rdma_devices;
        let is_known = |name: &&String| {
            let mut ports = ports(topology);
            exist.contains(&***name) || ports.any(|(device, port)| is_port(name, device, port))
        };
        let Some(name) = self.filters.iter().find(|name| !is_known(name)) else { return Ok(()) };
        let device = name
            .split_once(':')
            .and_then(|(device, _)| devices.iter().find(|candidate| candidate.name == device));
        let available = match device {
            Some(device) => device.ports.iter().map(|port| port_name(device, port)).collect(),
            None => exist.into_iter().map(str::to_owned).collect(),
        };
        Err(TopologyError::NoSuchDevice { name: name.clone(), available })
    }

    /// The distance of a device of `node`; the same for all when it does not matter.
    pub(super) fn distance(&self, topology: &Topology, node: Option<u32>) -> u32 {
        let Some(near) = self.near else { return 0 };
        let known = node.and_then(|node| match topology.numa_distance(near, node) {
            None if node == near => Some(0),
            known => known,
        });
        known.unwrap_or(u32::MAX)
    }
}

/// The devices without an obstacle.
fn usable<'a, T: Clone + 'a>(
    judged: impl Iterator<Item = (&'a T, Option<&'static str>)>,
    name: impl Fn(&T) -> &str,
) -> Result<Vec<T>, TopologyError> {
    let (mut usable, mut seen) = (Vec::new(), Vec::new());
    for (device, obstacle) in judged {
        match obstacle {
            None => usable.push(device.clone()),
            Some(obstacle) => seen.push(format!("{} ({obstacle})", name(device))),
        }
    }
    if usable.is_empty() { Err(TopologyError::NoneUsable { seen }) } else { Ok(usable) }
}

#[cfg(test)]
mod tests {
    use super::super::sysfs::Tree;
    use super::*;

    fn from(auto: &str, filters: &str) -> Result<Discovery, BadVariable> {
        Discovery::from_variables(|name| match name {
            "MC_MS_AUTO_DISC" => Some(auto.into()),
            "MC_MS_FILTERS" => Some(filters.into()),
            _ => panic!("{name} was read"),
        })
    }

    /// A host of two sockets: a fast card far from node 0, slower ones near it,
    /// and what cannot be used.
    fn host() -> Topology {
        let interface = |name: &str, fields: [&str; 4]| {
            let names = ["flags", "operstate", "speed", "device/numa_node"];
            let path = |field| format!("class/net/{name}/{field}");
            names.map(path).into_iter().zip(fields.map(str::to_owned)).collect::<Vec<_>>()
        };
        let mut files = Vec::new();
        files.extend(interface("eth0", ["0x1003", "up", "25000", "0"]));
        files.extend(interface("eth1", ["0x1003", "up", "100000", "1"]));
        files.extend(interface("eth2", ["0x1003", "up", "100000", "0"]));
        files.extend(interface("eth3", ["0x1002", "down", "400000", "0"]));
        files.extend(interface("eth4", ["0x1003", "up", "400000", "0"]));
        files.extend(interface("veth0", ["0x1003", "up", "-1", "-1"]));
        files.extend(interface("lo", ["0x9", "unknown", "", ""]));
        let rdma = |name: &str, state: &str, rate: &str, node: &str, parent: &str| {
            let path = |field: &str| format!("class/infiniband/{name}/{field}");
            [
                (path("ports/1/state"), state.to_owned()),
                (path("ports/1/rate"), rate.to_owned()),
                (path("device/numa_node"), node.to_owned()),
                (path("parent"), parent.to_owned()),
            ]
        };
        files.extend(rdma("mlx5_0", "4: ACTIVE", "25 Gb/sec", "0", "eth0"));
        files.extend(rdma("mlx5_1", "4: ACTIVE", "100 Gb/sec", "1", "eth1"));
        files.extend(rdma("mlx5_3", "1: DOWN", "400 Gb/sec", "0", "eth3"));
        for (node, distances) in [("node0", "10 21"), ("node1", "21 10")] {
            files.push((format!("devices/system/node/{node}/distance"), distances.to_owned()));
        }
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (&**path, &**text)).collect();
        let addresses = ["eth0", "eth1", "eth2", "eth3", "veth0", "lo"];
        let address = |name: &str| (name.to_owned(), "192.0.2.1".parse().unwrap());
        Topology::from_sysfs(Tree::new(&files).root(), &addresses.map(address))
    }

    fn selected(discovery: &Discovery) -> Vec<String> {
        let selected = discovery.select(&host()).unwrap();
        selected.into_iter().map(|interface| interface.name).collect()
    }

    fn selected_rdma(discovery: &Discovery) -> Vec<String> {
        let selected = discovery.select_rdma(&host()).unwrap();
        selected.into_iter().map(|selected| selected.device.name).collect()
    }

    #[test]
    fn variables_say_what_to_look_for() {
        let expected = Discovery {
            auto: true,
            filters: vec!["mlx5_1".to_owned(), "mlx5_2".to_owned()],
            near: None,
        };
        assert_eq!(from("1", "mlx5_1,mlx5_2"), Ok(expected.clone()));
        assert_eq!(from("true", " mlx5_1 ,, mlx5_2, "), Ok(expected));
        assert_eq!(from("true", " , "), Ok(Discovery { auto: true, ..Discovery::default() }));
        for off in ["", "0", "false"] {
            assert!(!from(off, "eth0").unwrap().auto, "{off}");
        }
        assert_eq!(Discovery::from_variables(|_| None), Ok(Discovery::default()));
        assert_eq!(from("2", "").unwrap_err().variable, "MC_MS_AUTO_DISC");
    }

    #[test]
    fn named_devices_need_no_variable() {
        let named = Discovery::of_devices([" mlx5_1", "", "mlx5_0:1 "]);
        assert_eq!(named, from("1", "mlx5_1,mlx5_0:1").unwrap());
        assert_eq!(selected(&named), ["eth1", "eth0"]);
        assert_eq!(selected(&Discovery::of_devices(Vec::<String>::new())).len(), 4);
    }

    #[test]
    fn nothing_is_selected_while_discovery_is_off() {
        let off = from("0", "eth0").unwrap();
        assert!(off.select(&host()).unwrap().is_empty());
        assert!(off.select_rdma(&host()).unwrap().is_empty());
    }

    #[test]
    fn the_fastest_usable_device_comes_first() {
        let all = from("1", "").unwrap();
        assert_eq!(selected(&all), ["eth1", "eth2", "eth0", "veth0"]);
        assert_eq!(selected_rdma(&all), ["mlx5_1", "mlx5_0"]);
    }

    #[test]
    fn the_nearest_device_comes_first_when_a_node_is_named() {
        let near = |node| from("1", "").unwrap().nearest(node);
        assert_eq!(selected(&near(0)), ["eth2", "eth0", "eth1", "veth0"]);
        assert_eq!(selected(&near(1)), ["eth1", "eth2", "eth0", "veth0"]);
        assert_eq!(selected(&near(7)), ["eth1", "eth2", "eth0", "veth0"], "all are far");
        assert_eq!(selected_rdma(&near(0)), ["mlx5_0", "mlx5_1"]);
    }

    #[test]
    fn filters_name_either_side_of_a_device() {
        assert_eq!(selected(&from("1", "mlx5_0,eth2").unwrap()), ["eth2", "eth0"]);
        assert_eq!(selected(&from("1", "lo").unwrap()), ["lo"]);
        assert_eq!(
            selected(&from("1", "eth3,eth0").unwrap()),
            ["eth0"],
            "what is down is not used"
        );
        assert_eq!(selected_rdma(&from("1", "eth1").unwrap()), ["mlx5_1"]);
    }

    #[test]
    fn names_that_do_not_exist_are_errors() {
        for discovery in [from("1", "mlx5_9").unwrap(), from("1", "eth0,mlx5_9").unwrap()] {
            let error = discovery.select(&host()).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("\"mlx5_9\"") && text.contains("mlx5_0, mlx5_1"), "{text}");
            assert!(matches!(error, TopologyError::NoSuchDevice { .. }));
            assert!(discovery.select_rdma(&host()).is_err());
        }
    }

    #[test]
    fn each_device_says_why_it_is_not_used() {
        let error = from("1", "eth3,eth4").unwrap().select(&host()).unwrap_err();
        let TopologyError::NoneUsable { seen } = &error else { panic!("{error}") };
        assert!(seen.contains(&"eth3 (down)".to_owned()), "{error}");
        assert!(seen.contains(&"eth4 (without an address)".to_owned()), "{error}");
        assert!(seen.contains(&"eth0 (not among the names given)".to_owned()), "{error}");
        let error = from("1", "mlx5_3").unwrap().select_rdma(&host()).unwrap_err();
        assert!(error.to_string().contains("mlx5_3:1 (not active)"), "{error}");
        let error = from("1", "").unwrap().select(&Topology::default()).unwrap_err();
        assert!(error.to_string().contains("none at all"), "{error}");
    }
}
