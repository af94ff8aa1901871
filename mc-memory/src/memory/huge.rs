//! Pages larger than the usual ones, which spare the processor and network cards
//! most of their address translations.

use std::ffi::OsString;

use mc_types::ByteSize;

use crate::environment::{self, BadVariable};

/// Bytes of a huge page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HugePageSize {
    /// 2 MiB.
    #[default]
    Mib2,
    /// 1 GiB.
    Gib1,
}

impl HugePageSize {
    /// Bytes of a page.
    #[must_use]
    pub const fn bytes(self) -> usize {
        1 << self.shift()
    }

    /// The size of `bytes` bytes, if there are such pages.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Option<Self> {
        match bytes {
            0x20_0000 => Some(Self::Mib2),
            0x4000_0000 => Some(Self::Gib1),
            _ => None,
        }
    }

    /// Logarithm to base two of the bytes, as system calls want it.
    pub(super) const fn shift(self) -> u32 {
        match self {
            Self::Mib2 => 21,
            Self::Gib1 => 30,
        }
    }
}

/// A preference or a demand for huge pages, which the administrator must have reserved
/// (`vm.nr_hugepages`) before memory can have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePages {
    pub(super) size: HugePageSize,
    pub(super) required: bool,
}

impl HugePages {
    /// Huge pages if the system has enough of them. Otherwise a warning is logged
    /// and normal pages are used, which the system is asked to join where it can
    /// (transparent huge pages).
    #[must_use]
    pub const fn preferred(size: HugePageSize) -> Self {
        Self { size, required: false }
    }

    /// Huge pages or an error.
    #[must_use]
    pub const fn required(size: HugePageSize) -> Self {
        Self { size, required: true }
    }

    /// The setting of the environment, with `lookup` in place of
    /// [`std::env::var_os`]: `MC_STORE_USE_HUGEPAGE` (`1`, `true`, `yes` or `on`,
    /// or `0`, `false`, `no` or `off`, in any case; off when unset or empty) asks
    /// for huge pages when there are some, `MC_STORE_HUGEPAGE_SIZE` says of which
    /// size (`2M`, `1G`, with or without a `B` behind, or in bytes; 2 MiB when
    /// unset or empty). `None` when they are off.
    ///
    /// # Errors
    /// [`BadVariable`] when one of them has another value, the size also while
    /// huge pages are off.
    pub fn from_variables(
        lookup: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<Self>, BadVariable> {
        let on = environment::flag(&lookup, "MC_STORE_USE_HUGEPAGE")?;
        let size = environment::value(&lookup, "MC_STORE_HUGEPAGE_SIZE", "2M or 1G", |text| {
            HugePageSize::from_bytes(text.parse::<ByteSize>().ok()?.as_u64())
        })?;
        Ok(on.then(|| Self::preferred(size.unwrap_or_default())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the pages behind `memory`, as the system sees them.
    #[cfg(target_os = "linux")]
    fn page_bytes(memory: &crate::Memory) -> usize {
        let address = memory.whole().address().addr();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines().skip_while(|line| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let parse = |text| usize::from_str_radix(text, 16).ok();
            let range = range.and_then(|(first, end)| Some(parse(first)?..parse(end)?));
            !range.is_some_and(|range| range.contains(&address))
        });
        let line = lines.find_map(|line| line.strip_prefix("KernelPageSize:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
    }

    /// Holds with and without reserved huge pages; the outcome of the demand says
    /// which it is.
    #[test]
    #[cfg(target_os = "linux")]
    fn pages_are_huge_or_normal_but_always_there() {
        use crate::{Access, Memory, MemoryError};

        let len = (2 << 20) + 1;
        for size in [HugePageSize::Mib2, HugePageSize::Gib1] {
            for options in [Memory::options(), Memory::options().shared()] {
                match options.clone().huge_pages(HugePages::required(size)).allocate(len) {
                    Ok(memory) => assert_eq!(page_bytes(&memory), size.bytes()),
                    Err(error @ MemoryError::NoHugePages { .. }) => {
                        assert!(error.to_string().contains("nr_hugepages"), "{error}");
                    }
                    Err(error) => panic!("{error}"),
                }
                let preferred = options.clone().huge_pages(HugePages::preferred(size));
                let memory = preferred.allocate(len).unwrap();
                let normal = crate::memory::page_size();
                assert!([normal, size.bytes()].contains(&page_bytes(&memory)));
                memory.whole().copy_from(len - 4, b"tail").unwrap();
                if memory.shareable().is_some() {
                    let descriptor = memory.share(Access::Read).unwrap();
                    let peer = Memory::map_shared(descriptor, len, Access::Read).unwrap();
                    assert_eq!(page_bytes(&peer), page_bytes(&memory));
                    assert_eq!(peer.slice(len - 4, 4).unwrap().to_vec(), b"tail");
                }
            }
        }
    }

    fn read(on: Option<&str>, size: Option<&str>) -> Result<Option<HugePages>, BadVariable> {
        HugePages::from_variables(|name| match name {
            "MC_STORE_USE_HUGEPAGE" => on.map(OsString::from),
            "MC_STORE_HUGEPAGE_SIZE" => size.map(OsString::from),
            _ => panic!("{name} was read"),
        })
    }

    #[test]
    fn variables_choose_pages() {
        assert_eq!(read(None, None), Ok(None));
        assert_eq!(read(Some("0"), Some("1G")), Ok(None));
        let two = HugePages::preferred(HugePageSize::Mib2);
        assert_eq!(read(Some("1"), None), Ok(Some(two)));
        for size in ["2M", "2MB", "2m", "2mb", "2097152", "2048K", " 2M "] {
            assert_eq!(read(Some("true"), Some(size)), Ok(Some(two)), "{size}");
        }
        for size in ["1G", "1GB", "1gb", "1073741824", "1024M"] {
            let one = HugePages::preferred(HugePageSize::Gib1);
            assert_eq!(read(Some("on"), Some(size)), Ok(Some(one)), "{size}");
        }
    }

    #[test]
    fn other_values_are_errors() {
        for size in ["3M", "0", "-2M", "huge", "2MX", "99999999999999999999", "4K", "2 2M"] {
            let error = read(None, Some(size)).unwrap_err();
            assert_eq!(error.variable, "MC_STORE_HUGEPAGE_SIZE", "{size}");
            assert_eq!(error.value, size);
        }
        assert_eq!(read(Some("2"), None).unwrap_err().variable, "MC_STORE_USE_HUGEPAGE");
    }

    #[test]
    fn sizes_are_their_bytes() {
        for size in [HugePageSize::Mib2, HugePageSize::Gib1] {
            assert_eq!(HugePageSize::from_bytes(size.bytes() as u64), Some(size));
        }
    }
}
