//! The allocators that a segment can have.

use core::fmt;
use core::str::FromStr;

/// How the bytes of a segment are divided among objects.
///
/// Written as [`FromStr`] reads it: `offset`, or `cachelib` as Mooncake
/// names slabs; `slab` means the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryAllocator {
    /// Exact sizes, merged again when freed; see [`mc_alloc::OffsetAllocator`].
    #[default]
    Offset,
    /// Size classes in slabs of 4 MiB, which no object can exceed; see
    /// [`mc_alloc::SlabAllocator`].
    Slab,
}

impl MemoryAllocator {
    /// Its name in settings.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Offset => "offset",
            Self::Slab => "cachelib",
        }
    }
}

impl fmt::Display for MemoryAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for MemoryAllocator {
    type Err = UnknownAllocator;

    fn from_str(name: &str) -> Result<Self, UnknownAllocator> {
        match name {
            "offset" => Ok(Self::Offset),
            "cachelib" | "slab" => Ok(Self::Slab),
            _ => Err(UnknownAllocator),
        }
    }
}

/// No memory allocator has the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("choose offset or cachelib")]
pub struct UnknownAllocator;
