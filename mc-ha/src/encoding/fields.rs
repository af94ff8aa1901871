//! The kinds of records, and the flags of objects.

pub(super) const GENERATIONS: u8 = 1;
pub(super) const SEGMENT: u8 = 2;
pub(super) const SEGMENT_GONE: u8 = 3;
pub(super) const OBJECT: u8 = 4;
pub(super) const REMOVED: u8 = 5;
pub(super) const SPACE_KEPT: u8 = 6;
pub(super) const SPACE_FREED: u8 = 7;
pub(super) const QUOTA: u8 = 8;
/// Follows the bytes of a quota beyond which puts are refused.
pub(super) const REFUSES: u8 = 1;
/// Flags of the quotas below memory that follow.
pub(super) const QUOTA_OF_DISKS: u8 = 1;
pub(super) const QUOTA_OF_FILES: u8 = 2;
pub(super) const COMPLETION: u8 = 9;
/// An object with a soft pin of its own duration: its two bytes follow the flags, which have no bit left for it.
pub(super) const PINNED_OBJECT: u8 = 10;

pub(super) const COMPLETE: u8 = 1;
pub(super) const SOFT_PIN: u8 = 2;
pub(super) const HARD_PIN: u8 = 4;
pub(super) const FILE: u8 = 8;
pub(super) const GROUP: u8 = 16;
pub(super) const PARENT: u8 = 32;
pub(super) const PREFIXES: u8 = 64;
pub(super) const RESERVED: u8 = 128;
