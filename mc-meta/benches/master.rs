//! The hot commands at a million live objects of one replica with 40-byte keys.

use core::hint::black_box;
use core::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use mc_meta::{Master, MasterConfig, PutEnd, PutStart, ReplicateConfig, SegmentSpec};
use mc_types::{Checksum, ClientId, KeyRef, RemoteKey, SegmentId, Time};

const LIVE: u64 = 1_000_000;
const OBJECT: u64 = 64 * 1024;
/// Commands in one measured batch.
const BATCH: u64 = 1_000;
const CLIENT: ClientId = ClientId::from_u128(1);

/// A 40-byte key, as content hashes make them.
fn name(number: u64) -> String {
    format!("{:08x}{number:032x}", number.wrapping_mul(0x9e37_79b1) as u32)
}

/// A master with room for `room` objects beyond the live ones.
fn master(room: u64) -> Master {
    const SEGMENTS: u64 = 16;
    let mut config = MasterConfig::default();
    config.client_ttl = Duration::from_secs(1 << 40);
    let master = Master::new(config, 1).expect("the defaults make sense");
    for number in 0..SEGMENTS {
        let spec = SegmentSpec {
            id: SegmentId::from_u128(u128::from(number)),
            name: format!("segment-{number}").into(),
            base: 0,
            size: (LIVE + room).div_ceil(SEGMENTS) * OBJECT,
            endpoint: format!("mem://node-{number}").parse().expect("a plain endpoint"),
            remote_key: RemoteKey::from_bytes([1; 16]),
            ticket_key: None,
            medium: mc_types::MediaType::Dram,
        };
        master.mount_segment(Time::ORIGIN, CLIENT, spec).expect("each name is used once");
    }
    for number in 0..LIVE {
        put(&master, Time::ORIGIN, &name(number));
    }
    master
}

fn put(master: &Master, now: Time, name: &str) {
    let key = KeyRef::new(name).expect("the key is short");
    let config = ReplicateConfig::default();
    let start = PutStart { key, slice_lengths: &[OBJECT], config: &config };
    let grant = master.put_start(now, CLIENT, &start).expect("there is room, or victims");
    let checksums = [Checksum::from_crc32c(1)];
    let end = PutEnd { checksums: &checksums, ..PutEnd::new(key, grant.handle) };
    master.put_end(now, CLIENT, &end).expect("the put is open");
}

fn reads(criterion: &mut Criterion) {
    let master = master(LIVE / 10);
    let mut random = fastrand::Rng::with_seed(7);
    let mut names = || (0..BATCH).map(|_| name(random.u64(..LIVE))).collect::<Vec<_>>();
    let mut group = criterion.benchmark_group("meta_1M");
    group.throughput(Throughput::Elements(BATCH));
    group.bench_function("get_replica_list", |bencher| {
        bencher.iter_batched(
            &mut names,
            |names| {
                for name in &names {
                    let key = KeyRef::new(name).expect("the key is short");
                    black_box(master.get_replica_list(Time::ORIGIN, key).is_ok());
                }
                names
            },
            BatchSize::LargeInput,
        );
    });
    group.bench_function("exist", |bencher| {
        bencher.iter_batched(
            &mut names,
            |names| {
                for name in &names {
                    let key = KeyRef::new(name).expect("the key is short");
                    black_box(master.exist(Time::ORIGIN, key));
                }
                names
            },
            BatchSize::LargeInput,
        );
    });
}

fn puts(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("meta_1M");
    group.throughput(Throughput::Elements(BATCH));
    let with_room = master(LIVE / 10);
    let mut next = LIVE;
    group.bench_function("put_pair", |bencher| {
        bencher.iter_batched(
            || {
                // What the last batch put goes again, so that the number stays.
                for number in next - BATCH..next {
                    let name = name(number);
                    let key = KeyRef::new(&name).expect("the key is short");
                    let _ = with_room.remove(Time::ORIGIN, key, true);
                }
                let first = next;
                next += BATCH;
                (first..next).map(name).collect::<Vec<_>>()
            },
            |names| {
                names.iter().for_each(|name| put(&with_room, Time::ORIGIN, name));
                names
            },
            BatchSize::LargeInput,
        );
    });
    drop(with_room);
    let full = master(0);
    let mut next = LIVE;
    group.bench_function("put_pair_evicting_one", |bencher| {
        bencher.iter_batched(
            || {
                let first = next;
                next += BATCH;
                (first..next).map(name).collect::<Vec<_>>()
            },
            |names| {
                names.iter().for_each(|name| put(&full, Time::from_millis(1), name));
                names
            },
            BatchSize::LargeInput,
        );
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3));
    targets = reads, puts
}
criterion_main!(benches);
