//! Answers about copies and moves.

use bytes::BytesMut;
use mc_meta::{Placement, ReplicaStatus, TransferGrant};

use super::{Names, put_replica, put_slices};
use crate::wire::put_u64;

/// `CopyStartResponse` and `MoveStartResponse`.
pub(crate) fn write_transfer(out: &mut BytesMut, grant: &TransferGrant) {
    let mut put = |number, Placement { segment, extent }: &Placement, status| {
        put_replica(out, number, (segment, *extent), status, Names::Inline);
    };
    put(5, &grant.source, ReplicaStatus::Complete);
    for target in &grant.targets {
        put(6, target, ReplicaStatus::Processing);
    }
    put_u64(out, 2, grant.transfer.as_u64());
    put_u64(out, 3, grant.generation.as_u64());
    put_slices(out, 4, grant.slices.as_slice());
}
