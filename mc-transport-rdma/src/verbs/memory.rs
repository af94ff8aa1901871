//! Memory that a device may read and write.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use mc_transport::{Access, MemorySlice};
use rdma_sys::{ibv_access_flags, ibv_mr};

use super::{Device, VerbsError};

/// `IBV_ACCESS_RELAXED_ORDERING`, which older headers lack: the device's writes may reach the memory
/// in any order until the completion of their request.
const RELAXED_ORDERING: u32 = 1 << 20;

/// The access of peers to a [`MemoryRegion`]; this side's device may always read and write it.
pub(super) type RemoteAccess = Option<Access>;

/// A range of memory that is registered with a device: its pages stay where they are, and the
/// device knows them by keys.
///
/// Dropping it takes the keys back. When that returns the device touches the memory no more on
/// behalf of a peer. The memory itself must live longer; the owner of a region sees to that, by
/// holding the [`MemorySlice`] or by being dropped with it.
pub(in super::super) struct MemoryRegion {
    region: NonNull<ibv_mr>,
    device: Arc<Device>,
    start: usize,
    len: usize,
}

// SAFETY: as for `Device`.
unsafe impl Send for MemoryRegion {}
// SAFETY: as for `Device`.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers `memory`. Takes time in proportion to its pages; large regions may take seconds.
    ///
    /// The caller drops the region before the memory has another use: when it was unmapped and
    /// mapped anew, the device would still have the old pages.
    ///
    /// # Errors
    /// [`VerbsError::MemoryLock`] when the process must not lock so much, and
    /// [`VerbsError::Failed`].
    pub(in super::super) fn register(
        device: &Arc<Device>,
        memory: &MemorySlice,
        peers: RemoteAccess,
    ) -> Result<Self, VerbsError> {
        let flags = access_flags(memory.is_writable(), peers);
        let (address, len) = (memory.address(), memory.len());
        let region = register_raw(device, address, len, flags);
        let region = device.made("ibv_reg_mr", region).map_err(|error| match &error {
            VerbsError::Failed { source, .. } if source.raw_os_error() == Some(libc::ENOMEM) => {
                let device = Arc::clone(device.name());
                VerbsError::MemoryLock { device, len, limit: memory_lock_limit() }
            }
            _ => error,
        })?;
        Ok(Self { region, device: Arc::clone(device), start: address.addr(), len })
    }

    /// The key by which requests of this side name the memory.
    pub(in super::super) fn local_key(&self) -> u32 {
        // SAFETY: the region lives, and its keys never change.
        unsafe { (*self.region.as_ptr()).lkey }
    }

    /// The key by which requests of peers name the memory.
    pub(in super::super) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.region.as_ptr()).rkey }
    }

    /// Returns whether `len` bytes at `address` lie inside.
    pub(super) fn covers(&self, address: usize, len: usize) -> bool {
        let end = address.checked_add(len);
        address >= self.start && end.is_some_and(|end| end <= self.start + self.len)
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: the region was registered, and this is its only deregistration.
        let done = unsafe { (self.device.library.ibv_dereg_mr)(self.region.as_ptr()) };
        if done != 0 {
            let error = io::Error::from_raw_os_error(done.saturating_abs());
            tracing::error!(device = %self.device.name(), %error, "memory stays registered");
        }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The flags of a registration: what this side's device and peers may do to the memory.
fn access_flags(is_writable: bool, peers: RemoteAccess) -> u32 {
    let mut flags = ibv_access_flags(0);
    if is_writable {
        flags |= ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
    }
    if peers.is_some_and(|peers| peers.allows(Access::Read)) {
        flags |= ibv_access_flags::IBV_ACCESS_REMOTE_READ;
    }
    if peers.is_some_and(|peers| peers.allows(Access::Write)) {
        flags |= ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
    }
    flags.0
}

/// Returns whether all that the device writes to memory of these flags ends with a completion on this
/// side. A write of a peer does not: this side learns of it by another message, which may be faster than
/// writes that need not wait for each other.
fn is_completed_here(flags: u32) -> bool {
    flags & ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 == 0
}

/// Registers `len` mapped bytes, with relaxed ordering where that is safe and the device takes it; null,
/// and `errno`, if it fails.
fn register_raw(device: &Device, address: *mut u8, len: usize, flags: u32) -> *mut ibv_mr {
    let domain = device.domain.as_ptr();
    let may_relax = is_completed_here(flags) && device.relaxed_ordering();
    if may_relax && let Some(register) = device.library.ibv_reg_mr_iova2 {
        let (iova, flags) = (address.expose_provenance() as u64, flags | RELAXED_ORDERING);
        // SAFETY: the caller's slice keeps `len` bytes mapped during the call; the kernel pins their
        // pages, so that the device never reaches others, whatever becomes of the mapping. Blocks of
        // memory are accessed by raw copies only (`mc-memory`), so that a device that writes
        // them breaks no reference.
        let region = unsafe { register(domain, address.cast(), len, iova, flags) };
        let refused = || io::Error::last_os_error().raw_os_error();
        if !region.is_null() || !matches!(refused(), Some(libc::EINVAL | libc::EOPNOTSUPP)) {
            return region;
        }
    }
    // SAFETY: as above.
    let region =
        unsafe { (device.library.ibv_reg_mr)(domain, address.cast(), len, flags.cast_signed()) };
    if !region.is_null() && may_relax && device.order_strictly() {
        tracing::info!(device = %device.name(), "the device takes no relaxed ordering");
    }
    region
}

/// Bytes that this process may lock; `None` when there is no limit.
fn memory_lock_limit() -> Option<u64> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
    limit.current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_may_do_what_a_region_allows() {
        let (local, write, read) = (1, 2, 4);
        for (is_writable, peers, flags) in [
            (true, None, local),
            (false, None, 0),
            (false, Some(Access::Read), read),
            (true, Some(Access::Read), local | read),
            (true, Some(Access::Write), local | write),
            (true, Some(Access::ReadWrite), local | write | read),
        ] {
            assert_eq!(access_flags(is_writable, peers), flags, "{is_writable} {peers:?}");
            assert_eq!(is_completed_here(flags), flags & write == 0, "{is_writable} {peers:?}");
        }
    }
}
