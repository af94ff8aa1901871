//! Network interfaces, from `/sys/class/net`.

use std::net::IpAddr;
use std::path::Path;

use super::sysfs;

/// `IFF_UP` of `netdevice(7)`: switched on.
const UP: u32 = 0x1;

/// `IFF_LOOPBACK`: reaches this host only.
const LOOPBACK: u32 = 0x8;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interface {
    /// The name, `eth0` for example.
    pub name: String,
    /// The addresses, IPv4 before IPv6, without those of IPv6 that mean something
    /// on one link only.
    pub addresses: Vec<IpAddr>,
    /// Whether it reaches this host only.
    pub is_loopback: bool,
    /// Whether it is switched on and, as far as it can tell, connected.
    pub is_up: bool,
    /// Megabits (10^6 bits) per second; `None` when the device does not know, as
    /// many virtual ones.
    pub speed_mbits: Option<u32>,
    /// The NUMA node that the device is attached to; `None` when it has none or
    /// does not know.
    pub numa_node: Option<u32>,
    /// Bytes of the largest packet.
    pub mtu: Option<u32>,
}

/// The interfaces in the folder `class`, with their addresses of the list.
pub(super) fn read(class: &Path, addresses: &[(String, IpAddr)]) -> Vec<Interface> {
    let folders = sysfs::names(class).into_iter().filter(|name| class.join(name).is_dir());
    folders.map(|name| read_one(&class.join(&name), name, addresses)).collect()
}

fn read_one(folder: &Path, name: String, addresses: &[(String, IpAddr)]) -> Interface {
    let flags = sysfs::hex(&folder.join("flags")).unwrap_or(0);
    // A driver that does not follow its link says "unknown", as the loopback does.
    let state = sysfs::text(&folder.join("operstate"));
    let connected = state.is_none_or(|state| state == "up" || state == "unknown");
    let own = addresses.iter().filter(|(owner, _)| *owner == name);
    let mut own: Vec<IpAddr> =
        own.map(|(_, address)| *address).filter(|address| !is_link_local(address)).collect();
    own.sort_unstable();
    own.dedup();
    Interface {
        is_loopback: flags & LOOPBACK != 0,
        is_up: flags & UP != 0 && connected,
        // Zero and the largest number are what some drivers say for "unknown".
        speed_mbits: sysfs::number(&folder.join("speed"))
            .filter(|speed| !matches!(*speed, 0 | u32::MAX)),
        numa_node: sysfs::numa_node(&folder.join("device")),
        mtu: sysfs::number(&folder.join("mtu")),
        addresses: own,
        name,
    }
}

fn is_link_local(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::super::sysfs::Tree;
    use super::*;

    #[test]
    fn attributes_become_fields() {
        let tree = Tree::new(&[
            ("bonding_masters", "bond0"),
            ("eth0/flags", "0x1003\n"),
            ("eth0/operstate", "up\n"),
            ("eth0/speed", "100000\n"),
            ("eth0/mtu", "9000\n"),
            ("eth0/device/numa_node", "1\n"),
            ("eth1/flags", "0x1002\n"),
            ("eth1/operstate", "down\n"),
            ("eth1/speed", "-1\n"),
            ("eth1/mtu", "1500\n"),
            ("eth1/device/numa_node", "-1\n"),
            ("eth2/flags", "0x1003\n"),
            ("eth2/operstate", "lowerlayerdown\n"),
            ("eth2/speed", "4294967295\n"),
            ("lo/flags", "0x9\n"),
            ("lo/operstate", "unknown\n"),
            ("lo/mtu", "65536\n"),
            ("odd/flags", "up and running"),
            ("odd/speed", "fast"),
            ("odd/mtu", ""),
        ]);
        let given = |name: &str, address: &str| (name.to_owned(), address.parse().unwrap());
        let addresses = [
            given("eth0", "fe80::1"),
            given("eth0", "2001:db8::1"),
            given("eth0", "192.0.2.1"),
            given("eth0", "192.0.2.1"),
            given("lo", "127.0.0.1"),
            given("ghost", "192.0.2.9"),
        ];
        let read = read(tree.root(), &addresses);
        let names: Vec<&str> = read.iter().map(|interface| &*interface.name).collect();
        assert_eq!(names, ["eth0", "eth1", "eth2", "lo", "odd"]);
        let expected = Interface {
            name: "eth0".to_owned(),
            addresses: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
            is_loopback: false,
            is_up: true,
            speed_mbits: Some(100_000),
            numa_node: Some(1),
            mtu: Some(9000),
        };
        assert_eq!(read[0], expected);
        assert_eq!((read[1].is_up, read[1].speed_mbits, read[1].numa_node), (false, None, None));
        assert_eq!((read[2].is_up, read[2].speed_mbits, read[2].mtu), (false, None, None));
        assert!(read[3].is_loopback && read[3].is_up);
        assert!(!read[4].is_up && read[4].speed_mbits.is_none() && read[4].mtu.is_none());
    }
}
