//! Keys of forty bytes.

use mc_types::{KeyError, KeyRef};

/// The texts of keys.
#[derive(Debug)]
pub(crate) struct Keys(Vec<String>);

impl Keys {
    /// Keys of one family, which no other family has.
    pub(crate) fn new(family: u32, count: u64) -> Self {
        Self((0..count).map(|n| format!("model/layer-{family:08x}/{n:016x}-kv")).collect())
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    pub(crate) fn at(&self, number: u64) -> Result<KeyRef<'_>, KeyError> {
        KeyRef::new(&self.0[number as usize])
    }

    /// All of them, a batch at a time.
    pub(crate) fn batches(&self, len: usize) -> Result<Vec<Vec<KeyRef<'_>>>, KeyError> {
        self.0.chunks(len).map(|batch| batch.iter().map(|key| KeyRef::new(key)).collect()).collect()
    }
}
