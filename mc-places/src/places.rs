//! The places, and the rule by which connections yield them.
//!
//! A new connection is not refused because others idle. When all places are taken one of
//! them yields: of the connections that have not made a call yet the oldest, unless they are
//! few, or else the one that has been silent for longest, from the source that has most.
//! Proved connections with calls under way yield nothing; to be at work, or to say something, is
//! no merit of a connection that has proved nothing. One that yields is told to go away, and a
//! client of ours connects again when it has something to ask.

use core::cmp::Reverse;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::source::Source;

/// One in this many places is for connections that have not made a call yet: they do not
/// yield to each other alone when all others are taken.
const UNPROVED_PART: usize = 16;

/// One in this many connections is looked for at a time, so that looking for the one that is
/// to yield costs each new connection little.
const FOUND_PART: usize = 64;

/// Connections that have been told to go away and are not gone yet, beside one in
/// [`UNPROVED_PART`] of all places. When there are more the first of them is cut off.
const MAX_LEAVING: usize = 64;

/// Time from a connection's handshake within which it must prove something, whatever it says
/// meanwhile.
const FIRST_CALL: Duration = Duration::from_secs(60);

/// The places of a server.
#[derive(Debug)]
pub struct Places {
    taken: Mutex<Taken>,
    max: usize,
    max_per_source: usize,
    idle_timeout: Duration,
    /// Grows with each connection and each sweep: a logical time that orders connections by how
    /// long they were silent.
    now: AtomicU64,
}

#[derive(Debug, Default)]
struct Taken {
    /// In the order in which they came, by [`Place::number`].
    places: HashMap<u64, Arc<Place>>,
    by_source: HashMap<Source, Few>,
    /// Connections that yield next.
    found: VecDeque<Found>,
    /// Connections that were told to go away, and perhaps are gone.
    leaving: VecDeque<Arc<Place>>,
    /// The number of `places` that are leaving.
    leaving_count: usize,
}

/// The connections of one source.
#[derive(Debug, Default)]
struct Few {
    count: usize,
    /// Connections that yield next to another of the same source.
    found: VecDeque<Found>,
}

/// A connection that may yield if it has stayed as it was.
#[derive(Clone, Copy, Debug)]
struct Found {
    number: u64,
    stage: Stage,
    seen: u64,
}

/// The stage that a connection has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Stage {
    /// The handshake is not over.
    New = 0,
    /// The handshake is over, and nothing else is proved.
    Shaken = 1,
    /// The connection has made a call, or shown a known key.
    Proved = 2,
}

/// The place of one connection.
#[derive(Debug)]
pub struct Place {
    number: u64,
    source: Source,
    stage: AtomicU8,
    /// When it has said something last, by [`Places::now`].
    seen: AtomicU64,
    /// Calls under way, or one for all of them.
    busy: AtomicU32,
    /// Taken when the connection is told to go away.
    go: Mutex<Option<oneshot::Sender<()>>>,
    leaving: AtomicBool,
    /// Ends the task of the connection.
    task: OnceLock<AbortHandle>,
    /// Since how many sweeps it has said nothing, and what it had said before.
    silent: AtomicU32,
    swept: AtomicU64,
}

/// A place that is taken. Dropping it makes it free.
#[derive(Debug)]
pub struct Seat {
    places: Arc<Places>,
    place: Arc<Place>,
    /// Resolves when the connection is to go away.
    pub go: oneshot::Receiver<()>,
}

impl Place {
    fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Relaxed) {
            0 => Stage::New,
            1 => Stage::Shaken,
            _ => Stage::Proved,
        }
    }

    /// Returns where the connection comes from.
    #[must_use]
    pub const fn source(&self) -> Source {
        self.source
    }

    fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Notes how far the connection has come.
    pub fn reached(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Relaxed);
    }

    /// Notes whether calls are under way, for which a connection at [`Stage::Proved`] keeps its
    /// place.
    pub fn set_busy(&self, busy: bool) {
        self.busy.store(busy.into(), Ordering::Relaxed);
    }

    /// Notes a call until what is returned is dropped.
    #[must_use]
    pub fn call(self: &Arc<Self>) -> OpenCall {
        self.busy.fetch_add(1, Ordering::Relaxed);
        OpenCall(Arc::clone(self))
    }

    fn found(&self) -> Found {
        let seen = self.seen.load(Ordering::Relaxed);
        Found { number: self.number, stage: self.stage(), seen }
    }

    /// Returns whether it could yield now: at any time before it has proved something, or else
    /// strangers keep their places by requests that are refused, or never complete.
    fn yields(&self) -> bool {
        let at_work = self.stage() == Stage::Proved && self.busy.load(Ordering::Relaxed) > 0;
        !self.is_leaving() && !at_work
    }
}

/// A call that is under way.
#[derive(Debug)]
pub struct OpenCall(Arc<Place>);

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Seat {
    /// The connection has said something.
    pub fn seen(&self) {
        self.places.saw(&self.place);
    }

    /// Returns the place, to tell how far the connection has come.
    #[must_use]
    pub fn place(&self) -> &Arc<Place> {
        &self.place
    }

    /// Lets the place end `task`, which the connection runs in.
    pub fn run_in(place: &Place, task: AbortHandle) {
        drop(place.task.set(task));
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        let Place { number, source, .. } = *self.place;
        taken.places.remove(&number);
        if self.place.is_leaving() {
            taken.leaving_count -= 1;
        } else {
            taken.leaves(source);
        }
    }
}

impl Places {
    /// Returns `max` free places, of which one source may have `max_per_source`. A connection
    /// that is silent for `idle_timeout` is told to go by [`sweep`](Self::sweep).
    #[must_use]
    pub fn new(max: usize, max_per_source: usize, idle_timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            taken: Mutex::default(),
            max,
            max_per_source,
            idle_timeout,
            now: AtomicU64::new(0),
        })
    }

    /// Takes a place for a connection from `source`; `None` when all are taken by connections
    /// at work. Returns also how many others have been told to go for it.
    pub fn take(self: &Arc<Self>, source: Source) -> (Option<Seat>, usize) {
        let number = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        let mut taken = self.taken.lock();
        let mut yielded = 0;
        if taken.by_source.get(&source).is_some_and(|few| few.count >= self.max_per_source) {
            if !self.make_room(&mut taken, Some(source)) {
                return (None, yielded);
            }
            yielded += 1;
        }
        if taken.places.len() - taken.leaving_count >= self.max {
            if !self.make_room(&mut taken, None) {
                return (None, yielded);
            }
            yielded += 1;
        }
        let (go, gone) = oneshot::channel();
        let place = Arc::new(Place {
            number,
            source,
            stage: AtomicU8::new(Stage::New as u8),
            seen: AtomicU64::new(number),
            busy: AtomicU32::new(0),
            go: Mutex::new(Some(go)),
            leaving: AtomicBool::new(false),
            task: OnceLock::new(),
            silent: AtomicU32::new(0),
            swept: AtomicU64::new(number),
        });
        taken.places.insert(number, Arc::clone(&place));
        taken.by_source.entry(source).or_default().count += 1;
        (Some(Seat { places: Arc::clone(self), place, go: gone }), yielded)
    }

    /// Notes that the connection at `place` has said something. Before [`Stage::Proved`] this
    /// changes nothing: the time of such a connection counts from its beginning.
    pub fn saw(&self, place: &Place) {
        if place.stage() < Stage::Proved {
            return;
        }
        place.seen.store(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Returns how many places are taken, and how many of them by `source`. Connections that were
    /// told to go away are not counted.
    pub fn taken(&self, source: Source) -> (usize, usize) {
        let taken = self.taken.lock();
        let of_source = taken.by_source.get(&source).map_or(0, |few| few.count);
        (taken.places.len() - taken.leaving_count, of_source)
    }

    /// The most connections there are at a time, those that are about to go included.
    pub fn bound(&self) -> usize {
        self.max.saturating_add(self.most_leaving())
    }

    fn most_leaving(&self) -> usize {
        MAX_LEAVING + self.max / UNPROVED_PART
    }

    /// Has some connections yield because the system has no descriptors left.
    pub fn shed(&self) -> usize {
        let mut taken = self.taken.lock();
        (0..8).filter(|_| self.make_room(&mut taken, None)).count()
    }

    /// Has one connection yield, of this source if one is given.
    fn make_room(&self, taken: &mut Taken, source: Option<Source>) -> bool {
        for _ in 0..2 {
            while let Some(found) = taken.next_found(source) {
                let Some(place) = taken.places.get(&found.number) else { continue };
                let now = place.found();
                if place.yields() && (now.stage, now.seen) == (found.stage, found.seen) {
                    let place = Arc::clone(place);
                    self.send_off(taken, &place);
                    return true;
                }
            }
            self.find(taken, source);
        }
        false
    }

    /// Looks for those that are to yield next.
    fn find(&self, taken: &mut Taken, source: Option<Source>) {
        let mut unproved: HashMap<Source, usize> = HashMap::new();
        let all = || {
            let of_source = move |place: &&Arc<Place>| source.is_none_or(|of| place.source == of);
            taken.places.values().filter(of_source).filter(|place| place.yields())
        };
        for place in all().filter(|place| place.stage() < Stage::Proved) {
            *unproved.entry(place.source).or_default() += 1;
        }
        let max = if source.is_some() { self.max_per_source.min(self.max) } else { self.max };
        let most = (max / FOUND_PART).max(1);
        let spared = max / UNPROVED_PART;
        let beyond = unproved.values().sum::<usize>().saturating_sub(spared);
        // Sources with about as many are alike.
        let mut found: Vec<_> = if beyond > 0 {
            let many = |place: &Place| unproved.get(&place.source).map_or(0, |of| of.ilog2());
            all()
                .filter(|place| place.stage() < Stage::Proved)
                .map(|place| (Reverse(many(place)), place.number, place.found()))
                .collect()
        } else {
            let of_source = &taken.by_source;
            let many = |place: &Place| {
                of_source.get(&place.source).map_or(0, |few| few.count.max(1).ilog2())
            };
            let mut idle: Vec<_> = all()
                .filter(|place| place.stage() == Stage::Proved)
                .map(|place| (Reverse(many(place)), place.found().seen, place.found()))
                .collect();
            if idle.is_empty() {
                // No other connection yields.
                let rest = all().map(|place| (Reverse(0), place.number, place.found()));
                idle.extend(rest);
            }
            idle
        };
        found.sort_unstable_by_key(|(many, since, found)| (*many, *since, found.number));
        let most = if beyond > 0 { most.min(beyond) } else { most };
        let found = found.into_iter().take(most).map(|(_, _, found)| found).collect();
        match source {
            None => taken.found = found,
            Some(source) => taken.by_source.entry(source).or_default().found = found,
        }
    }

    /// Tells a connection to go away.
    fn send_off(&self, taken: &mut Taken, place: &Arc<Place>) {
        place.leaving.store(true, Ordering::Relaxed);
        taken.leaving_count += 1;
        taken.leaves(place.source);
        if place.stage() == Stage::New {
            // There is nothing to say to it.
            return place.cut_off();
        }
        if let Some(go) = place.go.lock().take() {
            // A connection that ends already does not listen any more.
            let _ = go.send(());
        }
        taken.leaving.push_back(Arc::clone(place));
        while taken.leaving.len() > self.most_leaving()
            && let Some(first) = taken.leaving.pop_front()
        {
            first.cut_off();
        }
    }

    /// Tells connections to go away that have been silent for too long; to be called every
    /// `interval`. Says how many.
    pub fn sweep(&self, interval: Duration) -> usize {
        let mut taken = self.taken.lock();
        self.now.fetch_add(1, Ordering::Relaxed);
        let mut idle = Vec::new();
        for place in taken.places.values() {
            let seen = place.seen.load(Ordering::Relaxed);
            if place.swept.swap(seen, Ordering::Relaxed) != seen || !place.yields() {
                place.silent.store(0, Ordering::Relaxed);
                continue;
            }
            let silent = interval.saturating_mul(place.silent.fetch_add(1, Ordering::Relaxed) + 1);
            let too_long = match place.stage() {
                // The handshake has a limit of its own.
                Stage::New => continue,
                Stage::Shaken => self.idle_timeout.min(FIRST_CALL),
                Stage::Proved => self.idle_timeout,
            };
            if silent > too_long {
                idle.push(Arc::clone(place));
            }
        }
        for place in &idle {
            self.send_off(&mut taken, place);
        }
        taken.leaving.retain(|place| Arc::strong_count(place) > 1);
        idle.len()
    }
}

impl Place {
    fn cut_off(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

impl Taken {
    fn next_found(&mut self, source: Option<Source>) -> Option<Found> {
        match source {
            None => self.found.pop_front(),
            Some(source) => self.by_source.get_mut(&source)?.found.pop_front(),
        }
    }

    /// A connection of `source` does not count any more.
    fn leaves(&mut self, source: Source) {
        if let Some(few) = self.by_source.get_mut(&source) {
            few.count -= 1;
            if few.count == 0 {
                self.by_source.remove(&source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(pid: i32) -> Source {
        Source::Local { uid: 0, pid }
    }

    fn take(places: &Arc<Places>, pid: i32) -> Seat {
        places.take(source(pid)).0.expect("a place")
    }

    fn proved(places: &Arc<Places>, pid: i32) -> Seat {
        let seat = take(places, pid);
        seat.place().reached(Stage::Proved);
        seat
    }

    fn leaves(seat: &Seat) -> bool {
        seat.place().is_leaving()
    }

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn who_has_made_no_call_yields_first_and_then_the_longest_silent() {
        let places = Places::new(32, usize::MAX, LONG);
        let good: Vec<_> = (0..20).map(|_| proved(&places, 1)).collect();
        let silent: Vec<_> = (0..12).map(|_| take(&places, 1)).collect();
        let more: Vec<_> = (0..10).map(|_| take(&places, 1)).collect();
        assert_eq!(silent.iter().filter(|seat| leaves(seat)).count(), 10, "the oldest first");
        assert!(!leaves(&silent[11]) && !more.iter().any(leaves));
        for seat in silent.iter().chain(&more) {
            seat.place().reached(Stage::Proved);
        }
        good[0].seen();
        good[1].place().set_busy(true);
        let _new = proved(&places, 1);
        assert!(leaves(&good[2]));
        assert!(!leaves(&good[0]) && !leaves(&good[1]));
    }

    #[test]
    fn a_connection_that_proved_nothing_yields_while_it_is_at_work() {
        let places = Places::new(32, usize::MAX, LONG);
        let good: Vec<_> = (0..16).map(|_| proved(&places, 1)).collect();
        let strangers: Vec<_> = (0..16).map(|_| take(&places, 2)).collect();
        let _calls: Vec<_> = strangers.iter().map(|seat| seat.place().call()).collect();
        for seat in &strangers {
            seat.place().reached(Stage::Shaken);
        }
        let mut new = Vec::new();
        for _ in 0..12 {
            strangers.iter().for_each(Seat::seen);
            new.push(proved(&places, 3));
        }
        assert_eq!(strangers.iter().filter(|seat| leaves(seat)).count(), 12);
        assert!(!good.iter().chain(&new).any(leaves));
    }

    #[test]
    fn a_connection_that_proves_nothing_for_a_minute_goes_whatever_it_says() {
        let places = Places::new(4, usize::MAX, LONG);
        let (stranger, busy, good) = (take(&places, 1), take(&places, 1), proved(&places, 1));
        for seat in [&stranger, &busy] {
            seat.place().reached(Stage::Shaken);
        }
        let _call = busy.place().call();
        let step = Duration::from_secs(5);
        let sweeps = FIRST_CALL.as_secs() / step.as_secs() + 2;
        let gone: usize = (0..sweeps)
            .map(|_| {
                stranger.seen();
                good.seen();
                places.sweep(step)
            })
            .sum();
        assert_eq!(gone, 2);
        assert!(leaves(&stranger) && leaves(&busy) && !leaves(&good));
    }

    #[test]
    fn the_source_with_most_yields() {
        let places = Places::new(32, usize::MAX, LONG);
        let few: Vec<_> = (0..3).map(|_| proved(&places, 1)).collect();
        let many: Vec<_> = (0..29).map(|_| proved(&places, 2)).collect();
        let new: Vec<_> = (0..10).map(|_| proved(&places, 3)).collect();
        assert_eq!(many.iter().filter(|seat| leaves(seat)).count(), 10);
        assert!(!few.iter().chain(&new).any(leaves));
    }

    #[test]
    fn a_source_has_its_own_limit() {
        let places = Places::new(32, 4, LONG);
        let first: Vec<_> = (0..4).map(|_| proved(&places, 1)).collect();
        let _other = proved(&places, 2);
        assert_eq!(places.taken(source(1)), (5, 4));
        let _fifth = proved(&places, 1);
        assert_eq!(places.taken(source(1)), (5, 4), "who was told to go is not counted");
        assert_eq!(first.iter().map(leaves).collect::<Vec<_>>(), [true, false, false, false]);
        for seat in &first {
            seat.place().set_busy(true);
        }
        _fifth.place().set_busy(true);
        assert!(places.take(source(1)).0.is_none());
        assert!(places.take(source(2)).0.is_some());
    }

    #[test]
    fn places_come_back() {
        let places = Places::new(4, usize::MAX, LONG);
        for _ in 0..3 {
            let seats: Vec<_> = (0..9).map(|_| proved(&places, 1)).collect();
            assert_eq!(seats.iter().filter(|seat| leaves(seat)).count(), 5);
        }
        let taken = places.taken.lock();
        assert!(taken.places.is_empty() && taken.by_source.is_empty());
        assert_eq!(taken.leaving_count, 0);
    }

    #[test]
    fn who_is_silent_for_too_long_goes() {
        let places = Places::new(4, usize::MAX, Duration::from_secs(10));
        let (silent, busy, heard) = (proved(&places, 1), proved(&places, 1), proved(&places, 1));
        busy.place().set_busy(true);
        let step = Duration::from_secs(5);
        let gone: usize = (0..4)
            .map(|_| {
                heard.seen();
                places.sweep(step)
            })
            .sum();
        assert_eq!(gone, 1);
        assert!(leaves(&silent) && !leaves(&busy) && !leaves(&heard));
    }
}
