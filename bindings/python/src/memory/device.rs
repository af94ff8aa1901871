//! Memory of GPUs, by address, which the processor cannot touch: its bytes take a step through pinned memory.
//!
//! Nothing here loads the driver. While no other library of the process has, no address is a GPU's.

use std::collections::BTreeMap;
use std::sync::Arc;

use mc_cuda::{
    Cuda, CudaDevice, CudaError, DevicePiece, EngineStream, Order, Pending, Pieces, Pointed,
    PointerKind,
};
use mc_transport::{BufferPool, Memory, MemorySlice, Staging};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;

use super::borrows::Borrow;
use crate::error::Failure;
use crate::fork::PerProcess;

/// Pinned bytes for each GPU, taken when the first value goes through them.
const STAGE: usize = 256 << 20;

/// The GPUs whose memory was used, which keep their contexts and copiers from then on.
static USED: PerProcess<Mutex<BTreeMap<usize, Used>>> = PerProcess::new();

#[derive(Clone, Debug)]
struct Used {
    device: CudaDevice,
    /// Its pinned memory, once a value went through it.
    stages: Option<BufferPool>,
}

/// Returns a GPU, the same for all calls of this process.
fn device(cuda: &Cuda, number: usize) -> Result<CudaDevice, Failure> {
    let known = USED.get().lock().get(&number).map(|used| used.device.clone());
    if let Some(device) = known {
        return Ok(device);
    }
    // Without the lock: a GPU that hangs holds up no other.
    let device = cuda.device(number).map_err(|why| failed(&why))?;
    let used = Used { device, stages: None };
    Ok(USED.get().lock().entry(number).or_insert(used).device.clone())
}

/// Bytes of a GPU's memory.
#[derive(Clone, Debug)]
pub(crate) struct DeviceMemory {
    device: CudaDevice,
    allocation: Pointed,
    address: usize,
    len: usize,
    /// The uses of registered memory that this counts as.
    lent: Option<Arc<[Borrow; 2]>>,
}

impl DeviceMemory {
    /// Returns the `len` bytes at `address`, if they are a GPU's and no others can reach them: managed memory
    /// is the processor's, too.
    pub(crate) fn find(address: usize, len: usize) -> Result<Option<Self>, Failure> {
        Self::find_of(address, len, |kind| kind == PointerKind::Device)
    }

    /// Returns the `len` bytes at `address`, if a GPU can reach them and they are of this kind.
    fn find_of(
        address: usize,
        len: usize,
        is_meant: impl Fn(PointerKind) -> bool,
    ) -> Result<Option<Self>, Failure> {
        let Some(cuda) = Cuda::loaded() else { return Ok(None) };
        // Of the first byte alone: memory of the host may go on behind what is pinned of it.
        let found = cuda.pointer(address as u64, 1).map_err(|why| failed(&why))?;
        let Some(allocation) = found.filter(|found| is_meant(found.kind)) else {
            return Ok(None);
        };
        let end = allocation.base as usize + allocation.len;
        if address.checked_add(len).is_none_or(|behind| behind > end) {
            let room = end - address;
            return Err(Failure::refuse(format_args!(
                "the {len} bytes at {address:#x} leave their allocation of a GPU's memory, which ends after {room}"
            )));
        }
        let device = device(&cuda, allocation.device)?;
        Ok(Some(Self { device, allocation, address, len, lent: None }))
    }

    /// Returns `len` of the bytes from `start` on.
    pub(crate) fn part(&self, start: usize, len: usize) -> Option<Self> {
        let end = start.checked_add(len)?;
        (end <= self.len).then(|| Self { address: self.address + start, len, ..self.clone() })
    }

    /// Counts as these uses of registered memory until the last clone is dropped and the last copy has ended.
    pub(super) fn lent(self, uses: [Borrow; 2]) -> Self {
        Self { lent: Some(Arc::new(uses)), ..self }
    }

    /// The number of bytes.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Rejects memory that was freed since it was found, also when another allocation has its address now.
    pub(crate) fn verify(&self) -> Result<(), Failure> {
        let cuda =
            Cuda::loaded().ok_or_else(|| Failure::refuse("the driver of the GPU is gone"))?;
        cuda.verify(&self.allocation).map_err(|why| failed(&why))
    }

    /// Serves the bytes to peers, through pinned memory.
    pub(crate) fn staging(&self) -> Result<Staging, Failure> {
        // SAFETY: the caller of the package promises that the memory stays until its registration has ended, which
        // waits for the copies of peers.
        let buffer = unsafe { self.device.borrow(self.address as u64, self.len, ()) };
        let stages = buffer.stages().map_err(|why| failed(&why))?;
        Ok(Staging::new(buffer, stages))
    }

    fn is_beside(&self, other: &Self) -> bool {
        self.device.ordinal() == other.device.ordinal()
    }
}

/// Takes pinned memory for `len` bytes on their way to or from the GPU of `memory`.
pub(crate) fn stage(memory: &DeviceMemory, len: usize) -> Result<Memory, Failure> {
    let (device, used) = (&memory.device, USED.get());
    let pin = |len| device.pinned(len).map_err(|why| failed(&why));
    let known = used.lock().get(&device.ordinal()).and_then(|used| used.stages.clone());
    let pool = match known {
        Some(pool) => pool,
        None => {
            // Without the lock, as above.
            let pool = BufferPool::of(pin(STAGE)?);
            let fresh = || Used { device: device.clone(), stages: None };
            let mut used = used.lock();
            let used = used.entry(device.ordinal()).or_insert_with(fresh);
            used.stages.get_or_insert(pool).clone()
        }
    };
    // Where many large values are on their way, pinning more takes milliseconds.
    pool.take(len).map_or_else(|| pin(len), Ok)
}

/// Copies the bytes of pieces, one behind the other, into pinned memory, once the stream has done what it was given.
pub(crate) fn gather(
    pieces: &[DeviceMemory],
    after: Option<EngineStream>,
) -> Result<Vec<MemorySlice>, Failure> {
    let mut gathered = Vec::with_capacity(1);
    for run in pieces.chunk_by(DeviceMemory::is_beside) {
        let len = run.iter().map(DeviceMemory::len).sum();
        let into = stage(&run[0], len)?.whole();
        let copier = run[0].device.copier().map_err(|why| failed(&why))?;
        let copied = copier.read(&together(run)?, &into, order(after)).wait();
        copied.map_err(|why| failed(&why))?;
        gathered.push(into);
    }
    Ok(gathered)
}

/// Copies pinned memory over pieces, one behind the other, as far as it has bytes. They are there for every
/// stream when this returns.
pub(crate) fn scatter(
    from: &MemorySlice,
    pieces: &[DeviceMemory],
    after: Option<EngineStream>,
) -> Result<(), Failure> {
    let copies = begin_scatter(from, pieces, after)?;
    copies.into_iter().try_for_each(|copy| copy.wait().map_err(|why| failed(&why)))
}

/// [`scatter`], which blocks no thread.
pub(crate) async fn land(
    from: &MemorySlice,
    pieces: &[DeviceMemory],
    after: Option<EngineStream>,
) -> Result<(), Failure> {
    for copy in begin_scatter(from, pieces, after)? {
        copy.await.map_err(|why| failed(&why))?;
    }
    Ok(())
}

fn begin_scatter(
    from: &MemorySlice,
    pieces: &[DeviceMemory],
    after: Option<EngineStream>,
) -> Result<Vec<Pending>, Failure> {
    let (mut at, mut copies) = (0, Vec::with_capacity(1));
    for run in pieces.chunk_by(DeviceMemory::is_beside) {
        let begin = at;
        let mut filled = Vec::with_capacity(run.len());
        for piece in run {
            let len = piece.len().min(from.len() - at);
            filled.extend(piece.part(0, len).filter(|_| len > 0));
            at += len;
        }
        if at > begin {
            let part = from.part(begin, at - begin).expect("it ends inside");
            let copier = run[0].device.copier().map_err(|why| failed(&why))?;
            copies.push(copier.write(&part, &together(&filled)?, order(after), None));
        }
    }
    Ok(copies)
}

fn order(after: Option<EngineStream>) -> Order {
    after.map_or(Order::Now, Order::After)
}

fn together(run: &[DeviceMemory]) -> Result<Pieces, Failure> {
    let pieces = run.iter().map(|it| DevicePiece { address: it.address as u64, len: it.len });
    let lent: Vec<_> = run.iter().filter_map(|it| it.lent.clone()).collect();
    // SAFETY: the caller of the package promises that the memory stays until the call has returned, as it does for
    // memory of the host; one that was freed is refused by the driver, which is asked here. The copy has ended when
    // the call returns. One that hangs keeps what is registered in use, so that its owner is not told that it may be
    // freed.
    let pieces = unsafe { run[0].device.pieces(pieces, lent) };
    pieces.map_err(|why| failed(&why))
}

fn failed(why: &CudaError) -> Failure {
    Failure::refuse(format_args!("memory of a GPU: {why}"))
}

/// An object of Python whose bytes are a GPU's, such as a tensor.
pub(crate) struct DeviceObject {
    pub(crate) memory: DeviceMemory,
    /// The stream whose work the bytes depend on.
    pub(crate) stream: Option<EngineStream>,
    pub(crate) is_read_only: bool,
}

impl DeviceObject {
    /// Returns the bytes of an object with `__cuda_array_interface__`; `None` for other objects.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let name = intern!(object.py(), "__cuda_array_interface__");
        // Tensors of the host have the attribute, too, and refuse it.
        let Ok(Some(interface)) = object.getattr_opt(name) else { return Ok(None) };
        let item = |name: &str| interface.get_item(name);
        let (address, is_read_only): (usize, bool) = item("data")?.extract()?;
        let shape: Vec<usize> = item("shape")?.extract()?;
        let kind: String = item("typestr")?.extract()?;
        let size =
            kind.trim_start_matches(|letter: char| !letter.is_ascii_digit()).parse::<usize>();
        let size = size.map_err(|_| PyValueError::new_err(format!("{kind:?} is no typestr")))?;
        let mut len = size;
        for extent in &shape {
            let too_long =
                || PyValueError::new_err("the array has more bytes than there are addresses");
            len = len.checked_mul(*extent).ok_or_else(too_long)?;
        }
        let strides: Option<Vec<isize>> =
            interface.get_item("strides").ok().and_then(|it| it.extract().ok()).flatten();
        if strides.is_some_and(|strides| !is_contiguous(&shape, &strides, size)) {
            return Err(PyValueError::new_err("the array is not C-contiguous; copy it first"));
        }
        // Managed memory, too: what the engine queued for it is waited for.
        let is_gpus = |kind| matches!(kind, PointerKind::Device | PointerKind::Managed);
        let memory = DeviceMemory::find_of(address, len, is_gpus);
        let memory = memory.map_err(|_| unusable(address, len))?;
        let memory = memory.ok_or_else(|| unusable(address, len))?;
        let stream = match interface.get_item("stream").ok().and_then(|it| it.extract().ok()) {
            Some(stream) => Some(stream),
            None => current_stream(object)?,
        };
        // SAFETY: the object's owner names the stream, which lives as long as work for the object is on it; the call
        // that it is passed to is under way.
        let stream = stream.map(|stream: u64| unsafe { EngineStream::new(stream) });
        Ok(Some(Self { memory, stream, is_read_only }))
    }
}

/// The stream on which a tensor of PyTorch is being worked on: its interface names none.
fn current_stream(object: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    let module = object.get_type().module()?;
    if module.to_cow()?.split('.').next() != Some("torch") {
        return Ok(None);
    }
    let cuda = object.py().import("torch")?.getattr("cuda")?;
    let stream = cuda.call_method1("current_stream", (object.getattr("device")?,))?;
    Ok(Some(stream.getattr("cuda_stream")?.extract()?))
}

fn is_contiguous(shape: &[usize], strides: &[isize], size: usize) -> bool {
    let mut wanted = size;
    shape.len() == strides.len()
        && shape.iter().zip(strides).rev().all(|(extent, stride)| {
            let fits = *extent <= 1 || usize::try_from(*stride) == Ok(wanted);
            wanted = wanted.saturating_mul(*extent);
            fits
        })
}

fn unusable(address: usize, len: usize) -> PyErr {
    PyValueError::new_err(format!(
        "the {len} bytes at {address:#x} are no memory of a GPU that can be used"
    ))
}
