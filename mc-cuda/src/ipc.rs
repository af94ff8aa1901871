//! Memory of a GPU that another process of the host has.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Weak};

use parking_lot::Mutex;

use crate::device::{Cuda, CudaDevice};
use crate::driver::IpcMemHandle;
use crate::error::{CudaCode, CudaError, DeviceUuid};
use crate::pieces::{DevicePiece, Pieces};
use crate::pointer::{self, PointerKind};

/// The first bytes of a handle, with the version of the format.
const MAGIC: [u8; 8] = *b"mc-gpu\0\x01";

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, the only flag that there is, and it must be set.
const LAZY_PEER_ACCESS: u32 = 1;

/// Codes of `cuIpcGetMemHandle` and `cuIpcOpenMemHandle`.
const INVALID_VALUE: i32 = 1;
const INVALID_CONTEXT: i32 = 201;
const MAP_FAILED: i32 = 205;
const INVALID_HANDLE: i32 = 400;

/// The name of memory of a GPU for other processes of the host.
///
/// Who has it can read and write the whole allocation that the memory is part of: pass it on like a key.
#[derive(Clone, PartialEq, Eq)]
pub struct IpcHandle {
    device: DeviceUuid,
    handle: [u8; 64],
    offset: u64,
    len: u64,
    buffer_id: u64,
}

impl IpcHandle {
    /// Bytes of a handle.
    pub const LEN: usize = 112;

    /// The identity of the GPU.
    #[must_use]
    pub const fn device(&self) -> DeviceUuid {
        self.device
    }

    /// Where the memory begins in its allocation.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of the memory.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether it has no bytes, which never is.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of the allocation in the process that exported it: see [`Pointed::buffer_id`](crate::Pointed::buffer_id).
    #[must_use]
    pub const fn buffer_id(&self) -> u64 {
        self.buffer_id
    }

    /// The handle as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.device.0);
        bytes[24..88].copy_from_slice(&self.handle);
        bytes[88..96].copy_from_slice(&self.offset.to_le_bytes());
        bytes[96..104].copy_from_slice(&self.len.to_le_bytes());
        bytes[104..].copy_from_slice(&self.buffer_id.to_le_bytes());
        bytes
    }

    /// Reads a handle that another process sent.
    ///
    /// # Errors
    /// [`CudaError::BadHandle`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CudaError> {
        let bad = |reason| CudaError::BadHandle { reason };
        let bytes: &[u8; Self::LEN] = bytes.try_into().map_err(|_| bad("its length is wrong"))?;
        if bytes[..8] != MAGIC {
            return Err(bad("it is of another format"));
        }
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        let (mut device, mut handle) = ([0; 16], [0; 64]);
        device.copy_from_slice(&bytes[8..24]);
        handle.copy_from_slice(&bytes[24..88]);
        let (offset, len) = (number(88), number(96));
        let end = offset.checked_add(len).and_then(|end| isize::try_from(end).ok());
        if len == 0 || end.is_none() {
            return Err(bad("its range is impossible"));
        }
        let device = DeviceUuid(device);
        Ok(Self { device, handle, offset, len, buffer_id: number(104) })
    }
}

impl fmt::Debug for IpcHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The handle itself is a key.
        f.debug_struct("IpcHandle")
            .field("device", &self.device)
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl CudaDevice {
    /// Names `len` bytes from `address` for other processes of the host. They must stay allocated for as long as another
    /// process uses them; once this process has ended, the handle can no longer be opened.
    ///
    /// # Errors
    /// [`CudaError::ForeignPointer`] for what is not memory of a GPU, [`CudaError::NotThisDevice`] for another
    /// GPU's, [`CudaError::OutOfRange`] when the bytes leave their allocation, [`CudaError::NotShareable`] for memory that the
    /// driver maps, such as PyTorch's expandable segments.
    pub fn export(&self, address: u64, len: usize) -> Result<IpcHandle, CudaError> {
        if len == 0 {
            return Err(CudaError::Empty);
        }
        let found = pointer::find(&self.context().driver, address, len)?;
        let found = found.filter(|found| found.kind == PointerKind::Device);
        let found = found.ok_or(CudaError::ForeignPointer { address })?;
        if found.device != self.ordinal() {
            let (wanted, found) = (self.ordinal(), found.device);
            return Err(CudaError::NotThisDevice { address, wanted, found });
        }
        let mut handle = IpcMemHandle { reserved: [0; 64] };
        let exported = self.context().call("cuIpcGetMemHandle", len, |functions| {
            // SAFETY: writes the handle to where it is told, and refuses what is no allocation.
            unsafe { (functions.ipc_export)(&raw mut handle, found.base) }
        });
        exported.map_err(|error| match error {
            CudaError::Failed { code: CudaCode { number: INVALID_VALUE, .. }, .. } => {
                CudaError::NotShareable { address }
            }
            error => error,
        })?;
        let (offset, len) = (address - found.base, len as u64);
        let (device, handle, buffer_id) = (self.uuid()?, handle.reserved, found.buffer_id);
        Ok(IpcHandle { device, handle, offset, len, buffer_id })
    }
}

/// The ordinal of a GPU, and the driver's handle of an allocation.
type Key = (usize, [u8; 64]);

/// The allocations of other processes that this one has opened.
static OPENED: LazyLock<Mutex<HashMap<Key, Weak<Opened>>>> = LazyLock::new(Mutex::default);

/// An allocation of another process; closed when it is dropped.
struct Opened {
    address: u64,
    handle: [u8; 64],
    device: CudaDevice,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.device.context().driver.check_fork().is_err() {
            return;
        }
        {
            let mut opened = OPENED.lock();
            let key = (self.device.ordinal(), self.handle);
            if opened.get(&key).is_some_and(|known| known.strong_count() == 0) {
                opened.remove(&key);
            }
        }
        let closed = self.device.context().call("cuIpcCloseMemHandle", 0, |functions| {
            // SAFETY: the address is that of the opened memory, which nothing here uses any more.
            unsafe { (functions.ipc_close)(self.address) }
        });
        if let Err(error) = closed {
            tracing::warn!("memory of another process stays open: {error}");
        }
    }
}

/// Memory of a GPU that another process has, shared by handle. An allocation is opened once, and closed when the last memory of
/// it is dropped. It stays there when the other process ends.
#[derive(Clone)]
pub struct IpcMemory {
    opened: Arc<Opened>,
    address: u64,
    len: usize,
}

impl Cuda {
    /// Opens memory of another process of this host.
    ///
    /// # Errors
    /// [`CudaError::NoSuchDevice`] when this process does not see the GPU, [`CudaError::NotOpened`] when the other process has
    /// ended or is this one, [`CudaError::OutOfRange`] when the allocation is shorter than the handle says.
    pub fn open(&self, handle: &IpcHandle) -> Result<IpcMemory, CudaError> {
        let device = self.device_by_uuid(handle.device)?;
        let opened = opened(device, handle)?;
        let too_long = |_| CudaError::BadHandle { reason: "its range is impossible" };
        let len = usize::try_from(handle.len).map_err(too_long)?;
        let address = opened.address.checked_add(handle.offset);
        let address = address.ok_or(CudaError::BadHandle { reason: "its range is impossible" })?;
        match pointer::find(&self.driver, address, len)? {
            Some(found) if found.base == opened.address => Ok(IpcMemory { opened, address, len }),
            _ => Err(CudaError::BadHandle { reason: "its range is not that of the allocation" }),
        }
    }
}

/// The allocation of a handle, opened if it is not yet.
fn opened(device: CudaDevice, handle: &IpcHandle) -> Result<Arc<Opened>, CudaError> {
    let key = (device.ordinal(), handle.handle);
    if let Some(opened) = OPENED.lock().get(&key).and_then(Weak::upgrade) {
        return Ok(opened);
    }
    // Without the lock: the driver counts how often an allocation is opened, too.
    let mut address = 0;
    let result = device.context().call("cuIpcOpenMemHandle", 0, |functions| {
        let handle = IpcMemHandle { reserved: handle.handle };
        // SAFETY: writes the address to where it is told, and refuses what is no handle.
        unsafe { (functions.ipc_open)(&raw mut address, handle, LAZY_PEER_ACCESS) }
    });
    result.map_err(|error| match error {
        CudaError::Failed { code, .. }
            if matches!(
                code.number,
                INVALID_VALUE | INVALID_CONTEXT | MAP_FAILED | INVALID_HANDLE
            ) =>
        {
            CudaError::NotOpened { code }
        }
        error => error,
    })?;
    let ours = Arc::new(Opened { address, handle: handle.handle, device });
    let theirs = {
        let mut opened = OPENED.lock();
        let theirs = opened.get(&key).and_then(Weak::upgrade);
        if theirs.is_none() {
            opened.insert(key, Arc::downgrade(&ours));
        }
        theirs
    };
    Ok(theirs.unwrap_or(ours))
}

impl IpcMemory {
    /// Its address in the GPU's memory, for kernels of this process.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes of it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The GPU that it is memory of.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.opened.device
    }

    /// A range of it, for a copier.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`] when it does not lie inside.
    pub fn piece(&self, range: Range<usize>) -> Result<Pieces, CudaError> {
        self.pieces(std::iter::once(range))
    }

    /// Ranges of it, for a copier.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`] when one does not lie inside.
    pub fn pieces(
        &self,
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<Pieces, CudaError> {
        let mut pieces = Vec::new();
        for range in ranges {
            let (at, len) = (range.start, range.len());
            if at.checked_add(len).is_none_or(|end| end > self.len) {
                return Err(CudaError::OutOfRange { at, len, room: self.len });
            }
            pieces.push(DevicePiece { address: self.address + at as u64, len });
        }
        Pieces::new(self.device().ordinal(), pieces, Arc::new(self.clone()))
    }
}

impl fmt::Debug for IpcMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IpcMemory")
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle() -> IpcHandle {
        IpcHandle {
            device: DeviceUuid([3; 16]),
            handle: [5; 64],
            offset: 4096,
            len: 77,
            buffer_id: 9,
        }
    }

    #[test]
    fn a_handle_survives_the_trip_as_bytes() {
        assert_eq!(IpcHandle::from_bytes(&handle().to_bytes()), Ok(handle()));
        assert!(!format!("{:?}", handle()).contains("5, 5"), "it is a key");
    }

    #[test]
    fn bytes_of_another_kind_are_no_handle() {
        let bytes = handle().to_bytes();
        for len in [0, 1, IpcHandle::LEN - 1] {
            assert!(IpcHandle::from_bytes(&bytes[..len]).is_err());
        }
        assert!(IpcHandle::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
        for at in 0..8 {
            let mut bytes = bytes;
            bytes[at] ^= 1;
            assert!(IpcHandle::from_bytes(&bytes).is_err());
        }
        for (offset, len) in [(0, 0), (u64::MAX, 1), (1, u64::MAX), (1, i64::MAX as u64)] {
            let bytes = IpcHandle { offset, len, ..handle() }.to_bytes();
            assert!(IpcHandle::from_bytes(&bytes).is_err(), "{offset} {len}");
        }
    }
}
