//! Deadlines that all lie the same distance ahead.

use alloc::collections::VecDeque;

use mc_types::Time;

/// A queue of deadlines in the order in which they were set.
///
/// Where every deadline is `now` plus the same duration, the order of setting is
/// the order of ending, and a plain queue does what a timing wheel does in
/// general: [`pop_due`](Self::pop_due) costs O(due), setting costs O(1).
/// An entry is never removed early; whoever pops it checks whether it still
/// means something.
///
/// ```
/// use mc_lease::DeadlineQueue;
/// use mc_types::Time;
///
/// let mut queue = DeadlineQueue::new();
/// queue.push(Time::from_millis(10), 'a');
/// queue.push(Time::from_millis(20), 'b');
/// assert_eq!(queue.pop_due(Time::from_millis(15)), Some('a'));
/// assert_eq!(queue.pop_due(Time::from_millis(15)), None);
/// ```
#[derive(Clone, Debug)]
pub struct DeadlineQueue<T> {
    entries: VecDeque<(Time, T)>,
}

impl<T> Default for DeadlineQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> DeadlineQueue<T> {
    /// An empty queue.
    #[must_use]
    pub const fn new() -> Self {
        Self { entries: VecDeque::new() }
    }

    /// Adds a deadline. One earlier than the last one set (a clock that stood
    /// still and was corrected) counts as the last one's, so that order is kept
    /// and nothing ends early.
    pub fn push(&mut self, deadline: Time, entry: T) {
        let last = self.entries.back().map_or(deadline, |(last, _)| *last);
        self.entries.push_back((deadline.max(last), entry));
    }

    /// Takes the oldest entry if its deadline is not after `now`.
    pub fn pop_due(&mut self, now: Time) -> Option<T> {
        if self.entries.front()?.0 > now {
            return None;
        }
        self.pop().map(|(_, entry)| entry)
    }

    /// Takes the oldest entry whatever its deadline.
    pub fn pop(&mut self) -> Option<(Time, T)> {
        let entry = self.entries.pop_front();
        // Give memory back after a burst, without shrinking at every pop.
        if self.entries.len() * 4 < self.entries.capacity() && self.entries.capacity() > 1024 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
        entry
    }

    /// The oldest deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.entries.front().map(|(deadline, _)| *deadline)
    }

    /// Entries in the queue.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_come_out_once_in_order_and_never_early(
            deadlines in proptest::collection::vec(0u64..100, 0..200),
            mut polls in proptest::collection::vec(0u64..120, 0..50),
        ) {
            let mut queue = DeadlineQueue::new();
            for (index, deadline) in deadlines.iter().enumerate() {
                queue.push(Time::from_millis(*deadline), index);
            }
            polls.sort_unstable();
            polls.push(u64::MAX);
            let mut popped = Vec::new();
            for now in polls {
                while let Some(index) = queue.pop_due(Time::from_millis(now)) {
                    prop_assert!(deadlines[index] <= now);
                    popped.push(index);
                }
            }
            prop_assert_eq!(popped, (0..deadlines.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn memory_is_given_back() {
        let mut queue = DeadlineQueue::new();
        for n in 0..100_000u64 {
            queue.push(Time::from_millis(n), n);
        }
        while queue.pop().is_some() {}
        assert!(queue.entries.capacity() <= 1024);
    }
}
