//! A master rebuilt from records, after a restart or by a standby.
//!
//! Records are applied to the tables of the master that is to be, so that no list of
//! them is kept; only where replicas are is noted beside the objects ([`part`], [`space`]). Then it
//! is settled ([`settle`]): the space of each segment is divided around what lies in it
//! ([`collect`], [`layout`], [`divide`]). A standby settles early, and records are applied to
//! objects with their space from then on ([`settled`]). In the end the shards take their objects up
//! ([`open`], [`take_up`]). What the records could not say is told to the next life's journal
//! ([`corrections`]).

pub(crate) mod collect;
pub(crate) mod corrections;
pub(crate) mod divide;
pub(crate) mod executor;
pub(crate) mod export;
pub(crate) mod layout;
pub(crate) mod leases;
pub(crate) mod open;
pub(crate) mod page;
pub(crate) mod part;
pub(crate) mod settle;
pub(crate) mod settled;
pub(crate) mod sort;
pub(crate) mod space;
pub(crate) mod take_up;

use core::fmt;

use mc_alloc::RestoreError;
use mc_ticket::GrantSecret;
use mc_types::SegmentId;

use self::layout::Contradictions;
use self::part::{Common, Part, ShardLock};
use self::settled::Settled;
use crate::config::{ConfigError, MasterConfig};
use crate::master::{Master, ShardsMut};
use crate::rebuild::page::ExportCursor;
use crate::record::record_ref::RecordRef;

pub use self::corrections::Corrections;
pub use self::executor::Executor;

/// Generations that are passed over: the records of the last puts before a restart may
/// be lost, and no writer may take another's put for its own.
const GAP: u64 = 1 << 44;

/// Makes a master of [`Record`](crate::Record)s, applied one after the other: those of an
/// [export](Master::export), then those of all effects since it began; or those of all
/// effects since the master was new.
///
/// The master that comes out knows every object that the records know, under these
/// rules:
///
/// * Its segments are suspended: their clients may have gone meanwhile. One whose client
///   [mounts it again](Master::mount_segment) is back with all that it holds, and takes new objects
///   unless it was drained, being drained or being unmounted; that it still is, without the drain
///   job and with its whole grace. Those of clients that do not come back within
///   [`client_return_timeout`](MasterConfig::client_return_timeout), or
///   [`client_ttl`](MasterConfig::client_ttl) if that is longer, are discarded.
/// * Every object counts as read just now, since the former master may have granted a
///   lease right before its end, unless that [has told](Self::trust_leases) which are leased. The
///   order in which they were last used is kept as far as it is known: reads are not recorded.
/// * Puts that were unfinished are unfinished, and count as just begun; their writers can
///   end and revoke them if the [secret](Self::with_secret) is the former master's.
/// * Space that was kept from others is still kept, for as long as it was to be. So is
///   space that was reserved for something unfinished other than a put, for the time
///   after which a put's space is released: no client can finish that any more.
/// * Files on the shared tier are there, those being written still are, and count
///   against its capacity even when that is less now. Without such a tier in the settings
///   there are none. What clients have on their local disks they say when they come back.
/// * Tenants have their quotas, and are charged for what is there of theirs, but not for
///   space that is only kept.
/// * Generations go on above the largest one seen.
///
/// Records may be damaged or contradict each other. None of them is fatal: what cannot
/// be true is left out and [counted](RebuildReport::dropped). Where two objects claim
/// the same bytes, the one that was put later keeps them.
///
/// A journal may hold the records of several lives of a master, one rebuilt from those of all
/// before. The records of a life then begin with the [`Corrections`] of its rebuild.
///
/// Takes O(1) time for each record and O(n log n) at the end, and at most a third more
/// memory than the master that comes out, apart from a few bytes for every segment that
/// was ever mounted. A rebuild that is [settled](Self::settle_on) early takes O(log n) for each record
/// from then on, and a small part of the time at the end: a look at each object.
///
/// # Threads
/// It has none of its own. [`in_parts`](Self::in_parts) divides it into parts that the caller
/// fills on threads of its own, each with all records in order, and
/// [`finish_on`](Self::finish_on) does the rest on them. The master that comes out is the same
/// for any number of parts.
///
/// ```
/// use mc_meta::{MasterConfig, Rebuild, Record};
/// use mc_types::{Generation, Time};
///
/// let records = [Record::Generations { next: Generation::new(7) }];
/// let mut rebuild = Rebuild::in_parts(MasterConfig::default(), 1, 2)?;
/// std::thread::scope(|scope| {
///     for mut part in rebuild.parts() {
///         let records = &records;
///         scope.spawn(move || records.iter().for_each(|record| part.apply(record)));
///     }
/// });
/// let rebuilt = rebuild.finish_on(Time::ORIGIN, &|count, task| {
///     std::thread::scope(|scope| {
///         for number in 0..count {
///             scope.spawn(move || task(number));
///         }
///     });
/// })?;
/// assert_eq!(rebuilt.report.dropped.total(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Rebuild {
    master: Master,
    parts: Vec<Part>,
    /// The number of parts that were asked for.
    threads: usize,
    /// Once its objects have their space.
    settled: Option<Settled>,
    /// The records that were left out.
    outcome: Outcome,
    trusts_leases: bool,
}

/// A part of a [`Rebuild`]: some of the master's shards. Ignores the records of objects in others.
pub struct RebuildPart<'a> {
    part: &'a mut Part,
    shards: &'a mut [ShardLock],
    common: Common<'a>,
    settled: Option<&'a mut Settled>,
}

/// A master made of records.
#[derive(Debug)]
#[non_exhaustive]
pub struct Rebuilt {
    /// The master.
    pub master: Master,
    /// The outcome for the records.
    pub report: RebuildReport,
    /// With what the master's own journal has to begin.
    pub corrections: Corrections,
}

/// The outcome of a rebuild for its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RebuildReport {
    /// Segments, all of them suspended.
    pub segments: u64,
    /// Objects, unfinished ones included.
    pub objects: u64,
    /// Objects whose put is unfinished.
    pub unfinished: u64,
    /// Bytes that belong to no object and are kept for a while.
    pub kept_bytes: u64,
    /// Objects that had lost their last segment before the records end.
    pub lost: u64,
    /// Records that were left out because they cannot be true.
    pub dropped: Dropped,
}

/// The objects and segments that were left out.
#[derive(Debug, Default)]
struct Outcome {
    dropped: Dropped,
    corrections: Corrections,
    lost: u64,
}

/// Records, or objects made of them, that were left out, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dropped {
    /// Records that say what no master says: no slices, empty ones, lengths that
    /// overflow or differ from those of the replicas, generations or names out of range.
    pub malformed: u64,
    /// Objects that lie in segments of which nothing is known.
    pub unknown_segment: u64,
    /// Objects with a replica where the segment has no such space.
    pub out_of_range: u64,
    /// Objects with a replica in space that belongs to a later one.
    pub overlapping: u64,
    /// Segments whose name a later one has.
    pub namesakes: u64,
}

impl Dropped {
    /// All of them.
    #[must_use]
    pub const fn total(&self) -> u64 {
        let Self { malformed, unknown_segment, out_of_range, overlapping, namesakes } = *self;
        malformed + unknown_segment + out_of_range + overlapping + namesakes
    }
}

impl Dropped {
    fn add(&mut self, more: Self) {
        self.malformed += more.malformed;
        self.unknown_segment += more.unknown_segment;
        self.out_of_range += more.out_of_range;
        self.overlapping += more.overlapping;
        self.namesakes += more.namesakes;
    }
}

/// Why no master comes out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RebuildError {
    /// The space of a segment cannot be divided as it was.
    #[error("segment {segment} cannot be divided as it was: {source}")]
    Segment {
        /// The segment.
        segment: SegmentId,
        /// Why.
        source: RestoreError,
    },
}

impl Rebuild {
    /// Nothing yet, in one part. The settings may differ from those of the former master, but for
    /// the memory allocator: what another one placed is out of range mostly. `seed` is that
    /// of [`Master::new`]; with the former master's the eviction policy finds again which
    /// object continues which.
    ///
    /// # Errors
    /// [`ConfigError`] when the settings make no sense.
    pub fn new(config: MasterConfig, seed: u64) -> Result<Self, ConfigError> {
        Self::in_parts(config, seed, 1)
    }

    /// Nothing yet, in so many parts: at least one, and no more than the master has shards. One
    /// for each thread is best.
    ///
    /// # Errors
    /// [`ConfigError`] when the settings make no sense.
    pub fn in_parts(config: MasterConfig, seed: u64, parts: usize) -> Result<Self, ConfigError> {
        Ok(Self::of(Master::new(config, seed)?, parts))
    }

    fn of(mut master: Master, parts: usize) -> Self {
        let ShardsMut { shards, hasher, .. } = master.shards_mut();
        let (shards, threads) = (shards.len(), parts.clamp(1, shards.len()));
        let first = |part: usize| part * shards / threads;
        let part = |n| Part::new(first(n), first(n + 1) - first(n), hasher.state());
        let parts = (0..threads).map(part).collect();
        let outcome = Outcome::default();
        Self { master, parts, threads, settled: None, outcome, trusts_leases: false }
    }

    /// Derives the tokens of puts from this secret, as [`Master::with_secret`]: with the
    /// former master's, the writers of unfinished puts can still end them.
    #[must_use]
    pub fn with_secret(mut self, secret: GrantSecret) -> Self {
        self.master = self.master.with_secret(secret);
        self
    }

    /// Counts as leased what the former master listed when it [handed over](Master::list_leases), for
    /// a whole lease from the end of the rebuild on, and nothing else, if the records have a whole list
    /// that was not withdrawn. Later records of the same master do not matter: a lease that it granted
    /// after the list reached no client.
    ///
    /// Only for the master that directly follows it, and when the former one acknowledged nothing after
    /// the list.
    pub fn trust_leases(&mut self) {
        self.trusts_leases = true;
    }

    /// Makes room for about so many objects, which costs 20 bytes for each of them at once and saves
    /// the time in which the tables of keys would grow. What is not used is given back in the end.
    /// To be called before the first record.
    pub fn expect_objects(&mut self, objects: usize) {
        let ShardsMut { shards, .. } = self.master.shards_mut();
        let share = objects.div_ceil(shards.len());
        for shard in shards {
            shard.get_mut().reserve(share + 4 * share.isqrt());
        }
    }

    /// The parts, to be filled on a thread each. Every part has to be given every record, in
    /// order, but for those of objects and removals whose keys it does not
    /// [own](RebuildPart::owns). The parts may be taken again when they were dropped.
    pub fn parts(&mut self) -> Vec<RebuildPart<'_>> {
        let memory = self.master.config.memory_allocator;
        let ShardsMut { mut shards, hasher, groups, order, segments } = self.master.shards_mut();
        let common = Common { hasher, groups, order, segments, memory, shards: shards.len() };
        let mut settled = self.settled.as_mut();
        let mut parts = Vec::with_capacity(self.parts.len());
        for part in &mut self.parts {
            let (own, others) = shards.split_at_mut(part.shards);
            shards = others;
            // There is one part then.
            parts.push(RebuildPart { part, shards: own, common, settled: settled.take() });
        }
        parts
    }

    /// Gives each object its space, if the records so far do not contradict each other, and says
    /// whether they have it. From then on records are applied as they come to a master that is
    /// complete but for what time decides, and [`finish`](Self::finish) takes a small part of the
    /// time that it takes otherwise; for that they are applied in one part, and each takes about twice
    /// the time. What a standby wants as soon as it has caught up: a snapshot that was taken while the
    /// leader was at work is consistent with the records behind it alone.
    ///
    /// Takes the time that [`finish`](Self::finish) takes otherwise, most of it on the `executor`'s
    /// threads. When records contradict each other later, the rebuild continues, but is not settled any
    /// more; the next call settles it again, for which it is copied.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn settle_on(&mut self, executor: &Executor<'_>) -> Result<bool, RebuildError> {
        if self.is_broken() {
            *self = self.begin_anew();
        }
        match self.settled {
            Some(_) => Ok(true),
            None => self.settle(Contradictions::Wait, executor),
        }
    }

    /// Returns whether each object has its space.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled.as_ref().is_some_and(|settled| !settled.is_broken())
    }

    /// Returns whether it was settled, and records have contradicted each other since.
    fn is_broken(&self) -> bool {
        self.settled.as_ref().is_some_and(Settled::is_broken)
    }

    /// The same with places that are noted only.
    fn begin_anew(&self) -> Self {
        let mut anew = Self::of(self.master.anew(), self.threads);
        anew.trusts_leases = self.trusts_leases;
        let mut next = Some(ExportCursor::default());
        while let Some(cursor) = next {
            let page = self.export(cursor);
            page.records.iter().for_each(|record| anew.apply(record));
            next = page.next;
        }
        for (part, old) in anew.parts.iter_mut().zip(&self.parts) {
            part.leased = old.leased.clone();
            part.dropped.add(old.dropped);
            // What is used from now on was used later.
            part.applied = part.applied.max(old.applied);
        }
        anew
    }

    /// Applies the next record, owned or borrowed, to every part.
    pub fn apply<'r>(&mut self, record: impl Into<RecordRef<'r>>) {
        let record = record.into();
        let mut parts = self.parts();
        if let Some((last, others)) = parts.split_last_mut() {
            others.iter_mut().for_each(|part| part.apply(record.clone()));
            last.apply(record);
        }
    }
}

impl fmt::Debug for Rebuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rebuild")
            .field("parts", &self.parts.len())
            .field("is_settled", &self.is_settled())
            .field("applied", &self.parts.iter().map(|part| part.applied).max())
            .finish_non_exhaustive()
    }
}
