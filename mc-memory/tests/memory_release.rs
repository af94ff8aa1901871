//! Memory of every kind is released when it is dropped. Alone in its process, because it
//! counts the mappings and descriptors of the process.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

use std::fs;
use std::path::Path;

use mc_memory::{Access, HugePageSize, HugePages, Memory, MemoryError, MemoryOptions};

/// Mappings and descriptors of this process, and its address space in pages.
fn holdings() -> (usize, usize, String) {
    let maps = fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().count();
    let size = fs::read_to_string("/proc/self/statm").unwrap();
    (maps, descriptors, size.split(' ').next().unwrap().to_owned())
}

fn kinds(directory: &Path) -> Vec<MemoryOptions> {
    let preferred = HugePages::preferred(HugePageSize::Mib2);
    let required = HugePages::required(HugePageSize::Gib1);
    vec![
        Memory::options(),
        Memory::options().align(1 << 21),
        Memory::options().pre_fault(2.try_into().unwrap()),
        Memory::options().shared(),
        Memory::options().shared().align(1 << 21).pre_fault(2.try_into().unwrap()),
        Memory::options().huge_pages(preferred),
        Memory::options().huge_pages(preferred).shared(),
        Memory::options().huge_pages(required),
        Memory::options().huge_pages(required).shared(),
        Memory::options().numa_node(0),
        Memory::options().numa_node(1023).shared(),
        Memory::options().file(directory.join("segment")),
        Memory::options().file("/dev/null"),
    ]
}

fn round(directory: &Path) {
    for options in kinds(directory) {
        for len in [0, 1, 5000, (3 << 20) + 1, isize::MAX as usize, usize::MAX] {
            let Ok(memory) = options.allocate(len) else { continue };
            let slice = memory.whole();
            let peer = match memory.share(Access::Read) {
                Ok(fd) => Some(Memory::map_shared(fd, len, Access::Read).unwrap()),
                Err(MemoryError::NotShareable) => None,
                Err(error) => panic!("{error}"),
            };
            if let Ok(fd) = memory.share(Access::ReadWrite) {
                let beyond = len + (2 << 30);
                assert!(Memory::map_shared(fd, beyond, Access::Read).is_err());
            }
            drop(memory);
            assert_eq!(slice.len(), len);
            drop((slice, peer));
        }
    }
}

#[test]
fn everything_is_given_back() {
    let directory = tempfile::tempdir().unwrap();
    // The first rounds start what the process keeps: caches of the allocator and
    // stacks of threads.
    (0..3).for_each(|_| round(directory.path()));
    let before = holdings();
    (0..20).for_each(|_| round(directory.path()));
    assert_eq!(holdings(), before);
}
