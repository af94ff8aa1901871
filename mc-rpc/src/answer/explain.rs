//! What the client hands out about why a key is as it is.

use core::time::Duration;

use mc_meta::{Happening, KeptBy, Removal, TransferKind, What};
use mc_types::{ErrorCode, Generation};

use super::ObjectDescription;
use super::read::{Answer, Status, problem, read_object};
use crate::error::MalformedReply;
use crate::proto::happening::Event;
use crate::proto::kept_by::Reason;
use crate::wire::Fields;

/// Most reasons that are taken, several times as many as there are.
const MAX_REASONS: usize = 64;

/// Most happenings that are taken, several times as many as a master remembers of a key.
const MAX_HAPPENINGS: usize = 4096;

/// What the master knows of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectExplanation {
    /// The object, if there is one.
    pub object: Option<ObjectDescription>,
    /// What keeps it from being evicted now; empty when nothing does, or when there is no
    /// object. A reason that this version does not know is left out.
    pub kept_by: Vec<KeptBy>,
    /// What happened to earlier objects of the key and to puts of it, the latest first, as
    /// far as the master remembers. What this version does not know is left out.
    pub history: Vec<Happening>,
}

/// `ExplainObjectResponse`.
pub(crate) fn read_explanation(message: &[u8]) -> Answer<ObjectExplanation> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut object, mut kept_by, mut history) = (None, Vec::new(), Vec::new());
    while let Some(field) = fields.next()? {
        match field.number {
            2 => object = Some(field.bytes()?),
            3 if kept_by.len() == MAX_REASONS => {
                return Err(problem("kept_by", "has too many reasons"));
            }
            3 => kept_by.extend(read_kept_by(field.bytes()?)?),
            4 if history.len() == MAX_HAPPENINGS => {
                return Err(problem("history", "has too many happenings"));
            }
            4 => history.extend(read_happening(field.bytes()?)?),
            _ => status.read(field)?,
        }
    }
    let object = object.map(read_object).transpose()?.transpose();
    status.or(|| {
        let object = object.map_err(|_| problem("object", "is refused inside an answer"))?;
        Ok(ObjectExplanation { object, kept_by, history })
    })
}

fn read_kept_by(message: &[u8]) -> Result<Option<KeptBy>, MalformedReply> {
    let (mut fields, mut reason, mut duration) = (Fields::new(message), 0, 0);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => reason = field.i32()?,
            2 => duration = field.u64()?,
            _ => {}
        }
    }
    let remaining = Duration::from_millis(duration);
    Ok(match Reason::try_from(reason) {
        Ok(Reason::Unfinished) => Some(KeptBy::Unfinished { age: remaining }),
        Ok(Reason::Lease) => Some(KeptBy::Lease { remaining }),
        Ok(Reason::SoftPin) => Some(KeptBy::SoftPin { remaining }),
        Ok(Reason::HardPin) => Some(KeptBy::HardPin),
        Ok(Reason::Copy) => Some(KeptBy::Transfer { kind: TransferKind::Copy, remaining }),
        Ok(Reason::Move) => Some(KeptBy::Transfer { kind: TransferKind::Move, remaining }),
        Ok(Reason::Group) => Some(KeptBy::Group { remaining }),
        Ok(Reason::Offload) => Some(KeptBy::Offload),
        Ok(Reason::NoRoomToGain) => Some(KeptBy::NoRoomToGain),
        Ok(Reason::Undefined) | Err(_) => None,
    })
}

fn read_happening(message: &[u8]) -> Result<Option<Happening>, MalformedReply> {
    let (mut fields, mut ago, mut event) = (Fields::new(message), 0, 0);
    let (mut generation, mut code) = (0, 0);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => ago = field.u64()?,
            2 => event = field.i32()?,
            3 => generation = field.u64()?,
            4 => code = field.i32()?,
            _ => {}
        }
    }
    let removed = |cause| What::Removed { generation: Generation::new(generation), cause };
    let what = match Event::try_from(event) {
        Ok(Event::Removed) => removed(Removal::Requested),
        Ok(Event::Evicted) => removed(Removal::Evicted),
        Ok(Event::SegmentLost) => removed(Removal::SegmentLost),
        Ok(Event::Replaced) => removed(Removal::Replaced),
        Ok(Event::DiskLost) => removed(Removal::DiskLost),
        Ok(Event::Expired) => removed(Removal::Expired),
        Ok(Event::Damaged) => removed(Removal::Damaged),
        Ok(Event::Refused) => {
            What::Refused { code: ErrorCode::from_code(code).unwrap_or(ErrorCode::Internal) }
        }
        Ok(Event::Undefined) | Err(_) => return Ok(None),
    };
    Ok(Some(Happening { ago: Duration::from_millis(ago), what }))
}
