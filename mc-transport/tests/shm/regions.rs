//! Regions as peers see them: opened, mixed, viewed, withdrawn, unmapped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mc_transport::{
    Access, Link, Memory, Operation, RegionTable, ShmConfig, ShmTransport, TcpConfig, TcpTransport,
    TransferError, Transport,
};
use mc_types::RemoteKey;

use super::*;

#[tokio::test]
async fn one_batch_may_name_regions_of_every_kind() {
    let _alone = alone().await;
    let (owner, client) = (owner().await, client(ShmConfig::default()).await);
    let shared = owner.allocate(4096).unwrap();
    let heap = Memory::allocate(4096).unwrap();
    let region = |memory: &Memory| owner.register(memory, Access::ReadWrite).unwrap();
    let regions = [region(&shared), region(&heap), region(&shared), region(&heap)];
    let link = link_to(&client, &owner).await;
    for round in 1..4 {
        let unknown = RemoteKey::from_bytes([round; 16]);
        let mut batch: Vec<Operation> = (0..100_usize)
            .map(|n| {
                let at = (n * 40) as u64;
                let key = regions[n % 4].key();
                Operation::write(Bytes::from(vec![n as u8 + round; 40]), span(key, at, 40))
            })
            .collect();
        batch.push(write_of(unknown, 0, 1));
        batch.push(write_of(regions[1].key(), 0, 4097));
        batch.push(Operation::read(span(regions[0].key(), 0, 3), heap.slice(0, 2).unwrap()));
        let results = link.submit(batch).await;
        assert!(results[..100].iter().all(Result::is_ok), "{results:?}");
        assert!(is_refused(&results[100]));
        assert!(matches!(results[101], Err(TransferError::OutOfBounds { .. })));
        assert!(matches!(results[102], Err(TransferError::InvalidOperation(_))));
        for n in 0..100 {
            let memory = if n % 2 == 0 { &shared } else { &heap };
            assert_eq!(memory.slice(n * 40, 40).unwrap().to_vec(), [n as u8 + round; 40]);
        }
        let stats = client.stats();
        assert_eq!((stats.links, stats.streams, stats.mapped_regions), (1, 1, 2));
    }
    // Only of one kind, also without a task between.
    let both = |n: usize| link.submit(vec![read_of(regions[n].key(), 4096); 2]);
    assert!(both(0).await.iter().chain(&both(1).await).all(Result::is_ok));
    assert_eq!(owner.stats().connections, 2, "the control connection and the stream");
    drop(link);
    client.shutdown().await;
    eventually(DEADLINE, "the owner hears of it", || owner.stats().connections == 0).await;
}

#[tokio::test]
async fn views_are_of_shared_memory_that_was_asked_for() {
    let _alone = alone().await;
    let (owner, client) = (owner().await, client(ShmConfig::default()).await);
    let shared = owner.allocate(4096).unwrap();
    let heap = Memory::allocate(4096).unwrap();
    shared.whole().copy_from(100, b"in place").unwrap();
    let readable = owner.register(&shared, Access::Read).unwrap();
    let writable = owner.register(&shared, Access::Write).unwrap();
    let unshared = owner.register(&heap, Access::ReadWrite).unwrap();
    let link = link_to(&client, &owner).await;
    let seen = |key| link.view(span(key, 100, 8));
    for region in [&readable, &writable, &unshared] {
        let early = seen(region.key()).map(|_| ());
        assert!(matches!(early, Err(TransferError::Unsupported { .. })), "{early:?}");
        let empty = Operation::write(Vec::new(), span(region.key(), 0, 0));
        let asked = one(&*link, empty).await;
        assert_eq!(asked.is_ok(), !std::ptr::eq(region, &readable), "{asked:?}");
    }
    let view = seen(readable.key()).unwrap();
    assert_eq!(view.bytes().to_vec(), b"in place");
    assert!(!view.bytes().is_writable(), "it is mapped for reading");
    shared.whole().copy_from(100, b"anything").unwrap();
    assert_eq!(view.bytes().to_vec(), b"anything");
    let denied = seen(writable.key()).map(|_| ());
    assert!(matches!(denied, Err(TransferError::AccessDenied { .. })), "{denied:?}");
    let unsupported = seen(unshared.key()).map(|_| ());
    assert!(matches!(unsupported, Err(TransferError::Unsupported { .. })), "{unsupported:?}");
    assert!(view.is_current());
    drop(owner);
    assert!(!view.is_current(), "its owner is gone");
    assert_eq!(view.bytes().to_vec(), b"anything", "looking stays safe");
    let lost = seen(readable.key()).map(|_| ());
    assert!(matches!(lost, Err(TransferError::LinkLost { .. })), "{lost:?}");
}

#[tokio::test]
async fn a_key_opens_a_region_to_peers_near_and_far() {
    let _alone = alone().await;
    let table = RegionTable::new();
    let near = ShmTransport::start_with(ShmConfig::default(), table.clone()).await.unwrap();
    let second = ShmTransport::start_with(ShmConfig::default(), table.clone()).await.unwrap();
    let memory = near.allocate(4096).unwrap();
    let region = table.register(&memory, Access::ReadWrite).unwrap();
    let key = region.key();
    let client = client(ShmConfig::default()).await;
    let (link, other) = (link_to(&client, &near).await, link_to(&client, &second).await);
    assert!(one(&*link, write_of(key, 7, 4096)).await.is_ok());
    assert!(one(&*other, read_of(key, 4096)).await.is_ok());
    assert_eq!(client.stats().mapped_regions, 2);
    drop(second);
    assert!(is_lost(&one(&*other, read_of(key, 1)).await));
    assert!(one(&*link, read_of(key, 1)).await.is_ok(), "the table is not the other's");
    region.revoke();
    assert!(is_refused(&one(&*link, read_of(key, 1)).await));
    assert!(table.is_empty());

    // The table of a transport alone goes with it.
    let alone = TcpTransport::start(TcpConfig::default()).await.unwrap();
    assert!(alone.register(&memory, Access::Read).is_ok());
}

#[tokio::test]
async fn withdrawn_memory_is_let_go_by_those_who_mapped_it() {
    let _alone = alone().await;
    let (owner, client) = (owner().await, client(ShmConfig::default()).await);
    let before = held();
    let memory = owner.allocate(1 << 20).unwrap();
    let regions: Vec<_> = (0..10).map(|_| owner.register(&memory, Access::Read).unwrap()).collect();
    let link = link_to(&client, &owner).await;
    let reads = || regions.iter().map(|region| read_of(region.key(), 4096)).collect();
    assert!(link.submit(reads()).await.iter().all(Result::is_ok));
    assert_eq!(client.stats().mapped_regions, 10);
    // They are unmapped although the peer does not touch them again.
    drop(regions);
    eventually(DEADLINE, "they are unmapped", || client.stats().mapped_regions == 0).await;
    assert!(link.is_healthy());
    drop(memory);
    drop(link);
    client.shutdown().await;
    eventually(DEADLINE, "nothing is left", || owner.stats().connections == 0 && held() == before)
        .await;
}

#[tokio::test]
async fn no_more_regions_are_mapped_than_allowed() {
    let _alone = alone().await;
    let mut config = ShmConfig::default();
    config.max_mapped_regions = 3;
    let (owner, client) = (owner().await, client(config).await);
    let memory = owner.allocate(4096).unwrap();
    let regions: Vec<_> =
        (0..200).map(|_| owner.register(&memory, Access::ReadWrite).unwrap()).collect();
    let link = link_to(&client, &owner).await;
    for _ in 0..2 {
        let batch = regions.iter().map(|region| read_of(region.key(), 4096)).collect();
        assert!(link.submit(batch).await.iter().all(Result::is_ok));
        assert!(client.stats().mapped_regions <= 3);
    }
    for region in &regions {
        assert!(one(&*link, read_of(region.key(), 1)).await.is_ok());
        assert!(client.stats().mapped_regions <= 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_read_that_begins_after_revoke_returned_succeeds() {
    let _alone = alone().await;
    let (owner, client) = (owner().await, client(ShmConfig::default()).await);
    let link = link_to(&client, &owner).await;
    for len in [8, 4096, 1 << 20] {
        for _ in 0..30 {
            let memory = owner.allocate(len).unwrap();
            memory.whole().copy_from(0, &vec![1; len]).unwrap();
            let region = owner.register(&memory, Access::Read).unwrap();
            let key = region.key();
            assert!(one(&*link, read_of(key, len)).await.is_ok());
            let revoked = Arc::new(AtomicBool::new(false));
            let reads = Arc::new(AtomicU64::new(0));
            let (link, seen, count) = (Arc::clone(&link), Arc::clone(&revoked), Arc::clone(&reads));
            let reader = tokio::spawn(async move {
                let target = Memory::allocate(len).unwrap();
                loop {
                    let late = seen.load(Ordering::SeqCst);
                    let read = Operation::read(span(key, 0, len as u64), target.whole());
                    let outcome = one(&*link, read).await;
                    count.fetch_add(1, Ordering::SeqCst);
                    match outcome {
                        Ok(_) => {
                            assert!(!late, "a read began late and succeeded");
                            let whole = target.whole().to_vec();
                            assert!(whole.iter().all(|&byte| byte == 1), "foreign bytes");
                        }
                        refused => {
                            assert!(is_refused(&refused), "{refused:?}");
                            return;
                        }
                    }
                    tokio::task::yield_now().await;
                }
            });
            eventually(DEADLINE, "the reader is at it", || reads.load(Ordering::SeqCst) > 2).await;
            region.revoke();
            revoked.store(true, Ordering::SeqCst);
            // The memory has another use now.
            memory.whole().copy_from(0, &vec![2; len]).unwrap();
            tokio::time::timeout(DEADLINE, reader).await.expect("it ends").unwrap();
        }
    }
}
