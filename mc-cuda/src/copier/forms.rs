//! The forms in which copies are given to the driver.

use std::ffi::c_void;

use super::options::CopierOptions;
use crate::driver::{Copy2d, CopyAttributes, Driver, Handle, Side2d};
use crate::error::CudaError;
use crate::pieces::{DevicePiece, stride};
use crate::pointer;

/// `CU_MEMORYTYPE_*`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// `CU_MEMCPY_SRC_ACCESS_ORDER_*`: the source is read in the stream's order, or at any time.
const STREAM: i32 = 1;
const ANY: i32 = 3;

/// `CUDA_ERROR_INVALID_VALUE` and `CUDA_ERROR_NOT_SUPPORTED`.
const INVALID_VALUE: i32 = 1;
const NOT_SUPPORTED: i32 = 801;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    ToHost,
    ToDevice,
}

/// Copies between the host's bytes at `host` and pieces of a GPU, in a stream.
pub(super) struct Copy<'a> {
    pub(super) driver: &'a Driver,
    pub(super) options: &'a CopierOptions,
    pub(super) stream: Handle,
    pub(super) direction: Direction,
    pub(super) host: *mut u8,
    pub(super) pieces: &'a [DevicePiece],
}

impl Copy<'_> {
    /// Gives the copies to the driver.
    ///
    /// # Safety
    /// The context is current. Until the stream has done them, the host's bytes and the pieces are alive,
    /// and the host's bytes are as many.
    pub(super) unsafe fn queue(&self) -> Result<(), CudaError> {
        if self.pieces.len() < 2 {
            return self.queue_each();
        }
        if self.options.uses_batches
            && let Some(queued) = self.queue_batch()
        {
            return queued;
        }
        if let Some(stride) = stride(self.pieces)
            && self.is_in_one_allocation()
            && let Some(queued) = self.queue_rows(stride)
        {
            return queued;
        }
        self.queue_each()
    }

    /// Each piece by a call of its own.
    fn queue_each(&self) -> Result<(), CudaError> {
        let functions = &self.driver.functions;
        let mut host = self.host;
        for piece in self.pieces {
            let (name, code) = match self.direction {
                Direction::ToHost => ("cuMemcpyDtoHAsync", {
                    // SAFETY: the promise of `queue`.
                    unsafe {
                        (functions.to_host)(host.cast(), piece.address, piece.len, self.stream)
                    }
                }),
                Direction::ToDevice => ("cuMemcpyHtoDAsync", {
                    let source = host.cast_const().cast();
                    // SAFETY: the promise of `queue`.
                    unsafe { (functions.to_device)(piece.address, source, piece.len, self.stream) }
                }),
            };
            self.driver.check(name, piece.len, code)?;
            host = host.wrapping_add(piece.len);
        }
        Ok(())
    }

    /// All pieces by one call; `None` where the driver has none for that, or not for this GPU.
    fn queue_batch(&self) -> Option<Result<(), CudaError>> {
        let functions = &self.driver.functions;
        if functions.batch.is_none() && functions.batch_failing.is_none() {
            return None;
        }
        let mut device: Vec<u64> = self.pieces.iter().map(|piece| piece.address).collect();
        let mut sizes: Vec<usize> = self.pieces.iter().map(|piece| piece.len).collect();
        let mut at = self.host.expose_provenance() as u64;
        let mut host = Vec::with_capacity(sizes.len());
        for len in &sizes {
            host.push(at);
            at += *len as u64;
        }
        let (mut targets, mut sources, source_order) = match self.direction {
            // Kernels that the stream waits for may still write the source.
            Direction::ToHost => (host, std::mem::take(&mut device), STREAM),
            // The host's bytes stay as they are until the copy has ended.
            Direction::ToDevice => (std::mem::take(&mut device), host, ANY),
        };
        let mut attributes = CopyAttributes { source_order, locations: [[0; 2]; 2], flags: 0 };
        let (mut first, mut failed, count) = (0_usize, 0_usize, sizes.len());
        let code = if let Some(batch) = functions.batch {
            // SAFETY: the promise of `queue`; the three lists are equally long, and the driver has
            // read them when it returns.
            unsafe {
                batch(
                    targets.as_mut_ptr(),
                    sources.as_mut_ptr(),
                    sizes.as_mut_ptr(),
                    count,
                    &raw mut attributes,
                    &raw mut first,
                    1,
                    self.stream,
                )
            }
        } else {
            let batch = functions.batch_failing?;
            // SAFETY: as above; the number of a copy that fails is written to where it is told.
            unsafe {
                batch(
                    targets.as_mut_ptr(),
                    sources.as_mut_ptr(),
                    sizes.as_mut_ptr(),
                    count,
                    &raw mut attributes,
                    &raw mut first,
                    1,
                    &raw mut failed,
                    self.stream,
                )
            }
        };
        if code == NOT_SUPPORTED {
            return None;
        }
        let len = sizes.iter().sum();
        Some(self.driver.check("cuMemcpyBatchAsync", len, code))
    }

    /// Whether the driver knows all pieces as parts of one allocation.
    fn is_in_one_allocation(&self) -> bool {
        let [first, .., last] = self.pieces else { return false };
        let Some(span) = (last.address + last.len as u64).checked_sub(first.address) else {
            return false;
        };
        let found = pointer::find(self.driver, first.address, span as usize);
        matches!(found, Ok(Some(_)))
    }

    /// Pieces at equal distances as the rows of a matrix; `None` when the driver does not take them as one.
    fn queue_rows(&self, stride: usize) -> Option<Result<(), CudaError>> {
        let (first, count) = (self.pieces.first()?, self.pieces.len());
        let host: *mut c_void = self.host.cast();
        let side = |kind, host, device, pitch| Side2d {
            x: 0,
            y: 0,
            kind,
            host,
            device,
            array: std::ptr::null_mut(),
            pitch,
        };
        let of_host = side(HOST, host, 0, first.len);
        let of_device = side(DEVICE, std::ptr::null_mut(), first.address, stride);
        let (source, target) = match self.direction {
            Direction::ToHost => (of_device, of_host),
            Direction::ToDevice => (of_host, of_device),
        };
        let copy = Copy2d { source, target, width: first.len, height: count };
        // SAFETY: the promise of `queue`; the rows are the pieces.
        let code = unsafe { (self.driver.functions.rows)(&raw const copy, self.stream) };
        // The pitch has a limit.
        if code == INVALID_VALUE {
            return None;
        }
        Some(self.driver.check("cuMemcpy2DAsync", first.len * count, code))
    }
}
