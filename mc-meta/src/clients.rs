//! Clients and the segments they contribute.

use std::collections::BTreeMap;
use std::sync::Arc;

use mc_types::{ClientId, SegmentId, Time};

use crate::command::{ClientStatus, Pong};
use crate::effect::Effect;
use crate::error::{MountError, UnmountError};
use crate::master::{Master, count};
use crate::segment::{MAX_SEGMENT_NAME_LEN, Segment, SegmentSpec};
use crate::table::SegmentTable;

impl Master {
    /// Adds a segment to the pool. From then on its client must
    /// [`ping`](Self::ping) more often than the client TTL.
    ///
    /// Mounting the same segment again is harmless. A segment of the same name
    /// at the same endpoint takes the place of the old one with all it held: one
    /// address has one owner, so the old owner is dead and its memory with it.
    ///
    /// # Errors
    /// [`MountError`] when the segment is malformed or its id or name is taken.
    pub fn mount_segment(
        &self,
        now: Time,
        client: ClientId,
        spec: SegmentSpec,
    ) -> Result<(), MountError> {
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
        let mut replaced = None;
        if let Some(mounted) = table.by_id(spec.id) {
            if mounted.client() != client || *mounted.spec() != spec {
                return Err(taken());
            }
            heard(&mut clients, client, now);
            return Ok(());
        }
        if let Some(mounted) = table.by_name(&spec.name) {
            if mounted.spec().endpoint != spec.endpoint {
                return Err(taken());
            }
            replaced = Some((mounted.spec().id, mounted.client()));
        }
        if let Some((id, owner)) = replaced {
            self.retire(&mut table, id, now);
            if table.of_client(owner).is_empty() {
                clients.remove(&owner);
            }
        }
        let segment = Arc::new(Segment::new(spec, client, self.config.memory_allocator));
        self.emit(now).effect(&Effect::SegmentMounted { segment: &segment });
        table.add(segment);
        heard(&mut clients, client, now);
        drop((table, clients));
        if replaced.is_some() {
            self.start_sweep();
        }
        Ok(())
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
        let segment = table.by_id(id).ok_or(UnmountError::NotFound)?;
        if segment.client() != client {
            return Err(UnmountError::IllegalClient);
        }
        self.retire(&mut table, id, now);
        if table.of_client(client).is_empty() {
            clients.remove(&client);
        }
        drop((table, clients));
        self.start_sweep();
        Ok(())
    }

    /// Says that a client is alive.
    pub fn ping(&self, now: Time, client: ClientId) -> Pong {
        let mut clients = self.clients.lock();
        let status = if clients.contains_key(&client) {
            heard(&mut clients, client, now);
            ClientStatus::Ok
        } else {
            ClientStatus::NeedRemount
        };
        Pong { view: self.segments.read().view(), status }
    }

    /// Gives up clients that have been silent too long, with their segments.
    pub(crate) fn expire_clients(&self, now: Time) {
        let mut clients = self.clients.lock();
        let ttl = self.config.client_ttl;
        let silent: Vec<ClientId> = clients
            .iter()
            .filter(|(_, heard)| now - **heard > ttl)
            .map(|(client, _)| *client)
            .collect();
        if silent.is_empty() {
            return;
        }
        let mut table = self.segments.write();
        for client in silent {
            clients.remove(&client);
            self.emit(now).effect(&Effect::ClientExpired { client });
            count(&self.counters.expired_clients, 1);
            for id in table.of_client(client) {
                self.retire(&mut table, id, now);
            }
        }
        drop((table, clients));
        self.start_sweep();
    }

    fn retire(&self, table: &mut SegmentTable, id: SegmentId, now: Time) {
        if let Some(segment) = table.remove(id) {
            self.emit(now).effect(&Effect::SegmentGone { segment: &segment });
        }
    }
}

/// Notes that a client was heard of. Of two calls that overtook each other the
/// later time counts.
fn heard(clients: &mut BTreeMap<ClientId, Time>, client: ClientId, now: Time) {
    let last = clients.entry(client).or_insert(now);
    *last = now.max(*last);
}
