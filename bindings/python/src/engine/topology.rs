//! The devices of this host, as Mooncake describes them.

use std::collections::BTreeSet;

use mc_transport::topology::{RdmaDevice, Topology};

/// Returns a JSON object that names, for the memory of each NUMA node, the RDMA devices near to it
/// and the other ones; of all devices, or of those that `names`, separated by commas, has.
pub(super) fn describe(names: Option<&str>) -> String {
    let topology = Topology::read().unwrap_or_default();
    let is_wanted = |device: &&RdmaDevice| {
        names.is_none_or(|names| names.split(',').any(|name| name.trim() == device.name))
    };
    let devices: Vec<&RdmaDevice> = topology.rdma_devices.iter().filter(is_wanted).collect();
    // A host without NUMA has node 0.
    let node_of = |device: &RdmaDevice| device.numa_node.unwrap_or(0);
    let mut nodes: BTreeSet<u32> = devices.iter().map(|device| node_of(device)).collect();
    nodes.insert(0);
    let lists = nodes.into_iter().map(|node| {
        let (near, far): (Vec<&RdmaDevice>, Vec<&RdmaDevice>) =
            devices.iter().partition(|device| node_of(device) == node);
        format!("\"cpu:{node}\": [{}, {}]", list(&near), list(&far))
    });
    format!("{{{}}}", lists.collect::<Vec<_>>().join(", "))
}

/// The names of devices as a list in JSON. They have no characters that must be escaped.
fn list(devices: &[&RdmaDevice]) -> String {
    let names = devices.iter().map(|device| format!("\"{}\"", device.name));
    format!("[{}]", names.collect::<Vec<_>>().join(", "))
}
