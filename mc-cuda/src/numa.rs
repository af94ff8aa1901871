//! The NUMA node of a GPU.

use std::path::Path;

use crate::context::Context;

/// The NUMA node of the PCI device with this address, such as `0000:41:00.0`.
pub(crate) fn node_of(pci_bus_id: &str) -> Option<usize> {
    let path = Path::new("/sys/bus/pci/devices").join(pci_bus_id.to_lowercase()).join("numa_node");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Lets the pages that this thread takes come from the node of a GPU, until it is dropped.
pub(crate) struct NearMemory {
    #[cfg(target_os = "linux")]
    is_set: bool,
}

impl NearMemory {
    #[cfg(target_os = "linux")]
    pub(crate) fn of(context: &Context) -> Self {
        let node = context.pci_bus_id().ok().and_then(|id| node_of(&id));
        Self { is_set: node.is_some_and(prefer) }
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn of(_: &Context) -> Self {
        Self {}
    }
}

/// Nodes that a mask of one word has.
#[cfg(target_os = "linux")]
const NODES: usize = usize::BITS as usize;

#[cfg(target_os = "linux")]
fn prefer(node: usize) -> bool {
    if node >= NODES {
        return false;
    }
    let mask = 1_usize << node;
    // SAFETY: the mask has as many bits as are told, of which the system reads one less.
    let set = unsafe {
        libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_PREFERRED, &raw const mask, NODES + 1)
    };
    set == 0
}

#[cfg(target_os = "linux")]
impl Drop for NearMemory {
    fn drop(&mut self) {
        if self.is_set {
            let none: *const usize = std::ptr::null();
            // SAFETY: the default has no mask.
            let _ = unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_DEFAULT, none, 0) };
        }
    }
}
