//! Pieces of memory, and whether they have the checksums of an object.

use mc_transport::{Cancel, CopyError, Digest, MemorySlice};
use mc_types::Checksum;
use smallvec::SmallVec;

/// Bytes for which a cancellation may wait.
const COPY_AT_ONCE: usize = 256 << 10;

/// Memory that bytes go to, hardly ever more than one piece.
pub(super) type Pieces = SmallVec<[MemorySlice; 1]>;

/// The first `len` bytes of `pieces`; `None` when they have fewer.
pub(super) fn prefix(pieces: &[MemorySlice], len: u64) -> Option<Pieces> {
    let mut left = usize::try_from(len).ok()?;
    let mut taken = Pieces::new();
    for piece in pieces {
        if left == 0 {
            break;
        }
        let part = piece.part(0, piece.len().min(left))?;
        left -= part.len();
        taken.push(part);
    }
    (left == 0).then_some(taken)
}

/// Copies bytes into pieces, which have as many together, until `cancel` says that nothing more may
/// be written.
///
/// # Errors
/// [`CopyError`], when a piece cannot be written.
pub(super) fn scatter(
    mut bytes: &[u8],
    pieces: &[MemorySlice],
    cancel: &Cancel,
) -> Result<(), CopyError> {
    for piece in pieces {
        let (here, after) = bytes.split_at(piece.len().min(bytes.len()));
        for (nth, part) in here.chunks(COPY_AT_ONCE).enumerate() {
            match cancel.guard(|| piece.copy_from(nth * COPY_AT_ONCE, part)) {
                Some(copied) => copied?,
                None => return Ok(()),
            }
        }
        bytes = after;
    }
    Ok(())
}

/// Whether consecutive runs of `pieces`, each of so many bytes, have the checksums that are
/// given; those without one are passed over.
pub(super) fn match_checksums(
    pieces: &[MemorySlice],
    runs: impl IntoIterator<Item = (u64, Option<Checksum>)>,
) -> bool {
    first_mismatch(pieces, runs).is_none()
}

/// A run that does not have the checksum that is given.
pub(super) struct Mismatch {
    /// Its place among the runs.
    pub(super) run: usize,
    pub(super) expected: Checksum,
    pub(super) found: Checksum,
}

/// The first of consecutive runs of `pieces`, each of so many bytes, that does not have the checksum
/// that is given; those without one are passed over.
pub(super) fn first_mismatch(
    pieces: &[MemorySlice],
    runs: impl IntoIterator<Item = (u64, Option<Checksum>)>,
) -> Option<Mismatch> {
    let (mut at, mut used) = (0, 0);
    for (run, (len, expected)) in runs.into_iter().enumerate() {
        let mut digest = Digest::new();
        let mut left = len as usize; // within pieces that are in memory
        while left > 0 && at < pieces.len() {
            let piece = &pieces[at];
            let take = left.min(piece.len() - used);
            if expected.is_some() {
                let part = piece.part(used, take).expect("`take` ends inside the piece");
                digest.update_memory(&part);
            }
            left -= take;
            used += take;
            if used == piece.len() {
                (at, used) = (at + 1, 0);
            }
        }
        if let Some(expected) = expected {
            let found = digest.finish();
            if expected != found {
                return Some(Mismatch { run, expected, found });
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use mc_transport::Memory;

    #[test]
    fn checksums_follow_the_object_and_not_the_pieces() {
        let memory = Memory::allocate(100).unwrap();
        let text: Vec<u8> = (0..100).collect();
        memory.whole().copy_from(0, &text).unwrap();
        let cut = |at, len| memory.slice(at, len).unwrap();
        let pieces = [cut(0, 7), cut(7, 0), cut(7, 50), cut(57, 43)];
        let [a, b, c] = [&text[..10], &text[10..70], &text[70..]].map(mc_transport::checksum);
        assert!(match_checksums(&pieces, [(10, Some(a)), (60, Some(b)), (30, Some(c))]));
        assert!(match_checksums(&pieces, [(10, None), (60, Some(b)), (30, None)]));
        assert!(!match_checksums(&pieces, [(10, Some(a)), (60, Some(c)), (30, None)]));
        assert!(!match_checksums(&pieces, [(11, None), (59, Some(b)), (30, None)]));
    }

    #[test]
    fn a_prefix_ends_inside_a_piece() {
        let memory = Memory::allocate(10).unwrap();
        let pieces = [memory.slice(0, 4).unwrap(), memory.slice(4, 6).unwrap()];
        let lens = |len| prefix(&pieces, len).map(|p| p.iter().map(MemorySlice::len).collect());
        assert_eq!(lens(0), Some(vec![]));
        assert_eq!(lens(4), Some(vec![4]));
        assert_eq!(lens(5), Some(vec![4, 1]));
        assert_eq!(lens(10), Some(vec![4, 6]));
        assert_eq!(lens(11), None::<Vec<usize>>);
    }
}
