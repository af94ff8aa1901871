//! The commands that are drawn, and how.

use core::fmt;
use core::time::Duration;

use mc_meta::{
    AllocationStrategy, LateWrites, MasterConfig, ReplicateConfig, SegmentSpec, SoftPinAction,
    TransferKind,
};
use mc_types::{MediaType, RemoteKey, SegmentId};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::oracle::Which;

/// Few keys, so that commands meet.
const KEYS: usize = 7;
pub(crate) const CLIENTS: u128 = 3;
pub(crate) const SLOTS: u8 = 4;

/// A lease, from which the other times of the settings follow.
const LEASE: u64 = 100;

/// One command.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Mount {
        client: u128,
        slot: u8,
        epoch: u8,
        elsewhere: bool,
    },
    Remount {
        client: u128,
        slots: Vec<(u8, u8)>,
    },
    Reattach {
        client: u128,
        slot: u8,
        epoch: u8,
    },
    Unmount {
        client: u128,
        slot: u8,
        epoch: u8,
    },
    Leave {
        client: u128,
        slot: u8,
        epoch: u8,
        grace: u64,
    },
    Ping {
        client: u128,
    },
    PutStart {
        client: u128,
        key: usize,
        slices: Vec<u64>,
        wish: Wish,
    },
    PutEnd {
        client: u128,
        key: usize,
        which: Which,
        checksums: usize,
    },
    PutRevoke {
        client: u128,
        key: usize,
        which: Which,
        late: LateWrites,
    },
    UpsertStart {
        client: u128,
        key: usize,
        slices: Vec<u64>,
        wish: Wish,
    },
    /// A whole upsert.
    Upsert {
        client: u128,
        key: usize,
        slices: Vec<u64>,
        wish: Wish,
    },
    TransferStart {
        client: u128,
        key: usize,
        kind: TransferKind,
        from: u8,
        to: Vec<u8>,
    },
    TransferEnd {
        client: u128,
        key: usize,
        kind: TransferKind,
        which: Which,
    },
    TransferRevoke {
        client: u128,
        key: usize,
        kind: TransferKind,
        which: Which,
        late: LateWrites,
    },
    Clear {
        client: u128,
        keys: Vec<usize>,
        slot: Option<u8>,
    },
    /// A reader reports one of an object's replicas, and its owner looks.
    Damaged {
        key: usize,
        replica: usize,
        intact: bool,
    },
    /// Gives an object a soft pin, or takes its pins: `None`.
    Pin {
        key: usize,
        ttl: Option<Option<u64>>,
    },
    /// A whole put, as a well-behaved client does it.
    Put {
        client: u128,
        key: usize,
        slices: Vec<u64>,
        wish: Wish,
    },
    Get {
        key: usize,
    },
    Exist {
        key: usize,
    },
    Remove {
        key: usize,
        force: bool,
    },
    RemoveAll {
        force: bool,
    },
    Prefix {
        keys: Vec<usize>,
    },
    List {
        limit: usize,
    },
    Tick,
    /// Time passes; unless `quiet`, every client says then that it is alive.
    Pass {
        millis: u64,
        quiet: bool,
    },
    /// The clock goes back, as between two threads that read it in one order and get
    /// their turn in the other.
    Back {
        millis: u64,
    },
}

/// How an object is to be kept. Prints only what is asked for.
#[derive(Clone)]
pub(crate) struct Wish {
    replicas: u32,
    soft: SoftPinAction,
    hard: bool,
    group: Option<u8>,
    prefer: Option<u8>,
    exclude: Vec<u8>,
    medium: Option<MediaType>,
}

impl Wish {
    pub(crate) fn config(&self) -> ReplicateConfig {
        let mut config = ReplicateConfig::default().replicas(self.replicas);
        config.soft_pin = self.soft;
        config.with_hard_pin = self.hard;
        if let Some(group) = self.group {
            config = config.group(format!("group-{group}"));
        }
        if let Some(slot) = self.prefer {
            config = config.prefer(name_of(slot));
        }
        for slot in &self.exclude {
            config = config.exclude(name_of(*slot));
        }
        config.medium = self.medium;
        config
    }
}

impl fmt::Debug for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x", self.replicas)?;
        match self.soft {
            SoftPinAction::Preserve => {}
            SoftPinAction::Enable { ttl: None } => write!(f, " soft")?,
            SoftPinAction::Enable { ttl: Some(ttl) } => write!(f, " soft {ttl:?}")?,
            SoftPinAction::Disable => write!(f, " not soft")?,
        }
        if self.hard {
            write!(f, " hard")?;
        }
        for (slot, word) in [(self.group, "group"), (self.prefer, "prefer")] {
            if let Some(slot) = slot {
                write!(f, " {word} {slot}")?;
            }
        }
        for slot in &self.exclude {
            write!(f, " exclude {slot}")?;
        }
        if let Some(medium) = self.medium {
            write!(f, " in {medium}")?;
        }
        Ok(())
    }
}

/// Commands in a row; prints one to a line.
#[derive(Clone)]
pub(crate) struct Script(pub(crate) Vec<Op>);

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, op) in self.0.iter().enumerate() {
            write!(f, "\n  {number}: {op:?}")?;
        }
        Ok(())
    }
}

/// The behaviour of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// Time passes, seldom a long one at once.
    Runs,
    /// Time stands still.
    Stands,
    /// Time passes up to the last one that can be represented.
    Ends,
    /// The clocks of threads differ, and are sometimes absurd.
    Jumps,
}

pub(crate) fn script(clock: Clock) -> impl Strategy<Value = Script> {
    vec(op(clock), 1..250).prop_map(Script)
}

fn op(clock: Clock) -> impl Strategy<Value = Op> {
    prop_oneof![
        7 => segment_op(),
        22 => object_op(),
        8 => reading_op(),
        3 => Just(Op::Tick),
        6 => time_op(clock),
    ]
}

fn time_op(clock: Clock) -> BoxedStrategy<Op> {
    let pass = |millis: BoxedStrategy<u64>| {
        let quiet = proptest::bool::weighted(0.3);
        (millis, quiet).prop_map(|(millis, quiet)| Op::Pass { millis, quiet }).boxed()
    };
    let little = prop_oneof![
        6 => 0u64..60,
        2 => 60u64..600,
        // Exactly as long as something lasts.
        3 => select(&[LEASE, 3 * LEASE, 4 * LEASE, 5 * LEASE, 7 * LEASE, 20 * LEASE][..]),
        1 => 600u64..5_000,
    ]
    .boxed();
    match clock {
        Clock::Runs => pass(prop_oneof![20 => little, 1 => Just(1u64 << 40)].boxed()),
        Clock::Stands => pass(Just(0).boxed()),
        Clock::Ends => pass(little),
        Clock::Jumps => {
            let far = prop_oneof![Just(1u64 << 40), Just(u64::MAX)];
            let back = prop_oneof![8 => 0u64..200, 1 => 200u64..3_000, 1 => far.clone()];
            let back = back.prop_map(|millis| Op::Back { millis });
            prop_oneof![10 => pass(little), 8 => back, 1 => pass(far.boxed())].boxed()
        }
    }
}

fn segment_op() -> impl Strategy<Value = Op> {
    let client = || 0..CLIENTS;
    let slot = || 0..SLOTS;
    // One that is mounted with another epoch loses what it held.
    let epoch = || prop_oneof![5 => Just(0u8), 1 => 1u8..3];
    let grace = prop_oneof![0u64..50, 50u64..2_000, Just(u64::MAX)];
    prop_oneof![
        6 => (client(), slot(), epoch(), proptest::bool::weighted(0.1)).prop_map(
            |(client, slot, epoch, elsewhere)| Op::Mount { client, slot, epoch, elsewhere }
        ),
        3 => (client(), vec((slot(), epoch()), 0..4))
            .prop_map(|(client, slots)| Op::Remount { client, slots }),
        4 => (client(), slot(), epoch())
            .prop_map(|(client, slot, epoch)| Op::Reattach { client, slot, epoch }),
        1 => (client(), slot(), epoch())
            .prop_map(|(client, slot, epoch)| Op::Unmount { client, slot, epoch }),
        1 => (client(), slot(), epoch(), grace)
            .prop_map(|(client, slot, epoch, grace)| Op::Leave { client, slot, epoch, grace }),
        4 => client().prop_map(|client| Op::Ping { client }),
    ]
}

/// Mostly few keys, so that what happens to an object has consequences for it.
fn key() -> impl Strategy<Value = usize> {
    prop_oneof![0..4usize, 0..KEYS]
}

fn object_op() -> impl Strategy<Value = Op> {
    let client = || 0..CLIENTS;
    let slices = || vec(1u64..30, 1..3);
    prop_oneof![
        8 => (client(), key(), slices(), wish()).prop_map(
            |(client, key, slices, wish)| Op::PutStart { client, key, slices, wish }
        ),
        8 => (client(), key(), which(), 0usize..3).prop_map(
            |(client, key, which, checksums)| Op::PutEnd { client, key, which, checksums }
        ),
        4 => (client(), key(), which(), late()).prop_map(
            |(client, key, which, late)| Op::PutRevoke { client, key, which, late }
        ),
        20 => (client(), key(), slices(), wish()).prop_map(
            |(client, key, slices, wish)| Op::Put { client, key, slices, wish }
        ),
        4 => (client(), key(), slices(), wish()).prop_map(
            |(client, key, slices, wish)| Op::UpsertStart { client, key, slices, wish }
        ),
        6 => (client(), key(), slices(), wish()).prop_map(
            |(client, key, slices, wish)| Op::Upsert { client, key, slices, wish }
        ),
        1 => (client(), vec(key(), 0..3), option::of(0..SLOTS))
            .prop_map(|(client, keys, slot)| Op::Clear { client, keys, slot }),
        3 => (key(), 0usize..3, proptest::bool::weighted(0.3))
            .prop_map(|(key, replica, intact)| Op::Damaged { key, replica, intact }),
        4 => (key(), option::of(option::of(1..4 * LEASE))).prop_map(|(key, ttl)| Op::Pin { key, ttl }),
        12 => transfer_op(),
        3 => (key(), any::<bool>()).prop_map(|(key, force)| Op::Remove { key, force }),
        1 => proptest::bool::weighted(0.2).prop_map(|force| Op::RemoveAll { force }),
    ]
}

fn transfer_op() -> impl Strategy<Value = Op> {
    let client = || 0..CLIENTS;
    // One slot more than there are.
    let slot = || 0..=SLOTS;
    let kind = || select(&[TransferKind::Copy, TransferKind::Move][..]);
    prop_oneof![
        6 => (client(), key(), slot(), vec(slot(), 0..3)).prop_map(
            |(client, key, from, to)| {
                let kind = TransferKind::Copy;
                Op::TransferStart { client, key, kind, from, to }
            }
        ),
        6 => (client(), key(), slot(), slot()).prop_map(|(client, key, from, to)| {
            let kind = TransferKind::Move;
            Op::TransferStart { client, key, kind, from, to: vec![to] }
        }),
        6 => (client(), key(), kind(), which()).prop_map(
            |(client, key, kind, which)| Op::TransferEnd { client, key, kind, which }
        ),
        2 => (client(), key(), kind(), which(), late()).prop_map(
            |(client, key, kind, which, late)| Op::TransferRevoke { client, key, kind, which, late }
        ),
    ]
}

fn reading_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => key().prop_map(|key| Op::Get { key }),
        1 => key().prop_map(|key| Op::Exist { key }),
        1 => vec(key(), 0..5).prop_map(|keys| Op::Prefix { keys }),
        1 => (1usize..4).prop_map(|limit| Op::List { limit }),
    ]
}

fn soft_pin() -> impl Strategy<Value = SoftPinAction> {
    let lasting = |ttl| SoftPinAction::Enable { ttl: Some(Duration::from_millis(ttl)) };
    prop_oneof![
        13 => Just(SoftPinAction::Preserve),
        4 => Just(SoftPinAction::Enable { ttl: None }),
        2 => select(&[0, LEASE / 3, 2 * LEASE, 20 * LEASE][..]).prop_map(lasting),
        1 => Just(SoftPinAction::Disable),
    ]
}

fn wish() -> impl Strategy<Value = Wish> {
    let slots = || 0..=SLOTS;
    (
        1u32..4,
        soft_pin(),
        proptest::bool::weighted(0.1),
        option::weighted(0.3, 0u8..2),
        option::weighted(0.4, slots()),
        vec(slots(), 0..2),
        option::weighted(0.1, select(&MediaType::ALL[..])),
    )
        .prop_map(|(replicas, soft, hard, group, prefer, exclude, medium)| Wish {
            replicas,
            soft,
            hard,
            group,
            prefer,
            exclude,
            medium,
        })
}

fn which() -> impl Strategy<Value = Which> {
    prop_oneof![
        4 => Just(Which::Current),
        2 => Just(Which::Previous),
        1 => Just(Which::Guessed),
    ]
}

fn late() -> impl Strategy<Value = LateWrites> {
    prop_oneof![Just(LateWrites::Possible), Just(LateWrites::Impossible)]
}

/// The settings; prints only those that are drawn.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) config: MasterConfig,
    /// How large segments are, compared to objects.
    pub(crate) scale: u64,
    /// Whether the two larger segments are of another medium.
    pub(crate) mixed: bool,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { config, scale, mixed } = self;
        write!(
            f,
            "\n  scale {scale}, mixed media {mixed}, {} shards, {}, {}, soft pins of {:?} from {:?}, evicted {}, \
             watermark {} less {}, silent clients suspended after {:?}, gone after {:?}\n",
            config.shards,
            config.allocation_strategy,
            config.eviction_policy,
            config.soft_pin_ttl,
            config.soft_pin_from,
            config.allow_evict_soft_pinned_objects,
            config.eviction_high_watermark_ratio,
            config.eviction_ratio,
            config.client_ttl,
            config.client_return_timeout,
        )
    }
}

pub(crate) fn settings() -> impl Strategy<Value = Settings> {
    (
        1usize..5,
        select(&AllocationStrategy::ALL[..]),
        select(mc_evict::PolicyKind::ALL),
        select(&[mc_lease::SoftPinFrom::LastAccess, mc_lease::SoftPinFrom::Commit][..]),
        select(&[LEASE / 2, 4 * LEASE][..]),
        any::<bool>(),
        0.3f64..1.0,
        0.0f64..0.5,
        select(&[7 * LEASE, 50 * LEASE][..]),
        (
            select(&[0, 5 * LEASE, 30 * LEASE][..]),
            select(&[1, 2, 4][..]),
            proptest::bool::weighted(0.3),
        ),
    )
        .prop_map(
            |(
                shards,
                strategy,
                policy,
                from,
                pin,
                allowed,
                high,
                ratio,
                ttl,
                (patience, scale, mixed),
            )| {
                let millis = Duration::from_millis;
                let mut config = MasterConfig::default();
                config.shards = shards;
                config.allocation_strategy = strategy;
                config.eviction_policy = policy;
                config.lease_ttl = millis(LEASE);
                config.soft_pin_ttl = millis(pin);
                config.soft_pin_from = from;
                config.allow_evict_soft_pinned_objects = allowed;
                config.eviction_high_watermark_ratio = high;
                config.eviction_ratio = ratio;
                config.client_ttl = millis(ttl);
                config.client_return_timeout = millis(patience);
                config.put_start_discard_timeout = millis(3 * LEASE);
                config.put_start_release_timeout = millis(20 * LEASE);
                Settings { config, scale, mixed }
            },
        )
}

pub(crate) fn name_of(slot: u8) -> String {
    format!("segment-{slot}")
}

pub(crate) fn id_of(slot: u8, epoch: u8) -> SegmentId {
    SegmentId::from_u128(u128::from(slot) << 8 | u128::from(epoch))
}

pub(crate) fn spec(settings: &Settings, slot: u8, epoch: u8, elsewhere: bool) -> SegmentSpec {
    let host = if elsewhere { "elsewhere" } else { "node" };
    SegmentSpec {
        id: id_of(slot, epoch),
        name: name_of(slot).into(),
        base: 0x1000,
        size: [16, 25, 37, 64][usize::from(slot)] * settings.scale,
        // Two on each host.
        endpoint: format!("mem://{host}-{}:{slot}", slot % 2).parse().unwrap(),
        remote_key: RemoteKey::from_bytes([epoch; 16]),
        ticket_key: None,
        medium: if settings.mixed && slot >= 2 { MediaType::Ssd } else { MediaType::Dram },
    }
}
