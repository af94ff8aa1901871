//! Information of a put for the subscribers of events.

use alloc::string::String;
use alloc::vec::Vec;
use core::error::Error;
use core::fmt;

/// Length limit of a model's name, in bytes.
pub const MAX_MODEL_NAME: usize = 256;
/// Length limit of a block's hash, in bytes.
pub const MAX_BLOCK_HASH: usize = 256;
/// Limit on a block's token ids.
pub const MAX_TOKEN_IDS: usize = 32_768;

/// Metadata of a block, handed from the inference engine to the subscribers of events and not
/// interpreted. Every field is optional; an empty string, list or zero stands for an absent one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreEventInfo {
    /// The model's name.
    pub model_name: String,
    /// The size of the block; the engine chooses the unit, most count tokens.
    pub block_size: u32,
    /// The hash of the block.
    pub block_hash: String,
    /// The hash of the block before it.
    pub parent_block_hash: String,
    /// The tokens of the block.
    pub token_ids: Vec<u32>,
}

impl StoreEventInfo {
    /// Checks the lengths of the fields.
    ///
    /// # Errors
    /// The first field that is too long.
    pub fn check(&self) -> Result<(), InfoTooLong> {
        let lengths = [
            ("model_name", self.model_name.len(), MAX_MODEL_NAME),
            ("block_hash", self.block_hash.len(), MAX_BLOCK_HASH),
            ("parent_block_hash", self.parent_block_hash.len(), MAX_BLOCK_HASH),
            ("token_ids", self.token_ids.len(), MAX_TOKEN_IDS),
        ];
        match lengths.into_iter().find(|(_, length, max)| length > max) {
            Some((field, length, max)) => Err(InfoTooLong { field, length, max }),
            None => Ok(()),
        }
    }
}

/// A field of [`StoreEventInfo`] is longer than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoTooLong {
    /// The field.
    pub field: &'static str,
    /// The field's length, in bytes or entries.
    pub length: usize,
    /// The limit.
    pub max: usize,
}

impl fmt::Display for InfoTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, length, max } = self;
        write!(f, "{field} has length {length}, and at most {max} are allowed; shorten it")
    }
}

impl Error for InfoTooLong {}
