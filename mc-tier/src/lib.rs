#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod backend;
mod chances;
#[cfg(feature = "conformance")]
pub mod conformance;
mod directory;
mod error;
mod faulty;
mod log;
mod memory;
mod object;
pub mod object_file;
#[cfg(feature = "object-store")]
mod object_tier;
mod oldest;
pub mod pack_file;
mod packs;
mod place;
#[cfg(feature = "encryption")]
mod sealed;
mod shared_place;
mod tier;
#[cfg(feature = "usrbio")]
mod usrbio;

pub use backend::{
    BackendFaults, DirectIo, FaultyBackend, FileBackend, FileSettings, IoBuffer, MemoryBackend,
    ReadQueue, StorageBackend,
};
pub use directory::{
    DirectorySettings, DirectoryTier, FolderMode, InvalidFolderMode, SyncPolicy, UnknownSyncPolicy,
};
pub use error::{Damage, TierError};
pub use faulty::{Faults, FaultyTier};
pub use log::{LogSettings, LogTier, Recovery};
pub use memory::MemoryTier;
pub use object::{
    InvalidObject, MAX_OBJECT_LEN, MAX_SLICES, MAX_TENANT_LEN, ObjectBytes, ObjectId, SliceBytes,
    SliceInfo, StoredObject,
};
#[cfg(feature = "object-store")]
pub use object_tier::{ObjectStoreSettings, ObjectStoreTier};
#[cfg(feature = "s3")]
pub use object_tier::{ProfileError, S3Settings, S3Variables};
#[cfg(feature = "encryption")]
pub use sealed::{KeySource, KeysError, SealedTier, SourceError, TierKeys};
pub use shared_place::{BucketPlace, InvalidPlace, SharedPlace};
pub use tier::{MediumSpace, ScanCursor, ScanPage, Tier, TierUsage, Watermarks};
#[cfg(feature = "usrbio")]
pub use usrbio::{UsrbioBackend, UsrbioSettings};
