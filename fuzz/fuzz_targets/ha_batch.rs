//! Bytes of a journal, a snapshot or the stream to a standby: as one batch, as many, and as one
//! whose checksums are right.

#![no_main]

use std::io::Cursor;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use mc_ha::encoding::{Batch, BatchBuilder, BatchReader, DamagedRecord, HEADER_LEN, RecordVisitor};
use mc_meta::{Record, RecordRef};
use mc_types::{Epoch, KeyRef, Sequence};

#[derive(Default)]
struct Collector {
    records: Vec<Record>,
    damaged: usize,
}

impl RecordVisitor for Collector {
    fn wants(&self, _: KeyRef<'_>) -> bool {
        true
    }

    fn records(&mut self, records: &[RecordRef<'_>]) {
        self.records.extend(records.iter().map(RecordRef::to_record));
    }

    fn damaged(&mut self, _: DamagedRecord) {
        self.damaged += 1;
    }
}

fn visit(batch: &Batch) -> Collector {
    let mut collector = Collector::default();
    batch.visit(&mut collector);
    assert!(collector.records.len() + collector.damaged <= batch.len());
    collector
}

/// Checks that a batch that was read can be written, and reads the same then, but for beginnings of
/// puts whose ends follow.
fn check(batch: &Batch) {
    let Collector { records, .. } = visit(batch);
    let mut builder = BatchBuilder::new(Epoch::new(1));
    builder.effect(Sequence::new(0), None);
    records.iter().for_each(|record| builder.record(&record.as_ref()));
    let again = builder.seal().expect("an effect was added");
    let again = Batch::parse(again.bytes().clone()).expect("it was just written");
    let again = visit(&again);
    assert_eq!(again.damaged, 0);
    let mut left = again.records.iter().peekable();
    for record in &records {
        if left.next_if_eq(&record).is_none() {
            assert!(matches!(record, Record::Object(object) if !object.complete), "{record:?}");
        }
    }
    assert_eq!(left.next(), None);
}

fn crc(bytes: &[u8]) -> [u8; 4] {
    (crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
}

/// One batch of these records' fields, each behind its length, with ids and checksums.
fn sealed(mut bytes: &[u8]) -> Batch {
    let ids = [[7; 16], [8; 16], [9; 16]].concat();
    let (mut tables, mut payload, mut count) = (ids, Vec::new(), 0u32);
    while let [len, rest @ ..] = bytes {
        let (fields, rest) = rest.split_at((usize::from(*len) & 0x7f).min(rest.len()));
        tables.push(fields.len() as u8);
        payload.extend(crc(fields));
        payload.extend(fields);
        (bytes, count) = (rest, count + 1);
    }
    let mut batch = b"MCJB\x01\0\0\0".to_vec();
    for long in [1u64, 1, u64::from(count) + 1, 0, 1000] {
        batch.extend(long.to_le_bytes());
    }
    let lengths = [tables.len() as u32, payload.len() as u32];
    for short in [u32::MAX, 0, 3, count].into_iter().chain(lengths) {
        batch.extend(short.to_le_bytes());
    }
    assert_eq!(batch.len() + 4, HEADER_LEN);
    let checksum = crc(&[&batch[..], &tables].concat());
    batch.extend(checksum);
    batch.extend([tables, payload].concat());
    Batch::parse(batch.into()).expect("its checksums are right")
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(batch) = Batch::parse(Bytes::copy_from_slice(bytes)) {
        assert_eq!(batch.bytes(), bytes);
        check(&batch);
    }
    let mut reader = BatchReader::new(Cursor::new(bytes));
    let mut read = 0;
    while let Some(batch) = reader.next_batch().expect("memory can be read") {
        read += batch.map_or(1, |batch| {
            check(&batch);
            batch.bytes().len()
        });
        assert!(read <= bytes.len());
    }
    check(&sealed(bytes));
});
