//! Bytes of Python objects that a call uses where they are.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use mc_transport::{Memory, Source};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use super::loans::{Loan, Loans};

/// How long to wait for bytes that a call which is over still holds: its connections let go of
/// them a moment later, but a put that was interrupted goes on.
const PATIENCE: Duration = Duration::from_secs(1);

/// Keeps Python objects alive while a call uses their bytes.
///
/// What still holds bytes in the end may do so for as long as a transfer takes. A thread waits for
/// it then and releases the objects.
#[derive(Default)]
pub(crate) struct Lender {
    loans: Loans,
    bytes: Vec<Py<PyBytes>>,
    buffers: Vec<PyUntypedBuffer>,
}

impl Lender {
    /// The bytes of an object with the buffer protocol, not copied unless they are scattered.
    pub(crate) fn lend(&mut self, object: &Bound<'_, PyAny>) -> PyResult<Source> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(self.lend_bytes(bytes));
        }
        // A view of the object says all of it in the way that is understood here, also where
        // the object leaves something out, as arrays of ctypes do.
        let view = PyMemoryView::from(object)?;
        let buffer = PyUntypedBuffer::get(&view)?;
        let len = buffer.len_bytes();
        let Some(base) = NonNull::new(buffer.buf_ptr().cast::<u8>()).filter(|_| len > 0) else {
            return Ok(Bytes::new().into());
        };
        if !buffer.is_c_contiguous() {
            let copy = view.call_method0("tobytes")?;
            return Ok(self.lend_bytes(copy.cast()?));
        }
        let loan = self.loans.lend();
        // SAFETY: the object promises `len` contiguous bytes at `base` for as long as the
        // buffer is held, which `self` does until the loan is back, or for good. Only raw
        // copies read them, so that others may change them meanwhile.
        let memory = unsafe { Memory::from_raw_read_only(base, len, loan) };
        self.buffers.push(buffer);
        Ok(memory.whole().into())
    }

    fn lend_bytes(&mut self, object: &Bound<'_, PyBytes>) -> Source {
        let slice = object.as_bytes();
        let lent = Lent { base: NonNull::from(slice), _loan: self.loans.lend() };
        self.bytes.push(object.clone().unbind());
        Bytes::from_owner(lent).into()
    }

    /// Releases the objects as soon as nobody uses their bytes any more.
    pub(crate) fn settle(self, py: Python<'_>) {
        if !self.loans.are_back() {
            let loans = self.loans.clone();
            py.detach(move || loans.wait(PATIENCE));
        }
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        if self.loans.are_back() {
            return;
        }
        let kept = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.buffers));
        let (loans, kept) = (self.loans.clone(), ManuallyDrop::new(kept));
        let release = move || {
            loans.wait_patiently();
            // Without an interpreter there is nothing to release.
            Python::try_attach(|_| drop(ManuallyDrop::into_inner(kept)));
        };
        // Without a thread they are never released: anything else would let the bytes change
        // under a transfer.
        let _ = thread::Builder::new().name("mc-lender".into()).spawn(release);
    }
}

/// The bytes of a `bytes` object, which never change.
struct Lent {
    base: NonNull<[u8]>,
    _loan: Loan,
}

// SAFETY: plain bytes that nobody changes have no tie to a thread.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the lender keeps the object, and with it the bytes, until the loan that
        // `self` holds is back.
        unsafe { self.base.as_ref() }
    }
}
