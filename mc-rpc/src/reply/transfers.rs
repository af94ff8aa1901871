//! Answers about copies and moves.

use core::slice;

use bytes::BytesMut;
use mc_meta::TransferGrant;

use super::{Names, Signer, millis, put_placements, put_slices};
use crate::wire::{put_fixed64, put_u64};

/// `CopyStartResponse` and `MoveStartResponse`.
pub(crate) fn write_transfer(out: &mut BytesMut, grant: &TransferGrant, signer: Signer) {
    let left = grant.time_left;
    let source = slice::from_ref(&grant.source);
    put_placements(out, 5, source, signer.reading(left), |_| Names::Inline);
    put_placements(out, 6, &grant.targets, signer.writing(left), |_| Names::Inline);
    put_u64(out, 2, grant.handle.id.as_u64());
    put_u64(out, 3, grant.generation.as_u64());
    put_slices(out, 4, grant.slices.as_slice());
    put_u64(out, 7, millis(left));
    put_fixed64(out, 8, grant.handle.token.as_u64());
}
