//! Memory of a GPU that is gathered and scattered.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::error::CudaError;

/// Bytes of a GPU's memory that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePiece {
    /// The address of the first byte.
    pub address: u64,
    /// The number of bytes.
    pub len: usize,
}

/// Pieces of one GPU's memory, in the order in which the host has their bytes, and what keeps them alive.
#[derive(Clone)]
pub struct Pieces {
    pub(crate) device: usize,
    pub(crate) merged: Vec<DevicePiece>,
    len: usize,
    _owner: Arc<dyn Any + Send + Sync>,
}

impl Pieces {
    /// Pieces that the caller has checked; neighbours are merged.
    pub(crate) fn new(
        device: usize,
        pieces: impl IntoIterator<Item = DevicePiece>,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, CudaError> {
        let mut merged: Vec<DevicePiece> = Vec::new();
        let mut len = 0_usize;
        for piece in pieces {
            let too_long = CudaError::OutOfRange { at: len, len: piece.len, room: usize::MAX };
            len = len.checked_add(piece.len).ok_or(too_long)?;
            match merged.last_mut() {
                _ if piece.len == 0 => {}
                Some(last) if last.address.checked_add(last.len as u64) == Some(piece.address) => {
                    last.len += piece.len;
                }
                _ => merged.push(piece),
            }
        }
        Ok(Self { device, merged, len, _owner: owner })
    }

    /// Bytes of all pieces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether they have no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces, of which neighbours are one.
    #[must_use]
    pub fn as_slice(&self) -> &[DevicePiece] {
        &self.merged
    }
}

impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pieces")
            .field("device", &self.device)
            .field("pieces", &self.merged.len())
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// The distance between pieces of equal length that lie equally far apart, in ascending order.
pub(crate) fn stride(pieces: &[DevicePiece]) -> Option<usize> {
    let [first, second, ..] = pieces else { return None };
    let stride = usize::try_from(second.address.checked_sub(first.address)?).ok()?;
    let is_equal = |pair: &[DevicePiece]| {
        pair[1].len == first.len
            && pair[0].address.checked_add(stride as u64) == Some(pair[1].address)
    };
    (stride >= first.len && pieces.windows(2).all(is_equal)).then_some(stride)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(address: u64, len: usize) -> DevicePiece {
        DevicePiece { address, len }
    }

    #[test]
    fn neighbours_are_merged_and_empty_pieces_left_out() {
        let given = [piece(100, 10), piece(110, 5), piece(200, 0), piece(115, 1), piece(90, 10)];
        let pieces = Pieces::new(0, given, Arc::new(())).unwrap();
        assert_eq!(pieces.as_slice(), [piece(100, 16), piece(90, 10)]);
        assert_eq!((pieces.len(), pieces.is_empty()), (26, false));
        assert!(Pieces::new(0, [], Arc::new(())).unwrap().is_empty());
        let endless = [piece(0, usize::MAX), piece(0, 1)];
        assert!(matches!(Pieces::new(0, endless, Arc::new(())), Err(CudaError::OutOfRange { .. })));
    }

    #[test]
    fn only_equal_pieces_at_equal_distances_have_a_stride() {
        assert_eq!(stride(&[piece(0, 4), piece(10, 4), piece(20, 4)]), Some(10));
        for other in [
            vec![piece(0, 4)],
            vec![piece(0, 4), piece(10, 5)],
            vec![piece(0, 4), piece(10, 4), piece(21, 4)],
            vec![piece(10, 4), piece(0, 4)],
            vec![piece(0, 4), piece(2, 4)],
        ] {
            assert_eq!(stride(&other), None, "{other:?}");
        }
    }
}
