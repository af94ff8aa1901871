//! Runs of neighbours, and which is worth least.

use std::collections::HashMap;

use crate::eviction::room::{Generation, Time};
use crate::vocabulary::slot::ObjectSlot;

/// An object that may go, as part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    pub(crate) shard: usize,
    pub(crate) slot: ObjectSlot,
    pub(crate) generation: Generation,
    pub(crate) touched: Time,
    /// Bytes of all its replicas.
    pub(crate) bytes: u64,
    /// The less, the sooner it goes.
    pub(crate) worth: u64,
    /// The group that it is evicted with; 0 for none.
    pub(crate) group: usize,
    /// Members of the group, itself included; 1 without a group.
    pub(crate) members: u64,
}

/// The loss that comes with a part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stake {
    Nothing,
    Object(Victim),
}

/// A part of a segment that is free or has one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) len: u64,
    /// `None` for what may not go.
    pub(crate) stake: Option<Stake>,
}

/// Neighbours that make room together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) victims: Vec<Victim>,
    /// Bytes lost, with the groups of the victims.
    pub(crate) loss: u64,
    worth: u64,
}

impl Run {
    /// The best of all runs of at least `needed` bytes among `pieces`, which are in order
    /// of address. None of its ends can be left out. Runs in which nothing is lost are not
    /// looked for: the allocator has tried those.
    pub(crate) fn cheapest(pieces: &[Piece], needed: u64, most_lost: u64) -> Option<Self> {
        let mut best: Option<(Price, core::ops::Range<usize>)> = None;
        let mut window = Window::default();
        let mut start = 0;
        for (end, piece) in pieces.iter().enumerate() {
            let Some(stake) = piece.stake else {
                window = Window::default();
                start = end + 1;
                continue;
            };
            window.add(piece.len, stake);
            while let Piece { len, stake: Some(stake) } = pieces[start]
                && window.len - len >= needed
            {
                window.remove(len, stake);
                start += 1;
            }
            if window.len >= needed && window.loss > 0 {
                let price = Price::of(window.loss, window.worth, most_lost);
                if best.as_ref().is_none_or(|(least, _)| price < *least) {
                    best = Some((price, start..end + 1));
                }
            }
        }
        let (price, range) = best?;
        let victims = pieces[range].iter().filter_map(|piece| match piece.stake {
            Some(Stake::Object(victim)) => Some(victim),
            _ => None,
        });
        Some(Self { victims: victims.collect(), loss: price.loss, worth: price.worth })
    }

    /// Returns whether this one goes rather than the other.
    pub(crate) fn is_better_than(&self, other: &Self, most_lost: u64) -> bool {
        let price = |run: &Self| Price::of(run.loss, run.worth, most_lost);
        price(self) < price(other)
    }
}

/// The cost of a run: too many bytes are worse than anything, and only then counts how
/// many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Price {
    excess: u64,
    worth: u64,
    loss: u64,
}

impl Price {
    const fn of(loss: u64, worth: u64, most_lost: u64) -> Self {
        Self { excess: loss.saturating_sub(most_lost), worth, loss }
    }
}

/// Neighbours in a row, and what they amount to.
#[derive(Debug, Default)]
struct Window {
    len: u64,
    loss: u64,
    worth: u64,
    groups: HashMap<usize, Counted>,
}

/// A group that has members in a window. What the others have is taken to be as much each.
#[derive(Debug)]
struct Counted {
    members: u64,
    loss: u64,
    worth: u64,
}

impl Window {
    fn add(&mut self, len: u64, stake: Stake) {
        self.len += len;
        let Stake::Object(victim) = stake else { return };
        if victim.group != 0 {
            let counted = self.groups.entry(victim.group).or_insert_with(|| Counted {
                members: 0,
                loss: victim.bytes.saturating_mul(victim.members),
                worth: victim.worth.saturating_mul(victim.members),
            });
            counted.members += 1;
            if counted.members > 1 {
                return;
            }
            self.loss = self.loss.saturating_add(counted.loss);
            self.worth = self.worth.saturating_add(counted.worth);
        } else {
            self.loss = self.loss.saturating_add(victim.bytes);
            self.worth = self.worth.saturating_add(victim.worth);
        }
    }

    fn remove(&mut self, len: u64, stake: Stake) {
        self.len -= len;
        let Stake::Object(victim) = stake else { return };
        let (loss, worth) = match self.groups.get_mut(&victim.group) {
            Some(counted) if counted.members > 1 => {
                counted.members -= 1;
                return;
            }
            Some(_) => match self.groups.remove(&victim.group) {
                Some(Counted { loss, worth, .. }) => (loss, worth),
                None => return,
            },
            None => (victim.bytes, victim.worth),
        };
        self.loss = self.loss.saturating_sub(loss);
        self.worth = self.worth.saturating_sub(worth);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn victim(slot: u32, bytes: u64, worth: u64) -> Piece {
        let victim = Victim {
            shard: 0,
            slot: ObjectSlot::new(slot),
            generation: Generation::new(1),
            touched: Time::ORIGIN,
            bytes,
            worth,
            group: 0,
            members: 1,
        };
        Piece { len: bytes, stake: Some(Stake::Object(victim)) }
    }

    fn grouped(slot: u32, bytes: u64, group: usize, members: u64) -> Piece {
        let mut piece = victim(slot, bytes, 1);
        if let Some(Stake::Object(victim)) = &mut piece.stake {
            (victim.group, victim.members) = (group, members);
        }
        piece
    }

    const fn gap(len: u64) -> Piece {
        Piece { len, stake: Some(Stake::Nothing) }
    }

    const fn blocked(len: u64) -> Piece {
        Piece { len, stake: None }
    }

    fn slots(pieces: &[Piece], needed: u64) -> Option<Vec<u32>> {
        let run = Run::cheapest(pieces, needed, needed * 2)?;
        Some(run.victims.iter().map(|victim| victim.slot.as_u32()).collect())
    }

    #[test]
    fn the_run_that_is_worth_least_is_taken_and_what_may_not_go_breaks_it() {
        let pieces = [
            victim(0, 10, 1),
            victim(1, 10, 1),
            blocked(10),
            victim(2, 10, 9),
            gap(10),
            victim(3, 10, 5),
            victim(4, 10, 7),
        ];
        assert_eq!(slots(&pieces, 30), Some(vec![3, 4]));
        assert_eq!(slots(&pieces, 20), Some(vec![0, 1]));
        assert_eq!(slots(&pieces, 11), Some(vec![0, 1]));
        assert_eq!(slots(&pieces, 40), Some(vec![2, 3, 4]));
        assert_eq!(slots(&pieces, 41), None);
        assert_eq!(slots(&[gap(10)], 5), None);
    }

    #[test]
    fn too_many_bytes_are_lost_only_where_there_is_no_other_way() {
        let pieces = [victim(0, 100, 1), blocked(1), victim(1, 10, 99)];
        assert_eq!(slots(&pieces, 10), Some(vec![1]));
        assert_eq!(slots(&pieces[..2], 10), Some(vec![0]));
    }

    #[test]
    fn a_group_counts_once_and_as_a_whole() {
        let pieces = [grouped(0, 10, 7, 3), grouped(1, 10, 7, 3), gap(5), victim(2, 10, 1)];
        let run = Run::cheapest(&pieces[..2], 20, 100).expect("both may go");
        assert_eq!((run.loss, run.worth), (30, 3));
        assert_eq!(slots(&pieces, 15), Some(vec![2]));
    }
}
