//! How memory is allocated when plain pages of this process do not do.

use std::io;

use super::mapping::{Content, Mapping, page_size};
use super::{Backing, Memory, MemoryError};

/// How to allocate a block; [`Memory::options`] begins.
///
/// ```
/// use mc_transport::{Access, Memory};
/// let options = Memory::options().align(2 << 20);
/// # #[cfg(target_os = "linux")]
/// let options = options.shared();
/// let memory = options.allocate(1 << 20)?;
/// # #[cfg(target_os = "linux")]
/// let descriptor = memory.share(Access::Read)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until they allocate"]
pub struct MemoryOptions {
    shared: bool,
    align: Option<usize>,
}

impl MemoryOptions {
    /// Memory that can be given to other processes of this host
    /// ([`Memory::share`]). Linux only.
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// The first byte lies at a multiple of `bytes`, a power of two. Memory is
    /// aligned to a page anyway.
    pub fn align(mut self, bytes: usize) -> Self {
        self.align = Some(bytes);
        self
    }

    /// Takes `len` zeroed bytes. The system populates their pages when they are
    /// first touched.
    ///
    /// # Errors
    /// [`MemoryError::Empty`] when `len` is zero and there is any option,
    /// [`MemoryError::BadAlignment`], [`MemoryError::Unsupported`] where an
    /// option does not exist, and [`MemoryError::TooLarge`] or
    /// [`MemoryError::Refused`] when the system has no such room.
    pub fn allocate(&self, len: usize) -> Result<Memory, MemoryError> {
        let Self { shared, align } = *self;
        if !shared && align.is_none() {
            return Memory::allocate(len);
        }
        let align = align.unwrap_or_else(page_size);
        if !align.is_power_of_two() {
            return Err(MemoryError::BadAlignment { align });
        }
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        if isize::try_from(len).is_err() {
            return Err(MemoryError::TooLarge { len });
        }
        let refused = |source| MemoryError::Refused { len, source };
        if shared {
            return allocate_shared(len, align);
        }
        let mapping = Mapping::aligned(len, align, Content::Private).map_err(refused)?;
        Ok(Memory::new(mapping.base(), len, Backing::Private { _mapping: mapping }))
    }
}

#[cfg(target_os = "linux")]
fn allocate_shared(len: usize, align: usize) -> Result<Memory, MemoryError> {
    use std::os::fd::AsFd;

    let map = || -> io::Result<_> {
        let file = super::shared::create(len)?;
        let content = Content::Shared { file: file.as_fd(), writable: true };
        let mapping = Mapping::aligned(len, align, content)?;
        Ok((mapping, file))
    };
    let (mapping, file) = map().map_err(|source| MemoryError::Refused { len, source })?;
    Ok(Memory::new(mapping.base(), len, Backing::Shared { _mapping: mapping, file }))
}

#[cfg(not(target_os = "linux"))]
fn allocate_shared(_: usize, _: usize) -> Result<Memory, MemoryError> {
    Err(MemoryError::Unsupported { wanted: "shared memory" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_is_kept() {
        for align in [1, 4096, 64 << 10, 2 << 20, 1 << 30] {
            for len in [1, 4096, 3 << 20] {
                let memory = Memory::options().align(align).allocate(len).unwrap();
                assert_eq!(memory.whole().address() as usize % align, 0, "{align} {len}");
                memory.whole().copy_from(len - 1, b"x").unwrap();
                assert_eq!(memory.try_into_bytes(len).unwrap()[len - 1], b'x');
                #[cfg(target_os = "linux")]
                {
                    let memory = Memory::options().align(align).shared().allocate(len).unwrap();
                    assert_eq!(memory.whole().address() as usize % align, 0, "{align} {len}");
                    memory.whole().copy_from(len - 1, b"x").unwrap();
                }
            }
        }
        for align in [0, 3, 4097, usize::MAX] {
            let refused = Memory::options().align(align).allocate(1);
            assert!(matches!(refused, Err(MemoryError::BadAlignment { .. })), "{align}");
        }
    }

    #[test]
    fn no_option_is_plain_allocation() {
        assert!(Memory::options().allocate(0).unwrap().is_empty());
        assert_eq!(Memory::options().allocate(5).unwrap().len(), 5);
        let refused = Memory::options().allocate(usize::MAX);
        assert!(matches!(refused, Err(MemoryError::TooLarge { .. })));
    }
}
