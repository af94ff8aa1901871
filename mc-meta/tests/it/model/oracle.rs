//! The model, and the master beside it.

mod checks;
mod clients;
mod endings;
mod follow;
mod journal;
mod protection;
mod puts;
mod reads;
mod records;
mod removal;
mod time;
pub(crate) mod transfers;
mod upserts;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use journal::{Event, Recorder};
use mc_meta::{
    GrantSecret, LateWrites, Master, MasterConfig, PutHandle, PutToken, SegmentSpec, SegmentStatus,
    Slice, SoftPin, TransferKind,
};
use mc_types::{ClientId, Extent, Generation, MediaType, SegmentId, Time};

/// The put of a key that a command names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which {
    Current,
    Previous,
    /// The current one, with a token that its start did not give.
    Guessed,
}

/// One mounting of a segment: a segment that is mounted anew is another one.
type Mounting = u64;

#[derive(Clone, Debug)]
struct Segment {
    mounting: Mounting,
    spec: SegmentSpec,
    client: ClientId,
    status: SegmentStatus,
    /// The grace of its unmounting, and when that ends.
    grace: Option<Duration>,
    grace_ends: Option<Time>,
    /// When it goes, if that is known.
    leaves: Option<Time>,
}

/// A client with segments.
#[derive(Clone, Copy, Debug)]
struct Client {
    heard: Time,
    away: bool,
}

#[derive(Clone, Debug)]
struct Object {
    complete: bool,
    owner: ClientId,
    generation: Generation,
    slices: Vec<Slice>,
    replicas: Vec<(Mounting, Extent)>,
    /// When its put began, and once it is complete when that was.
    begun: Time,
    touched: Time,
    /// The number of the last use, counted over all objects.
    turn: u64,
    /// When a put of its key was refused since then: it moved in the order of eviction.
    wanted: Option<Time>,
    leased: bool,
    /// When it was last read.
    read: Option<Time>,
    /// Until when readers were told that they may read.
    promised: Time,
    soft_pin: SoftPin,
    hard_pin: bool,
    group: Option<u64>,
    /// When something else than its own lease last stood before its eviction. It may
    /// have been set aside then, for as long as a lease.
    held: Option<Time>,
    transfer: Option<Transfer>,
    /// The first tick after it can be aside no longer. It is back in the order of
    /// eviction since then at the latest, and ranks as if used when it came back.
    settled: Option<Time>,
}

impl Object {
    fn len(&self) -> u64 {
        self.slices.iter().map(|slice| slice.len).sum()
    }
}

/// A copy or move that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Transfer {
    id: Generation,
    kind: TransferKind,
    client: ClientId,
    source: Mounting,
    /// The targets that are still there, of `count`.
    targets: Vec<(Mounting, Extent)>,
    count: usize,
    due: Time,
}

/// A group: its members name it by its number, and another group may have its name
/// later.
#[derive(Clone, Debug)]
struct Group {
    name: String,
    /// When the last lease of a member ends, of one that has gone, too.
    leased: Time,
}

/// Space of a put that was preempted.
#[derive(Clone, Debug)]
struct Discarded {
    release_at: Time,
    /// The same as the effect told it: when it was kept, if that was later.
    told: Time,
    replicas: Vec<(Mounting, Extent)>,
    /// The client that may still be writing there, unless it is being read.
    writer: Option<Writer>,
}

/// A client and what it has begun.
type Writer = (ClientId, Generation);

/// The secret of every master.
const SECRET: GrantSecret = GrantSecret::from_bytes([0x5a; 16]);

/// The token that a client shows for a put or transfer with this number.
pub(crate) fn token(number: Generation, which: Which) -> PutToken {
    let token = SECRET.token(number.as_u64());
    match which {
        Which::Current | Which::Previous => token,
        Which::Guessed => PutToken::from_u64(token.as_u64() ^ 1),
    }
}

/// Whether the token is the one that the start gave.
fn is_genuine(number: Generation, token: PutToken) -> bool {
    token == SECRET.token(number.as_u64())
}

/// An object without replicas, of which the master has not told yet.
#[derive(Clone, Debug)]
struct Lost {
    complete: bool,
    hard_pin: bool,
    group: Option<u64>,
    /// The copy under way when the object went; its space is still set apart.
    transfer: Option<Transfer>,
    /// Whether it was to take another one's place.
    replaces: bool,
}

#[derive(Debug, Default)]
struct Totals {
    evicted_objects: u64,
    evicted_bytes: u64,
    put_starts: u64,
    put_ends: u64,
    put_revokes: u64,
    put_start_no_room: u64,
    puts_discarded: u64,
    get_hits: u64,
    get_misses: u64,
    exist_hits: u64,
    exist_misses: u64,
    removed_objects: u64,
    expired_clients: u64,
}

pub(crate) struct Oracle {
    master: Master,
    recorder: Recorder,
    config: MasterConfig,
    now: Time,
    /// The latest time there was.
    latest: Time,
    /// Whether the clock ever went back.
    went_back: bool,
    turns: u64,
    numbers: u64,
    segments: BTreeMap<SegmentId, Segment>,
    clients: BTreeMap<ClientId, Client>,
    objects: BTreeMap<String, Object>,
    /// Unfinished upserts: the new value of each key, to replace the object.
    replacements: BTreeMap<String, Object>,
    groups: BTreeMap<u64, Group>,
    discarded: Vec<Discarded>,
    lost: BTreeMap<(String, Generation), Lost>,
    previous: BTreeMap<String, Generation>,
    /// The copy or move of each key that began last.
    transfers: BTreeMap<String, Generation>,
    /// Clients that may have been writing to retained space, even if its segments are gone.
    writers: BTreeSet<Writer>,
    /// Whether space that was kept for readers has gone with its segment.
    lost_kept: bool,
    /// The lengths for which room was looked for in vain, and when. The master need not look
    /// again at once.
    in_vain: Vec<(MediaType, u64, Time)>,
    generations: BTreeSet<Generation>,
    /// Readers that reported something.
    sources: u64,
    totals: Totals,
}

impl Oracle {
    pub(crate) fn new(config: MasterConfig, seed: u64, now: Time) -> Self {
        let recorder = Recorder::default();
        let master = Master::new(config.clone(), seed)
            .unwrap()
            .with_secret(SECRET)
            .with_sink(recorder.clone());
        Self {
            master,
            recorder,
            config,
            now,
            latest: now,
            went_back: false,
            turns: 0,
            numbers: 0,
            segments: BTreeMap::new(),
            clients: BTreeMap::new(),
            objects: BTreeMap::new(),
            replacements: BTreeMap::new(),
            groups: BTreeMap::new(),
            discarded: Vec::new(),
            lost: BTreeMap::new(),
            previous: BTreeMap::new(),
            transfers: BTreeMap::new(),
            writers: BTreeSet::new(),
            lost_kept: false,
            in_vain: Vec::new(),
            generations: BTreeSet::new(),
            sources: 0,
            totals: Totals::default(),
        }
    }

    pub(crate) fn pass(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
        self.latest = self.latest.max(self.now);
    }

    pub(crate) fn go_back(&mut self, millis: u64) {
        self.went_back |= millis > 0;
        self.now = Time::from_millis(self.now.as_millis().saturating_sub(millis));
    }

    pub(crate) fn put_handle(&self, key: &str, which: Which) -> PutHandle {
        let objects = [self.replacements.get(key), self.objects.get(key)];
        let current = objects.into_iter().flatten().next().map(|object| object.generation);
        let generation = match which {
            Which::Current | Which::Guessed => current,
            Which::Previous => self.previous.get(key).copied(),
        };
        let generation = generation.unwrap_or(Generation::new(0));
        PutHandle { generation, token: token(generation, which) }
    }

    /// Whether what is due must have been done. Where the clock goes back, it may wait
    /// for what seems to be due earlier, and at the end of time there is no later that
    /// something could be put off to.
    fn is_on_time(&self) -> bool {
        !self.went_back && self.now + self.config.lease_ttl < Time::from_millis(u64::MAX)
    }

    /// A number that nothing else has.
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn segment(&self, mounting: Mounting) -> Option<&Segment> {
        self.segments.values().find(|segment| segment.mounting == mounting)
    }

    /// The status of the segment that a replica is in.
    fn status(&self, mounting: Mounting) -> SegmentStatus {
        self.segment(mounting).expect("replicas go with their segments").status
    }

    /// Its replicas that can be read.
    fn readable(&self, object: &Object) -> Vec<(Mounting, Extent)> {
        let replicas = object.replicas.iter().copied();
        replicas.filter(|(mounting, _)| self.status(*mounting).is_readable()).collect()
    }

    fn is_readable(&self, object: &Object) -> bool {
        object.complete && !self.readable(object).is_empty()
    }

    /// Every object, unfinished ones included.
    fn all(&self) -> impl Iterator<Item = (&String, &Object)> {
        self.objects.iter().chain(&self.replacements)
    }

    /// The object of a key that comes from this put.
    fn put_of(&self, key: &str, generation: Generation) -> Option<&Object> {
        let all = [self.objects.get(key), self.replacements.get(key)];
        all.into_iter().flatten().find(|object| object.generation == generation)
    }

    /// Removes an object. Its replacement takes the key, and the space of its transfer is
    /// retained for the client that writes there.
    fn forget(&mut self, key: &str) -> Object {
        let mut object = self.objects.remove(key).expect("only what is there goes");
        if let Some(replacement) = self.replacements.remove(key) {
            self.objects.insert(key.to_owned(), replacement);
        }
        if let Some(transfer) = object.transfer.take() {
            let writer = (transfer.client, transfer.id);
            self.keep_until(transfer.due, transfer.targets, Some(writer));
        }
        self.previous.insert(key.to_owned(), object.generation);
        self.drop_empty_groups();
        object
    }

    /// A put ends without a value; the object that it was to replace stays.
    fn forget_put(&mut self, key: &str, generation: Generation) -> Object {
        match self.replacements.get(key) {
            Some(put) if put.generation == generation => {
                let put = self.replacements.remove(key).unwrap();
                self.previous.insert(key.to_owned(), generation);
                self.drop_empty_groups();
                put
            }
            _ => self.forget(key),
        }
    }

    /// Space that has no owner any more is kept.
    fn keep_until(
        &mut self,
        release_at: Time,
        replicas: Vec<(Mounting, Extent)>,
        writer: Option<Writer>,
    ) {
        self.writers.extend(writer);
        if !replicas.is_empty() {
            let told = release_at.max(self.now);
            self.discarded.push(Discarded { release_at, told, replicas, writer });
        }
    }

    /// A client revokes what is not open: whether the answer is right, given that it would
    /// be `error` otherwise, and what became of space that is kept.
    fn revoked_again<E: PartialEq + core::fmt::Debug>(
        &mut self,
        result: &Result<(), E>,
        error: E,
        (writer, is_genuine): (Writer, bool),
        late: LateWrites,
        events: &[Event],
    ) {
        let kept = |discarded: &Discarded| discarded.writer == Some(writer);
        let Some(at) = self.discarded.iter().position(kept).filter(|_| is_genuine) else {
            assert_eq!(events, []);
            // The master may still know of it, though none of its space is left.
            let unseen = is_genuine && self.writers.contains(&writer);
            assert!(*result == Err(error) || unseen && result.is_ok(), "{result:?}");
            return;
        };
        assert_eq!(*result, Ok(()));
        if late == LateWrites::Possible {
            assert_eq!(events, []);
            return;
        }
        let discarded = self.discarded.swap_remove(at);
        let id = |mounting| self.segment(mounting).unwrap().spec.id;
        let space = discarded.replicas.iter().map(|(at, extent)| (id(*at), *extent)).collect();
        assert_eq!(events, [Event::Freed(space)]);
    }

    /// Groups are known by their members.
    fn drop_empty_groups(&mut self) {
        let live = self.all().map(|(_, object)| object.group);
        let lost = self.lost.values().map(|lost| lost.group);
        let kept: BTreeSet<u64> = live.chain(lost).flatten().collect();
        self.groups.retain(|number, _| kept.contains(number));
    }
}
