//! Why a copy or move is refused.

use mc_types::ErrorCode;
use thiserror::Error;

use crate::side_tables::transfer::TransferKind;
use crate::tenant::quota::QuotaError;
use crate::vocabulary::request::MAX_REPLICAS;
use crate::vocabulary::states::SegmentStatus;

/// Why a copy or move does not begin.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// A copy to no segment, or to more than the limit.
    #[error("{count} targets; a copy has between 1 and {MAX_REPLICAS}")]
    TargetCount {
        /// The number given.
        count: usize,
    },
    /// A move to where the replica is.
    #[error("source and target of the move are the same segment")]
    SameSegment,
    /// The object would have more replicas than it can.
    #[error("the object would have more than {MAX_REPLICAS} replicas, which is the limit")]
    TooManyReplicas,
    /// No object has this key.
    #[error("no such object")]
    NotFound,
    /// Its put is not finished, or every client that holds it is silent.
    #[error("no replica of the object can be read now")]
    NotReady,
    /// Another copy or move of the object is under way.
    #[error("the object is being copied or moved already; retry when that is over")]
    InTransfer,
    /// No segment of this name is mounted.
    #[error("no segment named {name:?} is mounted")]
    SegmentNotFound {
        /// The name given.
        name: Box<str>,
    },
    /// The segment takes no new objects, or cannot be read from.
    #[error("segment {name:?} is {status} and cannot be used now")]
    SegmentUnavailable {
        /// The name of the segment.
        name: Box<str>,
        /// The status that prevents it.
        status: SegmentStatus,
    },
    /// The object has no replica in the source.
    #[error("the object has no replica in segment {segment:?}")]
    ReplicaNotFound {
        /// The source's name.
        segment: Box<str>,
    },
    /// A target can never hold the object.
    #[error(
        "the object has {len} bytes, but segment {segment:?} can hold {largest_object} at most"
    )]
    TooLarge {
        /// The target's name.
        segment: Box<str>,
        /// The object's length in bytes.
        len: u64,
        /// Bytes of the largest object that the segment can hold.
        largest_object: u64,
    },
    /// A target has too few free bytes.
    #[error("{len} bytes wanted in segment {segment:?}, which has {free} free")]
    Full {
        /// The target's name.
        segment: Box<str>,
        /// The object's length in bytes.
        len: u64,
        /// The segment's free bytes.
        free: u64,
    },
    /// A target has enough bytes free, but in pieces that are too short.
    #[error(
        "{len} bytes wanted in segment {segment:?}; {free} are free, but not next to each other"
    )]
    Fragmented {
        /// The target's name.
        segment: Box<str>,
        /// The object's length in bytes.
        len: u64,
        /// The segment's free bytes.
        free: u64,
    },
    /// The object's tenant may not have it, or not so much.
    #[error("{0}")]
    Quota(QuotaError),
}

impl TransferError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::TargetCount { .. } | Self::SameSegment | Self::TooManyReplicas => {
                ErrorCode::InvalidParams
            }
            Self::NotFound => ErrorCode::ObjectNotFound,
            Self::NotReady => ErrorCode::ReplicaIsNotReady,
            Self::InTransfer => ErrorCode::ObjectHasReplicationTask,
            Self::SegmentNotFound { .. } => ErrorCode::SegmentNotFound,
            Self::SegmentUnavailable { .. } => ErrorCode::UnavailableInCurrentStatus,
            Self::ReplicaNotFound { .. } => ErrorCode::ReplicaNotFound,
            Self::TooLarge { .. } => ErrorCode::ObjectTooLarge,
            Self::Full { .. } => ErrorCode::Full,
            Self::Fragmented { .. } => ErrorCode::Fragmented,
            Self::Quota(refused) => refused.code(),
        }
    }

    /// Returns whether the same call may succeed later without intervention.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::NotReady | Self::InTransfer | Self::SegmentUnavailable { .. } => true,
            Self::Quota(refused) => refused.is_retryable(),
            _ => self.is_no_room(),
        }
    }

    /// Returns whether a target, or the tenant's quota, is full for now.
    pub(crate) const fn is_no_room(&self) -> bool {
        matches!(
            self,
            Self::Full { .. } | Self::Fragmented { .. } | Self::Quota(QuotaError::Exceeded { .. })
        )
    }
}

/// Why a copy or move is not ended or revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransferFinishError {
    /// No object has this key; the last segment that held it has gone.
    #[error("no such object; the last segment that held it has gone")]
    NotFound,
    /// Nothing of the kind is under way: it is over, or its time was up.
    #[error("no such copy or move is under way; it is over, or its time was up")]
    NotOpen,
    /// Another client's, or the token is not the one that its start gave.
    #[error("the object is being copied or moved by another client, or the token is not its")]
    IllegalClient,
    /// A copy is not ended as a move, nor a move as a copy.
    #[error("what is under way is a {kind}")]
    WrongKind {
        /// The kind of the transfer under way.
        kind: TransferKind,
    },
    /// The source or a target went while the bytes were being copied.
    #[error("the segment of the source or of a target has gone meanwhile")]
    ReplicaIsGone,
}

impl TransferFinishError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound => ErrorCode::ObjectNotFound,
            Self::NotOpen => ErrorCode::ObjectNoReplicationTask,
            Self::IllegalClient => ErrorCode::IllegalClient,
            Self::WrongKind { .. } => ErrorCode::InvalidParams,
            Self::ReplicaIsGone => ErrorCode::ReplicaIsGone,
        }
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        false
    }
}
