//! Room in the file system of the shared tier.
//!
//! Where there is no quota, files may take nine tenths of what others leave. A file system that others have
//! filled is not a reason to delete all files, and one that gives space back late, or not at all (snapshots,
//! a trash, a queue of purges), not one to go on deleting.

use std::time::Duration;

use mc_tier::MediumSpace;
use mc_types::ByteSize;
use tokio::time::Instant;

/// The part of what others leave that files may take, in percent.
const USABLE_PERCENT: u64 = 90;

/// Less free space than this part of the file system is none: files are not written.
pub(in crate::client) const FREE_PART: u64 = 1000;

/// Time for which nothing is evicted after that did not help: the first, and the longest, of doubling ones.
const FIRST_REST: Duration = Duration::from_secs(60);
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// Time for which nothing is evicted after that was not needed, though others have filled the file system,
/// unless half of the free space goes meanwhile.
const LOOK_AGAIN: Duration = Duration::from_secs(300);

/// The room in the file system, as far as it is known.
#[derive(Debug, Default)]
pub(in crate::client) struct Room {
    /// Nothing is evicted until then, or until less than so many bytes are free.
    rest_until: Option<(Instant, u64)>,
    /// How long that was when it did not help, the last time; zero since it did.
    pub(in crate::client) rest: Duration,
    /// Whether the space of files that were evicted did not come back.
    pub(in crate::client) is_vain: bool,
    /// Whether no files are written.
    pub(in crate::client) is_paused: bool,
}

impl Room {
    pub(in crate::client) fn is_resting(&self, now: Instant, free: ByteSize) -> bool {
        self.rest_until.is_some_and(|(until, least)| now < until && free.as_u64() >= least)
    }

    /// Evicting files made no room.
    pub(in crate::client) fn was_vain(&mut self, now: Instant) {
        self.rest = (self.rest * 2).clamp(FIRST_REST, LONGEST_REST);
        self.rest_until = Some((now + self.rest, 0));
        (self.is_vain, self.is_paused) = (true, true);
    }

    /// Files take no more than they may.
    pub(in crate::client) fn is_in_order(&mut self, now: Instant, free: ByteSize) {
        self.rest_until = Some((now + LOOK_AGAIN, free.as_u64() / 2));
    }
}

/// The bytes of files that are to be deleted, of those that take `ours`.
pub(in crate::client) fn excess(MediumSpace { free, .. }: MediumSpace, ours: u64) -> u64 {
    let free = free.as_u64();
    let spare = ours.saturating_add(free) / 100 * (100 - USABLE_PERCENT);
    match spare.checked_sub(free) {
        // A little more than is missing, so that not every put evicts again.
        Some(missing) if missing > 0 => (missing + spare / 2).min(ours),
        _ => 0,
    }
}

/// Returns whether less is free than files should leave, if all others were ours.
pub(in crate::client) fn is_short(MediumSpace { total, free }: MediumSpace) -> bool {
    free.as_u64() < total.as_u64() / 100 * (100 - USABLE_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_end_with_time_or_when_space_goes_quickly() {
        let (now, bytes) = (Instant::now(), ByteSize::bytes);
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut room = Room::default();
        assert!(!room.is_resting(now, bytes(0)));
        room.is_in_order(now, bytes(100));
        assert!(room.is_resting(at(299), bytes(50)) && !room.is_resting(at(300), bytes(50)));
        assert!(!room.is_resting(now, bytes(49)));
        room.was_vain(now);
        assert!(room.is_vain && room.is_paused);
        assert!(room.is_resting(at(59), bytes(0)) && !room.is_resting(at(60), bytes(0)));
        room.was_vain(at(60));
        assert!(room.is_resting(at(179), bytes(0)) && !room.is_resting(at(180), bytes(0)));
    }

    fn space(total: u64, free: u64) -> MediumSpace {
        MediumSpace { total: ByteSize::bytes(total), free: ByteSize::bytes(free) }
    }

    #[test]
    fn files_leave_a_tenth_of_what_others_leave() {
        assert!(!is_short(space(1000, 100)) && is_short(space(1000, 99)));
        assert_eq!(excess(space(1000, 0), 1000), 150);
        assert_eq!(excess(space(1000, 60), 940), 90);
        assert_eq!(excess(space(1000, 100), 900), 0);
        // Of 1000 bytes, others have 900.
        assert_eq!(excess(space(1000, 0), 100), 15);
        assert_eq!(excess(space(1000, 50), 50), 0);
        assert_eq!(excess(space(1000, 0), 0), 0);
        assert_eq!(excess(space(u64::MAX, u64::MAX), u64::MAX), 0);
    }
}
