//! One operation as a copy, for transports whose two sides share memory.

use mc_types::Checksum;

use crate::checksum::Digest;
use crate::memory::MemorySlice;
use crate::operation::{Operation, Source};

/// Bytes copied before they are summed, while the second cache still has them.
const SUMMED_CHUNK: usize = 128 << 10;

/// Moves the bytes of `operation`, whose remote side is `remote`; their checksum if
/// it asks for one.
///
/// # Panics
/// When the two sides differ in length, which [`Operation::validate`] excludes.
pub(crate) fn copy(operation: &Operation, remote: &MemorySlice) -> Option<Checksum> {
    let mut digest = operation.is_checksummed().then(Digest::new);
    let mut rest = Rest { remote, at: 0 };
    match operation {
        Operation::Read { into, .. } => {
            for piece in into.iter() {
                copy_piece(&rest.take(piece.len()), piece, piece, digest.as_mut());
            }
        }
        Operation::Write { from, .. } => {
            for source in from.iter() {
                let target = rest.take(source.len());
                match source {
                    Source::Memory(slice) => copy_piece(slice, &target, slice, digest.as_mut()),
                    Source::Bytes(bytes) => {
                        target.copy_from(0, bytes).expect("the part has the length of the piece");
                        if let Some(digest) = &mut digest {
                            digest.update(bytes);
                        }
                    }
                }
            }
        }
    }
    digest.map(|digest| digest.finish())
}

/// What is left of the remote side.
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
    digest: Option<&mut Digest>,
) {
    let Some(digest) = digest else {
        from.copy_to_slice(to).expect("the part has the length of the piece");
        return;
    };
    for start in (0..from.len()).step_by(SUMMED_CHUNK) {
        let len = SUMMED_CHUNK.min(from.len() - start);
        let part = |slice: &MemorySlice| slice.part(start, len).expect("the loop stays inside");
        part(from).copy_to_slice(&part(to)).expect("parts of one length");
        digest.update_part(local, start, len);
    }
}
