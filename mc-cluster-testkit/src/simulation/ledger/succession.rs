//! How the state of a new master follows from that of the masters before it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mc_ha::Position;
use mc_types::{Epoch, Generation};

use super::changes::{Change, Undone, What};
use super::state::{LostWith, Readable, SLACK, State, overlapping};
use crate::simulation::clock::virtual_time;

type Objects = BTreeMap<String, Readable>;

impl State {
    /// Checks that the state builds on that of the masters before, which could read the objects
    /// `old`, without the changes that are behind `from`; see [`Ledger::leads`](super::Ledger::leads). Some of
    /// these objects are `lost` with segments.
    pub(super) fn goes_on(
        &mut self,
        (old, mut lost): (&Objects, LostWith),
        (term, from): (Epoch, Position),
        may_lack: Option<Duration>,
    ) -> Vec<Undone> {
        let missing = match self.changes.follow(term, from) {
            Ok(missing) => missing,
            Err(why) => {
                self.violates(format_args!("a new master leads from {from}: {why}"));
                return Vec::new();
            }
        };
        let mut expected = old.clone();
        let keys = self.undo(&missing, &mut expected, &mut lost);
        self.check_acknowledged(old, &expected, &missing, may_lack);
        self.check_same(&expected, &lost);
        for (key, object) in &mut self.readable {
            let was = expected.get(key).filter(|was| was.generation == object.generation);
            if let Some(was) = was {
                (object.acknowledged, object.stored_before) = (was.acknowledged, was.stored_before);
            }
            if keys.contains_key(key) {
                // An answer that is under way may be about a value that is there no more.
                object.stored_before = virtual_time();
            }
        }
        self.spoil(&missing);
        let undone = keys.into_iter().map(|(key, since)| Undone { key, since });
        if may_lack.is_some() { undone.collect() } else { Vec::new() }
    }

    /// Takes changes back, the last one first. Returns the keys, and when the first change of each was. What is
    /// still `lost` then went with segments whose end the new master knows of.
    fn undo(
        &mut self,
        missing: &[Change],
        objects: &mut Objects,
        lost: &mut LostWith,
    ) -> BTreeMap<String, Duration> {
        let (mut keys, mut back) = (BTreeMap::new(), BTreeSet::new());
        for change in missing {
            match &change.what {
                What::Stored { key } => {
                    objects.remove(key);
                    keys.insert(key.clone(), change.time);
                }
                What::Removed { key, was, is_requested, lost_with } => {
                    objects.insert(key.clone(), *was);
                    if !lost_with.is_empty() {
                        lost.insert(was.generation, lost_with.clone());
                    }
                    keys.insert(key.clone(), change.time);
                    if *is_requested {
                        // The call may be repeated.
                        *self.removals.entry(key.clone()).or_default() += 1;
                        self.last_removed.remove(key);
                    }
                }
                What::SegmentGone { segment } => _ = back.insert(*segment),
                What::Claimed { .. } => {}
            }
        }
        lost.retain(|_, segments| segments.iter().all(|segment| !back.contains(segment)));
        keys
    }

    /// Checks that no more of what was acknowledged is missing than may be.
    fn check_acknowledged(
        &mut self,
        old: &Objects,
        expected: &Objects,
        missing: &[Change],
        may_lack: Option<Duration>,
    ) {
        let is_there = |key: &str, generation: Generation| {
            expected.get(key).is_some_and(|it| it.generation == generation)
        };
        let stored = old.iter().filter_map(|(key, was)| {
            let begin = was.acknowledged.filter(|_| !is_there(key, was.generation))?;
            Some((
                key.clone(),
                was.generation,
                begin,
                "acknowledged, and a new master does not know it",
            ))
        });
        let gone = std::mem::take(&mut self.gone);
        let removed = gone.iter().filter(|(key, (generation, _))| is_there(key, *generation));
        let removed = removed.map(|(key, (generation, begin))| {
            (key.clone(), *generation, *begin, "removed, and a new master has it again")
        });
        let lost: Vec<_> = stored.chain(removed).collect();
        let oldest = missing.last().map_or(Duration::ZERO, |change| change.time);
        for (key, generation, begin, what) in lost {
            match may_lack {
                // Acknowledged later than it was called.
                Some(time) if begin <= oldest + time + SLACK => self.undone += 1,
                _ => self.violates(format_args!(
                    "{key} ({generation:?}) was {what}; it was called at {begin:?}, and the oldest \
                     change that is missing is of {oldest:?}"
                )),
            }
        }
    }

    /// Checks that exactly these objects are there, but for some that may be lost: those that are in files, too,
    /// are not.
    fn check_same(&mut self, expected: &Objects, lost: &LostWith) {
        let mut wrong = Vec::new();
        for (key, was) in expected {
            let generation = was.generation;
            match self.readable.get(key) {
                Some(now) if now.generation == generation => {}
                None if lost.contains_key(&generation) => {}
                now => wrong.push(format!(
                    "a new master's journal has {key} ({generation:?}), and it has {:?}",
                    now.map(|it| it.generation)
                )),
            }
        }
        for (key, now) in self.readable.iter().filter(|(key, _)| !expected.contains_key(*key)) {
            let generation = now.generation;
            wrong.push(format!("a new master has {key} ({generation:?}), which was not there"));
        }
        wrong.into_iter().for_each(|wrong| self.violates(wrong));
    }

    /// Notes which objects are back in space that others wrote to meanwhile, or after their files went.
    fn spoil(&mut self, missing: &[Change]) {
        let mut spoiled = Vec::new();
        for change in missing {
            match &change.what {
                What::Claimed { segment, start, end, generation } => {
                    let ranges = self.segments.get(segment).map(|segment| &segment.ranges);
                    let ranges = ranges.map(|ranges| overlapping(ranges, *start, *end));
                    let others = ranges.into_iter().flatten().map(|(_, it)| it.owner.generation);
                    let others = others.filter(|other| other != generation);
                    let before = spoiled.len();
                    spoiled.extend(others);
                    self.overwritten.extend(&spoiled[before..]);
                }
                What::Removed { key, .. } => {
                    let object = self.readable.get(key).filter(|object| object.has_files);
                    spoiled.extend(object.map(|object| object.generation));
                }
                What::Stored { .. } | What::SegmentGone { .. } => {}
            }
        }
        let objects = self.readable.iter().filter(|(_, it)| spoiled.contains(&it.generation));
        let objects = objects.map(|(key, it)| (key.clone(), (it.generation, None)));
        self.spoiled.extend(objects.collect::<Vec<_>>());
    }

    /// Returns whether this object is or was one that may have lost its bytes.
    pub(super) fn was_spoiled(&self, key: &str, generation: Generation) -> bool {
        self.spoiled.get(key).is_some_and(|(spoiled, _)| *spoiled == generation)
    }
}
