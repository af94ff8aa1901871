//! Every order in which threads can call one group.
//!
//! Each method holds the group's lock from its beginning to its end, and what is read
//! without it, whether the group is condemned, changes once and under it. So the orders
//! of whole calls are all that can happen, and trying each of them shows what a checker
//! that takes the place of mutexes and atomics would, without replacing any. Shards are
//! no part of it: calls for members in different shards meet nowhere but here.

use std::collections::{BTreeMap, BTreeSet};

use crate::object::group::*;

/// The clock's time throughout, and when a lease granted now ends.
const NOW: Time = Time::from_millis(5);
const LEASE_END: Time = Time::from_millis(10);

/// Members from the start; a third may join.
const FIRST: Generation = Generation::new(1);
const SECOND: Generation = Generation::new(2);
const THIRD: Generation = Generation::new(3);

/// A group, and what the threads have seen of it.
#[derive(Default)]
struct World {
    group: Arc<Group>,
    /// The members that there are.
    members: BTreeMap<Generation, Membership>,
    /// The hold of each thread that copies.
    holds: [Option<Hold>; 4],
    /// The memory of each thread from one of its steps to the next.
    told: [bool; 4],
    /// Members that evictions still have to take out.
    victims: [Vec<Generation>; 4],
    condemned: usize,
    joined: bool,
    promised: bool,
    removed: bool,
    taken: BTreeSet<Generation>,
}

impl World {
    fn new() -> Self {
        let mut world = Self::default();
        for member in [FIRST, SECOND] {
            let mut membership = world.group.join(member, 0).unwrap();
            membership.settle(ObjectSlot::new(1));
            membership.release();
            world.members.insert(member, membership);
        }
        world
    }

    fn take(&mut self, member: Generation) {
        // Its shard sees that it has gone already.
        if !(self.removed && member == SECOND) {
            assert!(self.taken.insert(member), "taken out once");
            self.members.remove(&member);
        }
    }

    /// Checks the rules that hold when all threads are done.
    fn check(mut self) {
        assert!(self.condemned <= 1, "given up once");
        assert_eq!(self.condemned == 1, self.group.is_condemned());
        if self.group.is_condemned() {
            let mut members = BTreeSet::from([FIRST, SECOND]);
            members.extend(self.joined.then_some(THIRD));
            members.retain(|member| !(self.removed && *member == SECOND));
            assert_eq!(self.taken, members, "all or none");
            assert!(!self.promised, "no reader was told that it stays");
            return;
        }
        assert!(self.taken.is_empty());
        let last = self.group.condemn(LEASE_END).expect("the last holder is gone");
        last.into_iter().for_each(|(member, _)| self.take(member));
        assert_eq!(self.taken.contains(&THIRD), self.joined);
        assert_eq!(self.taken.contains(&SECOND), !self.removed);
    }
}

/// One call of a group by the thread of this number.
type Step = fn(&mut World, usize);

/// A put of the third member begins and ends.
const PUT: &[Step] = &[
    |world, me| {
        let joined = world.group.join(THIRD, 0);
        world.told[me] = joined.is_some();
        world.joined = world.told[me];
        world.members.extend(joined.map(|membership| (THIRD, membership)));
    },
    |world, me| {
        if world.told[me] {
            assert!(!world.group.is_condemned(), "unfinished members hold it");
            world.members[&THIRD].settle(ObjectSlot::new(7));
        }
    },
    |world, me| {
        if world.told[me] {
            assert!(!world.group.is_condemned(), "unfinished members hold it");
            world.members.get_mut(&THIRD).unwrap().release();
        }
    },
];

/// A read of the first member.
const GET: &[Step] = &[
    |world, me| world.told[me] = !world.group.is_condemned(),
    |world, me| world.promised = world.told[me] && world.group.access(LEASE_END),
    |world, _| assert!(!(world.promised && world.taken.contains(&FIRST))),
];

/// A copy of the first member.
const COPY: &[Step] = &[
    |world, me| {
        world.holds[me] = world.group.hold();
        world.told[me] = world.holds[me].is_some();
    },
    |world, me| {
        if world.told[me] {
            assert!(!world.group.is_condemned(), "what is being copied holds it");
            world.holds[me] = None;
        }
    },
];

/// The second member is removed on request.
const REMOVE: &[Step] = &[|world, _| {
    if !world.taken.contains(&SECOND) {
        world.removed = true;
        world.members.remove(&SECOND);
    }
}];

/// An eviction that was offered a member, and takes the others out one by one.
const EVICT: &[Step] = &[
    |world, me| {
        if let Ok(members) = world.group.condemn(NOW) {
            world.condemned += usize::from(!members.is_empty());
            world.victims[me] = members.into_iter().map(|(member, _)| member).collect();
        }
    },
    take_next,
    take_next,
    take_next,
];

fn take_next(world: &mut World, me: usize) {
    if let Some(member) = world.victims[me].pop() {
        world.take(member);
    }
}

/// Runs the threads in every order of their steps; says in how many.
fn in_every_order(threads: &[&[Step]]) -> usize {
    let mut orders = 0;
    let mut order = Vec::new();
    extend(threads, &mut vec![0; threads.len()], &mut order, &mut |order| {
        let mut world = World::new();
        let mut next = vec![0; threads.len()];
        for &thread in order {
            threads[thread][next[thread]](&mut world, thread);
            next[thread] += 1;
        }
        world.check();
        orders += 1;
    });
    orders
}

fn extend(
    threads: &[&[Step]],
    done: &mut Vec<usize>,
    order: &mut Vec<usize>,
    run: &mut dyn FnMut(&[usize]),
) {
    let mut last = true;
    for thread in 0..threads.len() {
        if done[thread] < threads[thread].len() {
            last = false;
            done[thread] += 1;
            order.push(thread);
            extend(threads, done, order, run);
            order.pop();
            done[thread] -= 1;
        }
    }
    if last {
        run(order);
    }
}

#[test]
fn a_group_goes_as_a_whole_or_stays_in_whatever_order_threads_come() {
    // As many orders as there are: 10! / (3! 3! 4!).
    assert_eq!(in_every_order(&[PUT, GET, EVICT]), 4_200);
    assert_eq!(in_every_order(&[PUT, COPY, EVICT, REMOVE]), 12_600);
    assert_eq!(in_every_order(&[GET, COPY, EVICT, REMOVE]), 12_600);
    assert_eq!(in_every_order(&[EVICT, EVICT, REMOVE]), 630);
    assert_eq!(in_every_order(&[GET, PUT, EVICT, REMOVE]), 46_200);
}
