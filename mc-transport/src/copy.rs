//! One operation as a copy, for transports whose two sides share memory.

use mc_memory::MemorySlice;

use crate::cancel::{Cancel, guarded};
use crate::completion::Transferred;
use crate::error::TransferError;
use crate::operation::{Operation, Source};
use crate::slice_sums::Summing;

/// Bytes copied before they are summed, while the second cache still has them, and before
/// it is asked again whether the copy may go on.
const CHUNK: usize = 128 << 10;

/// Moves the bytes of `operation`, whose remote side is `remote`; their checksums if it asks
/// for any. `may_go_on` is asked before each 128 KiB.
///
/// # Errors
/// The refusal of `may_go_on`, and [`TransferError::Cancelled`]; part of the bytes may have been
/// moved then.
///
/// # Panics
/// When the two sides differ in length, which [`Operation::validate`] excludes.
pub(crate) fn copy(
    operation: &Operation,
    remote: &MemorySlice,
    may_go_on: impl Fn() -> Result<(), TransferError>,
) -> Result<Transferred, TransferError> {
    let mut digest = Summing::of(operation);
    let mut rest = Rest { remote, at: 0 };
    match operation {
        Operation::Read { into, .. } => {
            for piece in into.iter() {
                let from = rest.take(piece.len());
                copy_piece(&from, piece, piece, digest.as_mut(), operation.cancel(), &may_go_on)?;
            }
        }
        Operation::Write { from, .. } => {
            for source in from.iter() {
                let target = rest.take(source.len());
                match source {
                    Source::Memory(slice) => {
                        copy_piece(slice, &target, slice, digest.as_mut(), None, &may_go_on)?;
                    }
                    Source::Bytes(bytes) => {
                        for (nth, chunk) in bytes.chunks(CHUNK).enumerate() {
                            may_go_on()?;
                            let copied = target.copy_from(nth * CHUNK, chunk);
                            copied.expect("the part has the length of the piece");
                            if let Some(digest) = &mut digest {
                                digest.update(chunk);
                            }
                        }
                    }
                }
            }
        }
    }
    Ok(digest.map(Summing::finish).unwrap_or_default())
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

/// Copies `from` to `to`. Of the two, `local` is summed: what a peer has or does to
/// its side is no business of the checksum.
fn copy_piece(
    from: &MemorySlice,
    to: &MemorySlice,
    local: &MemorySlice,
    mut digest: Option<&mut Summing>,
    cancel: Option<&Cancel>,
    may_go_on: &impl Fn() -> Result<(), TransferError>,
) -> Result<(), TransferError> {
    for start in (0..from.len()).step_by(CHUNK) {
        may_go_on()?;
        let len = CHUNK.min(from.len() - start);
        let part = |slice: &MemorySlice| slice.part(start, len).expect("the loop stays inside");
        let copied = guarded(cancel, || part(from).copy_to_slice(&part(to)));
        copied.ok_or(TransferError::Cancelled)?.expect("parts of one length");
        if let Some(digest) = &mut digest {
            digest.update_part(local, start, len);
        }
    }
    Ok(())
}
