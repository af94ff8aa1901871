//! Objects whose bytes follow from their numbers.

use std::num::NonZeroUsize;

use bytes::Bytes;
use mc_testkit::content;
use mc_tier::{
    LogSettings, LogTier, MemoryBackend, ObjectBytes, ObjectId, ScanPage, SliceBytes,
    StorageBackend, Tier, TierError,
};
use mc_types::{ByteSize, Generation, ObjectKey};

/// The bytes before the first segment, and of a record's alignment.
pub(crate) const BLOCK: u64 = 4096;

pub(crate) const SEGMENT: ByteSize = ByteSize::kib(64);

pub(crate) fn id(number: usize) -> ObjectId {
    let key = ObjectKey::new(format!("key-{number}")).unwrap();
    ObjectId::new("tenant", key, Generation::new(number as u64)).unwrap()
}

/// The only bytes that are ever put under this number: two slices.
pub(crate) fn object(number: usize) -> ObjectBytes {
    let bytes = Bytes::from(content(&number.to_string(), 1000 + 700 * (number % 20)));
    ObjectBytes::new(vec![SliceBytes::new(bytes.slice(..10)), SliceBytes::new(bytes.slice(10..))])
        .unwrap()
}

/// Another object under a number.
pub(crate) fn other(number: usize) -> ObjectBytes {
    let slice = object(number).slices()[1].bytes().slice(5..);
    ObjectBytes::new(vec![SliceBytes::new(slice)]).unwrap()
}

/// A medium with this number of segments.
pub(crate) fn medium(segments: u64) -> MemoryBackend {
    MemoryBackend::new(ByteSize::bytes(BLOCK + segments * SEGMENT.as_u64()))
}

/// The bytes of a medium as a process that is killed now leaves them.
pub(crate) fn copy(medium: &MemoryBackend) -> MemoryBackend {
    let mut bytes = vec![0; medium.len() as usize];
    medium.read(0, &mut bytes).unwrap();
    let copy = MemoryBackend::new(ByteSize::bytes(medium.len()));
    copy.write(0, &bytes).unwrap();
    copy
}

pub(crate) fn settings() -> LogSettings {
    let mut settings = LogSettings::default();
    settings.segment_len = SEGMENT;
    settings
}

pub(crate) fn open(backend: impl StorageBackend + 'static) -> LogTier {
    LogTier::open(backend, settings()).unwrap()
}

pub(crate) fn put(tier: &LogTier, number: usize) {
    tier.put(&id(number), &object(number)).unwrap();
}

/// Puts objects until no more fit. Returns their number.
pub(crate) fn fill(tier: &LogTier) -> usize {
    let mut stored = 0;
    let error = loop {
        match tier.put(&id(stored), &object(stored)) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, TierError::Full { .. }) && error.is_retryable(), "{error:?}");
    stored
}

/// Returns whether the object is there. Its bytes are right.
pub(crate) fn is_there(tier: &LogTier, number: usize) -> bool {
    let found = tier.get(&id(number)).unwrap();
    let is_there = found.is_some();
    assert!(found.is_none_or(|found| found == object(number)), "{number}");
    is_there
}

pub(crate) fn scan_all(tier: &LogTier) -> ScanPage {
    tier.scan(None, NonZeroUsize::MAX).unwrap()
}
