//! Segments and the clients that contribute them.

use core::time::Duration;

use mc_meta::{ClientStatus, MountError, Mounted, SegmentSpec, SegmentStatus, UnmountError};
use mc_types::{ClientId, Generation, SegmentId, Time};

use super::journal::Event;
use super::{Client, Discarded, Lost, Oracle, Segment};

impl Oracle {
    pub(crate) fn mount(&mut self, client: ClientId, spec: SegmentSpec) {
        let result = self.master.mount_segment(self.now, client, spec.clone());
        let mut events = Vec::new();
        let expected = self.mounted(client, spec, &mut events);
        assert_eq!(result, expected);
        assert_eq!(self.take_events(), events);
    }

    pub(crate) fn remount(&mut self, client: ClientId, specs: Vec<SegmentSpec>) {
        let results = self.master.remount_segments(self.now, client, specs.clone());
        let mut events = Vec::new();
        let mounted = |spec| self.mounted(client, spec, &mut events);
        let expected: Vec<_> = specs.into_iter().map(mounted).collect();
        assert_eq!(results, expected);
        assert_eq!(self.take_events(), events);
    }

    pub(crate) fn reattach(&mut self, client: ClientId, spec: &SegmentSpec) {
        let result = self.master.reattach_segment(self.now, client, spec);
        let mut events = Vec::new();
        let same = self.segments.get_mut(&spec.id);
        match same.filter(|same| same.client == client && same.spec == *spec) {
            None => assert_eq!(result, Err(MountError::NotFound)),
            Some(same) => {
                assert_eq!(result, Ok(()));
                if same.status == SegmentStatus::Suspended {
                    same.bring_back(&mut events);
                }
                self.heard(client);
            }
        }
        assert_eq!(self.take_events(), events);
    }

    fn mounted(
        &mut self,
        client: ClientId,
        spec: SegmentSpec,
        events: &mut Vec<Event>,
    ) -> Result<Mounted, MountError> {
        let taken = Err(MountError::AlreadyExists { name: spec.name.clone() });
        let by_name = self.segments.values().find(|segment| segment.spec.name == spec.name);
        let by_name = by_name.map(|segment| segment.spec.clone());
        if let Some(same) = self.segments.get_mut(&spec.id) {
            if same.client != client || same.spec != spec {
                return taken;
            }
            let outcome = match same.status {
                SegmentStatus::GracefullyUnmounting => return Err(MountError::Leaving),
                SegmentStatus::Suspended => {
                    same.bring_back(events);
                    Mounted::Reattached
                }
                _ => Mounted::Already,
            };
            self.heard(client);
            return Ok(outcome);
        }
        if let Some(old) = by_name {
            if old.endpoint != spec.endpoint {
                return taken;
            }
            self.retire(old.id);
            events.push(Event::Gone(old.id));
        }
        events.push(Event::Mounted(spec.id));
        let (mounting, status) = (self.number(), SegmentStatus::Ok);
        let (grace, grace_ends, leaves) = (None, None, None);
        self.segments
            .insert(spec.id, Segment { mounting, spec, client, status, grace, grace_ends, leaves });
        self.heard(client);
        Ok(Mounted::New)
    }

    fn heard(&mut self, client: ClientId) {
        let now = self.now;
        let known = self.clients.entry(client).or_insert(Client { heard: now, away: false });
        let heard = if known.away { now } else { now.max(known.heard) };
        *known = Client { heard, away: false };
    }

    pub(crate) fn unmount(&mut self, client: ClientId, id: SegmentId) {
        let result = self.master.unmount_segment(self.now, client, id);
        assert_eq!(result, self.owned(client, id).map(|_| ()));
        let mut events = Vec::new();
        if result.is_ok() {
            self.retire(id);
            events.push(Event::Gone(id));
        }
        assert_eq!(self.take_events(), events);
    }

    pub(crate) fn leave(&mut self, client: ClientId, id: SegmentId, grace: u64) {
        let grace = Duration::from_millis(grace);
        let result = self.master.graceful_unmount_segment(self.now, client, id, grace);
        let mut events = Vec::new();
        let expected = self.owned(client, id).and_then(|status| match status {
            SegmentStatus::Suspended => Err(UnmountError::Suspended),
            SegmentStatus::GracefullyUnmounting => Ok(()),
            _ => {
                let segment = self.segments.get_mut(&id).unwrap();
                segment.status = SegmentStatus::GracefullyUnmounting;
                segment.grace = Some(grace);
                segment.grace_ends = Some(self.now + grace);
                segment.leaves = segment.grace_ends;
                events.push(Event::Changed(id, segment.status));
                Ok(())
            }
        });
        assert_eq!(result, expected);
        assert_eq!(self.take_events(), events);
    }

    fn owned(&self, client: ClientId, id: SegmentId) -> Result<SegmentStatus, UnmountError> {
        let segment = self.segments.get(&id).ok_or(UnmountError::NotFound)?;
        if segment.client != client {
            return Err(UnmountError::IllegalClient);
        }
        Ok(segment.status)
    }

    pub(crate) fn ping(&mut self, client: ClientId) {
        let before = self.master.ping(self.now, client);
        let present = self.clients.get(&client).is_some_and(|client| !client.away);
        let status = if present { ClientStatus::Ok } else { ClientStatus::NeedRemount };
        assert_eq!(before.status, status);
        if present {
            self.heard(client);
        }
        assert_eq!(self.take_events(), []);
    }

    /// A segment goes, and everything in it.
    fn retire(&mut self, id: SegmentId) {
        let segment = self.segments.remove(&id).unwrap();
        if !self.segments.values().any(|other| other.client == segment.client) {
            self.clients.remove(&segment.client);
        }
        let gone = segment.mounting;
        for discarded in &mut self.discarded {
            discarded.replicas.retain(|(mounting, _)| *mounting != gone);
        }
        let for_readers = |kept: &Discarded| kept.writer.is_none() && kept.replicas.is_empty();
        self.lost_kept |= self.discarded.iter().any(for_readers);
        self.discarded.retain(|discarded| !discarded.replicas.is_empty());
        for object in self.objects.values_mut().chain(self.replacements.values_mut()) {
            object.replicas.retain(|(mounting, _)| *mounting != gone);
            if let Some(transfer) = &mut object.transfer {
                transfer.targets.retain(|(mounting, _)| *mounting != gone);
            }
        }
        for lost in self.lost.values_mut().filter_map(|lost| lost.transfer.as_mut()) {
            lost.targets.retain(|(mounting, _)| *mounting != gone);
        }
        let lost: Vec<(String, Generation)> = self
            .all()
            .filter(|(_, object)| object.replicas.is_empty())
            .map(|(key, object)| (key.clone(), object.generation))
            .collect();
        for (key, generation) in lost {
            let replaces = self.objects[&key].generation != generation;
            let object = if replaces { &mut self.replacements } else { &mut self.objects };
            let object = object.get_mut(&key).unwrap();
            if !object.complete {
                self.writers.insert((object.owner, generation));
            }
            let lost = Lost {
                complete: object.complete,
                hard_pin: object.hard_pin,
                group: object.group,
                transfer: object.transfer.take(),
                replaces,
            };
            self.lost.insert((key.clone(), generation), lost);
            self.forget_put(&key, generation);
        }
    }

    /// Expires clients and segments whose time has come, in the order of these times.
    pub(super) fn expire(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some((_, due)) = self.due() {
            match due {
                Due::Segment(id) => {
                    self.retire(id);
                    events.push(Event::Gone(id));
                }
                Due::Client(client) => self.suspend(client, &mut events),
            }
        }
        events
    }

    fn due(&self) -> Option<(Time, Due)> {
        let segments = self
            .segments
            .iter()
            .filter_map(|(id, segment)| Some((segment.leaves?, Due::Segment(*id))))
            // The end of time never comes.
            .filter(|(at, _)| *at <= self.now && *at < Time::from_millis(u64::MAX));
        // A client is silent for too long only after its time.
        let clients = self
            .clients
            .iter()
            .filter(|(_, known)| !known.away)
            .map(|(client, known)| (known.heard + self.config.client_ttl, Due::Client(*client)))
            .filter(|(at, _)| *at < self.now);
        segments.chain(clients).min()
    }

    fn suspend(&mut self, client: ClientId, events: &mut Vec<Event>) {
        events.push(Event::Expired(client));
        self.totals.expired_clients += 1;
        let return_timeout = self.config.client_return_timeout;
        let mut own: Vec<&mut Segment> =
            self.segments.values_mut().filter(|segment| segment.client == client).collect();
        own.sort_by_key(|segment| segment.mounting);
        let mut gone = Vec::new();
        for segment in own.into_iter().filter(|s| s.status != SegmentStatus::Suspended) {
            if return_timeout.is_zero() {
                gone.push(segment.spec.id);
                events.push(Event::Gone(segment.spec.id));
            } else {
                let leaves = self.now + return_timeout;
                segment.status = SegmentStatus::Suspended;
                segment.leaves = Some(segment.leaves.map_or(leaves, |at| at.min(leaves)));
                events.push(Event::Changed(segment.spec.id, SegmentStatus::Suspended));
            }
        }
        gone.into_iter().for_each(|id| self.retire(id));
        if let Some(known) = self.clients.get_mut(&client) {
            known.away = true;
        }
    }
}

impl Segment {
    /// The segment is there again, and goes only when its own grace is over.
    fn bring_back(&mut self, events: &mut Vec<Event>) {
        self.leaves = self.grace_ends;
        self.status = self.status_on_return();
        events.push(Event::Changed(self.spec.id, self.status));
    }

    /// The status that it has while its client is there.
    pub(super) fn status_on_return(&self) -> SegmentStatus {
        match self.grace {
            Some(_) => SegmentStatus::GracefullyUnmounting,
            None => SegmentStatus::Ok,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Segment(SegmentId),
    Client(ClientId),
}
