//! The regions that a link knows how to reach.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use mc_memory::{Access, Memory, MemoryError, MemorySlice};
use mc_types::{Extent, RemoteKey};

use super::page::PeerPage;
use super::wire::GrantedRegion;
use crate::error::TransferError;
use crate::operation::RemoteSpan;

/// The path to a region.
#[derive(Clone)]
pub(super) enum RegionPath {
    /// The region is mapped.
    Mapped(Arc<Mapped>),
    /// Its memory cannot be shared.
    Streamed,
}

/// A region of the peer in this process.
pub(super) struct Mapped {
    memory: Memory,
    access: Access,
    slot: u32,
    generation: u64,
    page: Arc<PeerPage>,
    /// Since room was last made for others.
    used: AtomicBool,
    _taken: Taken,
}

impl Mapped {
    /// Maps what the owner offers. `region` was checked to have a slot on the page.
    ///
    /// # Errors
    /// [`MemoryError`] when it is not safe to touch, or cannot be mapped.
    pub(super) fn new(
        region: &GrantedRegion,
        descriptor: OwnedFd,
        page: Arc<PeerPage>,
        taken: Taken,
    ) -> Result<Self, MemoryError> {
        let GrantedRegion { access, len, slot, generation } = *region;
        let len = usize::try_from(len).map_err(|_| MemoryError::TooLarge { len: usize::MAX })?;
        let memory = Memory::map_shared(descriptor, len, access)?;
        let used = AtomicBool::new(true);
        Ok(Self { memory, access, slot, generation, page, used, _taken: taken })
    }

    /// The bytes that `span` names, when they may be had now.
    pub(super) fn resolve(
        &self,
        span: RemoteSpan,
        wanted: Access,
    ) -> Result<MemorySlice, TransferError> {
        self.check_owner()?;
        if !self.page.is_open(self.slot, self.generation) {
            return Err(TransferError::KeyRefused);
        }
        if !self.access.allows(wanted) {
            return Err(TransferError::AccessDenied { wanted });
        }
        let (offset, len) = (span.extent.offset(), span.extent.len());
        let whole = Extent::new(0, self.memory.len() as u64);
        let inside = whole.and_then(|whole| whole.part(offset, len));
        let inside = inside.ok_or(TransferError::OutOfBounds { offset, len })?;
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        // Both fit in usize because they lie inside memory of this process.
        let slice = self.memory.slice(inside.offset() as usize, inside.len() as usize);
        let slice = slice.expect("the extent was found to lie inside the memory");
        if wanted == Access::Write {
            slice.populate_behind();
        }
        Ok(slice)
    }

    /// Checks that the region was open until now, so that what was read is its own.
    pub(super) fn confirm(&self) -> Result<(), TransferError> {
        let open = self.page.is_still_open(self.slot, self.generation);
        self.check_owner()?;
        if open { Ok(()) } else { Err(TransferError::KeyRefused) }
    }

    fn check_owner(&self) -> Result<(), TransferError> {
        if self.page.is_running() {
            return Ok(());
        }
        let source = Arc::new(io::ErrorKind::ConnectionReset.into());
        Err(TransferError::LinkLost { source })
    }
}

/// Address space that the regions of all peers may take together. Peers could use up
/// all that this process has: memory that is not touched costs them nothing.
pub(super) struct Space {
    regions: AtomicUsize,
    bytes: AtomicU64,
    max_bytes: u64,
}

/// Space that a region has.
pub(super) struct Taken {
    space: Arc<Space>,
    bytes: u64,
}

impl Space {
    pub(super) fn new(max_bytes: u64) -> Self {
        Self { regions: AtomicUsize::new(0), bytes: AtomicU64::new(0), max_bytes }
    }

    /// Room for a region; `None` when not so much is left.
    pub(super) fn take(self: &Arc<Self>, bytes: u64) -> Option<Taken> {
        let add = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= self.max_bytes);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        self.regions.fetch_add(1, Ordering::Relaxed);
        Some(Taken { space: Arc::clone(self), bytes })
    }

    /// Regions that have space.
    pub(super) fn regions(&self) -> usize {
        self.regions.load(Ordering::Relaxed)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.space.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.space.regions.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Ways by key, up to a limit.
pub(super) struct PathCache {
    paths: HashMap<RemoteKey, RegionPath>,
    max: usize,
    closed: bool,
}

impl PathCache {
    pub(super) fn new(max: usize) -> Self {
        Self { paths: HashMap::new(), max: max.max(1), closed: false }
    }

    pub(super) fn get(&self, key: &RemoteKey) -> Option<&RegionPath> {
        self.paths.get(key)
    }

    /// Remembers a way; gives up others when there are too many. Does nothing after
    /// [`close`](Self::close). Returns what is to be dropped outside the lock.
    #[must_use = "mappings are released outside the lock"]
    pub(super) fn insert(&mut self, key: RemoteKey, path: RegionPath) -> Vec<RegionPath> {
        if self.closed {
            return vec![path];
        }
        let mut given_up = Vec::new();
        if self.paths.len() >= self.max && !self.paths.contains_key(&key) {
            given_up = self.sweep();
            if self.paths.len() >= self.max {
                given_up.extend(self.evict());
            }
        }
        given_up.extend(self.paths.insert(key, path));
        given_up
    }

    /// Forgets regions that were withdrawn.
    #[must_use = "mappings are released outside the lock"]
    pub(super) fn sweep(&mut self) -> Vec<RegionPath> {
        let gone = |path: &RegionPath| matches!(path, RegionPath::Mapped(mapped) if mapped.confirm().is_err());
        self.paths.extract_if(|_, path| gone(path)).map(|(_, path)| path).collect()
    }

    /// Forgets all, and remembers nothing from now on.
    #[must_use = "mappings are released outside the lock"]
    pub(super) fn close(&mut self) -> Vec<RegionPath> {
        self.closed = true;
        std::mem::take(&mut self.paths).into_values().collect()
    }

    /// Forgets one that was not used since the last time. Streams cost nothing but
    /// their place, and are asked for again at the price of one question.
    fn evict(&mut self) -> Option<RegionPath> {
        let idle = |path: &RegionPath| match path {
            RegionPath::Mapped(mapped) => !mapped.used.swap(false, Ordering::Relaxed),
            RegionPath::Streamed => true,
        };
        let chosen = self.paths.iter().find(|(_, path)| idle(path)).map(|(key, _)| *key);
        let key = chosen.or_else(|| self.paths.keys().next().copied())?;
        self.paths.remove(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::super::page::{Page, SLOTS};
    use super::*;

    struct Owner {
        page: Arc<Page>,
        peer_page: Arc<PeerPage>,
        space: Arc<Space>,
    }

    type Attached = Vec<Box<dyn std::any::Any + Send + Sync>>;

    impl Owner {
        fn new() -> Self {
            let page = Page::new().unwrap();
            let descriptor = page.for_peers().try_clone_to_owned().unwrap();
            let peer_page = Arc::new(PeerPage::map(descriptor, SLOTS).unwrap());
            Self { page, peer_page, space: Arc::new(Space::new(1000)) }
        }

        fn region(&self, access: Access) -> (Attached, Arc<Mapped>) {
            let memory = Memory::options().shared().allocate(100).unwrap();
            let mut attached = Attached::new();
            let (slot, generation) = self.page.slot_of(&mut attached).unwrap();
            let region = GrantedRegion { access, len: 100, slot, generation };
            let descriptor = memory.share(access).unwrap();
            let page = Arc::clone(&self.peer_page);
            let taken = self.space.take(100).unwrap();
            let mapped = Mapped::new(&region, descriptor, page, taken).unwrap();
            (attached, Arc::new(mapped))
        }
    }

    fn key(n: u8) -> RemoteKey {
        RemoteKey::from_bytes([n; 16])
    }

    #[test]
    fn every_check_has_its_error() {
        let owner = Owner::new();
        let (attached, mapped) = owner.region(Access::Read);
        let resolve = |offset, len, wanted| {
            let extent = Extent::new(offset, len).unwrap();
            mapped.resolve(RemoteSpan::new(key(0), extent), wanted).map(|slice| slice.len())
        };
        assert_eq!(resolve(40, 60, Access::Read).unwrap(), 60);
        assert_eq!(resolve(100, 0, Access::Read).unwrap(), 0);
        for (offset, len) in [(40, 61), (101, 0), (1, u64::MAX - 1)] {
            let refused = resolve(offset, len, Access::Read);
            assert!(matches!(refused, Err(TransferError::OutOfBounds { .. })), "{refused:?}");
        }
        let denied = resolve(0, 101, Access::Write);
        assert!(matches!(denied, Err(TransferError::AccessDenied { .. })), "{denied:?}");
        drop(attached);
        assert!(matches!(resolve(0, 101, Access::Write), Err(TransferError::KeyRefused)));
        assert!(matches!(mapped.confirm(), Err(TransferError::KeyRefused)));
        owner.page.close();
        assert!(matches!(resolve(0, 1, Access::Read), Err(TransferError::LinkLost { .. })));
        assert!(matches!(mapped.confirm(), Err(TransferError::LinkLost { .. })));
    }

    #[test]
    fn room_is_made_by_the_withdrawn_then_by_the_idle() {
        let owner = Owner::new();
        let mut path_cache = PathCache::new(3);
        let mut regions: Vec<Attached> = Vec::new();
        for n in 0..3 {
            let (attached, mapped) = owner.region(Access::Read);
            assert!(path_cache.insert(key(n), RegionPath::Mapped(mapped)).is_empty());
            regions.push(attached);
        }
        regions.remove(1);
        let (attached, mapped) = owner.region(Access::Read);
        assert_eq!(path_cache.insert(key(3), RegionPath::Mapped(mapped)).len(), 1);
        assert!(path_cache.get(&key(1)).is_none() && path_cache.get(&key(0)).is_some());
        // All are in use: one is unmapped, and the others count as idle then.
        assert_eq!(path_cache.insert(key(4), RegionPath::Streamed).len(), 1);
        let stays = [0, 2, 3].into_iter().find(|&n| path_cache.get(&key(n)).is_some()).unwrap();
        let Some(RegionPath::Mapped(used)) = path_cache.get(&key(stays)) else {
            panic!("it is mapped")
        };
        used.used.store(true, Ordering::Relaxed);
        assert_eq!(path_cache.insert(key(5), RegionPath::Streamed).len(), 1);
        assert!(path_cache.get(&key(stays)).is_some(), "it was used");
        assert!(
            path_cache.insert(key(5), RegionPath::Streamed).len() == 1,
            "replaced, nothing evicted"
        );
        drop(attached);
        drop(regions);
        drop(path_cache.sweep());
        assert_eq!(owner.space.regions(), 0);
        drop(path_cache.close());
        assert_eq!(path_cache.insert(key(0), RegionPath::Streamed).len(), 1);
        assert!(path_cache.get(&key(0)).is_none());
    }

    #[test]
    fn space_is_limited_and_given_back() {
        let space = Arc::new(Space::new(100));
        let most = space.take(99).unwrap();
        assert!(space.take(2).is_none() && space.take(u64::MAX).is_none());
        let rest = space.take(1).unwrap();
        assert_eq!(space.regions(), 2);
        drop((most, rest));
        assert!(space.take(100).is_some());
        assert_eq!(space.regions(), 0);
    }
}
