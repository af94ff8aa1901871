//! The master against a slow, obvious model of it.
//!
//! Placement and the choice of victims are the master's freedom: the model takes
//! extents from the answer and learns victims from the effects, and checks that
//! each of them was allowed. Everything else the model predicts exactly.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod oracle;

use core::time::Duration;

use mc_meta::{
    AllocationStrategy, ListCursor, MasterConfig, MountError, PutEnd, PutStart, ReplicateConfig,
    SegmentSpec,
};
use mc_types::{Checksum, ClientId, KeyRef, RemoteKey, SegmentId};
use oracle::{Oracle, Which};
use proptest::prelude::*;

/// Few keys, so that commands meet.
const KEYS: usize = 7;
const CLIENTS: u128 = 3;

#[derive(Clone, Debug)]
enum Op {
    Mount {
        client: u128,
        slot: u8,
        epoch: u8,
        elsewhere: bool,
    },
    Unmount {
        client: u128,
        slot: u8,
        epoch: u8,
    },
    Ping {
        client: u128,
    },
    PutStart {
        client: u128,
        key: usize,
        slices: Vec<u64>,
        config: ReplicateConfig,
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
    },
    /// A whole put, as a well-behaved client does it.
    Put {
        client: u128,
        key: usize,
        slices: Vec<u64>,
        config: ReplicateConfig,
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
    Pass {
        millis: u64,
    },
}

fn config() -> impl Strategy<Value = ReplicateConfig> {
    (1u32..4, any::<bool>(), proptest::option::of(0u8..5)).prop_map(|(replicas, soft, slot)| {
        let mut config = ReplicateConfig::default().replicas(replicas);
        if soft {
            config = config.soft_pin();
        }
        match slot {
            Some(slot) => config.prefer(name_of(slot)),
            None => config,
        }
    })
}

fn which() -> impl Strategy<Value = Which> {
    prop_oneof![
        4 => Just(Which::Current),
        1 => Just(Which::Previous),
        2 => Just(Which::Unnamed),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let client = 0..CLIENTS;
    let key = 0..KEYS;
    let slices = proptest::collection::vec(1u64..60, 1..3);
    let millis = prop_oneof![
        6 => 0u64..60,
        3 => 60u64..600,
        1 => 600u64..5_000,
        1 => Just(1 << 40),
    ];
    prop_oneof![
        3 => (client.clone(), 0u8..4, 0u8..3, proptest::bool::weighted(0.1)).prop_map(
            |(client, slot, epoch, elsewhere)| Op::Mount { client, slot, epoch, elsewhere }
        ),
        1 => (client.clone(), 0u8..4, 0u8..3)
            .prop_map(|(client, slot, epoch)| Op::Unmount { client, slot, epoch }),
        3 => client.clone().prop_map(|client| Op::Ping { client }),
        4 => (client.clone(), key.clone(), slices.clone(), config()).prop_map(
            |(client, key, slices, config)| Op::PutStart { client, key, slices, config }
        ),
        4 => (client.clone(), key.clone(), which(), 0usize..3).prop_map(
            |(client, key, which, checksums)| Op::PutEnd { client, key, which, checksums }
        ),
        1 => (client.clone(), key.clone(), which())
            .prop_map(|(client, key, which)| Op::PutRevoke { client, key, which }),
        8 => (client, key.clone(), slices, config()).prop_map(
            |(client, key, slices, config)| Op::Put { client, key, slices, config }
        ),
        4 => key.clone().prop_map(|key| Op::Get { key }),
        1 => key.clone().prop_map(|key| Op::Exist { key }),
        2 => (key.clone(), any::<bool>()).prop_map(|(key, force)| Op::Remove { key, force }),
        1 => proptest::bool::weighted(0.2).prop_map(|force| Op::RemoveAll { force }),
        1 => proptest::collection::vec(key, 0..5).prop_map(|keys| Op::Prefix { keys }),
        1 => (1usize..4).prop_map(|limit| Op::List { limit }),
        3 => Just(Op::Tick),
        5 => millis.prop_map(|millis| Op::Pass { millis }),
    ]
}

fn name_of(slot: u8) -> String {
    format!("segment-{slot}")
}

fn id_of(slot: u8, epoch: u8) -> SegmentId {
    SegmentId::from_u128(u128::from(slot) << 8 | u128::from(epoch))
}

fn spec(slot: u8, epoch: u8, elsewhere: bool) -> SegmentSpec {
    let host = if elsewhere { "elsewhere" } else { "node" };
    SegmentSpec {
        id: id_of(slot, epoch),
        name: name_of(slot).into(),
        base: 0x1000,
        size: [64, 100, 150, 257][usize::from(slot)],
        // Two on each host.
        endpoint: format!("mem://{host}-{}:{slot}", slot % 2).parse().unwrap(),
        remote_key: RemoteKey::from_bytes([epoch; 16]),
    }
}

fn settings() -> impl Strategy<Value = MasterConfig> {
    let strategy = proptest::sample::select(&AllocationStrategy::ALL[..]);
    (1usize..5, strategy, any::<bool>(), 0.3f64..1.0, 0.0f64..0.5).prop_map(
        |(shards, strategy, allow_pinned, high, ratio)| {
            let millis = Duration::from_millis;
            let mut config = MasterConfig::default();
            config.shards = shards;
            config.allocation_strategy = strategy;
            config.lease_ttl = millis(100);
            config.soft_pin_ttl = millis(1_000);
            config.allow_evict_soft_pinned_objects = allow_pinned;
            config.eviction_high_watermark_ratio = high;
            config.eviction_ratio = ratio;
            config.client_ttl = millis(700);
            config.client_return_timeout = Duration::ZERO;
            config.put_start_discard_timeout = millis(300);
            config.put_start_release_timeout = millis(2_000);
            config
        },
    )
}

fn apply(oracle: &mut Oracle, op: &Op) {
    match op {
        Op::Mount { client, slot, epoch, elsewhere } => {
            let result =
                oracle.mount(ClientId::from_u128(*client), spec(*slot, *epoch, *elsewhere));
            assert!(matches!(result, Ok(()) | Err(MountError::AlreadyExists { .. })));
        }
        Op::Unmount { client, slot, epoch } => {
            oracle.unmount(ClientId::from_u128(*client), id_of(*slot, *epoch));
        }
        Op::Ping { client } => oracle.ping(ClientId::from_u128(*client)),
        Op::PutStart { client, key, slices, config } => {
            let key = name(*key);
            let put = PutStart { key: as_key(&key), slice_lengths: slices, config };
            let _ = oracle.put_start(ClientId::from_u128(*client), &put);
        }
        Op::PutEnd { client, key, which, checksums } => {
            let key = name(*key);
            let checksums = vec![Checksum::from_crc32c(5); *checksums];
            let generation = oracle.generation(&key, *which);
            let put = PutEnd { key: as_key(&key), generation, checksums: &checksums };
            oracle.put_end(ClientId::from_u128(*client), &put);
        }
        Op::PutRevoke { client, key, which } => {
            let key = name(*key);
            let generation = oracle.generation(&key, *which);
            oracle.put_revoke(ClientId::from_u128(*client), as_key(&key), generation);
        }
        Op::Put { client, key, slices, config } => {
            let (client, key) = (ClientId::from_u128(*client), name(*key));
            let put = PutStart { key: as_key(&key), slice_lengths: slices, config };
            if let Some(generation) = oracle.put_start(client, &put) {
                let generation = Some(generation);
                oracle.put_end(client, &PutEnd { key: put.key, generation, checksums: &[] });
            }
        }
        Op::Get { key } => oracle.get(as_key(&name(*key))),
        Op::Exist { key } => oracle.exist(as_key(&name(*key))),
        Op::Remove { key, force } => oracle.remove(as_key(&name(*key)), *force),
        Op::RemoveAll { force } => oracle.remove_all(*force),
        Op::Prefix { keys } => {
            let names: Vec<String> = keys.iter().map(|key| name(*key)).collect();
            oracle.longest_prefix(&names);
        }
        Op::List { limit } => oracle.list(ListCursor::default(), *limit),
        Op::Tick => oracle.tick(),
        Op::Pass { millis } => oracle.pass(*millis),
    }
    oracle.check();
}

fn name(key: usize) -> String {
    format!("key-{key}")
}

fn as_key(key: &str) -> KeyRef<'_> {
    KeyRef::new(key).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_master_keeps_its_rules(
        config in settings(),
        seed in any::<u64>(),
        ops in proptest::collection::vec(op(), 1..250),
    ) {
        let mut oracle = Oracle::new(config, seed);
        for slot in 0..4 {
            oracle.mount(ClientId::from_u128(u128::from(slot) % CLIENTS), spec(slot, 0, false))
                .unwrap();
        }
        for op in &ops {
            apply(&mut oracle, op);
        }
        oracle.finish();
    }
}
