//! Why the master refuses: one enum for each family of commands.

use core::time::Duration;
use std::borrow::Cow;

use mc_types::{ByteSize, ErrorCode, MediaType};
use thiserror::Error;

use crate::tenant::id::TenantId;
use crate::tenant::quota::QuotaError;

/// Why a segment is not mounted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MountError {
    /// A segment of this id or name is mounted already by another client, or with
    /// another shape.
    #[error("a different segment named {name:?} is mounted already; choose another name or id")]
    AlreadyExists {
        /// The name asked for.
        name: Box<str>,
    },
    /// The name is empty or too long.
    #[error("a segment name has 1 to {max} bytes, this one has {len}")]
    BadName {
        /// Its length in bytes.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The segment has no bytes.
    #[error("the segment has size 0; contribute at least one byte")]
    ZeroSize,
    /// The segment is being unmounted gracefully.
    #[error("the segment is about to be unmounted; mount it again when it has gone")]
    Leaving,
    /// The segment is not known as it was described, so it cannot be attached again.
    #[error("no such segment of this client is known; mount it anew, with a fresh id and key")]
    NotFound,
}

impl MountError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::AlreadyExists { .. } => ErrorCode::SegmentAlreadyExists,
            Self::BadName { .. } | Self::ZeroSize => ErrorCode::InvalidParams,
            Self::Leaving => ErrorCode::UnavailableInCurrentStatus,
            Self::NotFound => ErrorCode::SegmentNotFound,
        }
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Leaving)
    }
}

/// Why a segment is not unmounted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UnmountError {
    /// No such segment is mounted.
    #[error("no such segment is mounted")]
    NotFound,
    /// The segment belongs to another client.
    #[error("the segment belongs to another client")]
    IllegalClient,
    /// Its client is away; it can be unmounted at once only.
    #[error("the segment is suspended because its client was silent; mount it again first")]
    Suspended,
}

impl UnmountError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound => ErrorCode::SegmentNotFound,
            Self::IllegalClient => ErrorCode::IllegalClient,
            Self::Suspended => ErrorCode::UnavailableInCurrentStatus,
        }
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        false
    }
}

/// Why a put gets no space.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PutStartError {
    /// The object is there already; it is immutable until removed.
    #[error("the object exists already")]
    AlreadyExists,
    /// Another client is writing it.
    #[error("another put of this key is under way, begun {age:?} ago")]
    InProgress {
        /// How long ago it began.
        age: Duration,
    },
    /// The request itself is wrong.
    #[error("{0}")]
    Invalid(InvalidPut),
    /// The object that is to be replaced is not in the group that was named.
    #[error("the object is not in this group; name the group it is in or none, or remove it first")]
    OtherGroup,
    /// No segment could ever hold it.
    #[error(
        "the object has {len} bytes, but no mounted segment can hold more than {}; \
         mount a larger segment or split the object",
        ByteSize::bytes(*.largest_object)
    )]
    TooLarge {
        /// The object's length in bytes.
        len: u64,
        /// Bytes of the largest object that a mounted segment can hold.
        largest_object: u64,
    },
    /// No segment is mounted, or every one that is was excluded.
    #[error("{}", too_few(*.mounted))]
    TooFewSegments {
        /// Segments mounted, excluded ones included.
        mounted: usize,
    },
    /// No segment of the medium that was asked for is mounted, or every one that is was
    /// excluded.
    #[error("{}", no_medium(*.medium, *.mounted))]
    NoMedium {
        /// The medium.
        medium: MediaType,
        /// Segments of it that take objects, excluded ones included.
        mounted: usize,
    },
    /// Every segment is full of objects that may not be evicted.
    #[error("{len} bytes wanted, none of the segments has room and nothing can be evicted")]
    Full {
        /// The object's length in bytes.
        len: u64,
    },
    /// Enough bytes are free in some segment, but in pieces that are too short.
    #[error("{len} bytes wanted, {free} are free in one segment, but not next to each other")]
    Fragmented {
        /// The object's length in bytes.
        len: u64,
        /// Free bytes of the segment that has most.
        free: u64,
    },
    /// Everything that could be evicted is being read, copied or written to a disk, or is
    /// in a group with something that is.
    #[error("{len} bytes wanted; what could be evicted is being used, retry shortly")]
    AllLeased {
        /// The object's length in bytes.
        len: u64,
    },
    /// Its tenant would have more than it may, and none of its objects can go now.
    #[error(
        "tenant {tenant} has {} and wants {} more, and may have {}; remove objects of it, \
         or raise its quota",
        ByteSize::bytes(*.charged), ByteSize::bytes(*.wanted), ByteSize::bytes(*.effective)
    )]
    QuotaExceeded {
        /// The tenant.
        tenant: TenantId,
        /// Bytes charged to it.
        charged: u64,
        /// Bytes that it may have.
        effective: u64,
        /// Bytes that the put wants: those of all replicas.
        wanted: u64,
    },
    /// Its tenant has no quota.
    #[error("tenant {tenant} has no quota, so it may not put; set one")]
    TenantNotRegistered {
        /// The tenant.
        tenant: TenantId,
    },
}

impl From<QuotaError> for PutStartError {
    fn from(refused: QuotaError) -> Self {
        match refused {
            QuotaError::NotRegistered { tenant } => Self::TenantNotRegistered { tenant },
            QuotaError::Exceeded { tenant, charged, effective, wanted, .. } => {
                Self::QuotaExceeded { tenant, charged, effective, wanted }
            }
        }
    }
}

/// The error of a put that is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidPut {
    /// There is no slice, or one of them is empty.
    #[error("an object has at least one slice and each slice at least one byte")]
    EmptySlice,
    /// More slices than the limit.
    #[error("{count} slices; the limit is {}", crate::MAX_SLICES)]
    TooManySlices {
        /// The number given.
        count: usize,
    },
    /// The slices' lengths do not fit in 63 bits together.
    #[error("the slices' lengths overflow when added")]
    LengthOverflow,
    /// Zero replicas, or more than the limit.
    #[error("replica_num is {replica_num}; choose between 1 and {}", crate::MAX_REPLICAS)]
    ReplicaCount {
        /// The number given.
        replica_num: u32,
    },
    /// The soft pin lasts longer than the master allows.
    #[error(
        "a soft pin of {ttl:?}; this master allows {max:?}: ask for less, or for none in particular, or \
         start the master with a larger --max_kv_soft_pin_ttl"
    )]
    SoftPinTtl {
        /// The duration asked for.
        ttl: Duration,
        /// The longest.
        max: Duration,
    },
    /// The name of the group is empty or too long.
    #[error("a group's name has 1 to {} bytes, this one has {len}", crate::MAX_GROUP_NAME_LEN)]
    GroupName {
        /// Its length in bytes.
        len: usize,
    },
    /// More segments preferred or excluded than the limit.
    #[error("{count} segments preferred or excluded; the limit is {}", crate::MAX_NAMED_SEGMENTS)]
    TooManySegments {
        /// The number given.
        count: usize,
    },
    /// More segments avoided than the limit.
    #[error("{count} segments avoided; the limit is {}", crate::MAX_AVOIDED_SEGMENTS)]
    TooManyAvoided {
        /// The number given.
        count: usize,
    },
}

fn too_few(mounted: usize) -> Cow<'static, str> {
    match mounted {
        0 => "no segment is mounted; start a storage client that contributes memory".into(),
        mounted => format!("each of the {mounted} mounted segments is excluded").into(),
    }
}

fn no_medium(medium: MediaType, mounted: usize) -> Cow<'static, str> {
    match mounted {
        0 => format!(
            "no segment of medium {medium} takes objects; start a storage client with \
             segment_medium = {medium}, or put without a medium"
        ),
        mounted => format!("each of the {mounted} mounted segments of medium {medium} is excluded"),
    }
    .into()
}

impl PutStartError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::AlreadyExists => ErrorCode::ObjectAlreadyExists,
            Self::InProgress { .. } => ErrorCode::PutInProgress,
            Self::Invalid(_) | Self::OtherGroup => ErrorCode::InvalidParams,
            Self::TooLarge { .. } => ErrorCode::ObjectTooLarge,
            Self::TooFewSegments { .. } | Self::NoMedium { .. } => ErrorCode::TooFewSegments,
            Self::Full { .. } => ErrorCode::Full,
            Self::Fragmented { .. } => ErrorCode::Fragmented,
            Self::AllLeased { .. } => ErrorCode::AllLeased,
            Self::QuotaExceeded { .. } => ErrorCode::TenantQuotaExceeded,
            Self::TenantNotRegistered { .. } => ErrorCode::TenantNotRegistered,
        }
    }

    /// Returns whether the same call may succeed later without intervention: leases
    /// end, other puts end.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::AllLeased { .. }
            | Self::Full { .. }
            | Self::Fragmented { .. }
            | Self::InProgress { .. } => true,
            Self::QuotaExceeded { effective, wanted, .. } => *wanted <= *effective,
            _ => false,
        }
    }
}

/// Why a put is not ended or revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PutFinishError {
    /// No put of this key is known; it was revoked, discarded or its segments
    /// have gone.
    #[error("no such object; its put was given up or its segments have gone")]
    NotFound,
    /// Another client's put, or the token is not the one that its start gave.
    #[error("the object is being written by another client, or the token is not the put's")]
    IllegalClient,
    /// The key has been put again meanwhile, or the put is already ended.
    #[error("this put does not own the object any more")]
    NotOpen,
    /// The number of checksums is neither zero nor that of the slices.
    #[error("{given} checksums for {slices} slices")]
    ChecksumCount {
        /// Checksums given.
        given: usize,
        /// Slices of the put.
        slices: usize,
    },
    /// The number of prefix checksums is neither zero nor that of the slices'
    /// checkpoints, or there are prefixes without checksums.
    #[error("{given} prefix checksums for slices with {checkpoints} checkpoints")]
    PrefixCount {
        /// Prefix checksums given.
        given: usize,
        /// Checkpoints inside the put's slices; zero when the slices have no checksums.
        checkpoints: u64,
    },
}

impl PutFinishError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound => ErrorCode::ObjectNotFound,
            Self::IllegalClient => ErrorCode::IllegalClient,
            Self::NotOpen => ErrorCode::InvalidWrite,
            Self::ChecksumCount { .. } | Self::PrefixCount { .. } => ErrorCode::InvalidParams,
        }
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        false
    }
}

/// Why an object cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GetError {
    /// No object has this key.
    #[error("no such object")]
    NotFound,
    /// Its put is not finished, or every node that holds it is away.
    #[error("no replica can be read now: it is being written, or its nodes are away")]
    NotReady,
}

impl GetError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound => ErrorCode::ObjectNotFound,
            Self::NotReady => ErrorCode::ReplicaIsNotReady,
        }
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::NotReady)
    }
}

/// Why a lease is not renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RenewError {
    /// No object has this key.
    #[error("no such object; what was read may be gone when its lease ends")]
    NotFound,
    /// The key has another value, or is getting one.
    #[error("the object was replaced; what was read may be gone when its lease ends")]
    Replaced,
    /// Every client that holds it is silent.
    #[error("no replica of the object can be read now")]
    NotReady,
}

impl RenewError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound => ErrorCode::ObjectNotFound,
            Self::Replaced => ErrorCode::LeaseExpired,
            Self::NotReady => ErrorCode::ReplicaIsNotReady,
        }
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::NotReady)
    }
}

/// Why an object is not removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RemoveError {
    /// No object has this key.
    #[error("no such object")]
    NotFound,
    /// A reader may be reading it.
    #[error("the object is under lease for another {remaining:?}; retry then, or force")]
    Leased {
        /// How long the lease still runs.
        remaining: Duration,
    },
    /// Its put is not finished.
    #[error("the object is still being written")]
    NotReady,
    /// The object is being copied or moved. Force does not help.
    #[error("the object is being copied or moved; retry when that is over")]
    InTransfer,
    /// Its key has the value of another put than the named one, which is gone.
    #[error("the object was replaced by another put; look it up again and remove that one")]
    Replaced,
}

impl RemoveError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound => ErrorCode::ObjectNotFound,
            Self::Leased { .. } => ErrorCode::ObjectHasLease,
            Self::NotReady => ErrorCode::ReplicaIsNotReady,
            Self::InTransfer => ErrorCode::ObjectHasReplicationTask,
            Self::Replaced => ErrorCode::LeaseExpired,
        }
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Leased { .. } | Self::NotReady | Self::InTransfer)
    }
}

/// Why an object is not pinned, or stays pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PinError {
    /// No object has this key.
    #[error("no such object")]
    NotFound,
    /// Its put is not finished.
    #[error("the object is still being written")]
    NotReady,
    /// A pin lasts some time.
    #[error("a pin of no time pins nothing; unpin the object instead")]
    Zero,
    /// The pin would last longer than any may.
    #[error(
        "a soft pin of {ttl:?} is longer than {max:?}, the longest; ask for less, or start the master with a \
         larger --max_kv_soft_pin_ttl"
    )]
    TooLong {
        /// The pin that was asked for.
        ttl: Duration,
        /// The limit.
        max: Duration,
    },
}

impl PinError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound => ErrorCode::ObjectNotFound,
            Self::NotReady => ErrorCode::ReplicaIsNotReady,
            Self::Zero | Self::TooLong { .. } => ErrorCode::InvalidParams,
        }
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::NotReady)
    }
}

/// Why the loss of a replica on a disk is not noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TierEvictError {
    /// No object has this key.
    #[error("no such object")]
    NotFound,
    /// The object has no such replica: not of this kind, not by this client, or not of this put.
    #[error("the object has no such replica")]
    NoReplica,
    /// Its file is being written.
    #[error("the object's file is still being written; revoke it instead")]
    NotReady,
    /// Replicas in memory are the master's to evict.
    #[error("name a kind of disk; what is in memory is evicted by the master")]
    NotATier,
}

impl TierEvictError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound => ErrorCode::ObjectNotFound,
            Self::NoReplica => ErrorCode::ReplicaNotFound,
            Self::NotReady => ErrorCode::ReplicaIsNotReady,
            Self::NotATier => ErrorCode::InvalidParams,
        }
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::NotReady)
    }
}
