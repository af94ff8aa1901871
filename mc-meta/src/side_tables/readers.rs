//! Reads that are over, as their clients report them.
//!
//! A read may use an object's memory for a while after the object was removed or replaced, so that
//! space cannot be given to others. Most reads are over long before that while is. A client that
//! counts its reads, and says with its calls how many it has begun and how many of the first are
//! over, gives the space of all objects back that no other client reads, without naming any of them:
//! space that was last read before the oldest read that may still be under way has no reader. It is
//! how epochs free memory in concurrent programs (K. Fraser, *Practical lock-freedom*, 2004, 5.2.3);
//! an epoch is a time of the master here, and a thread a client.
//!
//! A client that says nothing of its reads, and one that has gone, holds space for as long as a read
//! may last, as before.

use core::fmt;
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use mc_types::Time;

use crate::vocabulary::lock::{Mutex, rank};

/// The progress of a client's reads, as it reports it with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadProgress {
    /// Tells the client apart from all others, which cannot guess it.
    pub reader: u128,
    /// The reads that it has begun, those of this call included: they are numbered from 1.
    pub begun: u64,
    /// The reads up to this number are over: their memory is not looked at any more, and what they
    /// have asked for and was not answered is not wanted.
    pub over: u64,
}

/// Reads that begin within so much time are taken for begun together, so that what is known of a
/// client is bounded.
const GRAIN: Duration = Duration::from_millis(16);
/// Clients whose reads are known at a time; those beyond are taken for such that say nothing.
const MAX_READERS: usize = 1 << 16;
/// Parts of the table with a lock each.
const PARTS: usize = 16;
/// The readers of a former master, of whom nothing is known.
const FORMER: u128 = 0;

/// The reads that may be under way, and the count of what is kept for them.
pub(crate) struct Readers {
    parts: [Mutex<HashMap<u128, Reader>, { rank::READERS }>; PARTS],
    /// How long a read may last without asking again.
    longest: Duration,
    /// How often space was kept for readers.
    keeps: AtomicU64,
    /// Nothing that is kept for readers was last read before this time, in milliseconds.
    oldest_kept: AtomicU64,
}

/// Reads of one client that may be under way.
#[derive(Debug, Default)]
struct Reader {
    marks: VecDeque<Mark>,
    /// When it read last.
    used: Time,
}

/// Reads of one client that began together: those up to a number, and above that of the mark before.
#[derive(Debug)]
struct Mark {
    number: u64,
    /// When the first of them was told where its object is.
    since: Time,
    /// When one of them was told so last: one that takes long asks again.
    told: Time,
}

/// The space that has no reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quiet {
    /// Only space whose object was last read before this time; `None`: at any time.
    before: Option<Time>,
    /// Only space with a number below this one.
    keeps: u64,
}

impl Quiet {
    /// Returns whether space of an object that was last read then may have no reader.
    pub(crate) fn reaches(self, read: Time) -> bool {
        self.before.is_none_or(|before| read < before)
    }

    /// Returns whether the space with this number, of an object last read then, has no reader.
    pub(crate) fn includes(self, number: u64, read: Time) -> bool {
        number < self.keeps && self.reaches(read)
    }
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readers").field("keeps", &self.keeps).finish_non_exhaustive()
    }
}

impl Readers {
    pub(crate) fn new(longest: Duration) -> Self {
        Self {
            parts: core::array::from_fn(|_| Mutex::default()),
            longest,
            keeps: AtomicU64::new(0),
            oldest_kept: AtomicU64::new(u64::MAX),
        }
    }

    fn part(&self, reader: u128) -> &Mutex<HashMap<u128, Reader>, { rank::READERS }> {
        // Clients draw it at random.
        &self.parts[reader as usize % PARTS]
    }

    /// A client is about to be told where objects are; false when it cannot be followed, and counts
    /// as one that says nothing. To be called before any of the objects is looked at.
    pub(crate) fn begin(&self, now: Time, said: &ReadProgress) -> bool {
        if said.reader == FORMER {
            return false;
        }
        let mut part = self.part(said.reader).lock();
        if part.len() >= MAX_READERS / PARTS && !part.contains_key(&said.reader) {
            part.retain(|_, reader| reader.used + self.longest > now);
            if part.len() >= MAX_READERS / PARTS {
                return false;
            }
        }
        let reader = part.entry(said.reader).or_default();
        reader.used = reader.used.max(now);
        reader.over(said.over);
        reader.begin(now, said);
        true
    }

    /// A client says which of its reads are over.
    pub(crate) fn note(&self, said: &ReadProgress) {
        if let Some(reader) = self.part(said.reader).lock().get_mut(&said.reader)
            && said.reader != FORMER
        {
            reader.over(said.over);
        }
    }

    /// Clients of a former master may be reading everything that there is.
    pub(crate) fn follow_former(&self, now: Time) {
        let mut part = self.part(FORMER).lock();
        let former = part.entry(FORMER).or_default();
        former.marks.push_back(Mark { number: u64::MAX, since: now, told: now });
        former.used = now;
    }

    /// Counts space that is kept for readers of an object that was last read then; returns its number.
    pub(crate) fn keep(&self, read: Time) -> u64 {
        self.kept_since(read);
        self.keeps.fetch_add(1, Ordering::AcqRel)
    }

    fn kept_since(&self, read: Time) {
        self.oldest_kept.fetch_min(read.as_millis(), Ordering::Relaxed);
    }

    /// Returns which space has no reader, if that may be any that is kept.
    pub(crate) fn quiet(&self, now: Time) -> Option<Quiet> {
        let oldest = self.oldest_kept.load(Ordering::Relaxed);
        if oldest == u64::MAX {
            return None;
        }
        // A reader of space that is kept later may begin after its part was looked at below.
        let keeps = self.keeps.load(Ordering::Acquire);
        let parts = self.parts.iter().filter_map(|part| {
            let mut part = part.lock();
            part.retain(|_, reader| reader.used + self.longest > now);
            part.values_mut().filter_map(|reader| reader.oldest(now, self.longest)).min()
        });
        let before = parts.min();
        before.is_none_or(|before| oldest < before.as_millis()).then_some(Quiet { before, keeps })
    }

    /// All space is about to be looked at: what stays is to be counted
    /// [again](Self::stays).
    pub(crate) fn recount(&self) {
        self.oldest_kept.store(u64::MAX, Ordering::Relaxed);
    }

    /// Space stays kept whose object was last read then.
    pub(crate) fn stays(&self, read: Time) {
        self.kept_since(read);
    }
}

impl Reader {
    fn over(&mut self, number: u64) {
        while self.marks.front().is_some_and(|mark| mark.number <= number) {
            self.marks.pop_front();
        }
    }

    fn begin(&mut self, now: Time, said: &ReadProgress) {
        if said.begun <= said.over {
            return;
        }
        let mut new = Mark { number: said.begun, since: now, told: now };
        // Calls overtake each other after they were given their times: the first mark stays the oldest.
        while self.marks.back().is_some_and(|mark| mark.since > now)
            && let Some(mark) = self.marks.pop_back()
        {
            (new.number, new.told) = (new.number.max(mark.number), new.told.max(mark.told));
        }
        match self.marks.back_mut() {
            Some(mark) if mark.number >= new.number || now - mark.since < GRAIN => {
                mark.number = mark.number.max(new.number);
                mark.told = mark.told.max(new.told);
            }
            _ => self.marks.push_back(new),
        }
    }

    /// When the oldest read began that may be under way.
    fn oldest(&mut self, now: Time, longest: Duration) -> Option<Time> {
        // A renewal moves only the last mark, so that marks expire in their order.
        while self.marks.front().is_some_and(|mark| mark.told + longest <= now) {
            self.marks.pop_front();
        }
        self.marks.front().map(|mark| mark.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(10);

    fn at(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    fn said(reader: u128, begun: u64, over: u64) -> ReadProgress {
        ReadProgress { reader, begun, over }
    }

    /// Whether space that is retained now, and was last read then, has no reader.
    fn is_quiet(readers: &Readers, now: Time, read: Time) -> bool {
        let number = readers.keep(read);
        readers.quiet(now).is_some_and(|quiet| quiet.includes(number, read))
    }

    #[test]
    fn a_read_is_under_way_until_its_client_says_otherwise() {
        let readers = Readers::new(LONGEST);
        assert!(is_quiet(&readers, at(0), at(0)));
        assert!(readers.begin(at(100), &said(1, 1, 0)));
        assert!(!is_quiet(&readers, at(100), at(100)));
        assert!(is_quiet(&readers, at(100), at(99)));
        // Its next read says that the one before is over.
        assert!(readers.begin(at(200), &said(1, 2, 1)));
        assert!(is_quiet(&readers, at(200), at(199)) && !is_quiet(&readers, at(200), at(200)));
        readers.note(&said(1, 2, 2));
        assert!(is_quiet(&readers, at(200), at(200)));
    }

    #[test]
    fn the_oldest_read_of_all_clients_counts() {
        let readers = Readers::new(LONGEST);
        for reader in 1..100 {
            assert!(readers.begin(at(100 * reader as u64), &said(reader, 1, 0)));
        }
        for reader in 1..100 {
            let oldest = at(100 * reader as u64);
            assert!(!is_quiet(&readers, at(9900), oldest));
            assert!(is_quiet(&readers, at(9900), at(oldest.as_millis() - 1)));
            readers.note(&said(reader, 1, 1));
        }
        assert!(is_quiet(&readers, at(9900), at(9900)));
    }

    #[test]
    fn a_client_that_has_gone_holds_space_no_longer_than_a_read_may_last() {
        let readers = Readers::new(LONGEST);
        assert!(readers.begin(at(100), &said(1, 1, 0)));
        let end = at(100) + LONGEST;
        assert!(!is_quiet(&readers, at(end.as_millis() - 1), at(100)));
        assert!(is_quiet(&readers, end, at(100)));
    }

    #[test]
    fn a_read_that_asks_again_goes_on_for_as_long_as_it_was_told_last() {
        let readers = Readers::new(LONGEST);
        assert!(readers.begin(at(100), &said(1, 1, 0)));
        assert!(readers.begin(at(9_000), &said(1, 1, 0)));
        assert!(!is_quiet(&readers, at(18_999), at(9_000)));
        assert!(is_quiet(&readers, at(19_000), at(9_000)));
        // Beside others that began later, and before.
        assert!(readers.begin(at(30_000), &said(1, 2, 1)));
        assert!(readers.begin(at(31_000), &said(1, 3, 1)));
        assert!(readers.begin(at(39_000), &said(1, 3, 1)));
        assert!(!is_quiet(&readers, at(48_999), at(39_000)));
        readers.note(&said(1, 3, 2));
        assert!(!is_quiet(&readers, at(48_999), at(39_000)));
        readers.note(&said(1, 3, 3));
        assert!(is_quiet(&readers, at(48_999), at(39_000)));
    }

    #[test]
    fn many_reads_at_once_are_few_marks() {
        let readers = Readers::new(LONGEST);
        for number in 1..=20_000 {
            assert!(readers.begin(at(number / 2), &said(1, number, 0)));
        }
        let part = readers.part(1).lock();
        assert!(part[&1].marks.len() <= 10_000 / 16 + 1, "{}", part[&1].marks.len());
        drop(part);
        readers.note(&said(1, 20_000, 19_000));
        // To the grain.
        assert!(is_quiet(&readers, at(10_000), at(9_400)));
        assert!(!is_quiet(&readers, at(10_000), at(9_501)));
    }

    #[test]
    fn calls_that_overtake_each_other_free_nothing_too_early() {
        let readers = Readers::new(LONGEST);
        // The third read's call arrives first, and says that the first is over.
        assert!(readers.begin(at(100), &said(1, 3, 1)));
        assert!(readers.begin(at(101), &said(1, 2, 0)));
        readers.note(&said(1, 3, 2));
        assert!(!is_quiet(&readers, at(102), at(100)));
        readers.note(&said(1, 3, 3));
        assert!(is_quiet(&readers, at(102), at(102)));
        assert!(readers.begin(at(300), &said(2, 7, 0)));
        assert!(readers.begin(at(200), &said(2, 8, 0)));
        assert!(!is_quiet(&readers, at(300), at(200)));
        readers.note(&said(2, 8, 7));
        assert!(!is_quiet(&readers, at(300), at(200)));
        readers.note(&said(2, 8, 8));
        // A read that arrives after its client has ended it does not count.
        assert!(readers.begin(at(103), &said(1, 3, 3)));
        assert!(is_quiet(&readers, at(103), at(103)));
    }

    #[test]
    fn readers_of_a_former_master_are_waited_for() {
        let readers = Readers::new(LONGEST);
        readers.follow_former(at(50));
        readers.note(&said(FORMER, u64::MAX, u64::MAX));
        assert!(!readers.begin(at(51), &said(FORMER, u64::MAX, u64::MAX)), "nobody's number");
        assert!(!is_quiet(&readers, at(60), at(50)) && is_quiet(&readers, at(60), at(49)));
        assert!(is_quiet(&readers, at(50) + LONGEST, at(50)));
    }

    #[test]
    fn what_is_kept_later_is_not_quiet_by_an_earlier_look() {
        let readers = Readers::new(LONGEST);
        let first = readers.keep(at(10));
        let quiet = readers.quiet(at(20)).unwrap();
        let second = readers.keep(at(10));
        assert!(quiet.includes(first, at(10)) && !quiet.includes(second, at(10)));
    }

    #[test]
    fn clients_beyond_the_limit_are_not_followed() {
        let readers = Readers::new(LONGEST);
        let of_one_part = |n: usize| said((n * PARTS + 1) as u128, 1, 0);
        let most = MAX_READERS / PARTS;
        for n in 0..most {
            assert!(readers.begin(at(0), &of_one_part(n)));
        }
        assert!(!readers.begin(at(1), &of_one_part(most)));
        assert!(readers.begin(at(2), &of_one_part(0)), "known already");
        assert!(readers.begin(at(0) + LONGEST, &of_one_part(most)), "the others have gone");
    }
}
