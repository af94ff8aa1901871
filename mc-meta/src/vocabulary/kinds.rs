//! Where replicas are beside memory: one file on a shared tier, and the clients' own
//! disks.

use crate::vocabulary::states::ReplicaStatus;

/// The medium that a replica lies on. The numbers are those of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReplicaKind {
    /// A range of a segment.
    Memory = 0,
    /// A file on a tier that every client reaches; at most one for each object. Where
    /// it is follows from the key and the put's generation, so the master keeps only its
    /// state. Not from the key alone: a writer that comes late must not touch the file of
    /// a later put.
    SharedFile = 1,
    /// One client's local disk, which others read through that client.
    LocalDisk = 2,
}

impl ReplicaKind {
    /// Its name in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::SharedFile => "disk",
            Self::LocalDisk => "local_disk",
        }
    }
}

/// A set of [`ReplicaKind`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReplicaKinds(u8);

impl ReplicaKinds {
    /// No kind.
    pub const NONE: Self = Self(0);

    const ALL: [ReplicaKind; 3] =
        [ReplicaKind::Memory, ReplicaKind::SharedFile, ReplicaKind::LocalDisk];

    /// The set with this kind, too.
    #[must_use]
    pub const fn with(self, kind: ReplicaKind) -> Self {
        Self(self.0 | 1 << kind as u8)
    }

    /// Returns whether the kind is in the set.
    #[must_use]
    pub const fn contains(self, kind: ReplicaKind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }

    /// The kinds that are in this set and not in the other, the fastest first.
    pub fn without(self, other: Self) -> impl Iterator<Item = ReplicaKind> {
        Self::ALL.into_iter().filter(move |kind| self.contains(*kind) && !other.contains(*kind))
    }

    /// The kinds, the fastest first.
    pub fn iter(self) -> impl Iterator<Item = ReplicaKind> {
        self.without(Self::NONE)
    }

    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u8) -> Self {
        Self(bits & 0b111)
    }
}

/// The tier of files that every client reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedTierConfig {
    /// Bytes of all files together; `None` is as many as there are. A put that finds no
    /// room among them is planned without a file.
    pub capacity: Option<u64>,
    /// Whether clients may write objects of up to 8 MiB that they put within a second to one file, of up to 64 MiB:
    /// such puts have generations of one [run](mc_types::Generation::run). Default true. Clients that cannot read
    /// such files, as those of older versions, find nothing in them.
    pub packs: bool,
}

impl SharedTierConfig {
    /// A tier of this many bytes.
    #[must_use]
    pub const fn with_capacity(bytes: u64) -> Self {
        Self { capacity: Some(bytes), packs: true }
    }
}

impl Default for SharedTierConfig {
    fn default() -> Self {
        Self { capacity: None, packs: true }
    }
}

/// The file of an object on the shared tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedFile {
    /// Its length in bytes: the object's.
    pub len: u64,
}

/// The state of an object's file on the shared tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FileState {
    /// There is none.
    None = 0,
    /// Its client writes it, or will.
    Writing = 1,
    /// Readable.
    Persisted = 2,
}

impl FileState {
    pub(crate) const fn from_u8(number: u8) -> Self {
        match number {
            1 => Self::Writing,
            2 => Self::Persisted,
            _ => Self::None,
        }
    }

    /// Reads [`status`](Self::status).
    pub(crate) const fn from_status(status: Option<ReplicaStatus>) -> Self {
        match status {
            Some(ReplicaStatus::Processing) => Self::Writing,
            Some(ReplicaStatus::Complete) => Self::Persisted,
            _ => Self::None,
        }
    }

    pub(crate) const fn status(self) -> Option<ReplicaStatus> {
        match self {
            Self::None => None,
            Self::Writing => Some(ReplicaStatus::Processing),
            Self::Persisted => Some(ReplicaStatus::Complete),
        }
    }
}
