//! Addresses of RDMA ports, from `ports/N/gids` and `ports/N/gid_attrs`.

use std::net::Ipv6Addr;
use std::path::Path;

use super::rdma::LinkLayer;
use super::{Interface, sysfs};

/// An address of an RDMA port: an entry of its table of global identifiers (GIDs).
///
/// The kernel changes the table when addresses are added to a network interface or
/// removed from it, so that an index may have another address later.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gid {
    /// The place in the table of the port.
    pub index: u8,
    /// The protocol of packets from this address.
    pub kind: GidKind,
    /// The 128 bits of the address, `::ffff:192.0.2.1` for one of IPv4. On InfiniBand these
    /// are the prefix of the subnet and the identifier of the port.
    pub address: Ipv6Addr,
    /// The network interface that has the address; `None` on InfiniBand, and when the
    /// system does not tell.
    pub interface: Option<String>,
    /// Whether it reaches this host only: the address or the interface is a loopback.
    pub is_loopback: bool,
}

/// The protocol of the packets of a [`Gid`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidKind {
    /// RDMA over Ethernet frames, which no router forwards.
    RoceV1,
    /// RDMA over UDP and IP, which routers forward.
    RoceV2,
    /// InfiniBand.
    InfiniBand,
}

/// The part of a network that knows an address, the largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    Ipv4,
    Global,
    UniqueLocal,
    LinkLocal,
}

impl Gid {
    /// The place of this address among those that a connection should try, for
    /// [`RdmaPort::ranked_gids`](super::RdmaPort::ranked_gids): the smallest comes first.
    pub(super) fn rank(&self) -> impl Ord + use<> {
        let (kind, scope) = match self.kind {
            GidKind::RoceV2 => (0, Some(self.scope())),
            GidKind::RoceV1 => (1, Some(self.scope())),
            GidKind::InfiniBand => (2, None),
        };
        (self.is_loopback, kind, scope, self.index)
    }

    fn scope(&self) -> Scope {
        match self.address.to_ipv4_mapped() {
            Some(address) if address.is_link_local() => Scope::LinkLocal,
            Some(_) => Scope::Ipv4,
            None if self.address.is_unicast_link_local() => Scope::LinkLocal,
            None if self.address.is_unique_local() => Scope::UniqueLocal,
            None => Scope::Global,
        }
    }
}

/// The addresses in the folder `port`, by index; `interfaces` are those of the host.
pub(super) fn read(port: &Path, link_layer: LinkLayer, interfaces: &[Interface]) -> Vec<Gid> {
    let indexes = sysfs::numbers(&port.join("gids"));
    indexes
        .into_iter()
        .filter_map(|index| {
            let address: Ipv6Addr = sysfs::number(&port.join(format!("gids/{index}")))?;
            let kind = kind(port, index, link_layer)?;
            if is_unused(address, kind) {
                return None;
            }
            let interface = interface(port, index);
            let is_loopback = match kind {
                GidKind::InfiniBand => false,
                GidKind::RoceV1 | GidKind::RoceV2 => {
                    is_loopback(address)
                        || interfaces.iter().any(|candidate| {
                            candidate.is_loopback && Some(&candidate.name) == interface.as_ref()
                        })
                }
            };
            Some(Gid { index, kind, address, interface, is_loopback })
        })
        .collect()
}

/// The network interface of entry `index`.
pub(super) fn interface(port: &Path, index: u8) -> Option<String> {
    sysfs::interface_name(&port.join(format!("gid_attrs/ndevs/{index}")))
}

/// The protocol of entry `index`; `None` when the entry is not in use.
fn kind(port: &Path, index: u8, link_layer: LinkLayer) -> Option<GidKind> {
    // The kernel has one text for RoCE v1 and InfiniBand. libibverbs takes a port whose link
    // layer is not known for InfiniBand, too.
    let first = match link_layer {
        LinkLayer::Ethernet => GidKind::RoceV1,
        LinkLayer::InfiniBand | LinkLayer::Unknown => GidKind::InfiniBand,
    };
    match sysfs::text(&port.join(format!("gid_attrs/types/{index}"))).as_deref() {
        Some("IB/RoCE v1") => Some(first),
        Some("RoCE v2") => Some(GidKind::RoceV2),
        // Some kernels refuse to tell the types of InfiniBand, where there is but one.
        None if link_layer == LinkLayer::InfiniBand => Some(GidKind::InfiniBand),
        _ => None,
    }
}

/// Whether `address` stands in an entry that is not in use: all bits are zero or, on
/// InfiniBand, those of the port's identifier.
fn is_unused(address: Ipv6Addr, kind: GidKind) -> bool {
    let bits = address.to_bits();
    bits == 0 || (kind == GidKind::InfiniBand && bits << 64 == 0)
}

fn is_loopback(address: Ipv6Addr) -> bool {
    address.is_loopback() || address.to_ipv4_mapped().is_some_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::super::sysfs::Tree;
    use super::super::{RdmaPort, Topology};
    use super::*;

    const PORT: &str = "class/infiniband/mlx5_0/ports/1";

    /// The port with this link layer and these entries: index, address, type, interface.
    fn port(link_layer: &str, gids: &[(&str, &str, &str, &str)]) -> RdmaPort {
        let mut files = vec![(format!("{PORT}/link_layer"), link_layer)];
        for (index, address, kind, interface) in gids {
            files.push((format!("{PORT}/gids/{index}"), address));
            let attributes = [("types", *kind), ("ndevs", *interface)];
            // The kernel refuses to read an attribute of an entry that is not in use.
            let present = attributes.into_iter().filter(|(_, text)| !text.is_empty());
            files.extend(
                present.map(|(name, text)| (format!("{PORT}/gid_attrs/{name}/{index}"), text)),
            );
        }
        files.push(("class/net/lo/flags".to_owned(), "0x9"));
        files.push(("class/net/eth0/flags".to_owned(), "0x1003"));
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (&**path, *text)).collect();
        let mut topology = Topology::from_sysfs(Tree::new(&files).root(), &[]);
        topology.rdma_devices.remove(0).ports.remove(0)
    }

    fn ranked(port: &RdmaPort) -> Vec<u8> {
        port.ranked_gids().iter().map(|gid| gid.index).collect()
    }

    fn indexes(port: &RdmaPort) -> Vec<u8> {
        port.gids.iter().map(|gid| gid.index).collect()
    }

    #[test]
    fn entries_in_use_become_addresses() {
        let port = port(
            "Ethernet\n",
            &[
                ("0", "fe80:0000:0000:0000:5054:00ff:fe12:3456\n", "IB/RoCE v1\n", "eth0\n"),
                ("1", "0000:0000:0000:0000:0000:ffff:c000:0201\n", "RoCE v2\n", "eth0\n"),
                ("2", "0000:0000:0000:0000:0000:0000:0000:0000\n", "RoCE v2\n", "eth0\n"),
                ("3", "2001:0db8:0000:0000:0000:0000:0000:0001\n", "", "eth0\n"),
                ("10", "2001:0db8:0000:0000:0000:0000:0000:0002\n", "RoCE v2\n", ""),
                ("255", "0000:0000:0000:0000:0000:ffff:7f00:0001\n", "RoCE v2\n", "eth0\n"),
            ],
        );
        let gid = |index, kind, address: &str, interface: Option<&str>, is_loopback| Gid {
            index,
            kind,
            address: address.parse().unwrap(),
            interface: interface.map(str::to_owned),
            is_loopback,
        };
        let expected = [
            gid(0, GidKind::RoceV1, "fe80::5054:ff:fe12:3456", Some("eth0"), false),
            gid(1, GidKind::RoceV2, "::ffff:192.0.2.1", Some("eth0"), false),
            gid(10, GidKind::RoceV2, "2001:db8::2", None, false),
            gid(255, GidKind::RoceV2, "::ffff:127.0.0.1", Some("eth0"), true),
        ];
        assert_eq!(port.gids, expected);
    }

    #[test]
    fn entries_that_mean_nothing_are_left_out() {
        let long = "f".repeat(10_000);
        let good = "2001:0db8:0000:0000:0000:0000:0000:0001";
        let port = port(
            "Ethernet",
            &[
                ("256", good, "RoCE v2", "eth0"),
                ("99999999999999999999", good, "RoCE v2", "eth0"),
                ("-1", good, "RoCE v2", "eth0"),
                ("+1", good, "RoCE v2", "eth0"),
                ("01", good, "RoCE v2", "eth0"),
                ("one", good, "RoCE v2", "eth0"),
                ("2", "", "RoCE v2", "eth0"),
                ("3", "xe80:0000:0000:0000:0000:0000:0000:0001", "RoCE v2", "eth0"),
                ("4", "2001:0db8:0000:0000:0000:0000:0001", "RoCE v2", "eth0"),
                ("5", &long, "RoCE v2", "eth0"),
                ("6", good, "RoCE v3", "eth0"),
                ("7", good, &long, "eth0"),
                ("8/deeper", good, "RoCE v2", "eth0"),
                ("9", good, "RoCE v2", "../../net/eth0"),
                ("10", good, "RoCE v2", &long),
            ],
        );
        assert_eq!(indexes(&port), [9, 10]);
        assert!(port.gids.iter().all(|gid| gid.interface.is_none()), "{port:?}");
    }

    #[test]
    fn bytes_that_are_no_text_are_no_address() {
        let tree = Tree::new(&[("gids/1", "::1"), ("gid_attrs/types/1", "RoCE v2")]);
        std::fs::write(tree.root().join("gids/0"), [0xff, 0, 0xfe]).unwrap();
        std::fs::create_dir(tree.root().join("gids/2")).unwrap();
        let read = read(tree.root(), LinkLayer::Ethernet, &[]);
        assert_eq!(read.iter().map(|gid| gid.index).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn at_most_256_entries_are_read() {
        let indexes: Vec<String> = (0..1000).map(|index| index.to_string()).collect();
        let entries: Vec<_> =
            indexes.iter().map(|index| (&**index, "2001:db8::1", "RoCE v2", "")).collect();
        let port = port("Ethernet", &entries);
        assert!(port.gids.iter().map(|gid| gid.index).eq(0..=255));
    }

    #[test]
    fn routable_addresses_come_first_on_ethernet() {
        let port = port(
            "Ethernet",
            &[
                ("0", "fe80::1", "IB/RoCE v1", "eth0"),
                ("1", "fe80::1", "RoCE v2", "eth0"),
                ("2", "::1", "RoCE v2", "eth0"),
                ("3", "::ffff:127.9.9.9", "RoCE v2", "eth0"),
                ("4", "2001:db8::1", "IB/RoCE v1", "eth0"),
                ("5", "::ffff:192.0.2.1", "IB/RoCE v1", "eth0"),
                ("6", "fd00::1", "IB/RoCE v1", "eth0"),
                ("7", "fd00::1", "RoCE v2", "eth0"),
                ("8", "2001:db8::1", "RoCE v2", "eth0"),
                ("9", "::ffff:169.254.0.1", "RoCE v2", "eth0"),
                ("10", "::ffff:192.0.2.1", "RoCE v2", "eth0"),
                ("11", "::ffff:192.0.2.2", "RoCE v2", "eth0"),
            ],
        );
        assert_eq!(ranked(&port), [10, 11, 8, 7, 1, 9, 5, 4, 6, 0, 3, 2]);
    }

    #[test]
    fn the_loopback_has_addresses_as_a_last_resort() {
        // What a rxe device on `lo` has: the link-local address is one of no interface.
        let mut entries = vec![
            ("0", "fe80::200:ff:fe00:0", "RoCE v2", "lo"),
            ("1", "::ffff:127.0.0.1", "RoCE v2", "lo"),
            ("2", "::1", "RoCE v2", "lo"),
        ];
        assert_eq!(ranked(&port("Ethernet", &entries)), [1, 2, 0]);
        entries.push(("3", "fe80::1", "IB/RoCE v1", "eth0"));
        assert_eq!(ranked(&port("Ethernet", &entries)), [3, 1, 2, 0]);
    }

    #[test]
    fn the_first_address_comes_first_on_infiniband() {
        let entries = [
            ("0", "fe80:0000:0000:0000:b8ce:f603:0012:3456", "IB/RoCE v1", ""),
            ("1", "2001:0db8:0000:0000:b8ce:f603:0012:3456", "", ""),
            ("2", "fe80:0000:0000:0000:0000:0000:0000:0000", "IB/RoCE v1", ""),
            ("3", "fe80:0000:0000:0000:0000:0000:0000:0000", "", ""),
        ];
        let port = port("InfiniBand", &entries);
        assert_eq!(ranked(&port), [0, 1]);
        assert!(port.gids.iter().all(|gid| gid.kind == GidKind::InfiniBand));
    }

    #[test]
    fn ports_without_a_known_link_layer_are_taken_for_infiniband() {
        let entries =
            [("0", "fe80::1", "IB/RoCE v1", ""), ("1", "fe80::2", "", ""), ("2", "::1", "?", "")];
        for link_layer in ["Unknown", "", "Token Ring"] {
            let port = port(link_layer, &entries);
            assert_eq!((port.link_layer, indexes(&port)), (LinkLayer::Unknown, vec![0]));
            assert_eq!(port.gids[0].kind, GidKind::InfiniBand);
        }
    }
}
