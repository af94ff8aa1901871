//! The unfinished puts of one shard, in the order in which they began.
//!
//! All puts have the same time-out, so the one that began first is due first, and
//! they come in the order of their generations: a queue holds them without
//! sorting. Most end within milliseconds, in any order. One that ends between
//! others leaves a hole, which goes when those around it do or when holes outnumber
//! puts.

use std::collections::VecDeque;

use mc_types::Generation;

use crate::vocabulary::slot::ObjectSlot;

/// Holes that are left alone however few puts are open.
const HOLES: usize = 64;

/// Entries below which memory is not given back.
const KEPT_ENTRIES: usize = 1024;

/// The unfinished puts of one shard, oldest first; or its transfers, by their ids.
#[derive(Debug)]
pub(crate) struct OpenPuts<Id = Generation> {
    /// In the order of ids; the first and the last are no holes.
    entries: VecDeque<OpenPut<Id>>,
    /// Entries that are no holes.
    open: usize,
}

#[derive(Clone, Copy, Debug)]
struct OpenPut<Id> {
    id: Id,
    /// `None` in a hole.
    slot: Option<ObjectSlot>,
}

const _: () = assert!(size_of::<OpenPut<Generation>>() == 16, "one for each unfinished put");

impl<Id: Copy + Ord> Default for OpenPuts<Id> {
    fn default() -> Self {
        Self::new()
    }
}

impl<Id: Copy + Ord> OpenPuts<Id> {
    pub(crate) const fn new() -> Self {
        Self { entries: VecDeque::new(), open: 0 }
    }

    /// Puts that have begun and not ended.
    pub(crate) const fn len(&self) -> usize {
        self.open
    }

    /// The put that began first, and its object's slot. O(1).
    pub(crate) fn oldest(&self) -> Option<(Id, ObjectSlot)> {
        let first = self.entries.front()?;
        Some((first.id, first.slot?))
    }

    /// Adds a put. O(1) when its id is larger than those before, as in a
    /// shard it is; O(n) otherwise.
    pub(crate) fn begin(&mut self, id: Id, slot: ObjectSlot) {
        let entry = OpenPut { id, slot: Some(slot) };
        self.open += 1;
        match self.entries.back() {
            Some(last) if last.id > id => {
                let at = self.entries.partition_point(|entry| entry.id < id);
                self.entries.insert(at, entry);
            }
            _ => self.entries.push_back(entry),
        }
    }

    /// Forgets a put; one that is not open is ignored. O(log n), and O(1) for the
    /// oldest and the newest; the time to close holes is shared by the puts that
    /// left them.
    pub(crate) fn ended(&mut self, id: Id) {
        let Ok(at) = self.entries.binary_search_by_key(&id, |entry| entry.id) else {
            return;
        };
        if self.entries[at].slot.take().is_none() {
            return;
        }
        self.open -= 1;
        while self.entries.front().is_some_and(|entry| entry.slot.is_none()) {
            self.entries.pop_front();
        }
        while self.entries.back().is_some_and(|entry| entry.slot.is_none()) {
            self.entries.pop_back();
        }
        if self.entries.len() > self.open * 2 + HOLES {
            self.entries.retain(|entry| entry.slot.is_some());
        }
        // Give memory back after a burst, without shrinking at every end.
        let capacity = self.entries.capacity();
        if capacity > KEPT_ENTRIES && self.entries.len() < capacity / 4 {
            self.entries.shrink_to((self.entries.len() * 2).max(KEPT_ENTRIES / 2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const fn at(number: u32) -> ObjectSlot {
        ObjectSlot::new(number)
    }

    const fn generation(number: u64) -> Generation {
        Generation::new(number)
    }

    /// Checks the rules that hold after every call.
    fn check(puts: &OpenPuts, model: &BTreeMap<Generation, ObjectSlot>) {
        assert_eq!(puts.len(), model.len());
        assert_eq!(puts.oldest(), model.first_key_value().map(|(&g, &slot)| (g, slot)));
        assert!(puts.entries.len() <= puts.len() * 2 + HOLES, "holes pile up");
        assert!(puts.entries.back().is_none_or(|entry| entry.slot.is_some()));
        let held = puts.entries.capacity();
        assert!(held <= KEPT_ENTRIES || held <= (puts.entries.len() + 1) * 4, "{held} held");
    }

    #[test]
    fn the_oldest_stays_first_while_a_hundred_thousand_come_and_go() {
        let mut puts = OpenPuts::new();
        puts.begin(generation(0), at(7));
        for number in 1..100_000 {
            puts.begin(generation(number), at(8));
            if number > 3 {
                puts.ended(generation(number - 3));
            }
            assert!(puts.entries.len() <= 4 * 2 + HOLES + 1);
        }
        assert_eq!((puts.len(), puts.oldest()), (4, Some((generation(0), at(7)))));
        puts.ended(generation(0));
        assert_eq!((puts.len(), puts.oldest()), (3, Some((generation(99_997), at(8)))));
    }

    #[test]
    fn one_that_is_not_open_is_ignored() {
        let mut puts = OpenPuts::new();
        puts.ended(generation(1));
        (0..3).for_each(|number| puts.begin(generation(number), at(number as u32)));
        puts.ended(generation(1));
        puts.ended(generation(1));
        puts.ended(generation(3));
        assert_eq!((puts.len(), puts.oldest()), (2, Some((generation(0), at(0)))));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Begin { times: u64 },
        BeginLate { back: u64 },
        End { at: usize, times: usize },
        EndOldest { times: usize },
        EndNewest { times: usize },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (1..900u64).prop_map(|times| Step::Begin { times }),
            1 => (1..2000u64).prop_map(|back| Step::BeginLate { back }),
            4 => (any::<usize>(), 1..900usize).prop_map(|(at, times)| Step::End { at, times }),
            1 => (1..900usize).prop_map(|times| Step::EndOldest { times }),
            1 => (1..900usize).prop_map(|times| Step::EndNewest { times }),
        ];
        vec(step, 1..20)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn it_is_a_map_in_order(steps in steps()) {
            let mut puts = OpenPuts::new();
            let mut model = BTreeMap::new();
            // Every other number is left for puts that come late.
            let mut next = 0;
            let end = |puts: &mut OpenPuts, model: &mut BTreeMap<_, _>, put| {
                puts.ended(put);
                model.remove(&put);
                check(puts, model);
            };
            for step in steps {
                match step {
                    Step::Begin { times } => for _ in 0..times {
                        next += 2;
                        puts.begin(generation(next), at(next as u32));
                        model.insert(generation(next), at(next as u32));
                        check(&puts, &model);
                    },
                    Step::BeginLate { back } => {
                        let late = generation(next.saturating_sub(back) | 1);
                        let known = puts.entries.iter().any(|entry| entry.id == late);
                        if !known {
                            puts.begin(late, at(1));
                            model.insert(late, at(1));
                        }
                        check(&puts, &model);
                    }
                    Step::End { at, times } => {
                        let open: Vec<Generation> = model.keys().copied().collect();
                        for turn in 0..times.min(open.len()) {
                            let put = open[at.wrapping_add(turn * 31) % open.len()];
                            end(&mut puts, &mut model, put);
                        }
                    }
                    Step::EndOldest { times } => for _ in 0..times.min(model.len()) {
                        let put = *model.first_key_value().unwrap().0;
                        end(&mut puts, &mut model, put);
                    },
                    Step::EndNewest { times } => for _ in 0..times.min(model.len()) {
                        let put = *model.last_key_value().unwrap().0;
                        end(&mut puts, &mut model, put);
                    },
                }
            }
        }
    }
}
