//! Options for memory that is not plain pages of this process.

use std::num::NonZeroUsize;
#[cfg(target_os = "linux")]
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use super::huge::{HugePageSize, HugePages};
use super::mapping::{Content, Mapping, page_size};
use super::populate::populate;
use super::prefault::Prefault;
use super::{Backing, Memory, MemoryError};
use crate::environment::BadVariable;

/// Options for allocating a block, made by [`Memory::options`].
///
/// ```
/// use mc_memory::{HugePageSize, HugePages, Memory};
/// let options = Memory::options().align(2 << 20).pre_fault(2.try_into()?);
/// # #[cfg(target_os = "linux")]
/// let options = options.shared().huge_pages(HugePages::preferred(HugePageSize::Mib2));
/// let memory = options.allocate(1 << 20)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "options do nothing until they allocate"]
pub struct MemoryOptions {
    shared: bool,
    file: Option<PathBuf>,
    lock: Option<FileLock>,
    huge_pages: Option<HugePages>,
    numa_node: Option<u32>,
    pre_fault: Option<NonZeroUsize>,
    align: Option<usize>,
}

/// The other users of a file that memory with it admits; see [`MemoryOptions::lock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileLock {
    /// Any but those with an exclusive lock. A file system without locks admits those, too.
    Shared,
    /// None.
    Exclusive,
}

/// Where the pages of one attempt come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pages {
    Normal,
    /// Normal ones that the system may join to huge ones.
    Joined,
    Huge(HugePageSize),
}

impl MemoryOptions {
    /// The options that the environment asks for: huge pages, see
    /// [`HugePages::from_variables`].
    ///
    /// # Errors
    /// [`BadVariable`] when a variable has a value that means nothing.
    pub fn from_env() -> Result<Self, BadVariable> {
        let huge_pages = HugePages::from_variables(|name| std::env::var_os(name))?;
        Ok(Self { huge_pages, ..Self::default() })
    }

    /// Memory that can be given to other processes of this host
    /// ([`Memory::share`]). Linux only.
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Returns whether the bytes are those of a [file](Self::file).
    #[must_use]
    pub const fn is_file(&self) -> bool {
        self.file.is_some()
    }

    /// Returns the path of the [file](Self::file).
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Memory whose bytes are those of the file at `path`, which is made when it
    /// does not exist, and lengthened when it is shorter. The room is taken on the
    /// file system at once, so that a full disk is an error now.
    ///
    /// Bytes that the file holds already are not zeroed. It stays when the memory
    /// is dropped, and the system writes to it when it likes. It must not become
    /// shorter meanwhile: touching bytes that are gone kills the process, so
    /// only trusted users may be able to write it, and the memory cannot be
    /// [shared](Memory::share). Linux only; excludes [`shared`](Self::shared),
    /// [`huge_pages`](Self::huge_pages) and [`numa_node`](Self::numa_node).
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// Locks the [file](Self::file) for as long as the memory lives, any mapping of it in a child of
    /// this process included: the system lets the lock go when nothing can touch the pages by this
    /// memory any more, however the process ends. Without effect on memory of no file.
    ///
    /// The lock is that of `flock`, which binds only those who ask for it. Two memories of one
    /// process are two users. [`allocate`](Self::allocate) does not wait for the lock.
    pub fn lock(mut self, lock: FileLock) -> Self {
        self.lock = Some(lock);
        self
    }

    /// Returns whether [`shared`](Self::shared) goes together with the other options: it does
    /// not with [`file`](Self::file).
    #[must_use]
    pub fn can_be_shared(&self) -> bool {
        self.file.is_none()
    }

    /// Explicit huge pages. The block takes whole ones, all of which have memory
    /// from the start: one that cannot be had later would kill the process. Linux
    /// only.
    pub fn huge_pages(mut self, pages: HugePages) -> Self {
        self.huge_pages = Some(pages);
        self
    }

    /// All pages come from NUMA node `node`. When it has none left, the system
    /// ends processes rather than take them from another. Linux only.
    pub fn numa_node(mut self, node: u32) -> Self {
        self.numa_node = Some(node);
        self
    }

    /// All pages have memory from the start, so that no access waits for them later
    /// and memory that is missing shows now: as an error, or because the system
    /// ends a process to make room. At most `threads` threads, and not more than
    /// there are processors, do the work, while the caller waits; one manages a
    /// gigabyte or two in a second.
    pub fn pre_fault(mut self, threads: NonZeroUsize) -> Self {
        self.pre_fault = Some(threads);
        self
    }

    /// The first byte lies at a multiple of `bytes`, a power of two. Memory is
    /// aligned to a page anyway.
    pub fn align(mut self, bytes: usize) -> Self {
        self.align = Some(bytes);
        self
    }

    /// Takes `len` bytes, zeroed unless they come from a [file](Self::file). The
    /// system populates their pages when they are first touched, unless an option
    /// says otherwise.
    ///
    /// # Errors
    /// * [`MemoryError::Empty`] when `len` is zero and there is any option,
    ///   [`MemoryError::BadAlignment`], [`MemoryError::Incompatible`], and
    ///   [`MemoryError::Unsupported`] where an option does not exist;
    /// * [`MemoryError::NoHugePages`] when they are required,
    ///   [`MemoryError::NoSuchNode`] and [`MemoryError::NodeRefused`],
    ///   [`MemoryError::File`], [`MemoryError::NotAFile`] and [`MemoryError::FileInUse`];
    /// * [`MemoryError::TooLarge`] or [`MemoryError::Refused`] when the system has
    ///   no such room.
    pub fn allocate(&self, len: usize) -> Result<Memory, MemoryError> {
        if *self == Self::default() {
            return Memory::allocate(len);
        }
        self.check(len)?;
        let Some(HugePages { size, required }) = self.huge_pages else {
            return self.attempt(len, Pages::Normal);
        };
        match self.attempt(len, Pages::Huge(size)) {
            Err(MemoryError::Refused { source, .. }) if required => {
                Err(MemoryError::NoHugePages { len, size, source })
            }
            Err(MemoryError::Refused { source, .. }) => {
                tracing::warn!(
                    cause = %source,
                    bytes = len,
                    page_bytes = size.bytes(),
                    "too few huge pages, so normal ones are used; reserve more \
                     (/proc/sys/vm/nr_hugepages, hugepages= at boot) or do not ask for them"
                );
                self.attempt(len, Pages::Joined)
            }
            done => done,
        }
    }

    /// Refuses what cannot be had anywhere.
    fn check(&self, len: usize) -> Result<(), MemoryError> {
        if let Some(align) = self.align.filter(|align| !align.is_power_of_two()) {
            return Err(MemoryError::BadAlignment { align });
        }
        let options = [
            (self.file.is_some(), "a file"),
            (self.shared, "sharing with other processes"),
            (self.huge_pages.is_some(), "huge pages"),
            (self.numa_node.is_some(), "a NUMA node"),
        ];
        let mut chosen = options.iter().filter(|(chosen, _)| *chosen).map(|(_, name)| *name);
        let first = chosen.next();
        if let (false, Some(wanted)) = (cfg!(target_os = "linux"), first) {
            return Err(MemoryError::Unsupported { wanted });
        }
        if let (true, Some(first), Some(second)) = (self.file.is_some(), first, chosen.next()) {
            return Err(MemoryError::Incompatible { first, second });
        }
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        if isize::try_from(len).is_err() {
            return Err(MemoryError::TooLarge { len });
        }
        Ok(())
    }

    #[cfg(target_os = "linux")]
    fn attempt(&self, len: usize, pages: Pages) -> Result<Memory, MemoryError> {
        use super::{file, numa, shared};

        let refused = |source| MemoryError::Refused { len, source };
        let (page, huge) = match pages {
            Pages::Huge(size) => (size.bytes(), Some(size)),
            Pages::Normal | Pages::Joined => (page_size(), None),
        };
        let file = match &self.file {
            Some(path) => Some(file::open(path, len, self.lock)?),
            None if self.shared => Some(shared::create(len, huge).map_err(refused)?),
            None => None,
        };
        let (room, content) = match (&file, huge) {
            (Some(file), _) => {
                let metadata = file.metadata().map_err(refused)?;
                let content = Content::Shared { file: file.as_fd(), writable: true };
                (shared::whole_pages(len, &metadata), content)
            }
            (None, Some(size)) => (len.checked_next_multiple_of(page), Content::Huge(size)),
            (None, None) => (Some(len), Content::Private),
        };
        let room = room.ok_or(MemoryError::TooLarge { len })?;
        let mapping = Mapping::aligned(room, self.placement(len, pages, page), content);
        let mapping = mapping.map_err(refused)?;
        if pages == Pages::Joined {
            mapping.prefer_huge();
        }
        if let Some(node) = self.numa_node {
            numa::bind(&mapping, node)?;
        }
        let threads = self.pre_fault.or(huge.map(|_| NonZeroUsize::MIN));
        let populated = threads.is_some();
        if let Some(threads) = threads {
            // Only what the file has: a mapping of it may reach beyond its end.
            populate(&mapping, len, page, threads, self.file.is_none()).map_err(refused)?;
        }
        let base = mapping.base();
        let backing = match file {
            None => Backing::Private { mapping },
            Some(file) if self.shared => Backing::Shared { mapping, file },
            Some(file) => Backing::Common { mapping, _file: self.lock.map(|_| file) },
        };
        let is_there = populated || self.file.is_some();
        Ok(Memory::with(base, len, Prefault::of(len).filter(|_| !is_there), backing))
    }

    #[cfg(not(target_os = "linux"))]
    fn attempt(&self, len: usize, pages: Pages) -> Result<Memory, MemoryError> {
        let refused = |source| MemoryError::Refused { len, source };
        let page = page_size();
        let placement = self.placement(len, pages, page);
        let mapping = Mapping::aligned(len, placement, Content::Private).map_err(refused)?;
        if let Some(threads) = self.pre_fault {
            populate(&mapping, len, page, threads, true).map_err(refused)?;
        }
        Ok(Memory::new(mapping.base(), len, Backing::Private { mapping }))
    }

    /// The alignment of the first byte's address, beyond the size of a page.
    fn placement(&self, len: usize, pages: Pages, page: usize) -> usize {
        let wanted = self.align.unwrap_or(1);
        // Only whole aligned groups of pages can be joined.
        let group = HugePageSize::Mib2.bytes();
        let joined = pages == Pages::Joined && len >= group;
        let wanted = if joined { wanted.max(group) } else { wanted };
        if wanted <= page { 1 } else { wanted }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn alignment_is_kept() {
        for align in [1, 4096, 64 << 10, 2 << 20, 1 << 30] {
            for len in [1, 4096, 3 << 20] {
                let memory = Memory::options().align(align).allocate(len).unwrap();
                assert_eq!(memory.whole().address() as usize % align, 0, "{align} {len}");
                memory.whole().copy_from(len - 1, b"x").unwrap();
                assert_eq!(memory.try_into_bytes(len).unwrap()[len - 1], b'x');
            }
        }
        for align in [0, 3, 4097, usize::MAX] {
            let refused = Memory::options().align(align).allocate(1);
            assert!(matches!(refused, Err(MemoryError::BadAlignment { .. })), "{align}");
        }
        let nowhere = 1 << (usize::BITS - 1);
        let refused = Memory::options().align(nowhere).allocate(1);
        assert!(matches!(refused, Err(MemoryError::Refused { .. })));
    }

    #[test]
    fn no_option_is_plain_allocation() {
        assert!(Memory::options().allocate(0).unwrap().is_empty());
        assert_eq!(Memory::options().allocate(5).unwrap().len(), 5);
        let refused = Memory::options().allocate(usize::MAX);
        assert!(matches!(refused, Err(MemoryError::TooLarge { .. })));
    }

    fn any_options() -> impl Strategy<Value = MemoryOptions> {
        let sizes = prop_oneof![Just(HugePageSize::Mib2), Just(HugePageSize::Gib1)];
        let pages =
            (sizes, any::<bool>()).prop_map(|(size, required)| HugePages { size, required });
        let nodes = prop_oneof![4 => Just(0), 1 => Just(1), 1 => Just(1023), 1 => any::<u32>()];
        let threads = prop_oneof![Just(1), Just(2), Just(usize::MAX)];
        let threads = threads.prop_map(|threads| NonZeroUsize::new(threads).unwrap());
        let aligns = prop_oneof![(0u32..25).prop_map(|shift| 1 << shift), Just(0), any::<usize>()];
        (
            any::<bool>(),
            prop::option::weighted(0.2, Just(PathBuf::from("/proc/no/such/place"))),
            prop::option::weighted(0.3, pages),
            prop::option::weighted(0.3, nodes),
            prop::option::of(threads),
            prop::option::of(aligns),
        )
            .prop_map(|(shared, file, huge_pages, numa_node, pre_fault, align)| {
                MemoryOptions { shared, file, lock: None, huge_pages, numa_node, pre_fault, align }
            })
    }

    fn any_len() -> impl Strategy<Value = usize> {
        prop_oneof![
            8 => 0usize..300_000,
            2 => (0usize..5).prop_map(|mib| (mib << 20) + 1),
            1 => (0usize..3).prop_map(|less| usize::MAX - less),
            1 => (0usize..3).prop_map(|less| isize::MAX as usize - less),
        ]
    }

    proptest! {
        #[test]
        fn every_combination_works_or_says_why(options in any_options(), len in any_len()) {
            match options.allocate(len) {
                Ok(memory) => {
                    prop_assert_eq!(memory.len(), len);
                    let align = options.align.unwrap_or(1);
                    prop_assert!(len == 0 || memory.whole().address().addr().is_multiple_of(align));
                    prop_assert!(memory.whole().to_vec().iter().all(|&byte| byte == 0));
                    prop_assert!(memory.is_writable());
                    if len > 0 {
                        memory.whole().copy_from(len - 1, b"x").unwrap();
                        prop_assert_eq!(memory.slice(len - 1, 1).unwrap().to_vec(), b"x");
                    }
                    prop_assert_eq!(memory.shareable().is_some(), options.shared);
                    prop_assert_eq!(memory.try_into_bytes(len).is_ok(), !options.shared);
                }
                Err(MemoryError::Empty) => prop_assert_eq!(len, 0),
                Err(MemoryError::BadAlignment { align }) => {
                    prop_assert!(!align.is_power_of_two());
                }
                Err(MemoryError::Incompatible { .. }) => prop_assert!(options.file.is_some()),
                Err(MemoryError::File { .. }) => prop_assert!(options.file.is_some()),
                Err(MemoryError::NoHugePages { .. }) => {
                    prop_assert!(options.huge_pages.is_some_and(|pages| pages.required));
                }
                Err(MemoryError::NoSuchNode { node } | MemoryError::NodeRefused { node, .. }) => {
                    prop_assert_eq!(options.numa_node, Some(node));
                }
                Err(MemoryError::TooLarge { .. }) => prop_assert!(len > 1 << 40),
                Err(MemoryError::Refused { .. }) => {
                    prop_assert!(len > 1 << 40 || options.align.is_some_and(|align| align > 1 << 40));
                }
                Err(MemoryError::Unsupported { .. }) => prop_assert!(cfg!(not(target_os = "linux"))),
                Err(error) => prop_assert!(false, "{}", error),
            }
        }
    }
}
