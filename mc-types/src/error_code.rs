//! One number per cause, stable across releases.

use core::fmt;

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal ($reference:literal) $text:literal,)*) => {
        /// A cause of failure as it travels on the wire and shows in logs.
        ///
        /// Numbers that Mooncake has keep its meaning. Where it uses
        /// one number for several causes we give each its own and
        /// [`reference_code`](Self::reference_code) folds them back.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[$doc])* $name,)*
        }

        impl ErrorCode {
            /// Every code, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The number on the wire; always negative.
            #[must_use]
            pub const fn code(self) -> i32 {
                match self { $(Self::$name => $code,)* }
            }

            /// The number that Mooncake gives for this cause.
            #[must_use]
            pub const fn reference_code(self) -> i32 {
                match self { $(Self::$name => $reference,)* }
            }

            /// The cause with this number; `None` for zero and unknown numbers.
            #[must_use]
            pub const fn from_code(code: i32) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }

            /// A short name for logs and metrics.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

error_codes! {
    /// A defect on the other side; its log says more.
    Internal = -1 (-1) "INTERNAL_ERROR",
    /// No mounted segment has this identity.
    SegmentNotFound = -101 (-101) "SEGMENT_NOT_FOUND",
    /// A segment with this identity or name is mounted by another client.
    SegmentAlreadyExists = -102 (-102) "SEGMENT_ALREADY_EXISTS",
    /// The master does not know this client, or has given it up for dead.
    ClientNotFound = -103 (-103) "CLIENT_NOT_FOUND",
    /// No segment has room, and nothing more can be evicted.
    Full = -200 (-200) "FULL",
    /// Enough bytes are free, but not next to each other.
    Fragmented = -201 (-200) "FRAGMENTED",
    /// Fewer segments are mounted than the request needs.
    TooFewSegments = -202 (-200) "TOO_FEW_SEGMENTS",
    /// There would be room, but everything that could be evicted is being read.
    AllLeased = -203 (-200) "ALL_LEASED",
    /// The two sides do not speak the same version.
    InvalidVersion = -300 (-300) "INVALID_VERSION",
    /// The key is empty, too long or not text.
    InvalidKey = -400 (-400) "INVALID_KEY",
    /// An argument is out of range.
    InvalidParams = -600 (-600) "INVALID_PARAMS",
    /// The object or segment belongs to another client.
    IllegalClient = -601 (-601) "ILLEGAL_CLIENT",
    /// The object is larger than any segment.
    ObjectTooLarge = -602 (-600) "OBJECT_TOO_LARGE",
    /// The put does not own the object any more.
    InvalidWrite = -700 (-700) "INVALID_WRITE",
    /// The object exists, but no replica of it can be read now.
    ReplicaIsNotReady = -703 (-703) "REPLICA_IS_NOT_READY",
    /// No object has this key.
    ObjectNotFound = -704 (-704) "OBJECT_NOT_FOUND",
    /// An object with this key is already there.
    ObjectAlreadyExists = -705 (-705) "OBJECT_ALREADY_EXISTS",
    /// A client may be reading the object.
    ObjectHasLease = -706 (-706) "OBJECT_HAS_LEASE",
    /// The lease ran out before the read finished.
    LeaseExpired = -707 (-707) "LEASE_EXPIRED",
    /// The object is being copied, moved, offloaded or promoted.
    ObjectHasReplicationTask = -708 (-708) "OBJECT_HAS_REPLICATION_TASK",
    /// Nothing of the kind is under way for the object.
    ObjectNoReplicationTask = -709 (-709) "OBJECT_NO_REPLICATION_TASK",
    /// The object has no replica where it was said to have one.
    ReplicaNotFound = -710 (-710) "REPLICA_NOT_FOUND",
    /// A replica went with its segment while it was being copied or written.
    ReplicaIsGone = -712 (-712) "REPLICA_IS_GONE",
    /// A transfer of a replica of the object is under way.
    ObjectReplicaBusy = -714 (-714) "OBJECT_REPLICA_BUSY",
    /// Another put of this key is under way.
    PutInProgress = -715 (-705) "PUT_IN_PROGRESS",
    /// Bytes could not be moved to or from a peer.
    TransferFail = -800 (-800) "TRANSFER_FAIL",
    /// The bytes read are not the bytes that were put.
    ChecksumMismatch = -801 (-801) "CHECKSUM_MISMATCH",
    /// The other side could not be reached or broke the connection.
    RpcFail = -900 (-900) "RPC_FAIL",
    /// The other side did not answer in time.
    RpcTimeout = -901 (-901) "RPC_TIMEOUT",
    /// The other side is busy beyond its limits.
    Overloaded = -902 (-900) "OVERLOADED",
    /// The caller gave the call up before it was executed.
    Cancelled = -903 (-900) "CANCELLED",
    /// The call may have been executed; its answer is not kept, or not durable.
    AnswerNotKept = -904 (-900) "ANSWER_NOT_KEPT",
    /// An earlier master may have executed the call, and this one cannot know it.
    OutcomeUnknown = -905 (-900) "OUTCOME_UNKNOWN",
    /// No credential, or none that is known here.
    Unauthenticated = -910 (-900) "UNAUTHENTICATED",
    /// The caller is known and may not do this.
    PermissionDenied = -911 (-900) "PERMISSION_DENIED",
    /// The master, segment, task or object is not in a state that allows this now.
    UnavailableInCurrentStatus = -1010 (-1010) "UNAVAILABLE_IN_CURRENT_STATUS",
    /// This role does not offer the operation.
    UnavailableInCurrentMode = -1011 (-1011) "UNAVAILABLE_IN_CURRENT_MODE",
    /// The other side does not know the operation.
    NotSupported = -1012 (-1012) "NOT_SUPPORTED",
    /// A file on a disk or on the shared tier could not be read.
    FileReadFail = -1102 (-1102) "FILE_READ_FAIL",
    /// As many objects wait to be written to the disk as may.
    OffloadQueueFull = -1203 (-1203) "KEYS_ULTRA_LIMIT",
    /// The master runs without local disks.
    UnableOffload = -1300 (-1300) "UNABLE_OFFLOAD",
    /// The client takes no objects for its local disk now.
    UnableOffloading = -1301 (-1301) "UNABLE_OFFLOADING",
    /// No task has this identity; it may have been over for long.
    TaskNotFound = -1400 (-1400) "TASK_NOT_FOUND",
    /// As many tasks are waiting as may.
    TaskPendingLimitExceeded = -1401 (-1401) "TASK_PENDING_LIMIT_EXCEEDED",
    /// No job has this identity.
    JobNotFound = -1402 (-1402) "JOB_NOT_FOUND",
    /// The tenant has as many bytes as its quota allows.
    TenantQuotaExceeded = -1700 (-1700) "TENANT_QUOTA_EXCEEDED",
    /// No quota is set for the tenant, so it may not write.
    TenantNotRegistered = -1701 (-1701) "TENANT_NOT_REGISTERED",
    /// The tenant still has objects.
    TenantNotEmpty = -1702 (-1702) "TENANT_NOT_EMPTY",
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.as_str(), self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_distinct_and_round_trip() {
        for &code in ErrorCode::ALL {
            assert!(code.code() < 0);
            assert_eq!(ErrorCode::from_code(code.code()), Some(code));
        }
        assert_eq!(ErrorCode::from_code(0), None);
    }
}
