//! Connections: how many there are, where they go, how long they live.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_transport::{
    Access, Link, Memory, Operation, RegionTable, TransferError, Transport, checksum,
};
use mc_transport_quic::QuicTransport;
use mc_types::Extent;
use tokio::time::{sleep, timeout};

use super::nodes::{
    DEADLINE, Rig, SHORT, connecting, listening, one, pattern, span, start, still_serves,
};
use super::pki::Authority;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_moves_while_transfers_run() {
    const LEN: usize = 32 << 20;
    const MOVES: usize = 3;
    let rig = Rig::new(LEN, |_| {}, |_| {}).await;
    let bytes = Bytes::from(pattern(LEN));
    rig.region.memory().whole().copy_from(0, &bytes).unwrap();
    let whole = span(rig.region.key(), 0, LEN as u64);
    let memories = [(); MOVES].map(|()| Memory::allocate(LEN).unwrap());
    let reads = memories.iter().map(|memory| Operation::read(whole, memory.whole()));
    // Writes of the same bytes, so that reads at the same time see them, too.
    let writes = (0..MOVES).map(|_| Operation::write(bytes.clone(), whole));
    let mut completions = rig.link.submit(reads.chain(writes).collect());
    let mut places = vec![];
    for _ in 0..MOVES {
        places.push(rig.client.rebind("127.0.0.1:0".parse().unwrap()).unwrap());
        let next = timeout(DEADLINE, completions.next()).await.expect("in time");
        next.unwrap().1.unwrap();
    }
    places.dedup();
    assert_eq!(places.len(), MOVES, "each move goes elsewhere");
    for outcome in timeout(DEADLINE, completions).await.expect("in time") {
        outcome.unwrap();
    }
    for memory in memories {
        assert!(memory.whole().checksum() == checksum(&bytes));
    }
    assert_eq!(rig.region.memory().whole().checksum(), checksum(&bytes));
    let again = rig.client.connect(rig.server.endpoint().unwrap()).await.unwrap();
    let first: *const dyn Link = &*rig.link;
    assert!(std::ptr::addr_eq(Arc::as_ptr(&again), first), "it is the same link");
    assert_eq!(rig.server.stats().connections, 1, "of one connection");
}

#[tokio::test]
async fn a_client_moves_before_it_connects_and_nowhere_it_cannot() {
    let rig = Rig::new(64, |_| {}, |_| {}).await;
    let moved = rig.client.rebind("127.0.0.1:0".parse().unwrap()).unwrap();
    assert_eq!(moved.ip().to_string(), "127.0.0.1");
    // An address of the documentation is none of this host.
    assert!(rig.client.rebind("192.0.2.1:0".parse().unwrap()).is_err());
    let write = || Operation::write(Bytes::from_static(b"x"), span(rig.region.key(), 0, 1));
    one(&*rig.link, write()).await.unwrap();
    rig.client.shutdown().await;
    let refused = rig.client.rebind("127.0.0.1:0".parse().unwrap());
    assert!(matches!(refused, Err(mc_transport_quic::RebindError::Closed)), "{refused:?}");
    let late = one(&*rig.link, write()).await;
    assert!(matches!(late, Err(TransferError::Closed)), "{late:?}");

    let unused = start(connecting(&rig.authority)).await;
    unused.rebind("127.0.0.1:0".parse().unwrap()).unwrap();
    let link = unused.connect(rig.server.endpoint().unwrap()).await.unwrap();
    one(&*link, write()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_operations_are_cut() {
    const LEN: usize = (9 << 20) + 5;
    let rig = Rig::new(LEN, |_| {}, |config| config.connections_per_peer = 4.try_into().unwrap());
    let rig = rig.await;
    assert_eq!(rig.server.stats().connections, 4);
    let bytes = Bytes::from(pattern(LEN));
    let whole = span(rig.region.key(), 0, LEN as u64);
    let write = Operation::write(bytes.clone(), whole).checksummed();
    let written = one(&*rig.link, write).await.unwrap();
    assert_eq!(written.checksum, Some(checksum(&bytes)));
    assert_eq!(rig.region.memory().whole().checksum(), checksum(&bytes));
    let memory = Memory::allocate(LEN).unwrap();
    let read = Operation::read(whole, memory.whole()).checksummed();
    assert_eq!(one(&*rig.link, read).await.unwrap().checksum, Some(checksum(&bytes)));
    assert!(memory.whole().to_vec() == bytes);
    // A part that is refused names the operation, not itself.
    let outside = Operation::read(span(rig.region.key(), 7, LEN as u64), memory.whole());
    let refused = one(&*rig.link, outside).await.unwrap_err();
    let exact = matches!(refused, TransferError::OutOfBounds { offset: 7, len }
        if len == LEN as u64);
    assert!(exact && rig.link.is_healthy(), "{refused:?}");
}

#[tokio::test]
async fn fewer_connections_than_wished_are_a_link() {
    let rig = Rig::new(
        64,
        |config| config.max_connections = 2,
        |config| config.connections_per_peer = 4.try_into().unwrap(),
    );
    let rig = rig.await;
    let write = || Operation::write(Bytes::from_static(b"x"), span(rig.region.key(), 0, 1));
    // Where the server closed a connection for the next just when the link was made, the link
    // ends, and another one is made.
    let deadline = Instant::now() + DEADLINE;
    let mut link = Arc::clone(&rig.link);
    while let Err(error) = one(&*link, write()).await {
        assert!(Instant::now() < deadline, "{error}");
        link = rig.client.connect(rig.server.endpoint().unwrap()).await.unwrap();
    }
    assert!(rig.server.stats().connections <= 2);
    assert_eq!(rig.server.stats().refused_connections, 0);
}

#[tokio::test]
async fn any_mtu_carries_large_operations() {
    const LEN: usize = 8 << 20;
    for mtu in [1200, 1452, 6500, 6501, 8952, 65_000] {
        let rig = Rig::new(LEN, |config| config.max_mtu = mtu, |config| config.max_mtu = mtu).await;
        let bytes = Bytes::from(pattern(LEN));
        let whole = span(rig.region.key(), 0, LEN as u64);
        one(&*rig.link, Operation::write(bytes.clone(), whole)).await.unwrap();
        let memory = Memory::allocate(LEN).unwrap();
        one(&*rig.link, Operation::read(whole, memory.whole())).await.unwrap();
        assert!(memory.whole().to_vec() == bytes, "{mtu}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_stream_starves_beside_others() {
    for write in [false, true] {
        // A stream without progress for half of the time that all of them need is closed; how
        // long that is depends on the machine. One after the other, the last would wait for all.
        // Other tests take the processors for a while, so that one time of three is enough.
        let mut failures = Vec::new();
        while failures.len() < 3 {
            let all = crowd(write, DEADLINE).await.expect("in time");
            match crowd(write, all / 2).await {
                Ok(_) => break,
                Err(error) => failures.push(format!("{error}, of {all:?}")),
            }
        }
        assert!(failures.len() < 3, "{failures:?}");
    }
}

/// The time that a crowd of large operations needs on one link on which little fits.
async fn crowd(write: bool, stall_timeout: Duration) -> Result<Duration, TransferError> {
    const LEN: usize = 8 << 20;
    const COUNT: usize = 64;
    let narrow = |config: &mut mc_transport_quic::QuicConfig| {
        config.window = mc_types::ByteSize::kib(64);
        config.stall_timeout = stall_timeout;
    };
    let rig = Rig::new(LEN, narrow, narrow).await;
    let whole = span(rig.region.key(), 0, LEN as u64);
    let memory = Memory::allocate(LEN).unwrap();
    let operation = |_| match write {
        true => Operation::write(memory.whole(), whole),
        false => Operation::read(whole, memory.whole()),
    };
    let began = Instant::now();
    let outcomes = rig.link.submit((0..COUNT).map(operation).collect());
    let outcomes = timeout(DEADLINE, outcomes).await.expect("in time");
    outcomes.into_iter().collect::<Result<Vec<_>, _>>().map(|_| began.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_ends_another_link() {
    const LEN: usize = 8 << 20;
    let cut = |config: &mut mc_transport_quic::QuicConfig| {
        config.connections_per_peer = 2.try_into().unwrap();
    };
    let rig = Rig::new(LEN, |_| {}, cut).await;
    let other = start(connecting(&rig.authority)).await;
    let second = other.connect(rig.server.endpoint().unwrap()).await.unwrap();
    let whole = span(rig.region.key(), 0, LEN as u64);
    let old = Bytes::from(vec![1; LEN]);
    let writes = rig.link.submit((0..50).map(|_| Operation::write(old.clone(), whole)).collect());
    let lost = rig.link.id().unwrap();
    timeout(DEADLINE, second.fence(lost)).await.expect("in time").remove(0).unwrap();
    // Nothing of the old link arrives any more.
    one(&*second, Operation::write(Bytes::from(vec![2; LEN]), whole)).await.unwrap();
    let outcomes = timeout(DEADLINE, writes).await.expect("in time");
    assert!(outcomes.iter().any(Result::is_err), "it ended while they were under way");
    assert!(!rig.link.is_healthy());
    let ours = checksum(&vec![2; LEN]);
    assert_eq!(rig.region.memory().whole().checksum(), ours);
    // It is no more; its owner connects anew.
    second.fence(lost).await.remove(0).unwrap();
    let third = rig.client.connect(rig.server.endpoint().unwrap()).await.unwrap();
    assert!(third.is_healthy() && third.id() != Some(lost));
    assert_eq!(rig.region.memory().whole().checksum(), ours);
    let own = second.fence(second.id().unwrap()).await.remove(0);
    assert!(matches!(own, Err(TransferError::Protocol(_))), "{own:?}");
}

#[tokio::test]
async fn an_idle_link_stays() {
    let short = |config: &mut mc_transport_quic::QuicConfig| config.idle_timeout = SHORT;
    let rig = Rig::new(64, short, short).await;
    sleep(SHORT * 3).await;
    let write = Operation::write(Bytes::from_static(b"x"), span(rig.region.key(), 0, 1));
    one(&*rig.link, write).await.unwrap();
    assert!(rig.link.is_healthy());
}

#[tokio::test]
async fn a_crowd_shares_one_connection() {
    let authority = Authority::new();
    let server = start(listening(&authority)).await;
    let client = Arc::new(start(connecting(&authority)).await);
    let crowd: Vec<_> = (0..20)
        .map(|_| {
            let (client, endpoint) = (Arc::clone(&client), server.endpoint().unwrap().clone());
            tokio::spawn(async move { client.connect(&endpoint).await.unwrap().is_healthy() })
        })
        .collect();
    for member in crowd {
        assert!(member.await.unwrap());
    }
    assert_eq!((server.stats().connections, client.stats().links), (1, 1));
}

#[tokio::test]
async fn transports_of_one_node_share_their_regions() {
    let authority = Authority::new();
    let table = RegionTable::new();
    let over_quic = QuicTransport::start_with(listening(&authority), table.clone()).await.unwrap();
    let second = QuicTransport::start_with(listening(&authority), table.clone()).await.unwrap();
    let memory = Memory::allocate(64).unwrap();
    let region = table.register(&memory, Access::ReadWrite).unwrap();
    still_serves(&over_quic, &authority, &region).await;
    still_serves(&second, &authority, &region).await;
    second.shutdown().await;
    drop(second);
    assert_eq!(table.len(), 1, "the end of one leaves the others their regions");
    still_serves(&over_quic, &authority, &region).await;
    let extent = Extent::new(0, 1).unwrap();
    assert!(table.admit(region.key(), extent.offset(), 1, Access::Read, None).is_ok());
}

#[tokio::test]
async fn an_operation_that_is_too_large_is_refused_before_it_is_sent() {
    let limit = |config: &mut mc_transport_quic::QuicConfig| {
        config.max_operation = mc_types::ByteSize::kib(64);
    };
    // The server's limit counts, whatever the client's is.
    let rig = Rig::new(1 << 20, limit, |_| {}).await;
    assert_eq!(rig.link.capabilities().max_operation, 64 << 10);
    let large = Bytes::from(vec![1; (64 << 10) + 1]);
    let write = Operation::write(large.clone(), span(rig.region.key(), 0, large.len() as u64));
    let refused = one(&*rig.link, write.clone()).await;
    assert!(matches!(refused, Err(TransferError::TooLarge { .. })), "{refused:?}");
    for part in write.split(64 << 10) {
        one(&*rig.link, part).await.unwrap();
    }
}
