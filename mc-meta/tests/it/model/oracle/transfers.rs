//! Copies, moves, and replicas that are taken back.

use mc_meta::{
    LateWrites, TransferError, TransferFinishError, TransferGrant, TransferHandle, TransferKind,
};
use mc_types::{ClientId, Extent, Generation, KeyRef, TransferId};

use super::journal::Event;
use super::{Mounting, Object, Oracle, Segment, Transfer, Which, is_genuine, token};

/// A copy or move that a client requests.
#[derive(Clone, Copy)]
pub(crate) struct Route<'a> {
    pub(crate) kind: TransferKind,
    pub(crate) source: &'a str,
    pub(crate) targets: &'a [&'a str],
}

/// Numbers of puts and transfers come from one sequence.
pub(crate) fn number(id: TransferId) -> Generation {
    Generation::new(id.as_u64())
}

impl Oracle {
    /// Returns the transfer of an object that a command names.
    pub(crate) fn transfer(&self, key: &str, which: Which) -> TransferHandle {
        let open = self.objects.get(key).and_then(|object| object.transfer.as_ref());
        let id = match which {
            Which::Current | Which::Guessed => open.map(|transfer| transfer.id),
            Which::Previous => self.transfers.get(key).copied(),
        };
        let id = id.unwrap_or(Generation::new(0));
        TransferHandle { id: TransferId::new(id.as_u64()), token: token(id, which) }
    }

    pub(crate) fn transfer_start(&mut self, client: ClientId, key: KeyRef<'_>, route: Route<'_>) {
        let Route { kind, source, targets } = route;
        let result = match kind {
            TransferKind::Copy => self.master.copy_start(self.now, client, key, source, targets),
            TransferKind::Move => self.master.move_start(self.now, client, key, source, targets[0]),
        };
        let key = key.as_str();
        let mut events = self.take_events();
        let grant = match result {
            Ok(grant) => grant,
            Err(error) => {
                self.follow_reclaimed(&events);
                let expected = self.route(key, route).map(|_| ());
                assert_eq!(Err(error.clone()), expected);
                let no_room =
                    matches!(error, TransferError::Full { .. } | TransferError::Fragmented { .. });
                assert!(!no_room || self.is_reclaimed(), "refused while space is due");
                return;
            }
        };
        let is_open = !grant.targets.is_empty() || kind == TransferKind::Move;
        let opened = if is_open { events.pop() } else { None };
        self.follow_reclaimed(&events);
        let (from, to) = self.route(key, route).expect("it could not begin");
        self.check_transfer(key, &grant, from, &to);
        let count = to.len();
        if is_open {
            let due = self.now + self.config.put_start_release_timeout;
            let targets = self.placed(&grant);
            let id = number(grant.handle.id);
            let transfer = Transfer { id, kind, client, source: from.0, targets, count, due };
            self.transfers.insert(key.to_owned(), id);
            self.objects.get_mut(key).unwrap().transfer = Some(transfer);
            assert_eq!(opened, Some(Event::Altered(self.seen(key))));
        }
        self.expect_losses_told(key);
    }

    fn placed(&self, grant: &TransferGrant) -> Vec<(Mounting, Extent)> {
        let placed = grant.targets.iter();
        placed.map(|at| (self.segments[&at.segment.spec().id].mounting, at.extent)).collect()
    }

    fn check_transfer(
        &mut self,
        key: &str,
        grant: &TransferGrant,
        from: (Mounting, Extent),
        to: &[Mounting],
    ) {
        assert!(self.generations.insert(number(grant.handle.id)), "generations never repeat");
        assert!(is_genuine(number(grant.handle.id), grant.handle.token));
        assert_eq!(grant.time_left, self.config.put_start_release_timeout);
        let object = &self.objects[key];
        assert_eq!(grant.generation, object.generation);
        assert_eq!(grant.slices.as_slice(), object.slices);
        let source = self.segments[&grant.source.segment.spec().id].mounting;
        assert_eq!((source, grant.source.extent), from);
        let placed = self.placed(grant);
        assert_eq!(placed.iter().map(|(at, _)| *at).collect::<Vec<_>>(), to);
        for (at, extent) in placed {
            assert_eq!(extent.len(), object.len());
            assert!(extent.end() <= self.segment(at).unwrap().spec.size);
            assert!(self.taken(at).iter().all(|taken| !taken.overlaps(extent)));
        }
    }

    /// From where to which segments a transfer goes.
    fn route(
        &self,
        key: &str,
        route: Route<'_>,
    ) -> Result<((Mounting, Extent), Vec<Mounting>), TransferError> {
        if route.kind == TransferKind::Move && route.source == route.targets[0] {
            return Err(TransferError::SameSegment);
        }
        if route.targets.is_empty() {
            return Err(TransferError::TargetCount { count: 0 });
        }
        let object = self.objects.get(key).ok_or(TransferError::NotFound)?;
        if !self.is_readable(object) {
            return Err(TransferError::NotReady);
        }
        if object.transfer.is_some() {
            return Err(TransferError::InTransfer);
        }
        let source = self.named(route.source)?;
        let mut targets = Vec::new();
        for name in route.targets {
            let target = self.named(name)?;
            if !target.status.is_allocatable() {
                return Err(unavailable(target));
            }
            targets.push(target);
        }
        let mut replicas = object.replicas.iter();
        let from = replicas
            .find(|(at, _)| *at == source.mounting)
            .ok_or_else(|| TransferError::ReplicaNotFound { segment: source.spec.name.clone() })?;
        if !source.status.is_readable() {
            return Err(unavailable(source));
        }
        let mut to = Vec::new();
        for target in targets {
            let at = target.mounting;
            if to.contains(&at) || object.replicas.iter().any(|(held, _)| *held == at) {
                continue;
            }
            self.expect_room(target, object.len())?;
            to.push(at);
        }
        Ok((*from, to))
    }

    fn expect_room(&self, target: &Segment, len: u64) -> Result<(), TransferError> {
        let (segment, size) = (target.spec.name.clone(), target.spec.size);
        let free = size - self.used_in(target.mounting);
        if len > size {
            return Err(TransferError::TooLarge { segment, len, largest_object: size });
        }
        match self.has_room(target, len) {
            true => Ok(()),
            false if free >= len => Err(TransferError::Fragmented { segment, len, free }),
            false => Err(TransferError::Full { segment, len, free }),
        }
    }

    fn named(&self, name: &str) -> Result<&Segment, TransferError> {
        let segment = self.segments.values().find(|segment| *segment.spec.name == *name);
        segment.ok_or_else(|| TransferError::SegmentNotFound { name: name.into() })
    }

    pub(crate) fn transfer_end(
        &mut self,
        client: ClientId,
        key: KeyRef<'_>,
        kind: TransferKind,
        id: TransferHandle,
    ) {
        let result = match kind {
            TransferKind::Copy => self.master.copy_end(self.now, client, key, id),
            TransferKind::Move => self.master.move_end(self.now, client, key, id),
        };
        let key = key.as_str();
        let events = self.take_events();
        match self.finishes(client, key, kind, id) {
            Ok(()) => {
                let transfer = self.objects.get_mut(key).unwrap().transfer.take().unwrap();
                let expected = if self.end_transfer(key, transfer) {
                    Ok(())
                } else {
                    Err(TransferFinishError::ReplicaIsGone)
                };
                assert_eq!(result, expected);
                assert_eq!(events, [Event::Altered(self.seen(key))]);
            }
            Err(error) => {
                assert_eq!(result, Err(error));
                assert_eq!(events, []);
            }
        }
        self.expect_losses_told(key);
    }

    /// Whether everything is as the transfer's client meant it to be.
    fn end_transfer(&mut self, key: &str, transfer: Transfer) -> bool {
        let Transfer { kind, source, targets, count, .. } = transfer;
        let mut object = self.objects[key].clone();
        let has_source = object.replicas.iter().any(|(at, _)| *at == source);
        let readable = |at| self.status(at).is_readable();
        let written = targets.into_iter().filter(|(at, _)| has_source && readable(*at));
        let before = object.replicas.len();
        object.replicas.extend(written);
        let mut complete = has_source && object.replicas.len() - before == count;
        let mut left = None;
        if kind == TransferKind::Move {
            complete &= object.replicas.iter().any(|(at, _)| *at != source && readable(*at));
            if complete {
                let at = object.replicas.iter().position(|(at, _)| *at == source).unwrap();
                left = Some(object.replicas.remove(at));
            }
        }
        if let Some(left) = left
            && let Some(until) = self.read_until(&object)
        {
            self.keep_until(until, vec![left], None);
        }
        self.objects.insert(key.to_owned(), object);
        complete
    }

    pub(crate) fn transfer_revoke(
        &mut self,
        client: ClientId,
        key: KeyRef<'_>,
        kind: TransferKind,
        handle: TransferHandle,
        late: LateWrites,
    ) {
        let result = match kind {
            TransferKind::Copy => self.master.copy_revoke(self.now, client, key, handle, late),
            TransferKind::Move => self.master.move_revoke(self.now, client, key, handle, late),
        };
        let key = key.as_str();
        let events = self.take_events();
        match self.finishes(client, key, kind, handle) {
            Ok(()) => {
                assert_eq!(result, Ok(()));
                let transfer = self.objects.get_mut(key).unwrap().transfer.take().unwrap();
                assert_eq!(events, [Event::Altered(self.seen(key))]);
                if late == LateWrites::Possible {
                    let writer = (client, transfer.id);
                    self.keep_until(transfer.due, transfer.targets, Some(writer));
                }
            }
            Err(error) => {
                let (id, token) = (number(handle.id), handle.token);
                let writer = ((client, id), is_genuine(id, token));
                self.revoked_again(&result, error, writer, late, &events);
            }
        }
        self.expect_losses_told(key);
    }

    fn finishes(
        &self,
        client: ClientId,
        key: &str,
        kind: TransferKind,
        handle: TransferHandle,
    ) -> Result<(), TransferFinishError> {
        let object: &Object = self.objects.get(key).ok_or(TransferFinishError::NotFound)?;
        let transfer = object.transfer.as_ref().ok_or(TransferFinishError::NotOpen)?;
        if transfer.client != client || !is_genuine(number(handle.id), handle.token) {
            return Err(TransferFinishError::IllegalClient);
        }
        if number(handle.id) != transfer.id {
            return Err(TransferFinishError::NotOpen);
        }
        if transfer.kind != kind {
            return Err(TransferFinishError::WrongKind { kind: transfer.kind });
        }
        Ok(())
    }
}

fn unavailable(segment: &Segment) -> TransferError {
    let (name, status) = (segment.spec.name.clone(), segment.status);
    TransferError::SegmentUnavailable { name, status }
}
