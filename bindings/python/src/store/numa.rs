//! Binds threads to NUMA nodes.

use std::fs;
use std::mem;

use pyo3::prelude::*;

/// bind_to_numa_node(node: int) -> None
///
/// Binds the calling thread to the processors of a NUMA node, and prefers that node's memory. Only
/// logs a warning when there is no such node.
#[pyfunction]
pub(crate) fn bind_to_numa_node(py: Python<'_>, node: i64) {
    py.detach(|| {
        let bound = usize::try_from(node).ok().and_then(|node| {
            let list = fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist"));
            let processors = processors(list.ok()?.trim())?;
            (run_on(&processors) && prefer_memory_of(node)).then_some(())
        });
        if bound.is_none() {
            tracing::warn!("cannot bind this thread to NUMA node {node}");
        }
    });
}

/// Reads a list such as `0-3,8`.
fn processors(list: &str) -> Option<Vec<usize>> {
    let mut processors = Vec::new();
    for range in list.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        processors.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(processors).filter(|processors| !processors.is_empty())
}

fn run_on(processors: &[usize]) -> bool {
    // SAFETY: `cpu_set_t` is an array of integers; all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    let known = 8 * size_of::<libc::cpu_set_t>();
    for &processor in processors.iter().filter(|&&processor| processor < known) {
        // SAFETY: the processor's bit lies within the set.
        unsafe { libc::CPU_SET(processor, &mut set) };
    }
    // SAFETY: the length is that of the set.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) == 0 }
}

fn prefer_memory_of(node: usize) -> bool {
    const BITS: usize = 64;
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
