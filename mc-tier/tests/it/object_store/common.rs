//! Objects whose bytes follow from their ids.

use std::num::NonZeroUsize;

use bytes::Bytes;
use mc_testkit::content;
use mc_tier::{ObjectBytes, ObjectId, ScanPage, SliceBytes, Tier};
use mc_types::{Generation, ObjectKey};

pub(crate) const MIB: usize = 1 << 20;

pub(crate) fn id(key: &str) -> ObjectId {
    ObjectId::new("tenant", ObjectKey::new(key).unwrap(), Generation::new(1)).unwrap()
}

/// An object of this text's bytes: a slice of 10, and the others.
pub(crate) fn object(text: &str, len: usize) -> ObjectBytes {
    let bytes = Bytes::from(content(text, len + 10));
    ObjectBytes::new(vec![SliceBytes::new(bytes.slice(..10)), SliceBytes::new(bytes.slice(10..))])
        .unwrap()
}

pub(crate) fn scan_all(tier: &dyn Tier) -> ScanPage {
    let page = tier.scan(None, NonZeroUsize::new(1_000_000).unwrap()).unwrap();
    assert_eq!(page.next, None);
    page
}
