//! All bytes of a key that a call returns are of one put, whatever replaces the object meanwhile.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mc_cluster_testkit::{BlockingCluster, Cluster, client};
use mc_store::{
    ByteSize, Client, ErrorCode, GetError, GetInto, HotCacheConfig, MasterConfig, Memory,
    NodeConfig, blocking,
};
use mc_testkit::Random;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Bytes of every value. Each is filled with one byte, so that bytes of two puts show.
const LEN: usize = 16_384;

/// More parts than are read at a time.
const MANY: usize = 3000;

/// Long enough for many replacements under many reads.
const RACE: Duration = Duration::from_millis(1500);

const SEGMENT: ByteSize = ByteSize::mib(64);

/// A cluster with one node, whose leases last this long.
async fn start(lease: Duration) -> Cluster {
    let mut config = MasterConfig::default();
    config.lease_ttl = lease;
    Cluster::start_with(config, &[SEGMENT]).await
}

/// Memory for parts of values, and the requests for them.
struct Parts {
    memory: Memory,
    lens: Vec<usize>,
}

impl Parts {
    fn of(lens: Vec<usize>) -> Self {
        let memory = Memory::allocate(lens.iter().sum::<usize>().max(1)).unwrap();
        Self { memory, lens }
    }

    /// Each part is read from the value's `nth` byte on.
    fn gets(&self, nth: impl Fn(usize) -> usize) -> Vec<GetInto<'static>> {
        let mut at = 0;
        let get = |(n, &len): (usize, &usize)| {
            let into = self.memory.slice(at, len).unwrap();
            at += len;
            let from = nth(n) as u64;
            GetInto::new("key", into).range(from..from + len as u64)
        };
        self.lens.iter().enumerate().map(get).collect()
    }

    /// Returns the bytes that fill the parts that were read.
    fn found(&self, read: &[Result<u64, GetError>]) -> BTreeSet<u8> {
        let bytes = self.memory.whole().to_vec();
        let mut at = 0;
        let mut found = BTreeSet::new();
        for (len, read) in self.lens.iter().zip(read) {
            if read.is_ok() {
                found.extend(&bytes[at..at + len]);
            }
            at += len;
        }
        found
    }
}

/// Between the reader and the master: before the requests for replica lists with these numbers,
/// counted from 1, `writer` puts a value that is filled with the number.
async fn master_with_writer(master: SocketAddr, writer: Client, at: &'static [u64]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Arc::new(AtomicU64::new(0));
    tokio::spawn(async move {
        loop {
            let (reader, _) = listener.accept().await.unwrap();
            let (writer, requests) = (writer.clone(), Arc::clone(&requests));
            tokio::spawn(async move {
                let master = TcpStream::connect(master).await.unwrap();
                let (mut requested, mut answered) = reader.into_split();
                let (mut answers, mut calls) = master.into_split();
                tokio::spawn(async move { tokio::io::copy(&mut answers, &mut answered).await });
                // The end of the connection ends this as well. `docs/protocol.md` has the frames.
                let mut preface = vec![0; 16];
                requested.read_exact(&mut preface).await?;
                let hello = u16::from_le_bytes([preface[10], preface[11]]);
                forward(&mut requested, &mut calls, preface, u64::from(hello)).await?;
                loop {
                    let mut header = vec![0; 20];
                    requested.read_exact(&mut header).await?;
                    if [[1, 0], [12, 0]].contains(&[header[12], header[13]]) {
                        let number = requests.fetch_add(1, Ordering::Relaxed) + 1;
                        if at.contains(&number) {
                            writer.upsert("key", vec![number as u8; LEN]).await.unwrap();
                        }
                    }
                    let len = u32::from_le_bytes(header[..4].try_into().unwrap());
                    forward(&mut requested, &mut calls, header, u64::from(len)).await?;
                }
                #[allow(unreachable_code, reason = "the type of what ends it")]
                std::io::Result::Ok(())
            });
        }
    });
    address
}

async fn forward(
    from: &mut (impl tokio::io::AsyncRead + Unpin),
    to: &mut (impl tokio::io::AsyncWrite + Unpin),
    mut head: Vec<u8>,
    more: u64,
) -> std::io::Result<()> {
    let read = from.take(more).read_to_end(&mut head).await?;
    assert_eq!(read as u64, more);
    to.write_all(&head).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_one_call_are_of_one_put() {
    let cluster = start(Duration::from_secs(5)).await;
    let address = cluster.master.local_addr();
    for at in [&[1][..], &[2], &[3], &[2, 3]] {
        let writer = cluster.app().await;
        writer.upsert("key", vec![0; LEN]).await.unwrap();
        let between = master_with_writer(address, writer, at).await;
        let reader = client(&between).connect().await.unwrap();
        let parts = Parts::of(vec![5; MANY]);
        let read = reader.batch_get_into(parts.gets(|n| n * 5)).await;
        assert!(read.iter().all(|read| matches!(read, Ok(5))), "{at:?}");
        assert_eq!(parts.found(&read).len(), 1, "{at:?}");
        // The same key again and again is one object, too.
        let values = reader.batch_get(&["key"; 1025]).await;
        let found: BTreeSet<u8> = values.into_iter().flat_map(|value| value.unwrap()).collect();
        assert_eq!(found.len(), 1, "{at:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_again_is_read_from_the_beginning() {
    // So short that every read asks again before it ends.
    let cluster = start(Duration::from_micros(1)).await;
    let address = cluster.master.local_addr();
    for at in [&[2][..], &[3], &[2, 4], &[4]] {
        let writer = cluster.app().await;
        writer.upsert("key", vec![0; LEN]).await.unwrap();
        let between = master_with_writer(address, writer, at).await;
        let reader = client(&between).connect().await.unwrap();
        let parts = Parts::of(vec![100, 1, LEN, 7]);
        let read = reader.batch_get_into(parts.gets(|_| 0)).await;
        assert!(read.iter().all(Result::is_ok), "{at:?} {read:?}");
        assert_eq!(parts.found(&read).len(), 1, "{at:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_again_and_again_under_readers() {
    let cluster = start(Duration::from_millis(20)).await;
    let writer = cluster.app().await;
    writer.upsert("key", vec![0; LEN]).await.unwrap();
    let mut hot = HotCacheConfig::new(ByteSize::mib(1));
    hot.admission = 0;
    let readers = [
        cluster.nodes[0].clone(),
        cluster.app().await,
        cluster.client().node(NodeConfig::default()).connect().await.unwrap(),
        cluster.client().hot_cache(hot).connect().await.unwrap(),
    ];
    let over = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn({
        let over = Arc::clone(&over);
        async move {
            let mut puts = 0_u64;
            while !over.load(Ordering::Relaxed) {
                puts += 1;
                writer.upsert("key", vec![puts as u8; LEN]).await.unwrap();
            }
            puts
        }
    });
    let mut random = Random::seeded("MC_TEST_SEED");
    let begun = Instant::now();
    let (mut calls, mut values) = (0, BTreeSet::new());
    while begun.elapsed() < RACE {
        let count = if random.below(8) == 0 { MANY } else { 1 + random.below(8) };
        let mut lens: Vec<usize> = (0..count).map(|_| 1 + random.below(64)).collect();
        if random.below(2) == 0 {
            lens[count / 2] = LEN;
        }
        let parts = Parts::of(lens.clone());
        let starts: Vec<usize> = lens.iter().map(|len| random.below(LEN - len + 1)).collect();
        let reader = &readers[random.below(readers.len())];
        let read = reader.batch_get_into(parts.gets(|n| starts[n])).await;
        for read in &read {
            assert!(matches!(read, Ok(_) | Err(GetError::LeaseExpired)), "{read:?}");
        }
        let found = parts.found(&read);
        assert!(found.len() <= 1, "{count} parts of one call are of the puts {found:?}");
        values.extend(found);
        calls += 1;
    }
    over.store(true, Ordering::Relaxed);
    let puts = writing.await.unwrap();
    println!("{calls} calls saw {} values of {puts} puts", values.len());
    assert!(puts > 10 && values.len() > 10, "{calls} calls saw {values:?} of {puts} puts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_generation_is_read_or_nothing() {
    let cluster = start(Duration::from_secs(5)).await;
    let writer = cluster.app().await;
    let mut hot = HotCacheConfig::new(ByteSize::mib(1));
    hot.admission = 0;
    for reader in [
        cluster.nodes[0].clone(),
        cluster.app().await,
        cluster.client().hot_cache(hot).connect().await.unwrap(),
    ] {
        writer.upsert("key", vec![1; LEN]).await.unwrap();
        let old = reader.stat("key").await.unwrap();
        assert_eq!(old.len, LEN as u64);
        assert_eq!(old.generation, reader.describe("key").await.unwrap().generation);
        let parts = Parts::of(vec![10, LEN, 3]);
        let gets = |generation| {
            parts.gets(|_| 0).into_iter().map(move |get| get.generation(generation)).collect()
        };
        // With a cache, the second time from there.
        for _ in 0..2 {
            let read = reader.batch_get_into(gets(old.generation)).await;
            assert!(read.iter().all(Result::is_ok), "{read:?}");
            assert_eq!(parts.found(&read), BTreeSet::from([1]));
        }

        writer.upsert("key", vec![2; LEN]).await.unwrap();
        for read in reader.batch_get_into(gets(old.generation)).await {
            let error = read.unwrap_err();
            assert!(matches!(error, GetError::Replaced), "{error:?}");
            assert_eq!((error.code(), error.is_retryable()), (ErrorCode::LeaseExpired, false));
        }
        let gone = reader.get_range_of("key", old.generation, 0..5).await;
        assert!(matches!(gone, Err(GetError::Replaced)), "{gone:?}");
        let new = reader.stat("key").await.unwrap();
        let found = reader.get_range_of("key", new.generation, 0..u64::MAX).await.unwrap();
        assert!(found == vec![2; LEN]);
        // Each part of one call for itself, those that name no put among them.
        let mut mixed: Vec<GetInto<'_>> = parts.gets(|_| 0);
        mixed[0].generation = Some(old.generation);
        mixed[1].generation = Some(new.generation);
        let read = reader.batch_get_into(mixed).await;
        assert!(matches!(read[..], [Err(GetError::Replaced), Ok(_), Ok(3)]), "{read:?}");
        assert_eq!(parts.found(&read), BTreeSet::from([2]));

        // Nor is a put that comes back under the key the one that was there.
        writer.remove("key", true).await.unwrap();
        let gone = reader.get_range_of("key", new.generation, 0..5).await;
        assert!(matches!(gone, Err(GetError::NotFound)), "{gone:?}");
        writer.put("key", vec![2; LEN]).await.unwrap();
        let gone = reader.get_range_of("key", new.generation, 0..5).await;
        assert!(matches!(gone, Err(GetError::Replaced)), "{gone:?}");
    }
}

/// Pinned to what a look-up told, calls one after the other read one value or say that it is
/// gone.
#[test]
fn calls_that_name_a_put_never_mix_two() {
    let cluster = BlockingCluster::start(&[]);
    let node = cluster.node().segment_size(SEGMENT);
    let node: blocking::Client = node.connect_blocking().unwrap();
    node.upsert("key", vec![0; LEN]).unwrap();
    let over = AtomicBool::new(false);
    let (mut whole, mut replaced) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Few enough that the old values' space is not wanted before their leases end.
            for n in 1..=2000_u32 {
                node.upsert("key", vec![n as u8; LEN]).unwrap();
                if over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let begun = Instant::now();
        while begun.elapsed() < RACE && (whole < 20 || replaced < 20) {
            let put = node.stat("key").unwrap().generation;
            let read = |from| node.get_range_of("key", put, from..from + 100);
            match (read(0), read(8000), read(16_284)) {
                (Ok(first), Ok(second), Ok(third)) => {
                    assert!(first == second && second == third);
                    assert!(first.iter().all(|byte| *byte == first[0]));
                    whole += 1;
                }
                (first, second, third) => {
                    for read in [first, second, third] {
                        assert!(matches!(read, Ok(_) | Err(GetError::Replaced)), "{read:?}");
                    }
                    replaced += 1;
                }
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(whole + replaced > 20, "{whole} {replaced}");
}
