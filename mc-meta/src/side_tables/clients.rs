//! Clients and the segments they contribute.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use mc_types::{ClientId, SegmentId, Time};

/// Clients and segments whose time is over that are seen to before waiting pings have their turn.
pub(crate) const DUE_AT_A_TIME: usize = 32;

/// Clients that contribute segments, and their deadlines.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    pub(crate) known: BTreeMap<ClientId, ClientRecord>,
    /// Segments that are to go.
    leaving: BTreeMap<SegmentId, Leaving>,
    /// Ordered, so that what is due together is done in the same order every time.
    due: BTreeSet<(Time, Due)>,
    /// Clients that are away or gone and whose tasks are still theirs.
    pub(crate) left: Vec<ClientId>,
    /// Clients that have a local disk.
    pub(crate) disks: BTreeSet<ClientId>,
    /// Clients whose disk is to be forgotten once the lock of the clients is free.
    pub(crate) disks_left: Vec<ClientId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// A segment's time of grace is over, or the time in which its client could have
    /// come back.
    Segment(SegmentId),
    /// A client may have been silent for too long.
    Client(ClientId),
}

/// When a segment goes: at the earlier of these times.
#[derive(Clone, Copy, Debug, Default)]
struct Leaving {
    /// The end of the grace of its unmounting, whether or not its client is away meanwhile.
    unmount_at: Option<Time>,
    /// When it is discarded because its client is away. The client's return cancels this.
    give_up_at: Option<Time>,
}

impl Leaving {
    /// The time at which it goes. The end of time never comes.
    fn at(self) -> Option<Time> {
        let times = [self.unmount_at, self.give_up_at];
        times.into_iter().flatten().min().filter(|at| *at < Time::from_millis(u64::MAX))
    }

    const fn is_planned(self) -> bool {
        self.unmount_at.is_some() || self.give_up_at.is_some()
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientRecord {
    /// When it was last heard of.
    since: Time,
    /// Silent for too long; its segments are suspended.
    pub(crate) away: bool,
    /// Whether it has attached its segments since it was last away, or known for its disk alone.
    is_attached: bool,
    /// When to look at it. Hearing of it moves this only when the time has come.
    look_at: Time,
}

impl Clients {
    /// Clients that are not away.
    pub(crate) fn present(&self) -> usize {
        self.known.values().filter(|client| !client.away).count()
    }

    /// When a client was last heard of.
    pub(crate) fn last_heard(&self, client: ClientId) -> Time {
        self.known.get(&client).map_or(Time::ORIGIN, |known| known.since)
    }

    /// Notes that a client was heard of, unless it is away. Of two calls that overtook each other the
    /// later time counts. Returns whether it is there, with its segments.
    pub(crate) fn heard(&mut self, client: ClientId, now: Time) -> bool {
        let Some(known) = self.known.get_mut(&client).filter(|known| !known.away) else {
            return false;
        };
        known.since = now.max(known.since);
        known.is_attached
    }

    /// A client is there with a segment.
    pub(crate) fn attached(&mut self, client: ClientId, now: Time, ttl: Duration) {
        self.arrived(client, now, ttl).is_attached = true;
    }

    /// A client that may have been away or unknown is there.
    fn arrived(&mut self, client: ClientId, now: Time, ttl: Duration) -> &mut ClientRecord {
        let is_new = self.known.get(&client).is_none_or(|known| known.away);
        let look_at = now + ttl;
        let new = ClientRecord { since: now, away: false, is_attached: false, look_at };
        let known = self.known.entry(client).or_insert(new);
        if is_new {
            *known = new;
            self.due.insert((look_at, Due::Client(client)));
        }
        known.since = now.max(known.since);
        known
    }

    /// Waits for a client of before a restart to come back with a segment, which is being unmounted if
    /// there is a `grace`.
    pub(crate) fn await_return(
        &mut self,
        client: ClientId,
        id: SegmentId,
        now: Time,
        timeout: Duration,
        grace: Option<Duration>,
    ) {
        let away = ClientRecord { since: now, away: true, is_attached: false, look_at: now };
        self.known.entry(client).or_insert(away);
        self.give_up_at(id, now + timeout);
        if let Some(grace) = grace {
            self.unmount_at(id, now + grace);
        }
    }

    fn forget(&mut self, client: ClientId) {
        if let Some(known) = self.known.remove(&client) {
            self.due.remove(&(known.look_at, Due::Client(client)));
        }
    }

    /// A client has no segment left. It stays while it has a local disk.
    pub(crate) fn leave(&mut self, client: ClientId) {
        if !self.disks.contains(&client) {
            self.forget(client);
        }
        self.left.push(client);
    }

    /// A segment is unmounted at that time, wherever its client is then.
    pub(crate) fn unmount_at(&mut self, id: SegmentId, at: Time) {
        self.reschedule(id, |leaving| leaving.unmount_at = Some(at));
    }

    /// Notes that a segment's client is away: the segment is discarded at `at` unless it is back.
    pub(crate) fn give_up_at(&mut self, id: SegmentId, at: Time) {
        self.reschedule(id, |leaving| leaving.give_up_at = Some(at));
    }

    /// Notes that a segment is back: it is not discarded.
    pub(crate) fn returned(&mut self, id: SegmentId) {
        self.reschedule(id, |leaving| leaving.give_up_at = None);
    }

    /// A segment is gone.
    pub(crate) fn forget_segment(&mut self, id: SegmentId) {
        self.reschedule(id, |leaving| *leaving = Leaving::default());
    }

    fn reschedule(&mut self, id: SegmentId, change: impl FnOnce(&mut Leaving)) {
        let mut leaving = self.leaving.remove(&id).unwrap_or_default();
        if let Some(at) = leaving.at() {
            self.due.remove(&(at, Due::Segment(id)));
        }
        change(&mut leaving);
        if let Some(at) = leaving.at() {
            self.due.insert((at, Due::Segment(id)));
        }
        if leaving.is_planned() {
            self.leaving.insert(id, leaving);
        }
    }

    /// A client has a local disk. Of its segments that says nothing.
    pub(crate) fn disk_mounted(&mut self, client: ClientId, now: Time, ttl: Duration) {
        self.disks.insert(client);
        self.arrived(client, now, ttl);
    }

    /// Another client has this one's disk now.
    pub(crate) fn disk_moved(&mut self, client: ClientId) {
        self.disks.remove(&client);
    }

    /// A client has no local disk any more; true when it had one.
    pub(crate) fn disk_left(&mut self, client: ClientId) -> bool {
        let had = self.disks.remove(&client);
        if had {
            self.disks_left.push(client);
        }
        had
    }

    /// Takes the next deadline that has passed. A client that has been heard of meanwhile is
    /// entered anew.
    pub(crate) fn pop_due(&mut self, now: Time, ttl: Duration) -> Option<Due> {
        loop {
            let &(at, due) = self.due.first()?;
            // A client is silent too long only after its time, not at it; segments due
            // at the same time come before.
            if at > now || (at == now && matches!(due, Due::Client(_))) {
                return None;
            }
            self.due.pop_first();
            let Due::Client(client) = due else { return Some(due) };
            let Some(known) = self.known.get_mut(&client) else { continue };
            let look_at = known.since + ttl;
            if look_at <= at {
                return Some(due);
            }
            known.look_at = look_at;
            self.due.insert((look_at, due));
        }
    }
}
