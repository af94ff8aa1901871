//! RDMA devices, from `/sys/class/infiniband`.

use std::path::Path;

use super::sysfs;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaPort {
    /// The number; the first is 1.
    pub number: u32,
    /// Whether it can carry data now.
    pub is_active: bool,
    /// Megabits (10^6 bits) per second.
    pub rate_mbits: Option<u32>,
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

/// The devices in the folder `class`.
pub(super) fn read(class: &Path) -> Vec<RdmaDevice> {
    let folders = sysfs::names(class).into_iter().filter(|name| class.join(name).is_dir());
    folders.map(|name| read_one(&class.join(&name), name)).collect()
}

fn read_one(folder: &Path, name: String) -> RdmaDevice {
    let numbers = sysfs::names(&folder.join("ports"));
    let mut ports: Vec<RdmaPort> = numbers
        .iter()
        .filter_map(|number| {
            let port = folder.join("ports").join(number);
            Some(read_port(&port, number.parse().ok()?))
        })
        .collect();
    ports.sort_unstable_by_key(|port| port.number);
    // A card names the interfaces of its PCI function; a device in software names
    // the interface that it sits on.
    let mut interfaces = sysfs::names(&folder.join("device/net"));
    interfaces.extend(sysfs::text(&folder.join("parent")));
    let first_of_port =
        |port: &RdmaPort| folder.join(format!("ports/{}/gid_attrs/ndevs/0", port.number));
    interfaces.extend(ports.iter().filter_map(|port| sysfs::text(&first_of_port(port))));
    interfaces.sort_unstable();
    interfaces.dedup();
    RdmaDevice { ports, numa_node: sysfs::numa_node(&folder.join("device")), interfaces, name }
}

fn read_port(folder: &Path, number: u32) -> RdmaPort {
    // "4: ACTIVE"
    let state = sysfs::text(&folder.join("state"));
    let is_active = state.is_some_and(|state| state.split(':').next() == Some("4"));
    let rate = sysfs::text(&folder.join("rate"));
    RdmaPort { number, is_active, rate_mbits: rate.and_then(|rate| parse_rate(&rate)) }
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
        let devices = read(tree.root());
        let names: Vec<&str> = devices.iter().map(|device| &*device.name).collect();
        assert_eq!(names, ["mlx5_0", "odd", "rxe0"]);
        let card = &devices[0];
        let ports = [
            RdmaPort { number: 1, is_active: true, rate_mbits: Some(100_000) },
            RdmaPort { number: 2, is_active: false, rate_mbits: Some(400_000) },
        ];
        assert_eq!(card.ports, ports);
        assert_eq!((card.numa_node, card.rate_mbits()), (Some(1), Some(100_000)));
        assert_eq!(card.interfaces, ["eth0", "eth1"]);
        assert!(!devices[1].is_active() && devices[1].ports[0].rate_mbits.is_none());
        assert_eq!(devices[2].interfaces, ["eth7"]);
        assert_eq!((devices[2].rate_mbits(), devices[2].numa_node), (Some(2500), None));
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
