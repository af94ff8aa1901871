//! The states of replicas and segments, and which may follow which.

use core::fmt;

/// The status of a replica. The numbers are those of the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReplicaStatus {
    /// Nothing is known of it.
    #[default]
    Undefined = 0,
    /// Space is set apart for it, and no client has been told where.
    Initialized = 1,
    /// The replica is being written.
    Processing = 2,
    /// Readable.
    Complete = 3,
    /// Removed, evicted or revoked; its space is released.
    Removed = 4,
    /// Writing it failed.
    Failed = 5,
}

impl ReplicaStatus {
    /// Every status.
    pub const ALL: [Self; 6] = [
        Self::Undefined,
        Self::Initialized,
        Self::Processing,
        Self::Complete,
        Self::Removed,
        Self::Failed,
    ];

    /// The status of this number, as `as u8` gives it.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Returns whether `next` may follow. A replica that is written in place again goes from
    /// complete back to processing; nothing comes after removed.
    #[must_use]
    pub const fn can_become(self, next: Self) -> bool {
        use ReplicaStatus::{Complete, Failed, Initialized, Processing, Removed, Undefined};
        matches!(
            (self, next),
            (Undefined, Initialized)
                | (Initialized, Processing | Removed)
                | (Processing, Complete | Failed | Removed)
                | (Complete, Processing | Removed)
                | (Failed, Removed)
        )
    }
}

/// The state of the space behind a memory replica, as the protocol names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum BufferStatus {
    /// Reserved and not readable yet.
    Init = 0,
    /// Written.
    Complete = 1,
    /// Writing it failed.
    Failed = 2,
    /// The space is not there any more: freed, or its segment is away or gone.
    Unregistered = 3,
}

impl BufferStatus {
    /// The state of a replica's space in a segment.
    #[must_use]
    pub const fn of(replica: ReplicaStatus, segment: SegmentStatus) -> Self {
        if !segment.is_readable() {
            return Self::Unregistered;
        }
        match replica {
            ReplicaStatus::Undefined | ReplicaStatus::Removed => Self::Unregistered,
            ReplicaStatus::Initialized | ReplicaStatus::Processing => Self::Init,
            ReplicaStatus::Complete => Self::Complete,
            ReplicaStatus::Failed => Self::Failed,
        }
    }
}

/// The status of a segment. The numbers are those of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SegmentStatus {
    /// Mounted: read from and allocated from.
    Ok = 1,
    /// A drain job moves its objects elsewhere; nothing new is put there.
    Draining = 2,
    /// The drain job is done.
    Drained = 3,
    /// Its client takes it out after a time of grace; readable until then, and
    /// nothing new is put there.
    GracefullyUnmounting = 4,
    /// Gone for good, with all that it held.
    Unmounted = 5,
    /// Its client is silent. No client can read what it holds, and nothing is lost if
    /// the client comes back with it: the segment has the status then that it had before.
    Suspended = 6,
}

impl SegmentStatus {
    /// Every status.
    pub const ALL: [Self; 6] = [
        Self::Ok,
        Self::Draining,
        Self::Drained,
        Self::GracefullyUnmounting,
        Self::Unmounted,
        Self::Suspended,
    ];

    /// Returns whether `next` may follow.
    #[must_use]
    pub const fn can_become(self, next: Self) -> bool {
        use SegmentStatus::{Drained, Draining, GracefullyUnmounting, Ok, Suspended, Unmounted};
        matches!(
            (self, next),
            (Ok, Draining | GracefullyUnmounting | Suspended | Unmounted)
                | (Draining, Ok | Drained | GracefullyUnmounting | Suspended | Unmounted)
                | (Drained, Ok | GracefullyUnmounting | Suspended | Unmounted)
                | (GracefullyUnmounting, Suspended | Unmounted)
                | (Suspended, Ok | Draining | Drained | GracefullyUnmounting | Unmounted)
        )
    }

    /// Returns whether its client is there and has not asked to take it out.
    pub(crate) const fn is_attached(self) -> bool {
        matches!(self, Self::Ok | Self::Draining | Self::Drained)
    }

    /// Returns whether its objects can be read.
    #[must_use]
    pub const fn is_readable(self) -> bool {
        !matches!(self, Self::Suspended | Self::Unmounted)
    }

    /// Returns whether new objects are put there.
    #[must_use]
    pub const fn is_allocatable(self) -> bool {
        matches!(self, Self::Ok)
    }

    /// Its name in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::GracefullyUnmounting => "gracefully_unmounting",
            Self::Unmounted => "unmounted",
            Self::Suspended => "suspended",
        }
    }

    /// The status of this number, as `as u8` gives it.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Ok,
            2 => Self::Draining,
            3 => Self::Drained,
            4 => Self::GracefullyUnmounting,
            5 => Self::Unmounted,
            6 => Self::Suspended,
            _ => return None,
        })
    }

    pub(crate) const fn from_u8(number: u8) -> Self {
        match Self::from_number(number) {
            Some(status) => status,
            None => Self::Unmounted,
        }
    }
}

impl fmt::Display for SegmentStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_comes_after_the_end() {
        for next in ReplicaStatus::ALL {
            assert!(!ReplicaStatus::Removed.can_become(next));
            assert!(!next.can_become(next));
            assert!(!next.can_become(ReplicaStatus::Undefined));
        }
        for next in SegmentStatus::ALL {
            assert!(!SegmentStatus::Unmounted.can_become(next));
            assert!(!next.can_become(next));
            assert_eq!(SegmentStatus::from_u8(next as u8), next);
            assert!(next == SegmentStatus::Unmounted || next.can_become(SegmentStatus::Unmounted));
        }
    }

    #[test]
    fn a_buffer_goes_with_its_segment() {
        for segment in SegmentStatus::ALL {
            let complete = BufferStatus::of(ReplicaStatus::Complete, segment);
            let readable = complete == BufferStatus::Complete;
            assert_eq!(readable, segment.is_readable());
        }
    }
}
