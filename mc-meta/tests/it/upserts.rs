//! Puts, upserts, reads and removals in any order, on so little memory that they evict
//! and write over each other: no space is granted that may still be in use, and
//! every read returns the value that was written last.

use core::time::Duration;
use std::collections::BTreeMap;

use mc_meta::{
    GetError, LateWrites, Master, MasterConfig, Placement, Placements, PutEnd, PutFinishError,
    PutGrant, PutHandle, PutStart, ReplicateConfig, SegmentSpec,
};
use mc_types::{ClientId, Extent, Generation, KeyRef, SegmentId, Time};
use proptest::prelude::*;

use crate::common::segment;

const SEGMENTS: u128 = 2;
const SIZE: u64 = 200;
const KEYS: [&str; 3] = ["a", "b", "c"];
const LEASE: Duration = Duration::from_millis(100);
const DISCARD: Duration = Duration::from_millis(300);
const RELEASE: Duration = Duration::from_millis(1000);

#[derive(Clone, Debug)]
enum Op {
    Start {
        client: u128,
        key: usize,
        len: u64,
        replicas: u32,
        upsert: bool,
    },
    /// Ends or revokes what was granted so many grants ago.
    Finish {
        back: usize,
        revoke: Option<LateWrites>,
    },
    Get {
        key: usize,
    },
    Renew {
        back: usize,
    },
    Remove {
        key: usize,
        force: bool,
    },
    Clear {
        client: u128,
        key: usize,
        segment: u128,
    },
    Unmount {
        segment: u128,
    },
    Mount {
        segment: u128,
    },
    Tick,
    Pass {
        millis: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let (client, key) = (1u128..3, 0..KEYS.len());
    let late = prop_oneof![Just(LateWrites::Possible), Just(LateWrites::Impossible)];
    // Few lengths, so that values are written over.
    let len = prop_oneof![Just(60u64), Just(90), 1u64..120];
    let start = (client.clone(), key.clone(), len, 1u32..3, prop::bool::weighted(0.7));
    let start = start.prop_map(|(client, key, len, replicas, upsert)| Op::Start {
        client,
        key,
        len,
        replicas,
        upsert,
    });
    prop_oneof![
        8 => start,
        8 => (0usize..4, prop::option::weighted(0.3, late))
            .prop_map(|(back, revoke)| Op::Finish { back, revoke }),
        6 => key.clone().prop_map(|key| Op::Get { key }),
        1 => (0usize..4).prop_map(|back| Op::Renew { back }),
        1 => (key.clone(), any::<bool>()).prop_map(|(key, force)| Op::Remove { key, force }),
        1 => (client, key, 0..SEGMENTS)
            .prop_map(|(client, key, segment)| Op::Clear { client, key, segment }),
        1 => (0..SEGMENTS).prop_map(|segment| Op::Unmount { segment }),
        2 => (0..SEGMENTS).prop_map(|segment| Op::Mount { segment }),
        2 => Just(Op::Tick),
        4 => prop_oneof![0u64..80, 0u64..700].prop_map(|millis| Op::Pass { millis }),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Its writer may be writing until then, unless it says before that it does not.
    Written(Generation),
    Read,
}

/// Space that may be in use until then, in one mounting of a segment.
#[derive(Clone, Copy, Debug)]
struct InUse {
    mounting: u128,
    extent: Extent,
    until: Time,
    by: Use,
}

#[derive(Clone, Copy, Debug)]
struct Granted {
    client: ClientId,
    key: usize,
    handle: PutHandle,
}

struct World {
    master: Master,
    now: Time,
    mountings: u128,
    /// The mounting of each segment that is mounted.
    mounted: BTreeMap<u128, u128>,
    in_use: Vec<InUse>,
    grants: Vec<Granted>,
    /// The put of each key that was begun last.
    newest: BTreeMap<usize, Generation>,
    /// The value of each key, as long as nothing may have taken it away.
    value: BTreeMap<usize, Generation>,
}

fn key(at: usize) -> KeyRef<'static> {
    KeyRef::new(KEYS[at]).unwrap()
}

fn node() -> ClientId {
    ClientId::from_u128(100)
}

impl World {
    fn new(ttl_after_get: Option<Duration>, seed: u64) -> Self {
        let mut config = MasterConfig::default();
        config.shards = 2;
        config.lease_ttl = LEASE;
        config.put_start_discard_timeout = DISCARD;
        config.put_start_release_timeout = RELEASE;
        config.client_ttl = Duration::from_secs(1 << 40);
        config.ttl_after_get = ttl_after_get;
        let mut world = Self {
            master: Master::new(config, seed).unwrap(),
            now: Time::from_millis(0),
            mountings: 0,
            mounted: BTreeMap::new(),
            in_use: Vec::new(),
            grants: Vec::new(),
            newest: BTreeMap::new(),
            value: BTreeMap::new(),
        };
        (0..SEGMENTS).for_each(|segment| world.mount(segment));
        world
    }

    fn mount(&mut self, number: u128) {
        if self.mounted.contains_key(&number) {
            return;
        }
        // A segment that comes back is another one, with another number.
        self.mountings += 1;
        let id = self.mountings;
        let spec = SegmentSpec { id: SegmentId::from_u128(id), ..segment(number, SIZE) };
        self.master.mount_segment(self.now, node(), spec).unwrap();
        self.mounted.insert(number, id);
    }

    /// Checks that granted space is not in use.
    fn granted(&mut self, grant: &PutGrant) {
        for Placement { segment, extent } in &grant.placements {
            let mounting = segment.spec().id.as_u128();
            let used = self.in_use.iter().find(|other| {
                other.mounting == mounting
                    && other.until > self.now
                    && other.extent.overlaps(*extent)
            });
            assert!(used.is_none(), "{extent} was granted while {used:?} at {:?}", self.now);
            let by = Use::Written(grant.handle.generation);
            let until = self.now + grant.time_left;
            self.in_use.push(InUse { mounting, extent: *extent, until, by });
        }
    }

    /// A writer writes no more.
    fn written(&mut self, generation: Generation) {
        self.in_use.retain(|used| used.by != Use::Written(generation));
    }

    fn start(&mut self, client: u128, at: usize, len: u64, replicas: u32, upsert: bool) {
        let client = ClientId::from_u128(client);
        let config = ReplicateConfig::default().replicas(replicas);
        let put = PutStart { key: key(at), slice_lengths: &[len], config: &config };
        let readable = self.master.longest_prefix(self.now, [key(at)]) == 1;
        let result = if upsert {
            self.master.upsert_start(self.now, client, &put)
        } else {
            self.master.put_start(self.now, client, &put)
        };
        if let Ok(grant) = result {
            assert!(upsert || !readable, "a put replaces nothing");
            self.granted(&grant);
            self.grants.push(Granted { client, key: at, handle: grant.handle });
            self.newest.insert(at, grant.handle.generation);
        }
        // Room may have been made, and values written over.
        self.forget_lost();
    }

    /// Forgets the values that may rightly be gone.
    fn forget_lost(&mut self) {
        self.value.retain(|at, _| self.master.longest_prefix(self.now, [key(*at)]) == 1);
    }

    fn finish(&mut self, back: usize, revoke: Option<LateWrites>) {
        let Some(at) = self.grants.len().checked_sub(back + 1) else { return };
        let Granted { client, key: at, handle } = self.grants[at];
        let generation = handle.generation;
        let put = PutEnd::new(key(at), handle);
        let result = match revoke {
            Some(late) => self.master.put_revoke(self.now, client, key(at), handle, late),
            None => self.master.put_end(self.now, client, &put),
        };
        let newest = self.newest.get(&at) == Some(&generation);
        match result {
            Ok(()) if revoke.is_some() => {
                if newest {
                    self.newest.remove(&at);
                }
                // Otherwise its bytes may arrive until its grant ends.
                if revoke == Some(LateWrites::Impossible) {
                    self.written(generation);
                }
            }
            Ok(()) => {
                let again = self.value.get(&at) == Some(&generation);
                assert!(newest || again, "a preempted put cannot be ended");
                self.written(generation);
                self.value.insert(at, generation);
            }
            Err(PutFinishError::NotOpen | PutFinishError::NotFound) => {
                let ended = self.value.get(&at) == Some(&generation);
                assert!(revoke.is_some() || !ended, "what was ended may be ended again");
            }
            Err(PutFinishError::IllegalClient) => assert!(!newest || self.owner(at) != client),
            Err(error) => panic!("{error:?}"),
        }
        self.forget_lost();
    }

    fn owner(&self, at: usize) -> ClientId {
        self.master.describe(self.now, key(at)).unwrap().owner
    }

    fn get(&mut self, at: usize) {
        match self.master.get_replica_list(self.now, key(at)) {
            Ok(list) => {
                assert_eq!(Some(&list.generation), self.value.get(&at), "not the last value");
                self.reads(list.placements);
                // Being read may end it at once.
                self.forget_lost();
            }
            Err(GetError::NotFound | GetError::NotReady) => assert!(!self.value.contains_key(&at)),
            Err(error) => panic!("{error:?}"),
        }
    }

    /// A reader uses the space until its lease ends.
    fn reads(&mut self, placements: Placements) {
        for Placement { segment, extent } in placements {
            let mounting = segment.spec().id.as_u128();
            assert!(self.mounted.values().any(|mounted| *mounted == mounting));
            let until = self.now + LEASE;
            self.in_use.push(InUse { mounting, extent, until, by: Use::Read });
        }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Start { client, key, len, replicas, upsert } => {
                self.start(client, key, len, replicas, upsert);
            }
            Op::Finish { back, revoke } => self.finish(back, revoke),
            Op::Get { key } => self.get(key),
            Op::Renew { back } => {
                let Some(at) = self.grants.len().checked_sub(back + 1) else { return };
                let Granted { key: at, handle, .. } = self.grants[at];
                let renewed = self.master.renew_lease(self.now, key(at), handle.generation);
                assert_eq!(renewed.is_ok(), self.value.get(&at) == Some(&handle.generation));
                self.reads(renewed.map(|renewed| renewed.placements).unwrap_or_default());
            }
            Op::Remove { key: at, force } => {
                if self.master.remove(self.now, key(at), force).is_ok() {
                    // Those who read it go on until their leases end.
                    assert!(self.value.remove(&at).is_some());
                }
            }
            Op::Clear { client, key: at, segment } => {
                let name = format!("segment-{segment}");
                let client = ClientId::from_u128(client);
                self.master.batch_replica_clear(self.now, client, &[key(at)], Some(&name));
                self.forget_lost();
            }
            Op::Unmount { segment } => {
                if let Some(id) = self.mounted.remove(&segment) {
                    let id = SegmentId::from_u128(id);
                    self.master.unmount_segment(self.now, node(), id).unwrap();
                    self.forget_lost();
                }
            }
            Op::Mount { segment } => self.mount(segment),
            Op::Tick => {
                while self.master.tick(self.now) {}
                self.forget_lost();
            }
            Op::Pass { millis } => {
                self.now = self.now + Duration::from_millis(millis);
                self.forget_lost();
            }
        }
    }

    /// Nothing is left when everything has had its time.
    fn wind_up(mut self) {
        self.now = self.now + RELEASE + LEASE;
        while self.master.tick(self.now) {}
        self.master.remove_all(self.now, true);
        let report = self.master.report();
        assert_eq!(
            (report.totals.objects, report.totals.processing, report.totals.used),
            (0, 0, 0)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn readers_and_writers_keep_out_of_each_others_way(
        ops in proptest::collection::vec(op(), 1..120),
        ttl in proptest::option::weighted(0.3, 0u64..300),
        seed in any::<u64>(),
    ) {
        let mut world = World::new(ttl.map(Duration::from_millis), seed);
        for op in &ops {
            world.step(op);
        }
        world.wind_up();
    }
}
