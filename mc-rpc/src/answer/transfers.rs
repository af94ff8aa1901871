//! Answers that grant space to copy or to bring back what is there already.

use core::time::Duration;

use mc_meta::{MAX_REPLICAS, Slices, TransferHandle};
use mc_ticket::PutToken;
use mc_types::{Generation, TransferId};

use super::ReplicaLocation;
use super::read::{Answer, SliceList, Status, problem, push_replica};
use crate::wire::Fields;

/// The source and the targets of a copy or move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferGrant {
    /// Names this copy or move among all those of the object, and proves that its holder
    /// began it: only this answer tells it.
    pub handle: TransferHandle,
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
    /// How long the targets may be written to, and the source is kept, counted from when
    /// the master wrote the answer: the client counts from before it asked.
    pub time_left: Duration,
}

/// Memory to bring an object back into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromotionGrant {
    /// Names this way back, and proves that its holder began it: only this answer tells it.
    pub handle: TransferHandle,
    /// The replica to write, as long as the object.
    pub replica: ReplicaLocation,
    /// How long it may be written to, counted from when the master wrote the answer: the
    /// client counts from before it asked.
    pub time_left: Duration,
}

/// `CopyStartResponse` and `MoveStartResponse`.
pub(crate) fn read_transfer(message: &[u8]) -> Answer<TransferGrant> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut id, mut token, mut time_left) = (0, 0, 0);
    let (mut generation, mut slices) = (0, SliceList::default());
    let (mut source, mut targets) = (Vec::new(), Vec::new());
    while let Some(field) = fields.next()? {
        match field.number {
            2 => id = field.u64()?,
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
            7 => time_left = field.u64()?,
            8 => token = field.fixed64()?,
            _ => status.read(field)?,
        }
    }
    status.or(|| {
        let (slices, total) = slices.finish()?;
        let source = source.pop().ok_or(problem("source", "is missing"))?;
        if targets.iter().chain([&source]).any(|replica| replica.extent.len() != total) {
            return Err(problem("targets", "has a replica of another length than the slices"));
        }
        let (id, token) = (TransferId::new(id), PutToken::from_u64(token));
        let (handle, generation) = (TransferHandle { id, token }, Generation::new(generation));
        let time_left = Duration::from_millis(time_left);
        Ok(TransferGrant { handle, generation, slices, source, targets, time_left })
    })
}

/// `PromotionAllocStartResponse` for an object of `len` bytes.
pub(crate) fn read_promotion(message: &[u8], len: u64) -> Answer<PromotionGrant> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut replicas, mut time_left, mut id, mut token) = (Vec::new(), 0, 0, 0);
    while let Some(field) = fields.next()? {
        match field.number {
            2 => {
                replicas.clear();
                push_replica(&mut replicas, field.bytes()?, &[])?;
            }
            3 => time_left = field.u64()?,
            4 => id = field.u64()?,
            5 => token = field.fixed64()?,
            _ => status.read(field)?,
        }
    }
    status.or(|| {
        let replica = replicas.pop().ok_or(problem("replica", "is missing"))?;
        if replica.extent.len() != len {
            return Err(problem("replica", "is of another length than asked for"));
        }
        let (id, token) = (TransferId::new(id), PutToken::from_u64(token));
        let handle = TransferHandle { id, token };
        Ok(PromotionGrant { handle, replica, time_left: Duration::from_millis(time_left) })
    })
}
