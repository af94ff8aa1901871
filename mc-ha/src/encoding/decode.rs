//! A record from bytes.

use core::num::NonZeroU64;
use core::time::Duration;
use std::sync::Arc;

use mc_meta::{
    LocalDiskIds, Location, Locations, ObjectRecordRef, QuotaMode, Record, RecordRef,
    ReplicaStatus, SegmentSpec, SegmentStatus, Slice, Slices, SoftPin, TenantId, TicketKey,
    TierQuotas,
};
use mc_types::{
    Checksum, ClientId, Endpoint, Extent, Generation, KeyRef, LocalDiskId, MediaType, RemoteKey,
    SegmentId,
};

use super::fields::{
    COMPLETE, COMPLETION, FILE, GENERATIONS, GROUP, HARD_PIN, OBJECT, PARENT, PINNED_OBJECT,
    PREFIXES, QUOTA, QUOTA_OF_DISKS, QUOTA_OF_FILES, REFUSES, REMOVED, RESERVED, SEGMENT,
    SEGMENT_GONE, SOFT_PIN, SPACE_FREED, SPACE_KEPT,
};
use super::varint::{Reader, unzigzag};

/// The ids of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ids<'a>(&'a [u8]);

/// A record of a batch.
pub(super) enum Decoded<'a> {
    /// Refers to the bytes of the batch: the usual case.
    Borrowed(RecordRef<'a>),
    /// Converted from another form in the batch.
    Owned(Record),
}

impl<'a> Decoded<'a> {
    fn object(object: ObjectRecordRef<'a>, prefixes: Vec<Checksum>) -> Self {
        if prefixes.is_empty() {
            return Self::Borrowed(RecordRef::Object(object));
        }
        let mut object = object.to_record();
        object.prefixes = prefixes.into();
        Self::Owned(Record::Object(object))
    }
}

impl Completion<'_> {
    /// The slices with their checksums.
    fn slices(&self, slices: Slices) -> Option<Slices> {
        let checksums: &mut dyn Iterator<Item = Checksum> = &mut checksums(self.checksums);
        match (self.checksums.len(), &slices) {
            (0, _) => Some(slices),
            (4, Slices::One(slice)) => {
                Some(Slices::One(Slice { checksum: checksums.next(), ..*slice }))
            }
            (len, Slices::Many(all)) if len == 4 * all.len() => {
                let all = all.iter().zip(checksums);
                Some(Slices::Many(all.map(|(s, c)| Slice { checksum: Some(c), ..*s }).collect()))
            }
            _ => None,
        }
    }
}

impl<'a> Ids<'a> {
    pub(super) fn new(table: &'a [u8]) -> Self {
        Self(table)
    }

    fn get(self, place: u64) -> Option<u128> {
        let at = usize::try_from(place).ok()?.checked_mul(16)?;
        self.0.get(at..)?.first_chunk().map(|id| u128::from_be_bytes(*id))
    }
}

/// The end of a put whose beginning is in the same batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion<'a> {
    /// The number of records between the object and this.
    pub(super) distance: usize,
    /// Four bytes each.
    checksums: &'a [u8],
    prefixes: &'a [u8],
}

impl<'a> Completion<'a> {
    /// Reads the fields of a record that is a completion; `None` when it is another, or invalid.
    pub(super) fn parse(fields: &'a [u8]) -> Option<Self> {
        let mut reader = Reader(fields);
        if reader.byte()? != COMPLETION {
            return None;
        }
        let distance = usize::try_from(reader.varint()?).ok()?;
        let mut checksums = || reader.count(4).and_then(|count| reader.bytes(4 * count));
        Some(Self { distance, checksums: checksums()?, prefixes: checksums()? })
    }
}

/// Returns whether a record is the end of a put whose beginning is in the same batch.
pub(super) fn is_completion(fields: &[u8]) -> bool {
    fields.first() == Some(&COMPLETION)
}

/// Returns whether a record is an object that a completion can complete.
pub(super) fn is_unfinished(fields: &[u8]) -> bool {
    matches!(fields, [OBJECT | PINNED_OBJECT, flags, ..] if flags & (COMPLETE | PREFIXES) == 0)
}

fn checksums(bytes: &[u8]) -> impl Iterator<Item = Checksum> {
    let (each, _) = bytes.as_chunks();
    each.iter().map(|bytes| Checksum::from_crc32c(u32::from_le_bytes(*bytes)))
}

/// Reads the fields of an object that `completion` completes; `None` when it is not wanted.
pub(super) fn completed<'a>(
    fields: &'a [u8],
    completion: &Completion<'_>,
    ids: &Ids<'_>,
    base: Generation,
    wants: &dyn Fn(KeyRef<'_>) -> bool,
) -> Result<Option<Decoded<'a>>, &'static str> {
    let mut fields = Fields { reader: Reader(fields), ids: *ids, base };
    let object = match fields.reader.byte() {
        Some(kind @ (OBJECT | PINNED_OBJECT)) => fields.object(kind, wants).ok_or(INVALID)?,
        _ => return Err(INVALID),
    };
    let Some((mut object, _)) = object else { return Ok(None) };
    object.complete = true;
    object.slices = completion.slices(object.slices).ok_or(INVALID)?;
    Ok(Some(Decoded::object(object, checksums(completion.prefixes).collect())))
}

/// Reads the fields of one record; `None` for an object that is not wanted.
pub(super) fn record<'a>(
    fields: &'a [u8],
    ids: &Ids<'_>,
    base: Generation,
    wants: &dyn Fn(KeyRef<'_>) -> bool,
) -> Result<Option<Decoded<'a>>, &'static str> {
    let mut fields = Fields { reader: Reader(fields), ids: *ids, base };
    let kind = fields.reader.byte().ok_or("is empty")?;
    let read = match kind {
        OBJECT | PINNED_OBJECT => {
            let object = fields.object(kind, wants).ok_or("is not an object")?;
            return Ok(object.map(|(object, prefixes)| Decoded::object(object, prefixes)));
        }
        REMOVED => return fields.removed(wants).ok_or("is not a removal"),
        SEGMENT => return fields.segment().map(|owned| Some(Decoded::Owned(owned))).ok_or(INVALID),
        QUOTA => return fields.quota().map(|owned| Some(Decoded::Owned(owned))).ok_or(INVALID),
        GENERATIONS => return fields.generations().map(Some).ok_or(INVALID),
        SEGMENT_GONE => fields.segment_id().map(|id| RecordRef::SegmentGone { id }),
        SPACE_KEPT => fields.space_kept(),
        SPACE_FREED => fields.places(None).map(|space| RecordRef::SpaceFreed { space }),
        _ => return Err("is of a kind that this version does not know"),
    };
    read.map(|record| Some(Decoded::Borrowed(record))).ok_or(INVALID)
}

const INVALID: &str = "has invalid fields";

struct Fields<'a, 'b> {
    reader: Reader<'a>,
    ids: Ids<'b>,
    base: Generation,
}

impl<'a> Fields<'a, '_> {
    fn id(&mut self) -> Option<u128> {
        let place = self.reader.varint()?;
        self.ids.get(place)
    }

    fn segment_id(&mut self) -> Option<SegmentId> {
        self.id().map(SegmentId::from_u128)
    }

    fn client(&mut self) -> Option<ClientId> {
        self.id().map(ClientId::from_u128)
    }

    fn generation(&mut self) -> Option<Generation> {
        let difference = unzigzag(self.reader.varint()?);
        Some(Generation::new(self.base.as_u64().wrapping_add(difference as u64)))
    }

    fn key(&mut self) -> Option<KeyRef<'a>> {
        KeyRef::new(self.reader.text()?).ok()
    }

    fn duration(&mut self) -> Option<Duration> {
        self.reader.varint().map(Duration::from_millis)
    }

    fn checksum(&mut self) -> Option<Checksum> {
        self.reader.array().map(|bytes| Checksum::from_crc32c(u32::from_le_bytes(bytes)))
    }

    /// Reads a byte that says whether something follows.
    fn has(&mut self) -> Option<bool> {
        match self.reader.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// Reads places, each as long as `len` or as it says itself.
    fn places(&mut self, len: Option<u64>) -> Option<Locations> {
        let count = self.reader.count(2)?;
        let mut places = Locations::with_capacity(count);
        for _ in 0..count {
            let segment = self.segment_id()?;
            let offset = self.reader.varint()?;
            let len = match len {
                Some(len) => len,
                None => self.reader.varint()?,
            };
            places.push(Location { segment, extent: Extent::new(offset, len)? });
        }
        Some(places)
    }

    /// Reads what has been given out, or a part of the list of leased objects.
    fn generations(&mut self) -> Option<Decoded<'a>> {
        let next = Generation::new(self.reader.varint()?);
        if self.reader.is_empty() {
            return Some(Decoded::Borrowed(RecordRef::Generations { next }));
        }
        let (before, is_last) = (self.reader.varint()?, self.has()?);
        let count = self.reader.count(1)?;
        let objects = (0..count).map(|_| self.generation()).collect::<Option<_>>()?;
        Some(Decoded::Owned(Record::Leased { before, objects, is_last }))
    }

    fn removed(&mut self, wants: &dyn Fn(KeyRef<'_>) -> bool) -> Option<Option<Decoded<'a>>> {
        let key = self.key()?;
        if !wants(key) {
            return Some(None);
        }
        let generation = self.generation()?;
        Some(Some(Decoded::Borrowed(RecordRef::Removed { key, generation })))
    }

    fn space_kept(&mut self) -> Option<RecordRef<'a>> {
        let left = self.duration()?;
        self.places(None).map(|space| RecordRef::SpaceKept { space, left })
    }

    fn quota(&mut self) -> Option<Record> {
        let tenant = TenantId::new(self.reader.text()?).ok()?;
        let requested = if self.has()? { Some(self.reader.varint()?) } else { None };
        let mode = match self.reader.byte() {
            Some(REFUSES) => QuotaMode::Refuse,
            // A version before modes, or a later one's.
            _ => QuotaMode::Evict,
        };
        // A version before quotas below memory has none.
        let tiers = self.reader.byte().unwrap_or(0);
        let mut quota = |tier| match tiers & tier {
            0 => Some(None),
            _ => self.reader.varint().map(Some),
        };
        let below = TierQuotas { disks: quota(QUOTA_OF_DISKS)?, files: quota(QUOTA_OF_FILES)? };
        Some(Record::TenantPolicy { tenant, requested, mode, below })
    }

    fn segment(&mut self) -> Option<Record> {
        let (id, client) = (self.segment_id()?, self.client()?);
        let status = SegmentStatus::from_number(self.reader.byte()?)?;
        let medium = MediaType::from_number(self.reader.byte()?)?;
        let (base, size) = (self.reader.varint()?, self.reader.varint()?);
        let name = self.reader.text()?.into();
        let others = self.reader.count(2)?.checked_sub(1)?;
        let endpoint: Endpoint = self.reader.text()?.parse().ok()?;
        let others = (0..others).map(|_| self.reader.text()?.parse().ok());
        let others: Vec<Endpoint> = others.collect::<Option<_>>()?;
        let remote_key = RemoteKey::from_bytes(self.reader.array()?);
        let ticket_key = match self.has()? {
            true => Some(TicketKey::from_bytes(self.reader.array()?)),
            false => None,
        };
        // Segments that are not being unmounted have none, nor had those of older versions.
        let grace = if self.reader.is_empty() { None } else { Some(self.duration()?) };
        let endpoint = endpoint.with_others(others);
        let spec = SegmentSpec { id, name, base, size, endpoint, remote_key, ticket_key, medium };
        Some(Record::Segment { spec, client, status, grace })
    }

    fn slices(&mut self) -> Option<Slices> {
        let count = self.reader.count(1)?;
        if count == 1 {
            return self.slice().map(Slices::One);
        }
        let slices: Vec<Slice> = (0..count).map(|_| self.slice()).collect::<Option<_>>()?;
        Some(Slices::Many(Arc::from(slices)))
    }

    fn slice(&mut self) -> Option<Slice> {
        let len = self.reader.varint()?;
        let checksum = if len & 1 == 1 { Some(self.checksum()?) } else { None };
        Some(Slice { len: len >> 1, checksum })
    }

    fn disks(&mut self) -> Option<LocalDiskIds> {
        let count = self.reader.count(1)?;
        (0..count).map(|_| self.id().map(LocalDiskId::from_u128)).collect()
    }

    /// Reads an object of this kind of record, and its prefixes beside it.
    fn object(
        &mut self,
        kind: u8,
        wants: &dyn Fn(KeyRef<'_>) -> bool,
    ) -> Option<Option<(ObjectRecordRef<'a>, Vec<Checksum>)>> {
        let flags = self.reader.byte()?;
        let has = |flag| flags & flag != 0;
        let soft_pin = match (kind, has(SOFT_PIN)) {
            (PINNED_OBJECT, true) => SoftPin::from_bits(u16::from_le_bytes(self.reader.array()?)),
            (PINNED_OBJECT, false) => return None,
            (_, true) => SoftPin::STANDARD,
            (_, false) => SoftPin::NONE,
        };
        let key = self.key()?;
        if !wants(key) {
            return Some(None);
        }
        let (generation, owner) = (self.generation()?, self.client()?);
        let slices = self.slices()?;
        let len = slices.as_slice().iter().try_fold(0u64, |sum, slice| sum.checked_add(slice.len));
        let replicas = self.places(Some(len?))?;
        let idle = self.duration()?;
        let disk = match has(FILE) {
            true => Some(ReplicaStatus::from_number(self.reader.byte()?)?),
            false => None,
        };
        let group = if has(GROUP) { Some(self.reader.text()?) } else { None };
        let parent = match has(PARENT) {
            true => NonZeroU64::new(u64::from_le_bytes(self.reader.array()?)),
            false => None,
        };
        let mut prefixes = Vec::new();
        if has(PREFIXES) {
            let count = self.reader.count(4)?;
            prefixes = (0..count).map(|_| self.checksum()).collect::<Option<_>>()?;
        }
        let reserved = if has(RESERVED) { self.places(None)? } else { Locations::new() };
        let local_disks = if self.reader.is_empty() { LocalDiskIds::new() } else { self.disks()? };
        let mut object = ObjectRecordRef::new(key, generation, owner, slices);
        object.complete = has(COMPLETE);
        object.replicas = replicas;
        object.file = disk;
        object.local_disks = local_disks;
        object.reserved = reserved;
        object.soft_pin = soft_pin;
        object.hard_pin = has(HARD_PIN);
        object.group = group;
        object.parent = parent;
        object.idle = idle;
        Some(Some((object, prefixes)))
    }
}
