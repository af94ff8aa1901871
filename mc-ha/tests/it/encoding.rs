//! The format of batches: what is written comes back, and damage costs what it hit.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::num::NonZeroU64;
use std::time::Duration;

use bytes::Bytes;
use mc_ha::Batch;
use mc_ha::encoding::{
    BatchBuilder, BatchError, BatchKind, BatchReader, DamagedRecord, HEADER_LEN, MAX_BATCH_LEN,
    PageOf, RecordVisitor,
};
use mc_meta::{
    LocalDiskIds, Location, Locations, ObjectRecord, QuotaMode, Record, RecordRef, ReplicaStatus,
    SegmentSpec, SegmentStatus, Slice, Slices, SoftPin, TenantId, TicketKey, TierQuotas,
};
use mc_types::{
    Checksum, ClientId, Endpoint, Epoch, Extent, Generation, KeyRef, LocalDiskId, MediaType,
    ObjectKey, RemoteKey, SegmentId, Sequence,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// Collects what a batch holds.
#[derive(Default)]
struct Collector {
    records: Vec<Record>,
    damaged: Vec<DamagedRecord>,
    /// Only this key's objects are wanted, if one is.
    only: Option<String>,
}

impl RecordVisitor for Collector {
    fn wants(&self, key: KeyRef<'_>) -> bool {
        self.only.as_ref().is_none_or(|only| only == key.as_str())
    }

    fn records(&mut self, records: &[RecordRef<'_>]) {
        self.records.extend(records.iter().map(RecordRef::to_record));
    }

    fn damaged(&mut self, record: DamagedRecord) {
        self.damaged.push(record);
    }
}

fn visit(batch: &Batch) -> Collector {
    let mut collector = Collector::default();
    batch.visit(&mut collector);
    collector
}

fn location() -> impl Strategy<Value = Location> {
    (0u128..4, 0u64..1 << 62, 1u64..1 << 62).prop_map(|(segment, offset, len)| Location {
        segment: SegmentId::from_u128(segment << 64 | segment),
        extent: Extent::new(offset, len).unwrap(),
    })
}

fn locations() -> impl Strategy<Value = Locations> {
    vec(location(), 0..4).prop_map(Locations::from_vec)
}

fn disks() -> impl Strategy<Value = LocalDiskIds> {
    let disks = prop_oneof![2 => Just(vec![]), 1 => vec(0u128..4, 1..4)];
    disks.prop_map(|ids| ids.into_iter().map(|id| LocalDiskId::from_u128(id << 64 | 7)).collect())
}

fn checksum() -> impl Strategy<Value = Checksum> {
    any::<u32>().prop_map(Checksum::from_crc32c)
}

fn millis() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(0), 0u64..100_000, any::<u64>()].prop_map(Duration::from_millis)
}

fn slices() -> impl Strategy<Value = Slices> {
    let slice = (0u64..1 << 40, proptest::option::of(checksum()))
        .prop_map(|(len, checksum)| Slice { len, checksum });
    vec(slice, 0..5).prop_map(|slices| match slices[..] {
        [slice] => Slices::One(slice),
        _ => Slices::Many(slices.into()),
    })
}

fn key() -> impl Strategy<Value = ObjectKey> {
    "\\PC{1,40}".prop_map(|key| ObjectKey::new(key).unwrap())
}

fn object() -> impl Strategy<Value = Record> {
    let ids = (key(), any::<u64>(), any::<u128>(), slices());
    let flags = (
        any::<([bool; 2], u16)>(),
        proptest::option::of(0u8..6),
        proptest::option::of("\\PC{0,20}"),
    );
    let places = (locations(), locations(), disks());
    let more = (any::<u64>(), vec(checksum(), 0..4), places, millis());
    (ids, flags, more).prop_map(|(ids, flags, more)| {
        let (key, generation, owner, slices) = ids;
        let (([complete, hard_pin], soft_pin), disk, group) = flags;
        let soft_pin = SoftPin::from_bits([0, u16::MAX, soft_pin][usize::from(soft_pin % 3)]);
        let (parent, prefixes, (mut replicas, reserved, local_disks), idle) = more;
        let len = slices.as_slice().iter().map(|slice| slice.len).sum();
        for replica in &mut replicas {
            replica.extent = Extent::new(replica.extent.offset(), len).unwrap();
        }
        let (generation, owner) = (Generation::new(generation), ClientId::from_u128(owner));
        let mut object = ObjectRecord::new(key, generation, owner, slices);
        (object.complete, object.soft_pin, object.hard_pin) = (complete, soft_pin, hard_pin);
        object.file = disk.map(|number| ReplicaStatus::from_number(number).unwrap());
        object.group = group.map(Into::into);
        object.parent = NonZeroU64::new(if parent % 3 == 0 { 0 } else { parent });
        object.prefixes = prefixes.into();
        (object.replicas, object.reserved, object.idle) = (replicas, reserved, idle);
        object.local_disks = local_disks;
        Record::Object(object)
    })
}

fn segment() -> impl Strategy<Value = Record> {
    let ids = (any::<u128>(), any::<u128>(), 1u8..=6, 0u8..3);
    let fields = (any::<u64>(), any::<u64>(), "\\PC{0,30}", 0usize..4);
    let keys = (any::<[u8; 16]>(), proptest::option::of(any::<[u8; 16]>()));
    let grace = proptest::option::of(millis());
    (ids, fields, keys, grace).prop_map(|(ids, fields, (remote, ticket), grace)| {
        let (id, client, status, medium) = ids;
        let (base, size, name, others) = fields;
        let others: Vec<Endpoint> =
            (0..others).map(|number| format!("shm://h/{number}").parse().unwrap()).collect();
        let endpoint: Endpoint = "tcp://10.0.0.1:7".parse().unwrap();
        let spec = SegmentSpec {
            id: SegmentId::from_u128(id),
            name: name.into(),
            base,
            size,
            endpoint: endpoint.with_others(others),
            remote_key: RemoteKey::from_bytes(remote),
            ticket_key: ticket.map(TicketKey::from_bytes),
            medium: MediaType::from_number(medium).unwrap(),
        };
        let status = SegmentStatus::from_number(status).unwrap();
        Record::Segment { spec, client: ClientId::from_u128(client), status, grace }
    })
}

fn record() -> impl Strategy<Value = Record> {
    let generation = || prop_oneof![0u64..1000, any::<u64>()].prop_map(Generation::new);
    let quota = || proptest::option::of(any::<u64>());
    prop_oneof![
        1 => generation().prop_map(|next| Record::Generations { next }),
        1 => (any::<u64>(), vec(generation(), 0..20), any::<bool>()).prop_map(
            |(before, objects, is_last)| Record::Leased { before, objects, is_last }
        ),
        2 => segment(),
        1 => any::<u128>().prop_map(|id| Record::SegmentGone { id: SegmentId::from_u128(id) }),
        6 => object(),
        2 => (key(), generation()).prop_map(|(key, generation)| Record::Removed { key, generation }),
        1 => (locations(), millis()).prop_map(|(space, left)| Record::SpaceKept { space, left }),
        1 => locations().prop_map(|space| Record::SpaceFreed { space }),
        1 => ("[a-z]{0,8}", quota(), any::<bool>(), quota(), quota()).prop_map(
            |(tenant, requested, refuses, disks, files)| {
                let mode = if refuses { QuotaMode::Refuse } else { QuotaMode::Evict };
                let (tenant, below) =
                    (TenantId::new(&tenant).unwrap(), TierQuotas { disks, files });
                Record::TenantPolicy { tenant, requested, mode, below }
            }
        ),
    ]
}

/// A batch of effects, one for each record, from number `first` on.
fn batch(first: u64, records: &[Record]) -> Batch {
    let mut builder = BatchBuilder::new(Epoch::new(5));
    for (number, record) in (first..).zip(records) {
        builder.effect(Sequence::new(number), Some(record.as_ref()));
    }
    builder.seal().unwrap()
}

/// Where the records of a batch begin.
fn payload(batch: &Batch) -> usize {
    let tables: [u8; 4] = batch.bytes()[64..68].try_into().unwrap();
    HEADER_LEN + u32::from_le_bytes(tables) as usize
}

fn read_all(bytes: &[u8]) -> Vec<Result<Batch, BatchError>> {
    let mut reader = BatchReader::new(Cursor::new(bytes));
    let mut all = Vec::new();
    while let Some(batch) = reader.next_batch().unwrap() {
        all.push(batch);
        assert!(all.len() <= bytes.len(), "each step passes over a byte at least");
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn records_come_back(records in vec(record(), 1..80), first in 0u64..1 << 60) {
        let written = batch(first, &records);
        let read = Batch::parse(Bytes::copy_from_slice(written.bytes())).unwrap();
        prop_assert_eq!(&read, &written);
        prop_assert_eq!(read.len(), records.len());
        prop_assert_eq!(read.first().sequence, Sequence::new(first));
        prop_assert_eq!(read.last().sequence, Sequence::new(first + records.len() as u64 - 1));
        let seen = visit(&read);
        prop_assert_eq!(seen.records, records);
        prop_assert_eq!(seen.damaged, []);
    }

    #[test]
    fn only_wanted_objects_are_read(records in vec(record(), 1..40), at: Index) {
        let key = |record: &Record| record.as_ref().key().map(|key| key.as_str().to_owned());
        let keys: Vec<_> = records.iter().filter_map(key).collect();
        prop_assume!(!keys.is_empty());
        let only = keys[at.index(keys.len())].clone();
        let mut seen = Collector { only: Some(only.clone()), ..Collector::default() };
        batch(0, &records).visit(&mut seen);
        let expected: Vec<_> =
            records.into_iter().filter(|record| key(record).is_none_or(|key| key == only)).collect();
        prop_assert_eq!(seen.records, expected);
    }

    #[test]
    fn a_damaged_byte_costs_one_record_or_one_batch(
        records in vec(record(), 1..20), at: Index, mask in 1u8..,
    ) {
        let written = batch(0, &records);
        let mut bytes = written.bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= mask;
        match Batch::parse(bytes.into()) {
            Err(_) => prop_assert!(at < payload(&written), "a payload's damage costs a record"),
            Ok(read) => {
                prop_assert!(at >= payload(&written), "a header's damage is noticed");
                let seen = visit(&read);
                prop_assert_eq!(seen.damaged.len(), 1);
                let number = seen.damaged[0].number as usize;
                prop_assert_eq!(seen.damaged[0].batch, written.last());
                let mut expected = records;
                expected.remove(number);
                prop_assert_eq!(seen.records, expected);
            }
        }
    }

    #[test]
    fn a_batch_that_is_cut_off_is_refused(records in vec(record(), 1..10), at: Index) {
        let bytes = batch(0, &records).bytes().clone();
        let at = at.index(bytes.len());
        let cut = Batch::parse(bytes.slice(..at));
        prop_assert!(matches!(cut, Err(BatchError::CutOff { have, .. }) if have == at), "{:?}", cut);
        let mut longer = bytes.to_vec();
        longer.push(0);
        prop_assert!(Batch::parse(longer.into()).is_err());
    }

    #[test]
    fn a_reader_goes_on_behind_damage(
        batches in vec(vec(record(), 1..6), 1..6), at: Index, damage in vec(any::<u8>(), 1..40), cut: bool,
    ) {
        let batches: Vec<_> =
            (0..).zip(&batches).map(|(number, records)| batch(number * 100, records)).collect();
        let mut bytes: Vec<u8> = batches.iter().flat_map(|batch| batch.bytes().to_vec()).collect();
        let at = at.index(bytes.len());
        let end = (at + damage.len()).min(bytes.len());
        if cut {
            bytes.drain(at..end);
        } else {
            bytes[at..end].copy_from_slice(&damage[..end - at]);
        }
        let read = read_all(&bytes);
        let whole: Vec<&Batch> = read.iter().filter_map(|batch| batch.as_ref().ok()).collect();
        let (mut start, mut behind_hit) = (0, false);
        for batch in &batches {
            let stop = start + batch.bytes().len();
            // Without some of its bytes, a batch ends inside of the next one.
            let is_hit = start < end && at < stop || cut && behind_hit;
            if !is_hit {
                prop_assert!(whole.contains(&batch), "{:?} was not hit by {}..{}", batch, at, end);
            }
            behind_hit = start < end && at < stop;
            start = stop;
        }
        for batch in whole {
            visit(batch);
        }
    }

    #[test]
    fn a_reader_of_marked_batches_takes_no_others(
        batches in vec((vec(record(), 1..6), any::<bool>(), vec(any::<u8>(), 0..40)), 1..6),
    ) {
        let (mut bytes, mut marked) = (Vec::new(), Vec::new());
        for (number, (records, is_marked, junk)) in (0..).zip(&batches) {
            let batch = batch(number * 100, records);
            bytes.extend(junk);
            if *is_marked {
                bytes.extend(b"the mark");
                marked.push(batch.clone());
            }
            bytes.extend_from_slice(batch.bytes());
        }
        let mut reader = BatchReader::marked(&bytes[..], b"the mark");
        let mut read = Vec::new();
        while let Some(batch) = reader.next_batch().unwrap() {
            read.extend(batch);
        }
        prop_assert_eq!(read, marked);
    }

    #[test]
    fn any_bytes_are_read(bytes in vec(any::<u8>(), 0..300), magic: bool) {
        let mut bytes = bytes;
        if magic && bytes.len() > 5 {
            bytes[..5].copy_from_slice(b"MCJB\x01");
        }
        let _ = Batch::parse(bytes.clone().into());
        read_all(&bytes);
    }

    /// Records whose checksums are right, but whose fields are not what an encoder writes.
    #[test]
    fn any_fields_are_read(fields in vec((0u8..10, vec(any::<u8>(), 0..60)), 1..6)) {
        let records: Vec<Vec<u8>> = fields
            .into_iter()
            .map(|(kind, mut fields)| {
                fields.insert(0, kind);
                fields
            })
            .collect();
        let seen = visit(&by_hand(&records, &[7, 8]));
        // A completion and what it completes are one.
        let are_completions = records.iter().filter(|fields| fields[0] == 9).count();
        let told = seen.records.len() + seen.damaged.len();
        prop_assert!((records.len() - are_completions..=records.len()).contains(&told));
    }

    #[test]
    fn a_put_that_ends_in_its_batch_is_told_once(
        puts in vec((object(), any::<[bool; 3]>(), vec(checksum(), 0..3)), 1..12),
        order in vec(any::<Index>(), 24), at: Index, mask in 1u8..,
    ) {
        let records = lives(puts, &order);
        let written = batch(0, &records);
        let seen = visit(&written);
        prop_assert_eq!(&seen.damaged, &[]);
        prop_assert_eq!(last_of_each(&seen.records), last_of_each(&records));
        // Damage costs one object its end, or all of it.
        let mut bytes = written.bytes().to_vec();
        let start = payload(&written);
        let at = start + at.index(bytes.len() - start);
        bytes[at] ^= mask;
        let seen = visit(&Batch::parse(bytes.into()).unwrap());
        prop_assert!((1..=2).contains(&seen.damaged.len()), "{:?}", seen.damaged);
        let (whole, rest) = (last_of_each(&records), last_of_each(&seen.records));
        let hit: Vec<_> = whole.iter().filter(|(key, last)| rest.get(*key) != Some(last)).collect();
        prop_assert!(hit.len() <= 1, "{:?}", hit);
        prop_assert!(rest.keys().all(|key| whole.contains_key(key)));
    }
}

/// The records of puts, in this order of their beginnings and ends: some end without checksums, some
/// with another place than they began with, some not at all.
fn lives(puts: Vec<(Record, [bool; 3], Vec<Checksum>)>, order: &[Index]) -> Vec<Record> {
    let mut lives: Vec<Vec<Record>> = Vec::new();
    for (number, (record, [ends, has_checksums, moves], prefixes)) in (0..).zip(puts) {
        let Record::Object(mut object) = record else { unreachable!("objects alone") };
        object.generation = Generation::new(100 + number);
        let with = |object: &ObjectRecord, checksum: Option<u32>| -> Slices {
            let slices = object.slices.as_slice().iter();
            let checksum = checksum.map(Checksum::from_crc32c);
            let slices: Vec<_> = slices.map(|slice| Slice { checksum, ..*slice }).collect();
            if let [slice] = slices[..] { Slices::One(slice) } else { Slices::Many(slices.into()) }
        };
        (object.complete, object.prefixes) = (false, Box::default());
        object.slices = with(&object, None);
        let mut life = vec![Record::Object(object.clone())];
        if ends {
            (object.complete, object.prefixes) = (true, prefixes.into());
            object.slices = with(&object, has_checksums.then_some(7));
            object.hard_pin ^= moves;
            life.push(Record::Object(object));
        }
        life.reverse();
        lives.push(life);
    }
    let mut records = Vec::new();
    for at in order.iter().cycle() {
        lives.retain(|life| !life.is_empty());
        if lives.is_empty() {
            break;
        }
        let life = at.index(lives.len());
        records.extend(lives[life].pop());
    }
    records
}

/// The last record of each put.
fn last_of_each(records: &[Record]) -> BTreeMap<u64, Record> {
    let generation = |record: &Record| match record {
        Record::Object(object) => object.generation.as_u64(),
        _ => unreachable!("objects alone"),
    };
    records.iter().map(|record| (generation(record), record.clone())).collect()
}

fn crc(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// A batch as the table in the module `encoding` describes it, written without an encoder:
/// epoch 5, effects 3 to 4, base of the generations 1000.
fn by_hand(records: &[Vec<u8>], ids: &[u128]) -> Batch {
    let mut tables: Vec<u8> = ids.iter().flat_map(|id| id.to_be_bytes()).collect();
    let mut payload = Vec::new();
    for record in records {
        assert!(record.len() < 128, "a varint of one byte");
        tables.push(record.len() as u8);
        payload.extend(crc(record).to_le_bytes());
        payload.extend(record);
    }
    let mut bytes = b"MCJB\x01\x00\x00\x00".to_vec();
    for long in [5u64, 3, 4, 1_700_000_000_000, 1000] {
        bytes.extend(long.to_le_bytes());
    }
    let short = [u32::MAX, 0, ids.len() as u32, records.len() as u32, tables.len() as u32];
    for short in short.into_iter().chain([payload.len() as u32]) {
        bytes.extend(short.to_le_bytes());
    }
    let checksum = crc(&[&bytes[..], &tables].concat());
    bytes.extend(checksum.to_le_bytes());
    bytes.extend([tables, payload].concat());
    Batch::parse(bytes.into()).unwrap()
}

fn key_of(text: &str) -> ObjectKey {
    ObjectKey::new(text).unwrap()
}

fn place(segment: u128, offset: u64, len: u64) -> Location {
    let (segment, extent) = (SegmentId::from_u128(segment), Extent::new(offset, len).unwrap());
    Location { segment, extent }
}

/// A master of tomorrow must read what one of today wrote.
#[test]
fn batches_look_as_documented() {
    let slices = Slices::Many(
        [
            Slice { len: 200, checksum: Some(Checksum::from_crc32c(0x0403_0201)) },
            Slice { len: 3, checksum: None },
        ]
        .into(),
    );
    let mut object =
        ObjectRecord::new(key_of("k"), Generation::new(1000), ClientId::from_u128(8), slices);
    object.complete = true;
    object.hard_pin = true;
    object.replicas = Locations::from_vec(vec![place(7, 4096, 203), place(9, 0, 203)]);
    object.file = Some(ReplicaStatus::from_number(3).unwrap());
    object.group = Some("gr".into());
    object.parent = NonZeroU64::new(0x0102);
    object.prefixes = [Checksum::from_crc32c(0x0a0b_0c0d)].into();
    object.reserved = Locations::from_vec(vec![place(9, 300, 5)]);
    object.local_disks = [11, 8].map(LocalDiskId::from_u128).into_iter().collect();
    object.idle = Duration::from_millis(130);
    let endpoint: Endpoint = "tcp://a:1".parse().unwrap();
    let spec = SegmentSpec {
        id: SegmentId::from_u128(7),
        name: "seg".into(),
        base: 1,
        size: 300,
        endpoint: endpoint.with_others(vec!["shm://b".parse().unwrap()]),
        remote_key: RemoteKey::from_bytes([0xaa; 16]),
        ticket_key: Some(TicketKey::from_bytes([0xbb; 16])),
        medium: MediaType::Ssd,
    };
    let records = [
        Record::Object(object),
        Record::Generations { next: Generation::new(300) },
        Record::Segment {
            spec,
            client: ClientId::from_u128(8),
            status: SegmentStatus::Draining,
            grace: None,
        },
        Record::SegmentGone { id: SegmentId::from_u128(9) },
        Record::Removed { key: key_of("gone"), generation: Generation::new(998) },
        Record::SpaceKept {
            space: Locations::from_vec(vec![place(7, 1, 2)]),
            left: Duration::from_millis(5),
        },
        Record::SpaceFreed { space: Locations::new() },
        Record::TenantPolicy {
            tenant: TenantId::new("ten").unwrap(),
            requested: Some(129),
            mode: QuotaMode::Evict,
            below: TierQuotas::NONE,
        },
        Record::TenantPolicy {
            tenant: TenantId::DEFAULT,
            requested: None,
            mode: QuotaMode::Evict,
            below: TierQuotas::NONE,
        },
        Record::TenantPolicy {
            tenant: TenantId::new("ten").unwrap(),
            requested: Some(5),
            mode: QuotaMode::Refuse,
            below: TierQuotas::NONE,
        },
        Record::TenantPolicy {
            tenant: TenantId::new("ten").unwrap(),
            requested: None,
            mode: QuotaMode::Evict,
            below: TierQuotas { disks: Some(129), files: Some(0) },
        },
        Record::Leased {
            before: 4096,
            objects: [999, 1001].map(Generation::new).into(),
            is_last: true,
        },
    ];
    let object = [
        &[4, 1 + 4 + 8 + 16 + 32 + 64 + 128][..],
        b"\x01k",                     // key
        &[0],                         // generation: the base
        &[0],                         // owner: the first id
        &[2, 0x91, 3, 1, 2, 3, 4, 6], // slices: 200 bytes with a checksum, 3 bytes without
        &[2, 1, 0x80, 0x20, 2, 0],    // replicas: offset 4096 in the second id, 0 in the third
        &[0x82, 1],                   // idle: 130 ms
        &[3],                         // file
        b"\x02gr",                    // group
        &[2, 1, 0, 0, 0, 0, 0, 0],    // parent
        &[1, 0x0d, 0x0c, 0x0b, 0x0a], // prefixes
        &[1, 2, 0xac, 2, 5],          // reserved: offset 300, length 5 in the third id
        &[2, 3, 0],                   // clients' local disks: the fourth id, and the first
    ];
    let segment = [
        &[2, 1, 0, 2, 1, 1, 0xac, 2][..],
        b"\x03seg\x02\x09tcp://a:1\x07shm://b",
        &[0xaa; 16],
        &[1],
        &[0xbb; 16],
    ];
    let expected = by_hand(
        &[
            object.concat(),
            vec![1, 0xac, 2],
            segment.concat(),
            vec![3, 2],
            b"\x05\x04gone\x03".to_vec(), // −2 as a zigzag
            vec![6, 5, 1, 1, 1, 2],
            vec![7, 0],
            b"\x08\x03ten\x01\x81\x01".to_vec(),
            b"\x08\x07default\x00".to_vec(),
            // An older version reads a quota that evicts.
            b"\x08\x03ten\x01\x05\x01".to_vec(),
            // And here none at all.
            b"\x08\x03ten\x00\x00\x03\x81\x01\x00".to_vec(),
            // What an older version reads of it says that no generation was given out.
            vec![1, 0, 0x80, 0x20, 1, 2, 1, 2],
        ],
        &[8, 7, 9, 11],
    );
    let mut builder = BatchBuilder::new(Epoch::new(5));
    builder.effect(Sequence::new(3), None);
    records.iter().for_each(|record| builder.record(&record.as_ref()));
    builder.effect(Sequence::new(4), None);
    let mut written = builder.seal().unwrap().bytes().to_vec();
    // But for the time and what depends on it.
    for range in [32..40, 72..76] {
        written[range.clone()].copy_from_slice(&expected.bytes()[range]);
    }
    assert_eq!(written, expected.bytes()[..]);
    let seen = visit(&expected);
    assert_eq!((seen.records, seen.damaged), (records.to_vec(), vec![]));
    let made = expected.made().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(made, Duration::from_millis(1_700_000_000_000));
}

#[test]
fn a_record_of_before_there_were_disks_is_read() {
    let slices = Slices::One(Slice { len: 3, checksum: None });
    let mut object =
        ObjectRecord::new(key_of("k"), Generation::new(1000), ClientId::from_u128(8), slices);
    let bare = b"\x04\x00\x01k\x00\x00\x01\x06\x00\x00".to_vec();
    let read = |fields: Vec<u8>| {
        let seen = visit(&by_hand(&[fields], &[8]));
        assert_eq!(seen.damaged, []);
        seen.records
    };
    assert_eq!(read(bare.clone()), [Record::Object(object.clone())]);
    object.local_disks = [LocalDiskId::from_u128(8)].into_iter().collect();
    assert_eq!(read([&bare[..], &[1, 0]].concat()), [Record::Object(object)]);
}

/// An older version reads the same fields, and stops where a grace follows; a newer one may write more.
#[test]
fn the_grace_of_a_segment_is_what_older_versions_pass_over() {
    let spec = SegmentSpec {
        id: SegmentId::from_u128(7),
        name: "seg".into(),
        base: 1,
        size: 300,
        endpoint: "tcp://a:1".parse().unwrap(),
        remote_key: RemoteKey::from_bytes([0xaa; 16]),
        ticket_key: None,
        medium: MediaType::Dram,
    };
    let segment = |status, grace: Option<u64>| {
        let (spec, grace) = (spec.clone(), grace.map(Duration::from_millis));
        Record::Segment { spec, client: ClientId::from_u128(8), status, grace }
    };
    let bytes = |status: SegmentStatus, more: &[u8]| {
        let head = [2, 0, 1, status as u8, 0, 1, 0xac, 2];
        [&head[..], b"\x03seg\x01\x09tcp://a:1", &[0xaa; 16], &[0], more].concat()
    };
    let read = |fields: Vec<u8>| {
        let seen = visit(&by_hand(&[fields], &[7, 8]));
        assert_eq!(seen.damaged, []);
        seen.records
    };
    let leaving = SegmentStatus::GracefullyUnmounting;
    // As an older version wrote it, as this one does, and as a later one may.
    for (more, grace) in
        [(&[][..], None), (&[0xac, 2], Some(300)), (&[0xac, 2, 0xff, 0xff, 9], Some(300))]
    {
        assert_eq!(read(bytes(leaving, more)), [segment(leaving, grace)]);
    }
    for (record, fields) in [
        (segment(leaving, Some(300)), bytes(leaving, &[0xac, 2])),
        // What most records are is as it was.
        (segment(SegmentStatus::Ok, None), bytes(SegmentStatus::Ok, &[])),
        (segment(SegmentStatus::Drained, None), bytes(SegmentStatus::Drained, &[])),
    ] {
        let batch = batch(3, std::slice::from_ref(&record));
        let by_hand = by_hand(std::slice::from_ref(&fields), &[7, 8]);
        assert_eq!(batch.bytes()[payload(&batch)..], by_hand.bytes()[payload(&by_hand)..]);
        assert_eq!(read(fields), [record]);
    }
}

#[test]
fn completions_look_as_documented() {
    let slices = |checksum: Option<u32>| {
        Slices::One(Slice { len: 3, checksum: checksum.map(Checksum::from_crc32c) })
    };
    let (generation, owner) = (Generation::new(1000), ClientId::from_u128(8));
    let begun = ObjectRecord::new(key_of("k"), generation, owner, slices(None));
    let mut ended = ObjectRecord::new(key_of("k"), generation, owner, slices(Some(0x0403_0201)));
    ended.complete = true;
    ended.prefixes = [Checksum::from_crc32c(0x0a0b_0c0d)].into();
    let other = Record::Generations { next: Generation::new(3) };
    let records = [Record::Object(begun), other.clone(), Record::Object(ended.clone())];
    let written = [
        b"\x04\x00\x01k\x00\x00\x01\x06\x00\x00".to_vec(),
        vec![1, 3],
        vec![9, 2, 1, 1, 2, 3, 4, 1, 0x0d, 0x0c, 0x0b, 0x0a],
    ];
    let expected = by_hand(&written, &[8]);
    let batch = batch(3, &records);
    assert_eq!(batch.bytes()[payload(&batch)..], expected.bytes()[payload(&expected)..]);
    let seen = visit(&expected);
    assert_eq!((seen.records, seen.damaged), (vec![other, Record::Object(ended)], vec![]));
    // One that leads to no unfinished object, or has another number of checksums.
    let [begun, _, end] = &written;
    for (records, damaged) in [
        (vec![end.clone()], 1),
        (vec![begun.clone(), end.clone()], 1),
        (vec![begun.clone(), vec![9, 0, 0, 0]], 1),
        (vec![vec![1, 3], vec![9, 1, 0, 0]], 1),
        (vec![begun.clone(), vec![9, 1, 0, 0], vec![9, 2, 0, 0]], 1),
        (vec![begun.clone(), vec![9, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]], 1),
    ] {
        assert_eq!(visit(&by_hand(&records, &[8])).damaged.len(), damaged, "{records:?}");
    }
}

#[test]
fn what_follows_the_known_fields_is_passed_over() {
    let seen = visit(&by_hand(&[vec![3, 0, 1, 2, 3], b"\x05\x01k\x00more".to_vec()], &[7]));
    assert_eq!((seen.records.len(), seen.damaged.len()), (2, 0));
}

#[test]
fn a_record_of_an_unknown_kind_is_told_by_its_number() {
    let seen = visit(&by_hand(&[vec![3, 0], vec![99, 1], vec![], vec![3, 0]], &[7]));
    assert_eq!(seen.records.len(), 2);
    assert_eq!(seen.damaged.iter().map(|record| record.number).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_newer_version_is_refused_as_such() {
    let records = [Record::Generations { next: Generation::new(1) }];
    let mut bytes = batch(0, &records).bytes().to_vec();
    bytes[4] = 2;
    assert_eq!(Batch::parse(bytes.clone().into()), Err(BatchError::Newer { found: 2 }));
    assert_eq!(read_all(&bytes), [Err(BatchError::Newer { found: 2 })]);
    bytes[4] = 0;
    assert_eq!(Batch::parse(bytes.into()), Err(BatchError::NoBatch));
}

#[test]
fn pages_know_their_shard() {
    let mut builder = BatchBuilder::new(Epoch::new(1));
    let page = builder.page(Sequence::new(3), Some(PageOf { shard: 2, shards: 8 }));
    assert_eq!(page.kind(), BatchKind::Page);
    assert_eq!((page.shard_of(8), page.shard_of(9)), (Some(2), None));
    assert_eq!(builder.page(Sequence::new(3), None).shard_of(8), None);
    let end = builder.end(Sequence::new(3), Sequence::new(9));
    assert_eq!(
        (end.kind(), end.first().sequence, end.last().sequence),
        (BatchKind::End, Sequence::new(3), Sequence::new(9))
    );
}

/// Lengths and numbers that announce more than there is.
#[test]
fn what_is_announced_is_not_taken_at_its_word() {
    let many = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    let records: Vec<Vec<u8>> = vec![
        [&[4, 0][..], b"\x01k", &[0, 0], &many].concat(), // slices
        [&[4, 0][..], b"\x01k", &[0, 0, 1, 2], &many].concat(), // replicas
        [&[4, 64][..], b"\x01k", &[0, 0, 1, 2, 0, 0], &many].concat(), // prefixes
        [&[4, 0][..], b"\x01k", &[0, 0, 1, 2, 0, 0], &many].concat(), // clients' local disks
        [&[4, 0][..], b"\x01k", &[0, 0, 1, 2, 0, 0, 1, 1]].concat(), // an unknown disk
        [&[4, 0][..], &many].concat(),                    // key
        [&[5][..], &many].concat(),
        [&[6, 1][..], &many].concat(),
        [&[7][..], &many].concat(),
        [&[8][..], &many].concat(),
        [&[2, 0, 0, 1, 0, 0, 0, 0][..], &many].concat(), // endpoints
        vec![2, 0, 0, 1, 0, 0, 0, 0, 0],                 // no endpoint
        vec![3, 1],                                      // an id that is not in the table
    ];
    let seen = visit(&by_hand(&records, &[7]));
    assert_eq!((seen.records.len(), seen.damaged.len()), (0, records.len()));
    // A header that announces 4 GiB is none.
    let mut bytes = by_hand(&[vec![3, 0]], &[7]).bytes().to_vec();
    bytes[68..72].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(read_all(&bytes), [Err(BatchError::Header)]);
    // One that announces as much as there may be costs no more memory than what follows.
    bytes[68..72].copy_from_slice(&((MAX_BATCH_LEN - 2 * HEADER_LEN) as u32).to_le_bytes());
    assert!(matches!(read_all(&bytes)[..], [Err(BatchError::CutOff { .. })]));
}
