//! Memory that stays on one NUMA node.

use std::io;

use super::MemoryError;
use super::mapping::Mapping;

/// Most nodes that any Linux kernel supports.
const MAX_NODES: usize = 1024;

/// Nothing but the nodes of the mask.
const BIND: libc::c_ulong = libc::MPOL_BIND as libc::c_ulong;

/// Bits of one word of a node mask.
const WORD: usize = libc::c_ulong::BITS as usize;

/// Lets the pages of `mapping`, none of which were touched yet, come from `node`
/// only.
pub(super) fn bind(mapping: &Mapping, node: u32) -> Result<(), MemoryError> {
    let mut mask: [libc::c_ulong; MAX_NODES / WORD] = [0; _];
    let index = usize::try_from(node).unwrap_or(usize::MAX);
    let Some(word) = mask.get_mut(index / WORD) else {
        return Err(MemoryError::NoSuchNode { node });
    };
    *word = 1 << (index % WORD);
    // The kernel reads one bit less than it is told.
    let bits = MAX_NODES + 1;
    // SAFETY: the range is one mapping of ours, whose content the call does not
    // change, and the mask has the announced number of bits.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            mapping.base().as_ptr(),
            mapping.len(),
            BIND,
            mask.as_ptr(),
            bits,
            0 as libc::c_uint,
        )
    };
    if done == 0 {
        return Ok(());
    }
    let source = io::Error::last_os_error();
    match source.raw_os_error() {
        Some(libc::EINVAL) => Err(MemoryError::NoSuchNode { node }),
        _ => Err(MemoryError::NodeRefused { node, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    /// Answer with a node, see `get_mempolicy(2)`.
    const MPOL_F_NODE: libc::c_ulong = 1;
    /// Answer for the page at an address.
    const MPOL_F_ADDR: libc::c_ulong = 2;

    /// The node that the page at the beginning of `memory` comes from.
    fn node_of(memory: &Memory) -> io::Result<u32> {
        let mut node: libc::c_int = -1;
        // SAFETY: the address belongs to memory that lives, the mask is absent,
        // and the answer goes to a variable of the right type.
        let done = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut node,
                std::ptr::null_mut::<libc::c_ulong>(),
                0 as libc::c_ulong,
                memory.whole().address(),
                MPOL_F_NODE | MPOL_F_ADDR,
            )
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(u32::try_from(node).unwrap())
    }

    fn nodes_with_memory() -> Vec<u32> {
        let list = std::fs::read_to_string("/sys/devices/system/node/has_memory");
        // A kernel without the file knows of one node.
        let list = list.unwrap_or_else(|_| "0".to_owned());
        let ends = list.trim().split([',', '-']).map(|node| node.parse().unwrap());
        ends.collect()
    }

    #[test]
    fn pages_come_from_the_node_asked_for() {
        for node in nodes_with_memory() {
            for options in [Memory::options(), Memory::options().shared()] {
                match options.numa_node(node).allocate(1 << 20) {
                    Ok(memory) => {
                        memory.whole().copy_from(0, b"touched").unwrap();
                        assert_eq!(node_of(&memory).unwrap(), node);
                    }
                    // A container may forbid the call, or the process the node.
                    Err(MemoryError::NodeRefused { source, .. }) => {
                        let code = source.raw_os_error();
                        assert!(
                            [Some(libc::EPERM), Some(libc::ENOSYS)].contains(&code),
                            "{source}"
                        );
                    }
                    Err(error) => {
                        assert!(matches!(error, MemoryError::NoSuchNode { .. }), "{error}");
                    }
                }
            }
        }
    }

    #[test]
    fn nodes_that_do_not_exist_are_errors() {
        let last = MAX_NODES as u32 - 1;
        assert!(!nodes_with_memory().contains(&last));
        for node in [last, last + 1, u32::MAX] {
            let refused = Memory::options().numa_node(node).allocate(4096).unwrap_err();
            let expected = match &refused {
                MemoryError::NoSuchNode { node: named } => *named == node,
                // Where the call is forbidden, the node is ignored.
                MemoryError::NodeRefused { .. } => node == last,
                _ => false,
            };
            assert!(expected, "{refused}");
        }
    }
}
