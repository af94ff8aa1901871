//! The promises of every policy, whatever its order.

use std::collections::{BTreeMap, BTreeSet};

use mc_evict::{EvictionPolicy, Handle, Item, MAX_HANDLE, PolicyKind, Verdict};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Insert(Handle, Item),
    InsertBelow(Handle, Item, Handle),
    Access(Handle),
    Remove(Handle),
    Readmit(Handle, Item),
    /// Offers to take, and which handles among them are protected: those that are a
    /// multiple of this.
    Evict(usize, Handle),
}

fn item() -> impl Strategy<Value = Item> {
    // Few hashes, so that things come back and are each other's parents.
    (0u64..40, 0u64..40).prop_map(|(hash, parent)| Item { hash, parent })
}

fn op() -> impl Strategy<Value = Op> {
    let handle = prop_oneof![9 => 0u32..24, 1 => 100_000u32..100_003];
    prop_oneof![
        4 => (handle.clone(), item()).prop_map(|(handle, item)| Op::Insert(handle, item)),
        1 => (handle.clone(), item(), handle.clone())
            .prop_map(|(handle, item, other)| Op::InsertBelow(handle, item, other)),
        4 => handle.clone().prop_map(Op::Access),
        1 => handle.clone().prop_map(Op::Remove),
        1 => (handle, item()).prop_map(|(handle, item)| Op::Readmit(handle, item)),
        2 => (0usize..6, 1u32..5).prop_map(|(count, of)| Op::Evict(count, of)),
    ]
}

/// Returns whether the first offer is what `coldest` names.
fn is_exact(kind: PolicyKind) -> bool {
    !matches!(kind, PolicyKind::S3Fifo | PolicyKind::Sieve)
}

/// Takes `count` offers; what is offered is held, and offered once.
fn evict(
    policy: &mut dyn EvictionPolicy,
    held: &mut BTreeSet<Handle>,
    exact: bool,
    count: usize,
    protected: Handle,
) -> Result<(), TestCaseError> {
    let coldest = policy.coldest();
    let before = held.clone();
    let mut offered = Vec::new();
    policy.evict(&mut |handle| {
        offered.push(handle);
        if offered.len() > count || offered.len() > before.len() + 1 {
            return Verdict::Stop;
        }
        held.remove(&handle);
        if handle % protected == 0 { Verdict::SetAside } else { Verdict::Evict }
    });
    prop_assert_eq!(offered.len(), before.len().min(count + 1), "all are offered");
    prop_assert_eq!(offered.iter().collect::<BTreeSet<_>>().len(), offered.len(), "once");
    prop_assert!(offered.iter().all(|handle| before.contains(handle)));
    if exact {
        prop_assert_eq!(coldest, offered.first().copied());
    }
    Ok(())
}

fn check(policy: &dyn EvictionPolicy, held: &BTreeSet<Handle>) -> Result<(), TestCaseError> {
    prop_assert_eq!(policy.len(), held.len());
    prop_assert_eq!(policy.is_empty(), held.is_empty());
    match policy.coldest() {
        Some(coldest) => prop_assert!(held.contains(&coldest)),
        None => prop_assert!(held.is_empty()),
    }
    let mut likely = [Handle::MAX; 5];
    let found = policy.upcoming(&mut likely);
    let likely: BTreeSet<Handle> = likely[..found].iter().copied().collect();
    prop_assert_eq!(likely.len(), found, "each once");
    prop_assert!(likely.is_subset(held));
    Ok(())
}

proptest! {
    /// The model is the set of what is held.
    #[test]
    fn all_hold_what_they_should(ops in proptest::collection::vec(op(), 0..400)) {
        for kind in PolicyKind::ALL {
            let mut policy = kind.build();
            let mut held = BTreeSet::new();
            for op in &ops {
                match *op {
                    Op::Insert(handle, item) => {
                        policy.insert(handle, item);
                        held.insert(handle);
                    }
                    Op::InsertBelow(handle, item, other) => {
                        policy.insert_below(handle, item, other);
                        held.insert(handle);
                    }
                    Op::Access(handle) => policy.access(handle),
                    Op::Remove(handle) => {
                        policy.remove(handle);
                        held.remove(&handle);
                    }
                    Op::Readmit(handle, item) => {
                        policy.readmit(handle, item);
                        held.insert(handle);
                    }
                    Op::Evict(count, protected) => {
                        evict(&mut *policy, &mut held, is_exact(*kind), count, protected)?;
                    }
                }
                check(&*policy, &held)?;
            }
            evict(&mut *policy, &mut held, is_exact(*kind), usize::MAX - 1, 3)?;
            prop_assert!(held.is_empty() && policy.is_empty());
        }
    }

    /// The same calls give the same offers.
    #[test]
    fn all_are_deterministic(ops in proptest::collection::vec(op(), 0..200)) {
        for kind in PolicyKind::ALL {
            prop_assert_eq!(offers(*kind, &ops), offers(*kind, &ops));
        }
    }
}

fn offers(kind: PolicyKind, ops: &[Op]) -> Vec<Handle> {
    let mut policy = kind.build();
    let mut offers = Vec::new();
    for op in ops {
        match *op {
            Op::Insert(handle, item) => policy.insert(handle, item),
            Op::InsertBelow(handle, item, other) => policy.insert_below(handle, item, other),
            Op::Access(handle) => policy.access(handle),
            Op::Remove(handle) => policy.remove(handle),
            Op::Readmit(handle, item) => policy.readmit(handle, item),
            Op::Evict(count, _) => {
                let until = offers.len() + count;
                policy.evict(&mut |handle| {
                    if offers.len() == until {
                        return Verdict::Stop;
                    }
                    offers.push(handle);
                    Verdict::Evict
                });
            }
        }
    }
    offers
}

/// [`EvictionPolicy::take`] by the other methods.
fn take(policy: &mut dyn EvictionPolicy, handle: Handle, verdict: Verdict) {
    let mut is_first = None;
    policy.evict(&mut |offered| match is_first {
        None if offered == handle => {
            is_first = Some(true);
            verdict
        }
        _ => {
            is_first.get_or_insert(false);
            Verdict::Stop
        }
    });
    match verdict {
        _ if is_first == Some(true) => {}
        Verdict::Evict => policy.give_up(handle),
        Verdict::SetAside => policy.remove(handle),
        Verdict::Stop => {}
    }
}

proptest! {
    #[test]
    fn what_is_taken_goes_as_if_it_was_offered(
        ops in prop::collection::vec((op(), 0u32..24, 0usize..3), 1..150),
    ) {
        for kind in PolicyKind::ALL {
            let (mut ours, mut model) = (kind.build(), kind.build());
            for (op, other, verdict) in &ops {
                let verdict = [Verdict::Evict, Verdict::SetAside, Verdict::Stop][*verdict];
                for policy in [&mut ours, &mut model] {
                    match *op {
                        Op::Insert(handle, item) => policy.insert(handle, item),
                        Op::InsertBelow(handle, item, other) => {
                            policy.insert_below(handle, item, other);
                        }
                        Op::Access(handle) => policy.access(handle),
                        Op::Remove(handle) => policy.remove(handle),
                        Op::Readmit(handle, item) => policy.readmit(handle, item),
                        Op::Evict(..) => {}
                    }
                }
                if let Op::Evict(..) = op {
                    let handle = ours.coldest().filter(|_| *other % 2 == 0).unwrap_or(*other);
                    ours.take(handle, verdict);
                    take(&mut *model, handle, verdict);
                }
                prop_assert_eq!(ours.len(), model.len(), "{}", kind);
            }
            let [ours, model] = [ours, model].map(|mut policy| {
                let mut order = Vec::new();
                policy.evict(&mut |handle| {
                    order.push(handle);
                    Verdict::Evict
                });
                order
            });
            prop_assert_eq!(ours, model, "{}", kind);
        }
    }
}

#[test]
fn handles_out_of_range_are_ignored() {
    for kind in PolicyKind::ALL {
        let mut policy = kind.build();
        for handle in [MAX_HANDLE + 1, Handle::MAX] {
            policy.insert(handle, Item::new(1));
            policy.readmit(handle, Item::new(1));
            policy.access(handle);
            policy.remove(handle);
        }
        assert!(policy.is_empty(), "{kind}");
        policy.evict(&mut |handle| panic!("{kind} offers {handle}"));
        // The last one in range is as good as any.
        policy.insert(MAX_HANDLE, Item::new(1));
        assert_eq!((policy.len(), policy.coldest()), (1, Some(MAX_HANDLE)), "{kind}");
    }
}

#[test]
fn what_comes_back_keeps_its_order_behind_what_was_there() {
    // Those whose order is that of use or of insertion.
    for kind in [PolicyKind::Lru, PolicyKind::Fifo, PolicyKind::Prefix, PolicyKind::Adaptive] {
        let mut policy = kind.build();
        for handle in 0..6 {
            policy.insert(handle, Item::new(u64::from(handle) + 1));
        }
        let mut aside = Vec::new();
        policy.evict(&mut |handle| {
            if aside.len() == 3 {
                return Verdict::Stop;
            }
            aside.push(handle);
            Verdict::SetAside
        });
        for handle in aside {
            policy.readmit(handle, Item::new(u64::from(handle) + 1));
        }
        let mut order = Vec::new();
        policy.evict(&mut |handle| {
            order.push(handle);
            Verdict::Evict
        });
        assert_eq!(order, [3, 4, 5, 0, 1, 2], "{kind}");
    }
}

/// Evicting all of a full cache, and a small part of it many times, looks at no more
/// than the victims and what was used since.
#[test]
fn offers_are_as_many_as_are_asked_for() {
    const HELD: u32 = 20_000;
    for kind in PolicyKind::ALL {
        let mut policy = kind.build();
        let mut hashes = BTreeMap::new();
        let mut offered = 0;
        for round in 0..4 * HELD {
            if round >= HELD {
                let mut taken = None;
                policy.evict(&mut |handle| {
                    offered += 1;
                    if taken.is_some() {
                        return Verdict::Stop;
                    }
                    taken = Some(handle);
                    Verdict::Evict
                });
                let taken = taken.expect("a full cache has a victim");
                assert!(hashes.remove(&taken).is_some(), "{kind}");
                policy.insert(taken, Item::new(u64::from(round) + 1));
                hashes.insert(taken, round);
            } else {
                policy.insert(round, Item::new(u64::from(round) + 1));
                hashes.insert(round, round);
            }
            policy.access(round % 997);
        }
        assert_eq!(policy.len(), HELD as usize, "{kind}");
        assert_eq!(offered, 2 * 3 * u64::from(HELD), "{kind}");
    }
}
