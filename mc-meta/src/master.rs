//! The master: shards, segments and clients behind their own locks.

use core::fmt;
use core::num::NonZeroU64;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mc_alloc::strategy::DynAllocationStrategy;
use mc_evict::{EvictionPolicy, Item};
use mc_lease::Terms;
use mc_ticket::{GrantSecret, PutToken};
use mc_types::{ClientId, Generation, KeyRef, Time, TransferId};

use crate::config::{ConfigError, MasterConfig};
use crate::effect::EffectSink;
use crate::effect::emit::{Effects, Emit};
use crate::eviction::common::CommonOrder;
use crate::eviction::room::{Hopeless, Labels};
use crate::eviction::watermark::LiveWatermark;
use crate::object::group::Groups;
use crate::shard::{Shard, ShardConfig};
use crate::side_tables::books::Books;
use crate::side_tables::clients::Clients;
use crate::side_tables::damage::Damage;
use crate::side_tables::drain::DrainJobs;
use crate::side_tables::files::Files;
use crate::side_tables::local_disk::LocalDisks;
use crate::side_tables::readers::Readers;
use crate::side_tables::retained::GrantId;
use crate::side_tables::runs::Runs;
use crate::side_tables::suspicion::Suspicion;
use crate::side_tables::tasks::TaskBook;
use crate::space::table::SegmentTable;
use crate::tenant::quota::Quotas;
use crate::vocabulary::hash::{HashedKey, KeyHasher, mix};
use crate::vocabulary::lock::{Mutex, MutexGuard, RwLock, rank};
use crate::vocabulary::request::{PutHandle, TransferHandle};
use crate::vocabulary::slot::ObjectSlot;

/// The metadata of a cluster: objects, segments, clients.
///
/// Every method takes `&self` and the time, may be called from any thread, and
/// returns without waiting for anything but other commands. The same commands
/// at the same times from one thread give the same answers for the same seed.
///
/// Locks are taken in the order of their ranks: see `vocabulary/lock.rs`.
pub struct Master {
    pub(crate) config: MasterConfig,
    pub(crate) terms: Terms,
    pub(crate) watermark: LiveWatermark,
    /// Whether the last tick has begun to evict for the watermark and left some of it over.
    pub(crate) is_evicting: AtomicBool,
    pub(crate) segments: RwLock<SegmentTable, { rank::SEGMENTS }>,
    pub(crate) clients: Mutex<Clients, { rank::CLIENTS }>,
    pub(crate) groups: Mutex<Groups, { rank::GROUPS }>,
    pub(crate) tasks: Mutex<TaskBook, { rank::TASKS }>,
    /// Room on the shared tier of files.
    pub(crate) files: Arc<Files>,
    /// The clients' local disks.
    pub(crate) local: Arc<LocalDisks>,
    pub(crate) drain_jobs: Mutex<DrainJobs, { rank::DRAIN_JOBS }>,
    /// Replicas that were reported to be damaged.
    pub(crate) damage: Mutex<Damage, { rank::DAMAGE }>,
    /// Segments that clients could not reach.
    pub(crate) suspicion: Mutex<Suspicion, { rank::SUSPICION }>,
    pub(crate) quotas: Arc<Quotas>,
    /// Held while a policy is changed and its effect is emitted.
    pub(crate) policies: Mutex<(), { rank::POLICIES }>,
    pub(crate) counters: Counters,
    /// The orders of eviction of all shards.
    pub(crate) order: Arc<CommonOrder>,
    shards: Box<[Mutex<Shard, { rank::SHARD }>]>,
    hasher: KeyHasher,
    pub(crate) effects: Option<Effects>,
    /// The user's own; the one that the settings name when there is none.
    strategy: Option<Box<dyn DynAllocationStrategy + Send + Sync>>,
    seed: u64,
    secret: GrantSecret,
    has_own_secret: bool,
    /// The next one, a multiple of `step`.
    pub(crate) generations: AtomicU64,
    /// The step by which they ascend: with files there is room for the marks of runs.
    pub(crate) step: u64,
    runs: Runs,
    /// The puts of the masters whose records this one was made of have generations below it.
    pub(crate) first_own: AtomicU64,
    /// No space of an unfinished put is due before this time, in milliseconds.
    pub(crate) next_release: AtomicU64,
    /// The reads that may still be under way.
    pub(crate) readers: Arc<Readers>,
    /// The search for room that was in vain last.
    pub(crate) hopeless: Mutex<Option<Hopeless>, { rank::HOPELESS }>,
    draws: AtomicU64,
    /// Placements begun. Apart from the draws, which are made for other ends too.
    pub(crate) placements: AtomicU64,
}

/// Counters since the master began, beside those of the shards.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) put_start_no_room: AtomicU64,
    pub(crate) put_start_retries: AtomicU64,
    pub(crate) expired_clients: AtomicU64,
    pub(crate) files_no_room: AtomicU64,
}

/// The shards of a master that no client uses yet.
pub(crate) struct ShardsMut<'a> {
    pub(crate) shards: &'a mut [Mutex<Shard, { rank::SHARD }>],
    pub(crate) hasher: &'a KeyHasher,
    pub(crate) groups: &'a Mutex<Groups, { rank::GROUPS }>,
    pub(crate) order: &'a CommonOrder,
    pub(crate) segments: &'a RwLock<SegmentTable, { rank::SEGMENTS }>,
}

/// The kind of an attempt to put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    First,
    /// The put was refused for lack of space, and waits.
    Further,
    /// A former master may have begun it, and its client has no grant of it.
    Anew,
}

impl Counters {
    /// Counts a put that found no room.
    pub(crate) fn no_room(&self, attempt: Attempt) {
        let counter = match attempt {
            Attempt::First => &self.put_start_no_room,
            Attempt::Further | Attempt::Anew => &self.put_start_retries,
        };
        count(counter, 1);
    }
}

/// Adds to a counter that nothing is ordered by.
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Master {
    /// An empty master. `seed` decides the hashing of keys, the placement of
    /// replicas and the first generation; draw it at random in production. So does the
    /// secret behind the tokens of puts, unless [`with_secret`](Self::with_secret) gives one.
    ///
    /// # Errors
    /// [`ConfigError`] when the settings make no sense.
    pub fn new(config: MasterConfig, seed: u64) -> Result<Self, ConfigError> {
        config.validate()?;
        let hasher = KeyHasher::new(seed);
        let terms = Terms {
            lease: config.lease_ttl,
            soft_pin: config.soft_pin_ttl,
            soft_pin_from: config.soft_pin_from,
        };
        let room = config.shared_tier.map_or(0, |tier| tier.capacity.unwrap_or(u64::MAX));
        let files = Arc::new(Files::new(room));
        let quotas = Arc::new(if config.multi_tenant {
            Quotas::on(config.default_tenant_quota)
        } else {
            Quotas::off()
        });
        let (disks, promotion) = (config.local_disk, config.promotion);
        let local = LocalDisks::new(disks, promotion, mix(seed), Arc::clone(&quotas));
        let step = config.shared_tier.map_or(1, |_| Generation::STEP);
        let local = Arc::new(local);
        let labels = Labels::new(config.shards);
        let policy = config.eviction_policy.build();
        let order = Arc::new(CommonOrder::new(policy, config.shards));
        let readers = Arc::new(Readers::new(terms.read()));
        let books = Books {
            files: Arc::clone(&files),
            local: Arc::clone(&local),
            quotas: Arc::clone(&quotas),
        };
        let shard = |number| {
            let (hasher, readers, books) = (hasher.clone(), Arc::clone(&readers), books.clone());
            let ttl_after_get = config.ttl_after_get;
            let shard =
                ShardConfig { number, labels, terms, hasher, books, ttl_after_get, readers };
            Mutex::new(Shard::new(shard, Arc::clone(&order)))
        };
        Ok(Self {
            shards: (0..).take(config.shards).map(shard).collect(),
            order,
            readers,
            terms,
            watermark: LiveWatermark::new(
                config.eviction_high_watermark_ratio,
                config.eviction_ratio,
            ),
            is_evicting: AtomicBool::new(false),
            segments: RwLock::new(SegmentTable::new(Arc::clone(&quotas))),
            quotas,
            policies: Mutex::default(),
            clients: Mutex::default(),
            groups: Mutex::default(),
            drain_jobs: Mutex::default(),
            damage: Mutex::default(),
            suspicion: Mutex::default(),
            tasks: Mutex::new(TaskBook::new(config.tasks.clone())),
            files,
            local,
            counters: Counters::default(),
            hasher,
            has_own_secret: false,
            effects: None,
            strategy: None,
            seed,
            secret: secret_of(seed),
            // Two masters in a row should not name two puts alike. Half of the
            // range is left to count in.
            generations: AtomicU64::new((mix(seed) >> 1).next_multiple_of(step)),
            step,
            runs: Runs::default(),
            first_own: AtomicU64::new(0),
            next_release: AtomicU64::new(u64::MAX),
            hopeless: Mutex::default(),
            draws: AtomicU64::new(0),
            placements: AtomicU64::new(0),
            config,
        })
    }

    /// An empty master of the same settings, seed and secret, without sinks and strategies of the user's.
    pub(crate) fn anew(&self) -> Self {
        let master = Self::new(self.config.clone(), self.seed).expect("they were good once");
        let (secret, has_own_secret) = (self.secret, self.has_own_secret);
        Self { secret, has_own_secret, ..master }
    }

    /// Reports every change to `sink`, after those that were given before.
    #[must_use]
    pub fn with_sink(mut self, sink: impl EffectSink + 'static) -> Self {
        self.effects.get_or_insert_with(Effects::new).add(Box::new(sink));
        self
    }

    /// Evicts in the order of the caller's own policy: `build` is called once, and the policy is
    /// given the objects that are there, the coldest first. Soft-pinned and protected objects
    /// are not given to it.
    ///
    /// ```
    /// use mc_evict::PolicyKind;
    /// use mc_meta::{Master, MasterConfig};
    ///
    /// let master = Master::new(MasterConfig::default(), 1)?;
    /// // Any implementation of `EvictionPolicy`, in a box.
    /// let master = master.with_eviction_policy(|| PolicyKind::Sieve.build());
    /// # let _ = master;
    /// # Ok::<(), mc_meta::ConfigError>(())
    /// ```
    #[must_use]
    pub fn with_eviction_policy(mut self, build: impl FnOnce() -> Box<dyn EvictionPolicy>) -> Self {
        let mut items: Vec<HashMap<ObjectSlot, Item>> = Vec::new();
        for shard in &mut self.shards {
            let shard = shard.get_mut();
            let item = |slot| shard.object(slot).map(|_| (slot, shard.known_item(slot)));
            items.push(ObjectSlot::range(0..shard.end()).filter_map(item).collect());
        }
        let item = |shard: usize, slot| items[shard].get(&slot).copied();
        self.order.use_policy(build(), |shard, slot| item(shard, slot).unwrap_or(Item::UNKNOWN));
        self
    }

    /// Places objects by the caller's own strategy, and not by the one that the settings name. As
    /// with those, every segment with room is tried before objects are evicted.
    ///
    /// ```
    /// use mc_alloc::strategy::RoundRobin;
    /// use mc_meta::{Master, MasterConfig};
    ///
    /// let master = Master::new(MasterConfig::default(), 1)?;
    /// // Any implementation of `AllocationStrategy`.
    /// let master = master.with_allocation_strategy(RoundRobin::default());
    /// # let _ = master;
    /// # Ok::<(), mc_meta::ConfigError>(())
    /// ```
    #[must_use]
    pub fn with_allocation_strategy(
        mut self,
        strategy: impl DynAllocationStrategy + Send + Sync + 'static,
    ) -> Self {
        self.strategy = Some(Box::new(strategy));
        self
    }

    /// The caller's own allocation strategy.
    pub(crate) fn own_strategy(&self) -> Option<&dyn DynAllocationStrategy> {
        self.strategy.as_deref().map(|strategy| strategy as &dyn DynAllocationStrategy)
    }

    /// Derives the tokens of puts, copies and moves from `secret`, 16 bytes drawn at random,
    /// instead of the seed. To be called before the first put: tokens of another secret are
    /// worthless.
    #[must_use]
    pub const fn with_secret(mut self, secret: GrantSecret) -> Self {
        (self.secret, self.has_own_secret) = (secret, true);
        self
    }

    /// Returns whether it was given a secret, and does not derive its tokens from the seed.
    #[must_use]
    pub const fn has_own_secret(&self) -> bool {
        self.has_own_secret
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &MasterConfig {
        &self.config
    }

    pub(crate) fn emit(&self, now: Time) -> Emit<'_> {
        Emit { now, effects: self.effects.as_ref() }
    }

    pub(crate) fn hashed<'a>(&self, key: KeyRef<'a>) -> HashedKey<'a> {
        HashedKey { hash: self.hasher.hash(key), key }
    }

    /// Locks the shard of a key, and notes that the command of this thread sees the key's state.
    pub(crate) fn shard_of(&self, key: HashedKey<'_>) -> MutexGuard<'_, Shard> {
        let shard = self.shards[key.shard(self.shards.len())].lock();
        self.see_key(key);
        shard
    }

    pub(crate) fn shards(&self) -> &[Mutex<Shard, { rank::SHARD }>] {
        &self.shards
    }

    /// Returns the shards of a master that no client uses yet, with what a rebuild needs beside
    /// them to fill several at the same time.
    pub(crate) fn shards_mut(&mut self) -> ShardsMut<'_> {
        ShardsMut {
            shards: &mut self.shards,
            hasher: &self.hasher,
            groups: &self.groups,
            order: &self.order,
            segments: &self.segments,
        }
    }

    pub(crate) fn next_generation(&self) -> Generation {
        Generation::new(self.generations.fetch_add(self.step, Ordering::Relaxed))
    }

    /// Returns whether a put of this generation began before this master did.
    pub(crate) fn is_of_former_master(&self, generation: Generation) -> bool {
        generation.as_u64() < self.first_own.load(Ordering::Relaxed)
    }

    /// The handle of a put of `len` bytes that begins. With `has_file` its object gets a file.
    pub(crate) fn next_put(
        &self,
        now: Time,
        client: ClientId,
        len: u64,
        has_file: bool,
    ) -> PutHandle {
        let draw = || self.next_generation();
        let generation = match self.config.shared_tier {
            Some(tier) if has_file && tier.packs => self.runs.next(now, client, len, draw),
            _ => draw(),
        };
        PutHandle { generation, token: self.secret.token(generation.as_u64()) }
    }

    /// The handle of a copy or move, or of a way back into memory, that begins.
    pub(crate) fn next_transfer(&self) -> TransferHandle {
        let number = self.next_generation().as_u64();
        TransferHandle { id: TransferId::new(number), token: self.secret.token(number) }
    }

    /// Returns whether the holder of this token began the put or transfer.
    pub(crate) fn is_genuine(&self, grant: impl Into<GrantId>, token: PutToken) -> bool {
        self.secret.token(grant.into().as_u64()) == token
    }

    /// The next number of the master's own random sequence.
    pub(crate) fn draw(&self) -> u64 {
        mix(self.seed ^ mix(self.draws.fetch_add(1, Ordering::Relaxed)))
    }

    /// Returns the hash by which the eviction policy knows a key.
    pub(crate) fn item_hash(&self, key: KeyRef<'_>) -> Option<NonZeroU64> {
        NonZeroU64::new(self.hasher.hash(key))
    }

    /// Notes that space will be due then.
    pub(crate) fn release_not_before(&self, due: Time) {
        let due = due.as_millis();
        if due < self.next_release.load(Ordering::Relaxed) {
            self.next_release.fetch_min(due, Ordering::Relaxed);
        }
    }
}

/// Derives a secret from the seed, where there is no better randomness.
fn secret_of(seed: u64) -> GrantSecret {
    let [low, high] = [1, 2].map(|number| mix(mix(seed ^ SECRET_DOMAIN).wrapping_add(number)));
    GrantSecret::from_bytes((u128::from(high) << 64 | u128::from(low)).to_le_bytes())
}

/// Keeps the secret apart from other numbers that are made of the seed.
const SECRET_DOMAIN: u64 = 0x7365_6372_6574_2e31;

impl fmt::Debug for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Master")
            .field("config", &self.config)
            .field("shards", &self.shards.len())
            .finish_non_exhaustive()
    }
}
