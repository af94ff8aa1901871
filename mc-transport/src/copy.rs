//! One operation as a copy, for transports whose two sides share memory.

use mc_memory::MemorySlice;

use crate::cancel::{Cancel, guarded};
use crate::completion::Transferred;
use crate::error::TransferError;
use crate::operation::{Operation, RemoteSpan, Source};
use crate::region::Admitted;
use crate::slice_sums::{Summing, copy_part};

/// Bytes copied before it is asked again whether the copy may go on.
const CHUNK: usize = 128 << 10;

/// The right to touch the remote side of an operation, which may end in the middle of it.
pub(crate) trait Permit: Send + Sync + 'static {
    /// Refuses what is not to be copied any more.
    fn check(&self) -> Result<(), TransferError>;
}

/// The right to a span of a region of this process.
#[derive(Clone)]
pub(crate) struct AdmittedSpan {
    pub(crate) span: RemoteSpan,
    pub(crate) admitted: Admitted,
}

impl Permit for AdmittedSpan {
    fn check(&self) -> Result<(), TransferError> {
        self.span.check_time()?;
        self.admitted.check()
    }
}

/// Moves the bytes of `operation`, whose remote side is `remote`; their checksums if it asks
/// for any. `permit` is asked before each 128 KiB.
///
/// # Errors
/// The refusal of `permit`, and [`TransferError::Cancelled`]; part of the bytes may have been
/// moved then.
///
/// # Panics
/// When the two sides differ in length, which [`Operation::validate`] excludes.
pub(crate) fn copy(
    operation: &Operation,
    remote: &MemorySlice,
    permit: &(impl Permit + ?Sized),
) -> Result<Transferred, TransferError> {
    let mut sums = Summing::of(operation);
    let mut rest = Rest { remote, at: 0 };
    match operation {
        Operation::Read { into, .. } => {
            for piece in into.iter() {
                let from = Source::Memory(rest.take(piece.len()));
                copy_piece(&from, piece, &mut sums, operation.cancel(), permit)?;
            }
        }
        Operation::Write { from, .. } => {
            for source in from.iter() {
                copy_piece(source, &rest.take(source.len()), &mut sums, None, permit)?;
            }
        }
    }
    Ok(sums.map(Summing::finish).unwrap_or_default())
}

/// The rest of the remote side.
struct Rest<'a> {
    remote: &'a MemorySlice,
    at: usize,
}

impl Rest<'_> {
    fn take(&mut self, len: usize) -> MemorySlice {
        let part = self.remote.part(self.at, len).expect("the lengths were validated to agree");
        self.at += len;
        part
    }
}

/// Copies `from` to `to`. The bytes that are written are those that are summed: what a peer does to its side
/// meanwhile is no business of the checksum.
fn copy_piece(
    from: &Source,
    to: &MemorySlice,
    sums: &mut Option<Summing>,
    cancel: Option<&Cancel>,
    permit: &(impl Permit + ?Sized),
) -> Result<(), TransferError> {
    for at in (0..from.len()).step_by(CHUNK) {
        permit.check()?;
        let len = CHUNK.min(from.len() - at);
        let copied = guarded(cancel, || match sums {
            Some(sums) => sums.copy_part(from, to, at, len),
            None => copy_part(from, to, at, len, None),
        });
        copied.ok_or(TransferError::Cancelled)?;
    }
    Ok(())
}
