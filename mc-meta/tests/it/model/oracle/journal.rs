//! A sink of effects, and a copy of the state that is made from the effects alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use mc_meta::{
    Effect, EffectSink, ObjectView, Placement, Removal, SegmentSpec, SegmentStatus, Slice,
    TransferKind,
};
use mc_types::{ClientId, Extent, Generation, KeyRef, SegmentId, Sequence, Time};

/// An effect, kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Began(Seen),
    Abandoned {
        key: String,
        generation: Generation,
    },
    Stored(Seen),
    Removed {
        key: String,
        generation: Generation,
        cause: Removal,
    },
    Mounted(SegmentId),
    Changed(SegmentId, SegmentStatus),
    Gone(SegmentId),
    Expired(ClientId),
    /// Space that was kept can be given out.
    Freed(Vec<(SegmentId, Extent)>),
    /// The state of an object has changed.
    Altered(Seen),
}

/// An object as an effect showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) key: String,
    pub(super) generation: Generation,
    pub(super) owner: ClientId,
    pub(super) slices: Vec<Slice>,
    pub(super) replicas: Vec<(SegmentId, Extent)>,
    pub(super) transfer: Option<TransferSeen>,
}

/// A copy or move as an effect showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TransferSeen {
    pub(super) id: Generation,
    pub(super) kind: TransferKind,
    pub(super) client: ClientId,
    pub(super) targets: Vec<(SegmentId, Extent)>,
    pub(super) due: Time,
}

impl Seen {
    fn of(view: &ObjectView<'_>) -> Self {
        let slices = view.slices();
        assert_eq!(view.len(), slices.total_len());
        Self {
            key: view.key().as_str().to_owned(),
            generation: view.generation(),
            owner: view.owner(),
            slices: slices.as_slice().to_vec(),
            replicas: there(&view.placements()),
            transfer: view.transfer().map(|transfer| TransferSeen {
                id: super::transfers::number(transfer.transfer),
                kind: transfer.kind,
                client: transfer.client,
                targets: there(&transfer.targets),
                due: transfer.due,
            }),
        }
    }
}

fn place(at: &Placement) -> (SegmentId, Extent) {
    (at.segment.spec().id, at.extent)
}

/// The placements in segments that are not gone.
fn there(placements: &[Placement]) -> Vec<(SegmentId, Extent)> {
    let there = placements.iter().filter(|at| at.segment.status() != SegmentStatus::Unmounted);
    there.map(place).collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SegmentSeen {
    pub(super) spec: SegmentSpec,
    pub(super) client: ClientId,
    pub(super) status: SegmentStatus,
}

/// The state that follows from the effects alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Journal {
    pub(super) segments: BTreeMap<SegmentId, SegmentSeen>,
    /// Whether each is complete, and what it is.
    pub(super) objects: BTreeMap<(String, Generation), (bool, Seen)>,
    /// Space without an owner, and until when it is kept.
    pub(super) kept: Vec<(SegmentId, Extent, Time)>,
}

impl Journal {
    fn begin(&mut self, seen: Seen) {
        let open = |(key, generation): &(String, Generation)| {
            *key == seen.key && !self.objects[&(key.clone(), *generation)].0
        };
        assert!(!self.objects.keys().any(open), "one put at a time");
        self.objects.insert((seen.key.clone(), seen.generation), (false, seen));
    }

    fn store(&mut self, seen: &Seen) {
        let others = self.objects.keys().filter(|(key, _)| *key == seen.key);
        assert_eq!(others.count(), 1, "told of the end of what was there before");
        let name = (seen.key.clone(), seen.generation);
        let (complete, began) = self.objects.get_mut(&name).expect("it has begun");
        assert!(!*complete, "{began:?}, then {seen:?}");
        *complete = true;
        began.clone_from(seen);
    }

    fn remove(&mut self, key: &str, generation: Generation, complete: bool) {
        let gone = self.objects.remove(&(key.to_owned(), generation));
        assert_eq!(gone.map(|(complete, _)| complete), Some(complete), "what goes was there");
    }

    fn change(&mut self, seen: Seen) {
        let name = (seen.key.clone(), seen.generation);
        let (complete, known) = self.objects.get_mut(&name).expect("it was stored");
        assert!(*complete, "{known:?}, then {seen:?}");
        *known = seen;
    }

    fn free(&mut self, space: &[(SegmentId, Extent)]) {
        for (id, extent) in space {
            let known = |kept: &(SegmentId, Extent, Time)| kept.0 == *id && kept.1 == *extent;
            let at = self.kept.iter().position(known).expect("it was kept");
            self.kept.swap_remove(at);
        }
    }

    fn unmount(&mut self, id: SegmentId) {
        self.kept.retain(|(segment, _, _)| *segment != id);
        self.segments.remove(&id).expect("what goes was mounted");
        for (_, seen) in self.objects.values_mut() {
            seen.replicas.retain(|(segment, _)| *segment != id);
            if let Some(transfer) = &mut seen.transfer {
                transfer.targets.retain(|(segment, _)| *segment != id);
            }
        }
    }
}

/// Keeps the effects.
#[derive(Clone, Default)]
pub(super) struct Recorder(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    events: Vec<Event>,
    journal: Journal,
    now: Option<Time>,
}

impl Recorder {
    /// The events since the last call; all of them happened `now`.
    pub(super) fn take(&self, now: Time) -> Vec<Event> {
        let mut recorded = self.0.lock().unwrap();
        assert!(recorded.now.take().is_none_or(|told| told == now), "the time of the effects");
        std::mem::take(&mut recorded.events)
    }

    pub(super) fn journal(&self) -> Journal {
        self.0.lock().unwrap().journal.clone()
    }
}

impl EffectSink for Recorder {
    fn emit(&self, _: Sequence, now: Time, effect: &Effect<'_>) {
        let text = |key: KeyRef<'_>| key.as_str().to_owned();
        let mut recorded = self.0.lock().unwrap();
        let Recorded { events, journal, now: told } = &mut *recorded;
        assert!(told.replace(now).is_none_or(|told| told == now), "one command has one time");
        let event = match *effect {
            Effect::Began { object } => {
                let seen = Seen::of(&object);
                journal.begin(seen.clone());
                Event::Began(seen)
            }
            Effect::Abandoned { key, generation, .. } => {
                journal.remove(key.as_str(), generation, false);
                Event::Abandoned { key: text(key), generation }
            }
            Effect::Stored { object, .. } => {
                let seen = Seen::of(&object);
                journal.store(&seen);
                Event::Stored(seen)
            }
            Effect::Removed { key, generation, cause, .. } => {
                journal.remove(key.as_str(), generation, true);
                Event::Removed { key: text(key), generation, cause }
            }
            Effect::SegmentMounted { segment } => {
                let (spec, client) = (segment.spec().clone(), segment.client());
                let id = spec.id;
                let seen = SegmentSeen { spec, client, status: SegmentStatus::Ok };
                let old = journal.segments.insert(id, seen);
                assert!(old.is_none(), "mounted twice: {old:?}");
                Event::Mounted(id)
            }
            Effect::SegmentChanged { segment, status } => {
                let id = segment.spec().id;
                let seen = journal.segments.get_mut(&id).expect("what changes is mounted");
                assert!(seen.status.can_become(status), "{:?} to {status:?}", seen.status);
                seen.status = status;
                Event::Changed(id, status)
            }
            Effect::SegmentGone { segment } => {
                journal.unmount(segment.spec().id);
                Event::Gone(segment.spec().id)
            }
            Effect::ClientExpired { client } => Event::Expired(client),
            Effect::Changed { object, .. }
            | Effect::Pinned { object }
            | Effect::Transferring { object } => {
                let seen = Seen::of(&object);
                journal.change(seen.clone());
                Event::Altered(seen)
            }
            Effect::SpaceKept { space, left } => {
                let kept = there(&space.placements())
                    .into_iter()
                    .map(|(id, extent)| (id, extent, now + left));
                return journal.kept.extend(kept);
            }
            Effect::SpaceFreed { space } => match there(&space.placements()) {
                none if none.is_empty() => return,
                space => {
                    journal.free(&space);
                    Event::Freed(space)
                }
            },
            // What goes with the replica, or with all objects, is told next.
            Effect::Damaged { .. }
            | Effect::RemoveAllBegan
            | Effect::Spared { .. }
            | Effect::RemoveAllEnded => return,
            _ => panic!("an effect that the model does not know: {effect:?}"),
        };
        events.push(event);
    }
}
