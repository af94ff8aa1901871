//! Policies with an order that is simple to say, against that order said slowly.

use mc_evict::{EvictionPolicy, Fifo, Handle, Item, Prefix, Sieve, Verdict};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Insert(Handle, u64),
    Access(Handle),
    Remove(Handle),
    Evict(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let handle = 0u32..20;
    let op = prop_oneof![
        3 => (handle.clone(), 0u64..20).prop_map(|(handle, parent)| Op::Insert(handle, parent)),
        3 => handle.clone().prop_map(Op::Access),
        1 => handle.prop_map(Op::Remove),
        2 => (0usize..4).prop_map(Op::Evict),
    ];
    proptest::collection::vec(op, 0..300)
}

/// A thing of the models: its handle, whether or when it was used, and its parent.
#[derive(Clone, Debug)]
struct Thing {
    handle: Handle,
    used: u64,
    parent: u64,
}

/// An order of eviction over things in the order of insertion.
trait Model {
    fn access(&mut self, thing: &mut Thing);
    /// The place of the next victim; the model may change what it passes.
    fn next(&mut self, things: &mut [Thing]) -> usize;
    /// The thing at this place is gone, and so many are left.
    fn gone(&mut self, _place: usize, _left: usize) {}
}

fn agrees(
    policy: &mut dyn EvictionPolicy,
    model: &mut dyn Model,
    ops: Vec<Op>,
) -> Result<(), TestCaseError> {
    let mut things: Vec<Thing> = Vec::new();
    for op in ops.into_iter().chain([Op::Evict(usize::MAX)]) {
        match op {
            Op::Insert(handle, parent) => {
                policy.insert(handle, Item { hash: u64::from(handle) + 1, parent });
                match things.iter_mut().find(|thing| thing.handle == handle) {
                    Some(thing) => model.access(thing),
                    None => {
                        let mut thing = Thing { handle, used: 0, parent };
                        if parent == u64::from(handle) + 1 {
                            thing.parent = 0;
                        }
                        model.access(&mut thing);
                        // Insertion is no use for a model that asks whether there was one.
                        thing.used = if thing.used == 1 { 0 } else { thing.used };
                        things.push(thing);
                    }
                }
            }
            Op::Access(handle) => {
                policy.access(handle);
                if let Some(thing) = things.iter_mut().find(|thing| thing.handle == handle) {
                    model.access(thing);
                }
            }
            Op::Remove(handle) => {
                policy.remove(handle);
                if let Some(place) = things.iter().position(|thing| thing.handle == handle) {
                    things.remove(place);
                    model.gone(place, things.len());
                }
            }
            Op::Evict(count) => {
                let mut victims = Vec::new();
                policy.evict(&mut |handle| {
                    if victims.len() == count {
                        return Verdict::Stop;
                    }
                    victims.push(handle);
                    Verdict::Evict
                });
                let mut expected = Vec::new();
                while expected.len() < count && !things.is_empty() {
                    let place = model.next(&mut things);
                    expected.push(things.remove(place).handle);
                    model.gone(place, things.len());
                }
                prop_assert_eq!(&victims, &expected);
                if !things.is_empty() && victims.len() == count {
                    // The policy has looked for the next one, so the model does.
                    model.next(&mut things);
                }
            }
        }
        prop_assert_eq!(policy.len(), things.len());
    }
    Ok(())
}

struct Oldest;

impl Model for Oldest {
    fn access(&mut self, _thing: &mut Thing) {}

    fn next(&mut self, _things: &mut [Thing]) -> usize {
        0
    }
}

/// The hand is a place in the order of insertion.
struct Hand(usize);

impl Model for Hand {
    fn access(&mut self, thing: &mut Thing) {
        thing.used = 1;
    }

    fn next(&mut self, things: &mut [Thing]) -> usize {
        loop {
            self.0 %= things.len();
            if std::mem::take(&mut things[self.0].used) == 0 {
                return self.0;
            }
            self.0 += 1;
        }
    }

    fn gone(&mut self, place: usize, left: usize) {
        if place < self.0 {
            self.0 -= 1;
        }
        // Behind the newest the hand begins again, whatever is inserted then.
        if self.0 == left {
            self.0 = 0;
        }
    }
}

/// The clock of uses; 1 is left out, see above.
struct Leaves(u64);

impl Model for Leaves {
    fn access(&mut self, thing: &mut Thing) {
        self.0 += 1;
        thing.used = self.0;
    }

    fn next(&mut self, things: &mut [Thing]) -> usize {
        let is_leaf =
            |thing: &Thing| !things.iter().any(|child| child.parent == u64::from(thing.handle) + 1);
        let places = 0..things.len();
        let coldest = |places: &mut dyn Iterator<Item = usize>| {
            places.min_by_key(|place| things[*place].used)
        };
        coldest(&mut places.clone().filter(|place| is_leaf(&things[*place])))
            .or_else(|| coldest(&mut places.clone()))
            .expect("there are things")
    }
}

proptest! {
    #[test]
    fn fifo_takes_the_oldest(ops in ops()) {
        agrees(&mut Fifo::new(), &mut Oldest, ops)?;
    }

    #[test]
    fn sieve_takes_what_was_not_used_since_the_hand_was_there(ops in ops()) {
        agrees(&mut Sieve::new(), &mut Hand(0), ops)?;
    }

    #[test]
    fn prefix_takes_the_coldest_leaf(ops in ops()) {
        agrees(&mut Prefix::new(), &mut Leaves(1), ops)?;
    }
}

/// A chain is evicted from its end.
#[test]
fn a_chain_goes_from_its_end() {
    let mut policy = Prefix::new();
    for (handle, parent) in [(0, 0), (1, 1), (2, 2), (3, 1)] {
        policy.insert(handle, Item::new(u64::from(handle) + 1).with_parent(parent));
    }
    policy.access(2);
    let mut order = Vec::new();
    policy.evict(&mut |handle| {
        order.push(handle);
        Verdict::Evict
    });
    // 0 is continued by 1 and 3, and 1 by 2.
    assert_eq!(order, [3, 2, 1, 0]);
}
