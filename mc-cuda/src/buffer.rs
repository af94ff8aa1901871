//! Memory of a GPU that is copied to and from memory of the host.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use mc_memory::{Memory, MemorySlice, StagedMemory};

use crate::copier::Pending;
use crate::device::CudaDevice;
use crate::error::CudaError;
use crate::order::Order;
use crate::pieces::{DevicePiece, Pieces};
use crate::pointer::{self, PointerKind};

impl CudaDevice {
    /// Takes `len` zeroed bytes of the GPU's memory.
    ///
    /// # Errors
    /// [`CudaError::Empty`] for no bytes, [`CudaError::OutOfMemory`] when the GPU has not as many.
    pub fn allocate(&self, len: usize) -> Result<VramBuffer, CudaError> {
        let address = self.context().allocate(len)?;
        let buffer = self.buffer(address, len, Owner::Own);
        // What another program left there is not shown.
        self.copier()?.fill(&buffer.all(), 0).wait()?;
        Ok(buffer)
    }

    /// Names memory of the GPU that another owner has, a tensor of an inference engine for
    /// example. `owner` is dropped with the buffer and keeps the memory until then.
    ///
    /// # Safety
    /// `len` bytes from `address` must be memory of this GPU until `owner` is dropped, and no
    /// kernel may rely on them staying as they are while they are written here.
    #[must_use]
    pub unsafe fn borrow(
        &self,
        address: u64,
        len: usize,
        owner: impl Send + Sync + 'static,
    ) -> VramBuffer {
        self.buffer(address, len, Owner::Foreign { _owner: Box::new(owner) })
    }

    /// Names pieces of the GPU's memory that another owner has, such as the blocks of an engine's cache. They are checked
    /// with the driver, each allocation once.
    ///
    /// # Errors
    /// [`CudaError::ForeignPointer`] for what is not memory of a GPU, [`CudaError::NotThisDevice`] for another
    /// GPU's, [`CudaError::OutOfRange`] when a piece leaves its allocation.
    ///
    /// # Safety
    /// The pieces must be memory of this GPU until `owner` is dropped.
    pub unsafe fn pieces(
        &self,
        pieces: impl IntoIterator<Item = DevicePiece>,
        owner: impl Send + Sync + 'static,
    ) -> Result<Pieces, CudaError> {
        let pieces: Vec<_> = pieces.into_iter().filter(|piece| piece.len > 0).collect();
        let mut known = 0..0;
        for piece in &pieces {
            let end = piece.address.saturating_add(piece.len as u64);
            if known.contains(&piece.address) && end <= known.end {
                continue;
            }
            known = self.check_piece(*piece)?;
        }
        Pieces::new(self.ordinal(), pieces, Arc::new(owner))
    }

    /// Returns the addresses of the allocation that a piece lies in.
    fn check_piece(&self, piece: DevicePiece) -> Result<Range<u64>, CudaError> {
        let DevicePiece { address, len } = piece;
        let found = pointer::find(&self.context().driver, address, len)?;
        let found = found.ok_or(CudaError::ForeignPointer { address })?;
        if !matches!(found.kind, PointerKind::Device | PointerKind::Managed) {
            return Err(CudaError::ForeignPointer { address });
        }
        if found.device != self.ordinal() {
            let (wanted, found) = (self.ordinal(), found.device);
            return Err(CudaError::NotThisDevice { address, wanted, found });
        }
        Ok(found.base..found.base + found.len as u64)
    }

    fn buffer(&self, address: u64, len: usize, owner: Owner) -> VramBuffer {
        let device = self.clone();
        VramBuffer { block: Arc::new(Block { address, len, owner, device }) }
    }
}

/// Memory of a GPU, shared by handle: a clone names the same bytes, which live until the last
/// handle is dropped.
#[derive(Clone)]
pub struct VramBuffer {
    block: Arc<Block>,
}

struct Block {
    address: u64,
    len: usize,
    owner: Owner,
    device: CudaDevice,
}

enum Owner {
    /// The memory goes with the buffer.
    Own,
    Foreign {
        _owner: Box<dyn Any + Send + Sync>,
    },
}

/// Slots that a copy of memory that is not pinned uses at a time, as far as they are free.
const SLOTS: usize = 2;

impl VramBuffer {
    /// Bytes of it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.block.len
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.block.len == 0
    }

    /// Its address in the GPU's memory, for kernels.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.block.address
    }

    /// The GPU that it is memory of.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.block.device
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
            let address = self.locate(range.start, range.len())?;
            pieces.push(DevicePiece { address, len: range.len() });
        }
        Pieces::new(self.device().ordinal(), pieces, Arc::new(self.clone()))
    }

    fn all(&self) -> Pieces {
        let whole = DevicePiece { address: self.address(), len: self.len() };
        let pieces = Pieces::new(self.device().ordinal(), [whole], Arc::new(self.clone()));
        pieces.expect("one piece has no more bytes than it says")
    }

    /// Copies `source` over the bytes from `at` on; the bytes are there when this returns, for
    /// kernels of every stream. Blocks the thread. From [pinned](CudaDevice::pinned) memory the GPU copies itself; bytes of
    /// other memory take a step through slots.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`] when they do not lie inside, and what [`Pending`] fails with.
    pub fn write(&self, at: usize, source: &MemorySlice) -> Result<(), CudaError> {
        let copier = self.device().copier()?;
        let pieces = self.piece(self.range(at, source.len())?)?;
        if source.is_empty() {
            return Ok(());
        }
        if copier.is_pinned(source) {
            return copier.write(source, &pieces, Order::Now, None).wait();
        }
        let mut running: VecDeque<Pending> = VecDeque::new();
        for (start, len) in parts(source.len(), copier.slot_len()) {
            let slot = self.next_slot(&mut running, Pending::wait)?;
            let part = source.part(start, len).expect("the parts are those of the source");
            let slot = slot.slice(0, len).expect("a slot has room for a part");
            part.copy_to_slice(&slot).expect("a slot can be written");
            let pieces = self.piece(self.range(at + start, len)?)?;
            running.push_back(copier.write(&slot, &pieces, Order::Now, None));
        }
        running.into_iter().try_for_each(Pending::wait)
    }

    /// Copies the bytes from `at` on over `target`.
    /// Blocks the thread. Into [pinned](CudaDevice::pinned) memory the GPU copies itself; for other memory the bytes take a
    /// step through slots.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`] when they do not lie inside, [`CudaError::ReadOnly`] when the
    /// target cannot be written, and what [`Pending`] fails with.
    pub fn read(&self, at: usize, target: &MemorySlice) -> Result<(), CudaError> {
        let copier = self.device().copier()?;
        let pieces = self.piece(self.range(at, target.len())?)?;
        if !target.is_writable() {
            return Err(CudaError::ReadOnly);
        }
        if target.is_empty() {
            return Ok(());
        }
        if copier.is_pinned(target) {
            return copier.read(&pieces, target, Order::Now).wait();
        }
        let finish = |(pending, slot, start): (Pending, MemorySlice, usize)| {
            pending.wait()?;
            let part = target.part(start, slot.len()).expect("the parts are those of the target");
            slot.copy_to_slice(&part).expect("the target can be written");
            Ok(())
        };
        let mut running = VecDeque::new();
        for (start, len) in parts(target.len(), copier.slot_len()) {
            let slot = self.next_slot(&mut running, finish)?;
            let slot = slot.slice(0, len).expect("a slot has room for a part");
            let pieces = self.piece(self.range(at + start, len)?)?;
            running.push_back((copier.read(&pieces, &slot, Order::Now), slot, start));
        }
        running.into_iter().try_for_each(finish)
    }

    /// Takes a slot. Waits for one only when it has none itself, so that several threads never wait for each other's.
    fn next_slot<T>(
        &self,
        running: &mut VecDeque<T>,
        finish: impl Fn(T) -> Result<(), CudaError>,
    ) -> Result<Memory, CudaError> {
        let copier = self.device().copier()?;
        loop {
            if running.len() < SLOTS
                && let Some(slot) = copier.try_slot()?
            {
                return Ok(slot);
            }
            match running.pop_front() {
                Some(oldest) => finish(oldest)?,
                None => return copier.wait_slot(),
            }
        }
    }

    fn range(&self, at: usize, len: usize) -> Result<Range<usize>, CudaError> {
        self.locate(at, len)?;
        Ok(at..at + len)
    }

    fn locate(&self, at: usize, len: usize) -> Result<u64, CudaError> {
        match at.checked_add(len) {
            Some(end) if end <= self.len() => Ok(self.address() + at as u64),
            _ => Err(CudaError::OutOfRange { at, len, room: self.len() }),
        }
    }
}

/// The starts and lengths of the parts of `len` bytes.
fn parts(len: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(most).map(move |start| (start, most.min(len - start)))
}

/// The stages of a [`VramBuffer`]: as many copies at a time, of as many bytes each, keep the
/// bus busy.
const STAGES: usize = 8;
const STAGE_LEN: usize = 1 << 20;

impl VramBuffer {
    /// Pins 8 MiB of the host's memory, in blocks through which peers may reach the buffer.
    ///
    /// # Errors
    /// As [`CudaDevice::pinned`].
    pub fn stages(&self) -> Result<Vec<Memory>, CudaError> {
        let pinned = || self.device().pinned(STAGE_LEN.min(self.len()));
        std::iter::repeat_with(pinned).take(STAGES).collect()
    }
}

impl StagedMemory for VramBuffer {
    fn size(&self) -> usize {
        self.len()
    }

    fn read(&self, at: usize, into: &MemorySlice) -> std::io::Result<()> {
        Self::read(self, at, into).map_err(std::io::Error::other)
    }

    fn write(&self, at: usize, from: &MemorySlice) -> std::io::Result<()> {
        Self::write(self, at, from).map_err(std::io::Error::other)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let Owner::Own = self.owner else { return };
        let (context, address) = (Arc::clone(self.device.context()), self.address);
        if context.driver.check_fork().is_err() || !self.device.is_hung() {
            context.free(address);
            return;
        }
        // The driver waits for the GPU, which may hang: the caller does not.
        let freed = std::thread::Builder::new()
            .name("mc-cuda-free".into())
            .spawn(move || context.free(address));
        if let Err(error) = freed {
            tracing::warn!("a buffer in VRAM is lost: no thread to free it: {error}");
        }
    }
}

impl fmt::Debug for VramBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VramBuffer")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
