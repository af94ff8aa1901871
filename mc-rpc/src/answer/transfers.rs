//! What the client hands out about copies and moves.

use mc_meta::{MAX_REPLICAS, Slices};
use mc_types::Generation;

use super::ReplicaLocation;
use super::read::{Answer, SliceList, Status, problem, push_replica};
use crate::wire::Fields;

/// What to copy or move, and where to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferGrant {
    /// Names this copy or move among all those of the object.
    pub transfer: Generation,
    /// The put that the object came from.
    pub generation: Generation,
    /// The object's slices, with the checksums that the bytes must have.
    pub slices: Slices,
    /// The replica to read from.
    pub source: ReplicaLocation,
    /// Replicas to write, each as long as the object. Segments that hold one already have
    /// none here. A copy without any is over, and there is nothing to end; a move without
    /// any is still to be ended.
    pub targets: Vec<ReplicaLocation>,
}

/// `CopyStartResponse` and `MoveStartResponse`.
pub(crate) fn read_transfer(message: &[u8]) -> Answer<TransferGrant> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut transfer, mut generation, mut slices) = (0, 0, SliceList::default());
    let (mut source, mut targets) = (Vec::new(), Vec::new());
    while let Some(field) = fields.next()? {
        match field.number {
            2 => transfer = field.u64()?,
            3 => generation = field.u64()?,
            4 => slices.push(field.bytes()?)?,
            5 => {
                source.clear();
                push_replica(&mut source, field.bytes()?, &[])?;
            }
            6 if targets.len() == MAX_REPLICAS => {
                return Err(problem("targets", "has too many replicas"));
            }
            6 => push_replica(&mut targets, field.bytes()?, &[])?,
            _ => status.read(field)?,
        }
    }
    status.or(|| {
        let (slices, total) = slices.finish()?;
        let source = source.pop().ok_or(problem("source", "is missing"))?;
        if targets.iter().chain([&source]).any(|replica| replica.extent.len() != total) {
            return Err(problem("targets", "has a replica of another length than the slices"));
        }
        let (transfer, generation) = (Generation::new(transfer), Generation::new(generation));
        Ok(TransferGrant { transfer, generation, slices, source, targets })
    })
}
