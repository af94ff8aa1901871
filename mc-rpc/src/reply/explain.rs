//! The answer why a key is as it is.

use bytes::BytesMut;
use mc_meta::{Explanation, Happening, KeptBy, Removal, TransferKind, What};

use super::{millis, put_enum, write_object_info};
use crate::proto::happening::Event;
use crate::proto::kept_by::Reason;
use crate::wire::{put_message, put_u64};

/// `ExplainObjectResponse`.
pub(crate) fn write_explanation(out: &mut BytesMut, explanation: &Explanation) {
    if let Some(object) = &explanation.object {
        put_message(out, 2, |out| write_object_info(out, object));
    }
    for kept_by in &explanation.kept_by {
        put_message(out, 3, |out| put_kept_by(out, *kept_by));
    }
    for happening in &explanation.history {
        put_message(out, 4, |out| put_happening(out, happening));
    }
}

fn put_kept_by(out: &mut BytesMut, kept_by: KeptBy) {
    let (reason, duration) = match kept_by {
        KeptBy::Unfinished { age } => (Reason::Unfinished, age),
        KeptBy::Lease { remaining } => (Reason::Lease, remaining),
        KeptBy::SoftPin { remaining } => (Reason::SoftPin, remaining),
        KeptBy::HardPin => (Reason::HardPin, Default::default()),
        KeptBy::Transfer { kind: TransferKind::Copy, remaining } => (Reason::Copy, remaining),
        KeptBy::Transfer { kind: TransferKind::Move, remaining } => (Reason::Move, remaining),
        KeptBy::Group { remaining } => (Reason::Group, remaining),
        KeptBy::Offload => (Reason::Offload, Default::default()),
        KeptBy::NoRoomToGain => (Reason::NoRoomToGain, Default::default()),
        // One that the protocol has no word for yet.
        _ => (Reason::Undefined, Default::default()),
    };
    put_enum(out, 1, reason.into());
    put_u64(out, 2, millis(duration));
}

fn put_happening(out: &mut BytesMut, happening: &Happening) {
    put_u64(out, 1, millis(happening.ago));
    match happening.what {
        What::Removed { generation, cause } => {
            let event = match cause {
                Removal::Requested => Event::Removed,
                Removal::Evicted => Event::Evicted,
                Removal::SegmentLost => Event::SegmentLost,
                Removal::Replaced => Event::Replaced,
                Removal::DiskLost => Event::DiskLost,
                Removal::Expired => Event::Expired,
                Removal::Damaged => Event::Damaged,
                _ => Event::Undefined,
            };
            put_enum(out, 2, event.into());
            put_u64(out, 3, generation.as_u64());
        }
        What::Refused { code } => {
            put_enum(out, 2, Event::Refused.into());
            put_u64(out, 4, i64::from(code.code()) as u64);
        }
        _ => {}
    }
}
