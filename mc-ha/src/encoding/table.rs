//! The ids of a batch.

use core::hash::BuildHasherDefault;
use std::collections::HashMap;
use std::hash::Hasher;

use bytes::BufMut;
use mc_types::Generation;

/// The ids of a batch, and the base of its generations.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) ids: Vec<u8>,
    pub(super) places: HashMap<u128, u32, BuildHasherDefault<IdHasher>>,
    pub(super) base: Option<Generation>,
}

/// Ids are random already.
#[derive(Debug, Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u128(&mut self, id: u128) {
        self.0 = (id ^ id >> 64) as u64 ^ 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(id as u64);
    }
}

impl Table {
    /// The place of an id.
    pub(super) fn id(&mut self, id: u128) -> u64 {
        let next = self.places.len() as u32;
        let place = *self.places.entry(id).or_insert(next);
        if place == next {
            self.ids.put_slice(&id.to_be_bytes());
        }
        place.into()
    }

    /// The difference of a generation to the batch's base.
    pub(super) fn generation(&mut self, generation: Generation) -> i64 {
        let base = *self.base.get_or_insert(generation);
        generation.as_u64().wrapping_sub(base.as_u64()) as i64
    }

    pub(super) fn clear(&mut self) {
        self.ids.clear();
        self.places.clear();
        self.base = None;
    }
}
