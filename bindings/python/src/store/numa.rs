//! Binds threads to NUMA nodes.

use std::mem;
use std::path::Path;

use mc_transport::topology::Topology;
use pyo3::prelude::*;

/// bind_to_numa_node(node: int) -> None
///
/// Binds the calling thread to the processors of a NUMA node, and prefers that node's memory. Only
/// logs a warning when there is no such node.
#[pyfunction]
pub(crate) fn bind_to_numa_node(py: Python<'_>, node: i64) {
    py.detach(|| {
        let is_bound = u32::try_from(node).is_ok_and(|node| run_on(node) && prefer_memory_of(node));
        if !is_bound {
            tracing::warn!("cannot bind this thread to NUMA node {node}");
        }
    });
}

fn run_on(node: u32) -> bool {
    let topology = Topology::from_sysfs(Path::new("/sys"), &[]);
    // SAFETY: `cpu_set_t` is an array of integers; all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    let known = 8 * size_of::<libc::cpu_set_t>();
    for processor in (0..known).filter(|&cpu| topology.numa_node_of_cpu(cpu as u32) == Some(node)) {
        // SAFETY: the processor's bit lies within the set.
        unsafe { libc::CPU_SET(processor, &mut set) };
    }
    // SAFETY: the length is that of the set.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) == 0 }
}

fn prefer_memory_of(node: u32) -> bool {
    const BITS: usize = 64;
    let node = node as usize;
    let mut mask = [0u64; 16];
    let Some(word) = mask.get_mut(node / BITS) else { return false };
    *word = 1 << (node % BITS);
    // The system call reads one bit less than this number.
    let bits = mask.len() * BITS + 1;
    // SAFETY: the system reads `bits - 1` bits, all of which `mask` has.
    unsafe {
        libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_PREFERRED, mask.as_ptr(), bits) == 0
    }
}
