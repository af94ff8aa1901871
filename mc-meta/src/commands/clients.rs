//! Commands of clients: they mount segments, ping, unmount them, or stay silent for too long.

use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mc_types::{ClientId, SegmentId, Time};

use crate::commands::error::{MountError, UnmountError};
use crate::commands::transfer::tasks::MAX_FETCHED_TASKS;
use crate::effect::Effect;
use crate::effect::emit::unseen;
use crate::master::{Master, count};
use crate::side_tables::clients::{Clients, DUE_AT_A_TIME, Due};
use crate::space::segment::{MAX_SEGMENT_NAME_LEN, Segment, SegmentSpec};
use crate::space::table::SegmentTable;
use crate::vocabulary::lock::MutexGuard;
use crate::vocabulary::request::{Beat, ClientStatus, Mounted, Pong};
use crate::vocabulary::states::SegmentStatus;

impl Master {
    /// Adds a segment to the pool. From then on its client must
    /// [`ping`](Self::ping) more often than the client TTL.
    ///
    /// Mounting the same segment again is harmless, and brings back one that was
    /// suspended with all that it holds. A segment of the same name at the same
    /// endpoint takes the place of the old one with all it held: one address has one
    /// owner, so the old owner is dead and its memory with it.
    ///
    /// # Errors
    /// [`MountError`] when the segment is malformed or its id or name is taken.
    pub fn mount_segment(
        &self,
        now: Time,
        client: ClientId,
        spec: SegmentSpec,
    ) -> Result<Mounted, MountError> {
        let len = spec.name.len();
        if !(1..=MAX_SEGMENT_NAME_LEN).contains(&len) {
            return Err(MountError::BadName { len, max: MAX_SEGMENT_NAME_LEN });
        }
        if spec.size == 0 {
            return Err(MountError::ZeroSize);
        }
        let taken = || MountError::AlreadyExists { name: spec.name.clone() };
        let mut clients = self.clients.lock();
        let mut table = self.segments.write();
        self.see_segment(spec.id);
        if let Some(mounted) = table.by_id(spec.id) {
            if mounted.client() != client || *mounted.spec() != spec {
                return Err(taken());
            }
            let outcome = match mounted.status() {
                SegmentStatus::Suspended => Mounted::Reattached,
                SegmentStatus::GracefullyUnmounting => return Err(MountError::Leaving),
                _ => Mounted::Already,
            };
            if outcome == Mounted::Reattached {
                self.bring_back(&mut clients, &mut table, spec.id, now);
            }
            clients.attached(client, now, self.config.client_ttl);
            return Ok(outcome);
        }
        let replaced = match table.by_name(&spec.name) {
            Some(mounted) if mounted.spec().endpoint != spec.endpoint => return Err(taken()),
            Some(mounted) => Some(mounted.spec().id),
            None => None,
        };
        if let Some(id) = replaced {
            self.retire(&mut clients, &mut table, id, now);
        }
        let segment = Arc::new(Segment::new(spec, client, self.config.memory_allocator));
        self.emit(now).effect(&Effect::SegmentMounted { segment: &segment });
        table.add(segment);
        clients.attached(client, now, self.config.client_ttl);
        drop(table);
        self.hand_over(clients, now);
        if replaced.is_some() {
            self.start_sweep();
        }
        Ok(Mounted::New)
    }

    /// Brings a suspended segment back with all that it holds, and nothing else: unlike
    /// [`mount_segment`](Self::mount_segment) it never adds one. This is what a client
    /// asks first when it is told [`ClientStatus::NeedRemount`]. A segment that this
    /// master does not know must not come back under its old remote key: its space may
    /// have been given to others, by this master or another one, and a client that was told
    /// of it then still holds that key. Such a segment is mounted anew, with a fresh id
    /// and key.
    ///
    /// A segment that is not suspended stays as it is, so asking again is harmless.
    ///
    /// # Errors
    /// [`MountError::NotFound`] unless exactly this segment of this client is known:
    /// every field of `spec` as it was mounted.
    pub fn reattach_segment(
        &self,
        now: Time,
        client: ClientId,
        spec: &SegmentSpec,
    ) -> Result<(), MountError> {
        let mut clients = self.clients.lock();
        let mut table = self.segments.write();
        self.see_segment(spec.id);
        let known = table.by_id(spec.id);
        let own = known.filter(|known| known.client() == client && known.spec() == spec);
        if own.ok_or(MountError::NotFound)?.status() == SegmentStatus::Suspended {
            self.bring_back(&mut clients, &mut table, spec.id, now);
        }
        clients.attached(client, now, self.config.client_ttl);
        Ok(())
    }

    /// A suspended segment can be read again, and takes new objects unless it was closed to them before:
    /// it is being drained, is drained, or is being unmounted.
    fn bring_back(
        &self,
        clients: &mut Clients,
        table: &mut SegmentTable,
        id: SegmentId,
        now: Time,
    ) {
        clients.returned(id);
        let Some(purpose) = table.by_id(id).map(|segment| segment.purpose()) else { return };
        if let Some(segment) = table.set_status(id, purpose.status) {
            self.emit_status(&segment, now);
        }
    }

    /// [`mount_segment`](Self::mount_segment) for each of the segments that a client
    /// has, as its answer to [`ClientStatus::NeedRemount`]: those that the master
    /// still knows come back with what they hold, the others are new.
    pub fn remount_segments(
        &self,
        now: Time,
        client: ClientId,
        specs: impl IntoIterator<Item = SegmentSpec>,
    ) -> Vec<Result<Mounted, MountError>> {
        specs.into_iter().map(|spec| self.mount_segment(now, client, spec)).collect()
    }

    /// Takes a segment out of the pool, with every replica in it.
    ///
    /// # Errors
    /// [`UnmountError`] when it is not mounted or belongs to another client.
    pub fn unmount_segment(
        &self,
        now: Time,
        client: ClientId,
        id: SegmentId,
    ) -> Result<(), UnmountError> {
        let mut clients = self.clients.lock();
        let mut table = self.segments.write();
        self.see_segment(id);
        owned(&table, client, id)?;
        self.retire(&mut clients, &mut table, id, now);
        drop(table);
        self.hand_over(clients, now);
        self.start_sweep();
        Ok(())
    }

    /// Takes no new objects into a segment from now on, and unmounts it when `grace`
    /// has passed. Until then what it holds can be read, and copied elsewhere. Asking
    /// again changes nothing.
    ///
    /// # Errors
    /// [`UnmountError`] when it is not mounted or belongs to another client.
    pub fn graceful_unmount_segment(
        &self,
        now: Time,
        client: ClientId,
        id: SegmentId,
        grace: Duration,
    ) -> Result<(), UnmountError> {
        let mut clients = self.clients.lock();
        let mut table = self.segments.write();
        self.see_segment(id);
        match owned(&table, client, id)? {
            SegmentStatus::GracefullyUnmounting => return Ok(()),
            SegmentStatus::Suspended => return Err(UnmountError::Suspended),
            _ => {}
        }
        if let Some(segment) = table.by_id(id) {
            segment.set_grace(grace);
        }
        if let Some(segment) = table.set_status(id, SegmentStatus::GracefullyUnmounting) {
            self.emit_status(&segment, now);
            clients.unmount_at(id, now + grace);
        }
        Ok(())
    }

    /// Notes that a client is alive. Others may try again to reach its segments that they could not reach.
    pub fn ping(&self, now: Time, client: ClientId) -> Pong {
        self.beat(now, client, Beat::default())
    }

    /// [`ping`](Self::ping) of a client that says more of itself. If it is cut off, nothing new is
    /// placed in its segments until it pings otherwise. If it has never reached itself, its pings
    /// end no doubts of others for a minute.
    pub fn beat(&self, now: Time, client: ClientId, beat: Beat) -> Pong {
        let mut clients = self.clients.lock();
        let is_attached = clients.heard(client, now);
        match beat {
            Beat { is_cut_off: true, .. } => self.doubt_all(client, now),
            Beat { is_unproven: true, .. } => self.keep_doubts(client, now),
            Beat { .. } => self.clear_doubts(client, now),
        }
        let tasks = self.tasks.lock().waiting(client, MAX_FETCHED_TASKS);
        let has_disks = self.local.config.is_some();
        let puts = self.generations.load(Ordering::Relaxed);
        let disk_work = match beat.promotes {
            true if self.local.promotes && is_attached => {
                let mut book = self.local.book.lock();
                book.promotions.takes_files(now, client);
                book.promotions.waits_for(client)
            }
            true => false,
            false => has_disks && self.local.book.lock().has_work(client, puts),
        };
        let table = self.segments.read();
        // After a restart of the master a client may have mounted one anew, and not know of the restart.
        let has_all = beat.segments == 0 || table.attached(client) >= beat.segments;
        let status =
            if is_attached && has_all { ClientStatus::Ok } else { ClientStatus::NeedRemount };
        Pong { view: table.view(), status, tasks, disk_work }
    }

    /// Returns whether this client has a segment or a local disk here, away or not.
    #[must_use]
    pub fn contributes(&self, client: ClientId) -> bool {
        !self.segments.read().of_client(client).is_empty()
            || self.clients.lock().disks.contains(&client)
    }

    /// The hosts that serve the segments of each of `clients`: IP addresses or names,
    /// without port and brackets, each once, in the order of their segments. Clients of
    /// which nothing is mounted, or that are away, are left out, and one that is asked
    /// for twice is answered for once.
    #[must_use]
    pub fn batch_query_ip(&self, clients: &[ClientId]) -> Vec<(ClientId, Vec<Box<str>>)> {
        let mut seen = BTreeSet::new();
        let mut answers = Vec::new();
        for &client in clients.iter().filter(|client| seen.insert(**client)) {
            let mut hosts = BTreeSet::new();
            let mut unique: Vec<Box<str>> = Vec::new();
            // Looked up one by one, so that a mount waits for one client at most.
            let table = self.segments.read();
            let own = table.of_client(client);
            let there = own.iter().filter_map(|id| table.by_id(*id));
            for segment in there.filter(|segment| segment.is_readable()) {
                let host = segment.host();
                let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
                let host = bare.unwrap_or(host);
                if hosts.insert(host) {
                    unique.push(host.into());
                }
            }
            if !unique.is_empty() {
                answers.push((client, unique));
            }
        }
        answers
    }

    /// Suspends the segments of clients that have been silent too long, gives those up
    /// that do not come back, and unmounts what was to be unmounted by now.
    pub(crate) fn expire_clients(&self, now: Time) {
        let mut gone = false;
        let mut is_left = true;
        while is_left {
            let mut clients = self.clients.lock();
            for _ in 0..DUE_AT_A_TIME {
                let Some(due) = clients.pop_due(now, self.config.client_ttl) else {
                    is_left = false;
                    break;
                };
                let mut table = self.segments.write();
                gone |= match due {
                    Due::Client(client) => self.suspend(&mut clients, &mut table, client, now),
                    Due::Segment(id) => self.retire(&mut clients, &mut table, id, now),
                };
            }
            self.hand_over(clients, now);
        }
        if gone {
            self.start_sweep();
        }
    }

    /// A client is silent: no client reads from its segments until it is back. True when
    /// some were discarded at once.
    fn suspend(
        &self,
        clients: &mut Clients,
        table: &mut SegmentTable,
        client: ClientId,
        now: Time,
    ) -> bool {
        self.emit(now).effect(&Effect::ClientExpired { client });
        count(&self.counters.expired_clients, 1);
        clients.disk_left(client);
        let return_timeout = self.config.client_return_timeout;
        let mut gone = false;
        for id in table.of_client(client) {
            if return_timeout.is_zero() {
                gone |= self.retire(clients, table, id, now);
            // Those that it did not bring back the last time are suspended already.
            } else if let Some(segment) = table.set_status(id, SegmentStatus::Suspended) {
                clients.give_up_at(id, now + return_timeout);
                self.emit_status(&segment, now);
            }
        }
        if let Some(known) = clients.known.get_mut(&client) {
            known.away = true;
            clients.left.push(client);
        }
        gone
    }

    /// Lets go of the clients, then sees to the tasks and disks of those that left.
    pub(crate) fn hand_over(&self, mut clients: MutexGuard<'_, Clients>, now: Time) {
        let left = core::mem::take(&mut clients.left);
        let disks_left = core::mem::take(&mut clients.disks_left);
        // A ping that has waited comes first.
        MutexGuard::unlock_fair(clients);
        unseen(|| {
            for client in left {
                self.hand_over_tasks(now, client);
            }
            for client in disks_left {
                self.local_disk_client_gone(now, client);
            }
        });
    }

    pub(crate) fn emit_status(&self, segment: &Segment, now: Time) {
        let status = segment.status();
        self.emit(now).effect(&Effect::SegmentChanged { segment, status });
    }

    /// Takes a segment out for good, and forgets its client with its last one.
    fn retire(
        &self,
        clients: &mut Clients,
        table: &mut SegmentTable,
        id: SegmentId,
        now: Time,
    ) -> bool {
        let Some(segment) = table.remove(id) else { return false };
        clients.forget_segment(id);
        if table.of_client(segment.client()).is_empty() {
            clients.leave(segment.client());
        }
        self.emit(now).effect(&Effect::SegmentGone { segment: &segment });
        true
    }
}

/// The status of a segment of this client.
fn owned(
    table: &SegmentTable,
    client: ClientId,
    id: SegmentId,
) -> Result<SegmentStatus, UnmountError> {
    let segment = table.by_id(id).ok_or(UnmountError::NotFound)?;
    if segment.client() != client {
        return Err(UnmountError::IllegalClient);
    }
    Ok(segment.status())
}
