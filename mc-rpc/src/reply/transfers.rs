//! Answers that grant space to copy or to bring back what is there already.

use core::slice;

use bytes::BytesMut;
use mc_meta::{PromotionGrant, TransferGrant};

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

/// `PromotionAllocStartResponse`.
pub(crate) fn write_promotion(out: &mut BytesMut, grant: &PromotionGrant, signer: Signer) {
    let (placements, terms) = (slice::from_ref(&grant.placement), signer.writing(grant.time_left));
    put_placements(out, 2, placements, terms, |_| Names::Inline);
    put_u64(out, 3, millis(grant.time_left));
    put_u64(out, 4, grant.handle.id.as_u64());
    put_fixed64(out, 5, grant.handle.token.as_u64());
}
