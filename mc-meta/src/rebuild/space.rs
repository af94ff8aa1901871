//! Where things are in the segments, before the segments' allocators are built again.

use core::time::Duration;
use std::collections::{BTreeMap, HashMap};

use foldhash::quality::FixedState;
use mc_types::{ClientId, SegmentId};

use crate::record::{Location, Record};
use crate::space::segment::{Purpose, SegmentSpec};

/// One mounting of a segment. One that comes back after it was gone has another number,
/// so that what lay in it before is not taken for what lies in it then.
pub(crate) type Mounting = u32;

/// Where one replica of an object is; how long it is, the object knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) mounting: Mounting,
}

/// The claims of one object.
#[derive(Debug)]
pub(crate) enum Claims {
    /// One replica, the usual case.
    One {
        offset: u64,
        mounting: Mounting,
    },
    Many(Box<Many>),
}

const _: () = assert!(size_of::<Option<Claims>>() == 16, "kept once per object meanwhile");

#[derive(Debug)]
pub(crate) struct Many {
    pub(crate) replicas: Box<[Place]>,
    /// Space of a put or transfer that no client can end; with its length.
    pub(crate) reserved: Box<[(Place, u64)]>,
}

impl Many {
    pub(crate) fn of(space: &mut Space, replicas: &[Location], reserved: &[Location]) -> Self {
        Self {
            replicas: replicas.iter().map(|at| space.place(at)).collect(),
            reserved: reserved.iter().map(|at| (space.place(at), at.extent.len())).collect(),
        }
    }
}

impl Claims {
    pub(crate) fn one(Place { offset, mounting }: Place) -> Self {
        Self::One { offset, mounting }
    }

    pub(crate) fn replicas(&self) -> impl Iterator<Item = Place> {
        let (one, many) = match *self {
            Self::One { offset, mounting } => (Some(Place { offset, mounting }), &[][..]),
            Self::Many(ref many) => (None, &many.replicas[..]),
        };
        one.into_iter().chain(many.iter().copied())
    }

    pub(crate) fn reserved(&self) -> &[(Place, u64)] {
        match self {
            Self::One { .. } => &[],
            Self::Many(many) => &many.reserved,
        }
    }
}

impl Mounted {
    /// The record that says so.
    pub(crate) fn record(&self) -> Record {
        let Purpose { status, grace } = self.purpose;
        Record::Segment { spec: self.spec.clone(), client: self.client, status, grace }
    }
}

/// The record of a mounting.
#[derive(Debug)]
enum MountingRecord {
    /// Its id only: nothing has said yet that it was mounted.
    Unheard,
    Mounted(Box<Mounted>),
    Gone,
}

/// A segment that is mounted.
#[derive(Clone, Debug)]
pub(crate) struct Mounted {
    pub(crate) spec: SegmentSpec,
    pub(crate) client: ClientId,
    /// The last that a record told.
    pub(crate) purpose: Purpose,
    /// Counts the mountings. Every part of a rebuild numbers a mounting as it comes upon it, but
    /// counts it as all others do.
    since: u64,
}

/// The fate of a mounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The segment is there, with this number among all segments.
    Segment(u32),
    Unheard,
    Gone,
}

/// Every mounting that records name, and the space in them that belongs to no object.
#[derive(Debug)]
pub(crate) struct Space {
    mountings: Vec<(SegmentId, MountingRecord)>,
    /// The last mounting of each segment that is not gone.
    current: HashMap<SegmentId, Mounting, FixedState>,
    /// Number of mountings in the records.
    mounts: u64,
    /// Length, and for how long it is kept.
    pub(crate) kept: BTreeMap<(Mounting, u64), (u64, Duration)>,
}

impl Space {
    pub(crate) fn new(hasher: FixedState) -> Self {
        let current = HashMap::with_hasher(hasher);
        Self { mountings: Vec::new(), current, mounts: 0, kept: BTreeMap::new() }
    }

    /// A segment is mounted, with this purpose if the record tells.
    pub(crate) fn mount(&mut self, spec: &SegmentSpec, client: ClientId, purpose: Option<Purpose>) {
        let number = self.number(spec.id);
        if let MountingRecord::Mounted(mounted) = &mut self.mountings[number as usize].1 {
            if mounted.spec == *spec && mounted.client == client {
                mounted.purpose = purpose.unwrap_or(mounted.purpose);
                return;
            }
            // The old one must have gone; its record was lost.
            self.lose(spec.id);
            return self.mount(spec, client, purpose);
        }
        self.mounts += 1;
        let purpose = purpose.unwrap_or(Purpose::NEW);
        let mounted = Mounted { spec: spec.clone(), client, purpose, since: self.mounts };
        self.mountings[number as usize].1 = MountingRecord::Mounted(Box::new(mounted));
    }

    pub(crate) fn lose(&mut self, id: SegmentId) {
        if let Some(number) = self.current.remove(&id) {
            self.mountings[number as usize].1 = MountingRecord::Gone;
            let kept = self.kept.range((number, 0)..=(number, u64::MAX));
            let kept: Vec<_> = kept.map(|(place, _)| *place).collect();
            for place in kept {
                self.kept.remove(&place);
            }
        }
    }

    /// The segments that are mounted, in the order in which they were.
    pub(crate) fn mounted(&self) -> Vec<&Mounted> {
        let mounted = self.mountings.iter().filter_map(|(_, known)| match known {
            MountingRecord::Mounted(mounted) => Some(&**mounted),
            MountingRecord::Unheard | MountingRecord::Gone => None,
        });
        let mut mounted: Vec<_> = mounted.collect();
        mounted.sort_unstable_by_key(|mounted| mounted.since);
        mounted
    }

    /// The number of a segment's mounting, unless it is gone.
    pub(crate) fn current(&self, id: SegmentId) -> Option<Mounting> {
        self.current.get(&id).copied()
    }

    /// A segment that is mounted.
    pub(crate) fn mounted_as(&self, id: SegmentId) -> Option<&Mounted> {
        match &self.mountings[self.current(id)? as usize].1 {
            MountingRecord::Mounted(mounted) => Some(mounted),
            MountingRecord::Unheard | MountingRecord::Gone => None,
        }
    }

    /// The segments that objects or kept space name, and of which nothing else is known.
    pub(crate) fn unheard(&self) -> impl Iterator<Item = SegmentId> {
        let is_unheard = |number: &Mounting| {
            matches!(self.mountings[*number as usize].1, MountingRecord::Unheard)
        };
        self.current.iter().filter(move |(_, number)| is_unheard(number)).map(|(id, _)| *id)
    }

    /// Returns the fate of each mounting, when these segments stay, in the order in which they were
    /// mounted.
    pub(crate) fn fates(&self, segments: &[Mounted]) -> Vec<Fate> {
        let fate = |(_, known): &(SegmentId, MountingRecord)| match known {
            MountingRecord::Unheard => Fate::Unheard,
            MountingRecord::Gone => Fate::Gone,
            MountingRecord::Mounted(mounted) => {
                let found = segments.binary_search_by_key(&mounted.since, |it| it.since);
                let same = found.ok().filter(|at| segments[*at].spec.id == mounted.spec.id);
                same.map_or(Fate::Gone, |at| Fate::Segment(at as u32)) // fewer than mountings
            }
        };
        self.mountings.iter().map(fate).collect()
    }

    /// The number of the segment's last mounting.
    fn number(&mut self, id: SegmentId) -> Mounting {
        let mountings = &mut self.mountings;
        *self.current.entry(id).or_insert_with(|| {
            mountings.push((id, MountingRecord::Unheard));
            Mounting::try_from(mountings.len() - 1).expect("2^32 mountings do not fit in memory")
        })
    }

    /// The segment of a mounting, unless it is gone.
    pub(crate) fn segment_of(&self, mounting: Mounting) -> Option<SegmentId> {
        match self.mountings.get(mounting as usize)? {
            (_, MountingRecord::Gone) => None,
            (id, _) => Some(*id),
        }
    }

    pub(crate) fn place(&mut self, location: &Location) -> Place {
        Place { offset: location.extent.offset(), mounting: self.number(location.segment) }
    }

    pub(crate) fn keep(&mut self, location: &Location, left: Duration) {
        let place = self.place(location);
        self.keep_at(place, location.extent.len(), left);
    }

    fn keep_at(&mut self, place: Place, len: u64, left: Duration) {
        let kept = self.kept.entry((place.mounting, place.offset)).or_default();
        *kept = (kept.0.max(len), kept.1.max(left));
    }

    pub(crate) fn free(&mut self, location: &Location) {
        if let Some(number) = self.current.get(&location.segment) {
            self.kept.remove(&(*number, location.extent.offset()));
        }
    }
}
