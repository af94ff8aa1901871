//! A node's view of its master's clock, and the check of tickets against it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mc_environment::BootTime;
use mc_memory::Access;
use mc_ticket::{ClockEpoch, Rights, Ticket, TicketKey};
use mc_types::{Extent, RemoteKey, Time};
use parking_lot::RwLock;

use crate::error::TransferError;

/// Two clocks of this precision drift apart by less than this part of the time between
/// two readings: 1/4096 is 240 ppm, several times what a quartz does.
const DRIFT: u32 = 4096;

/// The master's clock, as far as a node can know it from the master's answers.
///
/// An answer was made after its question was sent. So the master's time is at most what the
/// answer says, plus the time since the question. By this upper bound a ticket ends here at
/// the latest when it ends at the master: early by the time that the answer took.
///
/// ```
/// use mc_ticket::ClockEpoch;
/// use mc_transport::{BootTime, MasterClock};
/// use mc_types::Time;
/// let clock = MasterClock::new();
/// let asked = BootTime::now();
/// // … the master answers that it is 12.000 s on its clock.
/// clock.observe(asked, ClockEpoch::new(7), Time::from_millis(12_000));
/// ```
#[derive(Debug, Default)]
pub struct MasterClock {
    reading: RwLock<Option<ClockReading>>,
}

#[derive(Clone, Copy, Debug)]
struct ClockReading {
    asked: BootTime,
    epoch: ClockEpoch,
    time: Time,
}

impl ClockReading {
    /// The latest that the master's clock can show at `now`.
    fn latest(&self, now: BootTime) -> Time {
        let passed = now.since(self.asked);
        // What a part of a millisecond is rounded off is added.
        self.time + (passed + passed / DRIFT + Duration::from_millis(1))
    }

    /// The latest that the master's clock can show now, by the clock of this reading.
    fn now(&self) -> Time {
        self.latest(self.asked.clock().now())
    }
}

impl MasterClock {
    /// A clock of which nothing is known.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes note of what the master's clock showed in the answer to a question that was
    /// sent at `asked`.
    pub fn observe(&self, asked: BootTime, epoch: ClockEpoch, time: Time) {
        let new = ClockReading { asked, epoch, time };
        let mut reading = self.reading.write();
        // The better of two readings of one clock is the one with the lower bound.
        let keep = reading.is_some_and(|old| {
            let now = asked.clock().now();
            old.epoch == epoch && old.latest(now) <= new.latest(now)
        });
        if !keep {
            *reading = Some(new);
        }
    }
}

/// The key and clock that verify tickets for a region; see
/// [`Transport::register_with_tickets`](crate::Transport::register_with_tickets).
#[derive(Clone)]
pub struct Tickets {
    /// The secret that the region's master signs with.
    pub key: TicketKey,
    /// The master's clock.
    pub clock: Arc<MasterClock>,
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets").field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// When the grant of an operation ends.
#[derive(Clone)]
pub(super) struct GrantEnd {
    clock: Arc<MasterClock>,
    /// The clock that `until` is a time of.
    epoch: ClockEpoch,
    until: Time,
}

impl GrantEnd {
    pub(super) fn check(&self) -> Result<(), TransferError> {
        let reading = *self.clock.reading.read();
        match reading {
            // Another master may have given the space to others.
            Some(reading) if reading.epoch != self.epoch || reading.now() >= self.until => {
                Err(TransferError::GrantEnded)
            }
            _ => Ok(()),
        }
    }
}

impl Tickets {
    /// Checks that `ticket` opens `extent` of `region` for `access`, now; returns when that
    /// ends.
    ///
    /// Before the master's first answer no ticket can be verified: the epoch of its clock is
    /// part of the signature. A node asks for it before it mounts the region.
    pub(super) fn check(
        &self,
        region: RemoteKey,
        extent: Extent,
        access: Access,
        ticket: &Ticket,
    ) -> Result<GrantEnd, TransferError> {
        let rights = match access {
            Access::Read => Rights::Read,
            Access::Write | Access::ReadWrite => Rights::Write,
        };
        let reading = *self.clock.reading.read();
        let reading = reading.ok_or(TransferError::KeyRefused)?;
        if !self.key.verify(reading.epoch, region, ticket, rights) {
            return Err(TransferError::KeyRefused);
        }
        let (clock, epoch, until) = (Arc::clone(&self.clock), reading.epoch, ticket.until);
        let end = GrantEnd { clock, epoch, until };
        end.check()?;
        let granted = ticket.extent;
        if extent.offset() < granted.offset() || extent.end() > granted.end() {
            let (offset, len) = (extent.offset(), extent.len());
            return Err(TransferError::OutOfBounds { offset, len });
        }
        Ok(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: ClockEpoch = ClockEpoch::new(7);

    fn extent(offset: u64, len: u64) -> Extent {
        Extent::new(offset, len).unwrap()
    }

    #[test]
    fn a_ticket_is_good_for_its_extent_direction_and_time() {
        let tickets =
            Tickets { key: TicketKey::from_bytes([3; 16]), clock: Arc::new(MasterClock::new()) };
        let region = RemoteKey::from_bytes([1; 16]);
        let sign = |rights, millis| {
            tickets.key.sign(EPOCH, region, extent(10, 20), rights, Time::from_millis(millis))
        };
        let read = sign(Rights::Read, 60_000);
        let check =
            |ticket: &Ticket, at, access| tickets.check(region, at, access, ticket).map(|_| ());
        let unknown = check(&read, extent(10, 20), Access::Read);
        assert!(matches!(unknown, Err(TransferError::KeyRefused)), "no clock is known yet");
        tickets.clock.observe(BootTime::now(), EPOCH, Time::from_millis(1_000));
        assert!(check(&read, extent(10, 20), Access::Read).is_ok());
        assert!(check(&read, extent(29, 1), Access::Read).is_ok());
        for at in [extent(9, 1), extent(29, 2), extent(0, 40), extent(30, 1)] {
            let refused = check(&read, at, Access::Read);
            assert!(matches!(refused, Err(TransferError::OutOfBounds { .. })), "{at:?}");
        }
        let written = check(&read, extent(10, 20), Access::Write);
        assert!(matches!(written, Err(TransferError::KeyRefused)));
        let ended = check(&sign(Rights::Write, 1_000), extent(10, 1), Access::Write);
        assert!(matches!(ended, Err(TransferError::GrantEnded)));
        let other = Tickets { key: TicketKey::from_bytes([4; 16]), ..tickets.clone() };
        assert!(other.check(region, extent(10, 1), Access::Read, &read).is_err());
    }

    #[test]
    fn what_one_master_has_granted_ends_with_the_clock_of_another() {
        let tickets =
            Tickets { key: TicketKey::from_bytes([3; 16]), clock: Arc::new(MasterClock::new()) };
        let region = RemoteKey::from_bytes([1; 16]);
        tickets.clock.observe(BootTime::now(), EPOCH, Time::from_millis(600_000));
        let until = Time::from_millis(612_000);
        let ticket = tickets.key.sign(EPOCH, region, extent(10, 20), Rights::Write, until);
        let end = tickets.check(region, extent(10, 20), Access::Write, &ticket).unwrap();
        assert!(end.check().is_ok());
        // A clock that has just begun would take eleven minutes to come to that time.
        tickets.clock.observe(BootTime::now(), ClockEpoch::new(8), Time::from_millis(3_000));
        assert!(matches!(end.check(), Err(TransferError::GrantEnded)));
    }

    #[test]
    fn the_bound_on_the_masters_clock_is_the_lowest_that_is_proven() {
        let clock = MasterClock::new();
        let asked = BootTime::now();
        clock.observe(asked, EPOCH, Time::from_millis(5_000));
        let bound = |clock: &MasterClock, at| clock.reading.read().unwrap().latest(at);
        assert!(bound(&clock, asked) > Time::from_millis(5_000));
        // An answer that took long proves less.
        clock.observe(asked, EPOCH, Time::from_millis(9_000));
        assert!(bound(&clock, asked) < Time::from_millis(5_010));
        clock.observe(asked, EPOCH, Time::from_millis(4_000));
        assert!(bound(&clock, asked) < Time::from_millis(4_010));
        // Time passes here, drift included.
        let later = asked + Duration::from_secs(4096);
        assert!(bound(&clock, later) >= Time::from_millis(4_000 + 4_097_000));
        // Another run of the clock is another clock.
        clock.observe(asked, ClockEpoch::new(8), Time::from_millis(90_000));
        assert!(bound(&clock, asked) >= Time::from_millis(90_000));
    }
}
