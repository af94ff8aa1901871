//! One record as bytes.

use bytes::BufMut;
use mc_meta::{Location, ObjectRecordRef, QuotaMode, RecordRef, SegmentSpec, SoftPin, TierQuotas};
use mc_types::{ClientId, Generation};

use super::fields::{
    COMPLETE, COMPLETION, FILE, GENERATIONS, GROUP, HARD_PIN, OBJECT, PARENT, PINNED_OBJECT,
    PREFIXES, QUOTA, QUOTA_OF_DISKS, QUOTA_OF_FILES, REFUSES, REMOVED, RESERVED, SEGMENT,
    SEGMENT_GONE, SOFT_PIN, SPACE_FREED, SPACE_KEPT,
};
use super::table::Table;
use super::varint::{put, zigzag};

/// Appends a record, without its checksum.
pub(super) fn record(record: &RecordRef<'_>, table: &mut Table, out: &mut Vec<u8>) {
    match *record {
        RecordRef::Generations { next } => {
            out.push(GENERATIONS);
            put(out, next.as_u64());
        }
        RecordRef::Segment { spec, client, status, grace } => {
            out.push(SEGMENT);
            segment(spec, client, table, out, status as u8);
            // What an older version passes over.
            if let Some(grace) = grace {
                put(out, millis(grace));
            }
        }
        RecordRef::SegmentGone { id } => {
            out.push(SEGMENT_GONE);
            put(out, table.id(id.as_u128()));
        }
        RecordRef::Object(ref object) => {
            self::object(object, false, table, out);
        }
        RecordRef::Removed { key, generation } => {
            out.push(REMOVED);
            text(key.as_str(), out);
            self::generation(generation, table, out);
        }
        RecordRef::SpaceKept { ref space, left } => {
            out.push(SPACE_KEPT);
            put(out, millis(left));
            places(space, true, table, out);
        }
        RecordRef::SpaceFreed { ref space } => {
            out.push(SPACE_FREED);
            places(space, true, table, out);
        }
        RecordRef::TenantPolicy { tenant, requested, mode, below } => {
            out.push(QUOTA);
            text(tenant.as_str(), out);
            out.push(requested.is_some().into());
            if let Some(bytes) = requested {
                put(out, bytes);
            }
            // An older version passes it over: the quota evicts there.
            let refuses = mode == QuotaMode::Refuse;
            let has_below = below != TierQuotas::NONE;
            if refuses || has_below {
                out.push(if refuses { REFUSES } else { 0 });
            }
            // An older version passes these over, too.
            if has_below {
                let tiers = [(QUOTA_OF_DISKS, below.disks), (QUOTA_OF_FILES, below.files)];
                let named = tiers.iter().filter(|(_, quota)| quota.is_some());
                out.push(named.fold(0, |tiers, (tier, _)| tiers | tier));
                tiers.iter().filter_map(|(_, quota)| *quota).for_each(|quota| put(out, quota));
            }
        }
        // An older version reads the generations, 0, which tell it nothing, and passes the rest over.
        RecordRef::Leased { before, objects, is_last } => {
            out.push(GENERATIONS);
            put(out, 0);
            put(out, before);
            out.push(is_last.into());
            put(out, objects.len() as u64);
            objects.iter().for_each(|object| generation(*object, table, out));
        }
        // No other is made by the version of mc-meta that this one is built with.
        _ => debug_assert!(false, "a record without an encoding: {record:?}"),
    }
}

fn segment(spec: &SegmentSpec, client: ClientId, table: &mut Table, out: &mut Vec<u8>, status: u8) {
    put(out, table.id(spec.id.as_u128()));
    put(out, table.id(client.as_u128()));
    out.push(status);
    out.push(spec.medium.number());
    put(out, spec.base);
    put(out, spec.size);
    text(&spec.name, out);
    put(out, 1 + spec.endpoint.others().len() as u64);
    text(spec.endpoint.as_str(), out);
    for other in spec.endpoint.others() {
        text(other.as_str(), out);
    }
    out.put_slice(&spec.remote_key.to_bytes());
    out.push(spec.ticket_key.is_some().into());
    if let Some(key) = spec.ticket_key {
        out.put_slice(&key.to_bytes());
    }
}

/// Appends the record of an object as it was before its put ended, if nothing but the end has
/// changed it.
pub(super) fn begun(object: &ObjectRecordRef<'_>, table: &mut Table, out: &mut Vec<u8>) {
    self::object(object, true, table, out);
}

/// Appends the record of the end of a put that began so many records before. Every slice has a
/// checksum, or none.
pub(super) fn completion(object: &ObjectRecordRef<'_>, distance: u32, out: &mut Vec<u8>) {
    out.push(COMPLETION);
    put(out, distance.into());
    let checksums = object.slices.as_slice().iter().filter_map(|slice| slice.checksum);
    put(out, checksums.clone().count() as u64);
    checksums.for_each(|checksum| out.put_u32_le(checksum.as_u32()));
    put(out, object.prefixes.len() as u64);
    object.prefixes.iter().for_each(|checksum| out.put_u32_le(checksum.as_u32()));
}

fn object(object: &ObjectRecordRef<'_>, begun: bool, table: &mut Table, out: &mut Vec<u8>) {
    let has_prefixes = !object.prefixes.is_empty() && !begun;
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let flags = flag(object.complete && !begun, COMPLETE)
        | flag(object.soft_pin.is_wanted(), SOFT_PIN)
        | flag(object.hard_pin, HARD_PIN)
        | flag(object.file.is_some(), FILE)
        | flag(object.group.is_some(), GROUP)
        | flag(object.parent.is_some(), PARENT)
        | flag(has_prefixes, PREFIXES)
        | flag(!object.reserved.is_empty(), RESERVED);
    let has_own_pin = object.soft_pin.is_wanted() && object.soft_pin != SoftPin::STANDARD;
    out.push(if has_own_pin { PINNED_OBJECT } else { OBJECT });
    out.push(flags);
    if has_own_pin {
        out.put_u16_le(object.soft_pin.to_bits());
    }
    text(object.key.as_str(), out);
    generation(object.generation, table, out);
    put(out, table.id(object.owner.as_u128()));
    let slices = object.slices.as_slice();
    put(out, slices.len() as u64);
    for slice in slices {
        // Lengths of objects end below 2^63.
        let checksum = slice.checksum.filter(|_| !begun);
        put(out, slice.len << 1 | u64::from(checksum.is_some()));
        if let Some(checksum) = checksum {
            out.put_u32_le(checksum.as_u32());
        }
    }
    places(&object.replicas, false, table, out);
    put(out, millis(object.idle));
    if let Some(status) = object.file {
        out.push(status as u8);
    }
    if let Some(group) = object.group {
        text(group, out);
    }
    if let Some(parent) = object.parent {
        out.put_u64_le(parent.get());
    }
    if has_prefixes {
        put(out, object.prefixes.len() as u64);
        for checksum in object.prefixes {
            out.put_u32_le(checksum.as_u32());
        }
    }
    if !object.reserved.is_empty() {
        places(&object.reserved, true, table, out);
    }
    if !object.local_disks.is_empty() {
        put(out, object.local_disks.len() as u64);
        for disk in &object.local_disks {
            put(out, table.id(disk.as_u128()));
        }
    }
}

fn places(places: &[Location], with_lengths: bool, table: &mut Table, out: &mut Vec<u8>) {
    put(out, places.len() as u64);
    for place in places {
        put(out, table.id(place.segment.as_u128()));
        put(out, place.extent.offset());
        if with_lengths {
            put(out, place.extent.len());
        }
    }
}

fn generation(generation: Generation, table: &mut Table, out: &mut Vec<u8>) {
    put(out, zigzag(table.generation(generation)));
}

fn text(text: &str, out: &mut Vec<u8>) {
    put(out, text.len() as u64);
    out.put_slice(text.as_bytes());
}

fn millis(time: core::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
