//! Verified reads: parts of values, and values in the hot cache.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use mc_cluster_testkit::Cluster;
use mc_meta::{PutEnd, ReplicateConfig};
use mc_rpc::PutStartItem;
use mc_store::{
    ByteSize, Client, GetError, GetInto, HotCacheConfig, Memory, NodeConfig, Put, Source,
};
use mc_transport::tcp::{TcpConfig, TcpTransport};
use mc_transport::{Link as _, Operation, RemoteSpan, SliceSums, Transport as _};
use mc_types::{ClientId, KeyRef};

use crate::common::content;

const BLOCK: usize = 65_536;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hot_cache_keeps_no_bytes_of_another_key() {
    let cluster = Cluster::start(&[ByteSize::mib(32)]).await;
    let node = &cluster.nodes[0];
    let mut cache = HotCacheConfig::new(ByteSize::mib(1));
    cache.admission = 1;
    let app = cluster.client().hot_cache(cache).connect().await.unwrap();
    let [a, b] = ["a", "b"].map(|key| content(key, 50_000));
    node.put("a", a.clone()).await.unwrap();
    node.put("b", b.clone()).await.unwrap();
    // Both into the same memory: the bytes of one of them are there in the end.
    let memory = Memory::allocate(50_000).unwrap();
    let into = |key| GetInto::new(key, memory.whole());
    for read in app.batch_get_into(vec![into("a"), into("b")]).await {
        read.unwrap();
    }
    for (key, value) in [("a", a), ("b", b)] {
        let found = app.get(key).await.unwrap();
        let other = content(if key == "a" { "b" } else { "a" }, 50_000);
        assert!(found == value, "{key} has the bytes of the other key: {}", found == other);
    }
}

/// An object of which some bytes lie in memory otherwise than they were put, as a bad memory
/// module or a stray writer would leave them.
struct Damaged {
    name: &'static str,
    slices: Vec<Bytes>,
    /// The offsets of the bytes that differ.
    at: &'static [usize],
    /// Whether its writer tells checksums of parts; older ones do not.
    has_prefixes: bool,
}

impl Damaged {
    async fn put(&self, client: &Client, key: &str) {
        let (id, key, master) =
            (ClientId::from_u128(9), KeyRef::new(key).unwrap(), client.master());
        let slice_lengths: Vec<u64> = self.slices.iter().map(|slice| slice.len() as u64).collect();
        let put = PutStartItem::new(key, &slice_lengths);
        let config = ReplicateConfig::default();
        let grant = master.batch_put_start(id, &config, &[put]).await.unwrap().remove(0).unwrap();
        let replica = &grant.replicas[0];
        let mut bytes = self.slices.concat();
        self.at.iter().for_each(|&at| bytes[at] ^= 1);
        let tcp = TcpTransport::start(TcpConfig::default()).await.unwrap();
        let link = tcp.connect(&replica.segment.endpoint).await.unwrap();
        let to = RemoteSpan::new(replica.segment.remote_key, replica.extent);
        let write = Operation::write(Bytes::from(bytes), to.with_ticket(replica.ticket));
        link.submit(vec![write]).await.remove(0).unwrap();
        let sources: Vec<Source> = self.slices.iter().cloned().map(Source::from).collect();
        let sums = SliceSums::of(&sources);
        let prefixes = if self.has_prefixes { &sums.prefixes[..] } else { &[] };
        let end = PutEnd { checksums: &sums.checksums, prefixes, ..PutEnd::new(key, grant.handle) };
        master.batch_put_end(id, &[end]).await.unwrap().remove(0).unwrap();
    }

    /// Whether every range is read as it was put, and refused where a damaged block is in it.
    ///
    /// Each range has an object of its own: a reader reports the damage that it meets, and the
    /// object may be gone before the next range is read.
    async fn check(&self, readers: &[Client], ranges: &[(usize, usize, bool)]) {
        let value = self.slices.concat();
        for (n, reader) in readers.iter().enumerate() {
            for &(start, end, is_intact) in ranges {
                let key = format!("{} {start}..{end} of reader {n}", self.name);
                self.put(&readers[0], &key).await;
                let found = reader.get_range(&key, start as u64..end as u64).await;
                match is_intact {
                    true => assert!(found.unwrap() == value[start..end], "{key}"),
                    false => assert!(
                        matches!(found, Err(GetError::ChecksumMismatch { .. })),
                        "{key}: {:?}",
                        found.map(|bytes| bytes.len())
                    ),
                }
            }
        }
    }
}

/// Readers over shared memory, through a socket, and of the own segment.
async fn readers(cluster: &Cluster) -> [Client; 3] {
    let remote = cluster.client().node(NodeConfig::default()).connect().await.unwrap();
    [cluster.nodes[0].clone(), cluster.app().await, remote]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_byte_of_a_range_is_verified() {
    let cluster = Cluster::start(&[ByteSize::mib(96)]).await;
    let readers = readers(&cluster).await;
    let value = content("blocks", 10 * BLOCK + 17);
    let one = Damaged {
        name: "one",
        slices: vec![value.clone()],
        // A byte of the second block, and one of the last whole block.
        at: &[BLOCK + 100, 9 * BLOCK + BLOCK - 1],
        has_prefixes: true,
    };
    let ranges = [
        (0, 10, true),
        (BLOCK - 5, BLOCK, true),
        (BLOCK - 5, BLOCK + 1, false),
        (BLOCK, BLOCK + 1, false),
        (2 * BLOCK - 1, 2 * BLOCK, false),
        (2 * BLOCK, 2 * BLOCK + 1, true),
        (2 * BLOCK + 7, 9 * BLOCK, true),
        (3 * BLOCK, 9 * BLOCK + 1, false),
        (10 * BLOCK - 1, 10 * BLOCK, false),
        (10 * BLOCK, 10 * BLOCK + 17, true),
        (10 * BLOCK + 3, 10 * BLOCK + 9, true),
        (0, 10 * BLOCK + 17, false),
    ];
    one.check(&readers, &ranges).await;
    let cuts = [0, 3, 3 * BLOCK, 3 * BLOCK + 100, value.len()];
    let slices: Vec<Bytes> = cuts.windows(2).map(|cut| value.slice(cut[0]..cut[1])).collect();
    let many = Damaged {
        name: "many",
        slices,
        // In the middle of the second slice, in the short third, behind a block of the fourth.
        at: &[3 + BLOCK + 5, 3 * BLOCK + 50, 5 * BLOCK + 100],
        has_prefixes: true,
    };
    let ranges = [
        (0, 3, true),
        (1, BLOCK, true),
        (1, BLOCK + 3, true),
        (1, BLOCK + 4, false),
        (2 * BLOCK + 3, 3 * BLOCK, true),
        (3 * BLOCK - 1, 3 * BLOCK + 1, false),
        (3 * BLOCK + 99, 3 * BLOCK + 100, false),
        (3 * BLOCK + 100, 5 * BLOCK + 100, true),
        (5 * BLOCK + 99, 5 * BLOCK + 101, false),
        (6 * BLOCK + 100, 10 * BLOCK + 17, true),
    ];
    many.check(&readers, &ranges).await;
    // Of a writer that tells no prefixes, slices are read whole.
    let older =
        Damaged { name: "older", at: &[5 * BLOCK + 100], has_prefixes: false, slices: many.slices };
    let ranges = [(2, 3 * BLOCK + 1, true), (3 * BLOCK + 100, 3 * BLOCK + 101, false)];
    older.check(&readers, &ranges).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_of_what_clients_put_are_exact_and_leave_the_rest_of_the_target_alone() {
    let cluster = Cluster::start(&[ByteSize::mib(96)]).await;
    let readers = readers(&cluster).await;
    let value = content("put", 5 * BLOCK + 123);
    let cuts = [0, 100_000, 100_001, 300_000, value.len()];
    let slices = cuts.windows(2).map(|cut| Source::from(value.slice(cut[0]..cut[1]))).collect();
    let put = Put::of_slices("put", slices);
    readers[1].batch_put(vec![put], &ReplicateConfig::default()).await.remove(0).unwrap();
    // More ranges of one key than the master answers at a time, in one call.
    let ranges: Vec<(usize, usize)> = (0..1500)
        .map(|n| {
            let start = n * 7919 % value.len();
            (start, (start + n * 31 % 3000).min(value.len()))
        })
        .collect();
    for reader in &readers {
        let memory = Memory::allocate(ranges.len() * 3000).unwrap();
        let place = |n: usize| memory.slice(n * 3000, 3000).unwrap();
        let gets = ranges.iter().enumerate().map(|(n, &(start, end))| {
            GetInto::new("put", place(n)).range(start as u64..end as u64)
        });
        let read = reader.batch_get_into(gets.collect()).await;
        for (n, (&(start, end), read)) in ranges.iter().zip(read).enumerate() {
            assert_eq!(read.unwrap() as usize, end - start);
            let found = place(n).to_vec();
            assert!(found[..end - start] == value[start..end], "{start}..{end}");
            assert!(found[end - start..].iter().all(|&byte| byte == 0), "{start}..{end}");
        }
    }
}
