//! Devices of this host that move bytes: network interfaces, RDMA devices, and
//! the NUMA nodes that they are near to.
//!
//! Linux tells it in files below `/sys`; elsewhere the lists are empty.

mod discovery;
mod gid;
mod interface;
mod numa;
mod rdma;
mod rdma_selection;
mod sysfs;
mod system;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::Path;

pub use self::discovery::Discovery;
pub use self::gid::{Gid, GidKind};
pub use self::interface::Interface;
use self::numa::NumaNode;
pub use self::rdma::{LinkLayer, RdmaDevice, RdmaPort};
pub use self::rdma_selection::SelectedRdmaPort;

/// The network interfaces, RDMA devices and NUMA nodes of a host at one moment.
///
/// ```
/// use mc_memory::topology::Topology;
/// for interface in &Topology::read()?.interfaces {
///     println!("{} {:?}, up: {}", interface.name, interface.addresses, interface.is_up);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Topology {
    /// Network interfaces, by name.
    pub interfaces: Vec<Interface>,
    /// RDMA devices, by name.
    pub rdma_devices: Vec<RdmaDevice>,
    /// NUMA nodes, by number.
    nodes: Vec<NumaNode>,
}

impl Topology {
    /// Reads the devices of this host, as the network namespace of this process sees them.
    /// Properties that the system does not tell are left out.
    ///
    /// # Errors
    /// [`TopologyError::NoAddresses`] when the system does not list its addresses.
    pub fn read() -> Result<Self, TopologyError> {
        let addresses =
            system::addresses().map_err(|source| TopologyError::NoAddresses { source })?;
        Ok(Self::from_sysfs(Path::new("/sys"), &addresses))
    }

    /// Reads the files below `root`, which is `/sys` on a host; `addresses` are
    /// the addresses of its interfaces, by their names. For tests and for what was
    /// recorded elsewhere.
    ///
    /// Of each file the first 4096 bytes are read, of each folder 4096 entries.
    #[must_use]
    pub fn from_sysfs(root: &Path, addresses: &[(String, IpAddr)]) -> Self {
        let interfaces = interface::read(&root.join("class/net"), addresses);
        Self {
            rdma_devices: rdma::read(&root.join("class/infiniband"), &interfaces),
            interfaces,
            nodes: numa::read(&root.join("devices/system/node")),
        }
    }

    /// The NUMA node that processor `cpu` belongs to; `None` when the host does not
    /// tell.
    #[must_use]
    pub fn numa_node_of_cpu(&self, cpu: u32) -> Option<u32> {
        self.nodes.iter().find(|node| node.has_cpu(cpu)).map(|node| node.number)
    }

    /// The NUMA node of the processor that runs this thread. Only a thread that is
    /// bound to processors stays there.
    #[must_use]
    pub fn current_numa_node(&self) -> Option<u32> {
        self.numa_node_of_cpu(system::current_cpu()?)
    }

    /// The distance of memory of node `to` from processors of node `from`, in units of
    /// which ten mean "the same node"; `None` when the host does not tell.
    #[must_use]
    pub fn numa_distance(&self, from: u32, to: u32) -> Option<u32> {
        // Distances stand in the order of the nodes.
        let column = self.nodes.iter().position(|node| node.number == to)?;
        let row = self.nodes.iter().find(|node| node.number == from)?;
        row.distances.get(column).copied()
    }
}

/// Why the devices to use are not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// The system does not list the addresses of its interfaces.
    #[error("the system does not list its network addresses")]
    NoAddresses {
        /// The system's error.
        source: io::Error,
    },
    /// No device has a name that was asked for.
    #[error("this host has no device {name:?}; its devices: {}", List(available))]
    NoSuchDevice {
        /// The name.
        name: String,
        /// The devices that exist; if the device does, but not the port, its ports.
        available: Vec<String>,
    },
    /// No device can be used.
    #[error("no device can be used: there is {}", List(seen))]
    NoneUsable {
        /// The devices that exist, each with what keeps it from being used.
        seen: Vec<String>,
    },
}

/// Shows the first devices of a list that may be long.
struct List<'a>(&'a [String]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 32;
        if self.0.is_empty() {
            return f.write_str("none at all");
        }
        f.write_str(&self.0[..self.0.len().min(SHOWN)].join(", "))?;
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn this_host_has_a_loopback() {
        let topology = Topology::read().unwrap();
        let loopback = topology.interfaces.iter().find(|interface| interface.is_loopback);
        let loopback = loopback.expect("every network namespace has one");
        assert_eq!(loopback.name, "lo");
        assert_eq!(loopback.speed_mbits, None);
        assert!(loopback.mtu.is_some());
        let has_address = loopback.addresses.iter().any(IpAddr::is_loopback);
        assert!(loopback.is_up || !has_address, "{loopback:?}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_thread_runs_on_a_node_that_exists() {
        let topology = Topology::read().unwrap();
        match topology.current_numa_node() {
            Some(node) => assert_eq!(topology.numa_distance(node, node), Some(10)),
            // A kernel without NUMA has no nodes.
            None => assert!(topology.nodes.is_empty()),
        }
    }

    #[test]
    fn a_host_that_tells_nothing_has_nothing() {
        let empty = tempfile::tempdir().unwrap();
        let topology = Topology::from_sysfs(empty.path(), &[]);
        assert_eq!(topology, Topology::default());
        assert_eq!(topology.numa_node_of_cpu(0), None);
        assert_eq!(topology.numa_distance(0, 0), None);
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<String> = (0..40).map(|index| format!("eth{index}")).collect();
        let error = TopologyError::NoSuchDevice { name: "x".to_owned(), available: names };
        assert!(error.to_string().ends_with("eth31 and 8 more"), "{error}");
        let error = TopologyError::NoneUsable { seen: Vec::new() };
        assert!(error.to_string().ends_with("none at all"), "{error}");
    }
}
