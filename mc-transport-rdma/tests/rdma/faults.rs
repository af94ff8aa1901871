//! Peers that die, stop and leave, and limits of the system.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_testkit::{Input, Program, eventually, role};
use mc_transport::{
    Access, ConnectError, Link as _, Memory, Operation, RegisterError, TransferError,
    Transport as _,
};
use mc_transport_rdma::{RdmaConfig, RdmaTransport};
use mc_transport_rdma::{StartError, VerbsError};
use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::time::timeout;

use crate::rig::{
    DEADLINE, OTHERS_REGION, OtherProcess, Rig, alone, devices, fill, filled, nothing_is_left,
    objects, one, owning, reaching, released, span, text,
};

/// The other process of these tests, by its role. As a test of its own it does nothing.
#[tokio::test]
async fn a_server_for_others() {
    match role::role().as_deref() {
        Some("serve") => serve().await,
        Some("low limit") => register_under_a_low_limit().await,
        Some("no library") => start_without_the_library().await,
        _ => {}
    }
}

async fn serve() {
    let server = RdmaTransport::start(owning()).await.unwrap();
    let memories = [(); 2].map(|()| Memory::allocate(OTHERS_REGION).unwrap());
    let regions = memories.map(|memory| server.register(&memory, Access::ReadWrite).unwrap());
    let [one, two] = regions.each_ref().map(|it| u128::from_le_bytes(it.key().to_bytes()));
    role::say(format_args!("{} {one} {two}", server.endpoint().unwrap()));
    // The parent kills this process; should that fail, it ends by itself.
    tokio::time::sleep(DEADLINE * 4).await;
}

/// The peer's process is killed: the queue pairs go with it, and so does the connection.
#[tokio::test]
async fn a_peer_that_is_killed_fails_what_is_under_way() {
    let Some(_alone) = alone() else { return };
    let before = objects();
    for direction in [Access::Write, Access::Read] {
        let mut other = OtherProcess::start();
        let peer = RdmaTransport::start(reaching()).await.unwrap();
        let link = peer.connect(&other.endpoint).await.unwrap();
        let memory = filled(7, OTHERS_REGION);
        let operation = |key| match direction {
            Access::Read => Operation::read(span(key, 0, OTHERS_REGION), memory.whole()),
            _ => Operation::write(memory.whole(), span(key, 0, OTHERS_REGION)),
        };
        one(&link, operation(other.keys[0])).await.unwrap();
        // More than is moved before the process is gone.
        let batch = (0..8).map(|_| operation(other.keys[0])).collect();
        let mut under_way = link.submit(batch);
        let (_, first) = under_way.next().await.unwrap();
        first.unwrap();
        other.process.kill();
        let killed = Instant::now();
        let outcomes = timeout(DEADLINE, under_way).await.unwrap();
        let failed = outcomes.into_iter().filter_map(Result::err);
        let failed: Vec<TransferError> = failed.collect();
        assert!(!failed.is_empty(), "not all of it was moved");
        for error in &failed {
            assert!(matches!(error, TransferError::LinkLost { .. }), "{error:?}");
            assert!(error.leaves_late_writes());
        }
        println!("{direction:?}: {} failed after {:?}", failed.len(), killed.elapsed());
        assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
        assert!(!link.is_healthy());
        released(memory).await;
        let again = peer.connect(&other.endpoint).await;
        assert!(matches!(again, Err(ConnectError::Unreachable { .. })), "{again:?}");

        let other = OtherProcess::start();
        let link = peer.connect(&other.endpoint).await.unwrap();
        one(&link, Operation::write(Bytes::from_static(b"new"), span(other.keys[0], 0, 3)))
            .await
            .unwrap();
        drop(link);
        peer.shutdown().await;
    }
    nothing_is_left(&before);
}

/// A card serves for a process that is stopped; what the process itself has to answer waits.
#[tokio::test]
async fn a_peer_that_is_stopped_is_waited_for() {
    let Some(_alone) = alone() else { return };
    let other = OtherProcess::start();
    let mut config = reaching();
    config.stall_timeout = Duration::from_secs(3);
    let peer = RdmaTransport::start(config).await.unwrap();
    let link = peer.connect(&other.endpoint).await.unwrap();
    let write = |key| Operation::write(Bytes::from_static(b"hello"), span(key, 0, 5));
    one(&link, write(other.keys[0])).await.unwrap();
    other.process.freeze();
    one(&link, write(other.keys[0])).await.unwrap();
    let asking = tokio::spawn(link.submit(vec![write(other.keys[1])]).into_future());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!asking.is_finished(), "a process that is stopped does not answer");
    other.process.resume();
    asking.await.unwrap().remove(0).unwrap();
    assert!(link.is_healthy());
    drop(link);
    peer.shutdown().await;

    // A peer that stays stopped takes the time limit, and no longer.
    let mut config = reaching();
    (config.stall_timeout, config.connect_timeout) =
        (Duration::from_millis(500), Duration::from_secs(2));
    let peer = RdmaTransport::start(config).await.unwrap();
    let link = peer.connect(&other.endpoint).await.unwrap();
    other.process.freeze();
    let begun = Instant::now();
    let error = one(&link, write(other.keys[1])).await.unwrap_err();
    assert!(matches!(error, TransferError::TimedOut { .. }), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    peer.shutdown().await;
    // A new transport connects, to no answer.
    let mut config = reaching();
    config.connect_timeout = Duration::from_millis(500);
    let peer = RdmaTransport::start(config).await.unwrap();
    let refused = peer.connect(&other.endpoint).await.unwrap_err();
    assert!(matches!(refused, ConnectError::TimedOut { .. }), "{refused:?}");
    other.process.resume();
}

#[tokio::test]
async fn nothing_is_left_of_many_links() {
    let Some(_alone) = alone() else { return };
    let before = objects();
    let owner = RdmaTransport::start(owning()).await.unwrap();
    let memory = Memory::allocate(1 << 20).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let with_owner = objects();
    let tasks = owner.stats().tasks;
    for round in 0..50 {
        let peer = RdmaTransport::start(reaching()).await.unwrap();
        let link = peer.connect(owner.endpoint().unwrap()).await.unwrap();
        let write = Operation::write(Bytes::from(vec![1; 1000]), span(region.key(), 0, 1000));
        one(&link, write).await.unwrap();
        // In either order.
        if round % 2 == 0 {
            drop(link);
            peer.shutdown().await;
        } else {
            drop(peer);
        }
    }
    eventually(DEADLINE, "every connection has ended", || {
        let stats = owner.stats();
        stats.connections == 0 && stats.tasks == tasks
    })
    .await;
    nothing_is_left(&with_owner);
    drop(region);
    owner.shutdown().await;
    drop(owner);
    nothing_is_left(&before);
}

#[tokio::test]
async fn an_operation_out_of_bounds_is_refused_before_the_wire() {
    let Some(_alone) = alone() else { return };
    let rig = Rig::new(1 << 20).await;
    let pairs = rig.link.queue_pairs();
    let len = rig.memory.len();
    for (offset, bytes) in [(len - 1, 2), (len, 1), (0, len + 1), (usize::MAX / 2, 8)] {
        let local = Memory::allocate(bytes).unwrap();
        for operation in [
            Operation::write(local.whole(), rig.span(offset, bytes)),
            Operation::read(rig.span(offset, bytes), local.whole()),
        ] {
            let error = one(&rig.link, operation).await.unwrap_err();
            assert!(matches!(error, TransferError::OutOfBounds { .. }), "{error:?}");
        }
    }
    assert_eq!(rig.link.queue_pairs(), pairs, "no queue pair was lost");
    rig.shutdown().await;
}

/// Several peers write while a region is withdrawn: none of them writes afterwards, and each goes
/// on with the other region.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_withdrawn_region_is_left_alone_by_all_peers() {
    let Some(_alone) = alone() else { return };
    const LEN: usize = 8 << 20;
    let owner = RdmaTransport::start(owning()).await.unwrap();
    let [memory, other_memory] = [(); 2].map(|()| Memory::allocate(LEN).unwrap());
    let other = owner.register(&other_memory, Access::ReadWrite).unwrap();
    let mut peers = Vec::new();
    for _ in 0..3 {
        let peer = RdmaTransport::start(reaching()).await.unwrap();
        let link = peer.connect(owner.endpoint().unwrap()).await.unwrap();
        peers.push((peer, link, filled(0x11, LEN)));
    }
    for round in 0..3 {
        let region = owner.register(&memory, Access::ReadWrite).unwrap();
        let (key, other) = (region.key(), other.key());
        let mut writing = Vec::new();
        let written = Arc::new(AtomicUsize::new(0));
        for (_, link, local) in &peers {
            let (link, local) = (Arc::clone(link), local.clone());
            let written = Arc::clone(&written);
            writing.push(tokio::spawn(async move {
                let write = |key| Operation::write(local.whole(), span(key, 0, LEN));
                loop {
                    // Both regions in one batch, so that they share queue pairs.
                    let batch = vec![write(key), write(other)];
                    let outcomes = link.submit(batch).await;
                    assert!(outcomes[1].is_ok(), "{:?}", outcomes[1]);
                    if let Err(error) = &outcomes[0] {
                        break error.clone();
                    }
                    written.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        eventually(DEADLINE, "the peers write", || written.load(Ordering::Relaxed) > 3).await;
        timeout(DEADLINE, region.withdraw()).await.unwrap();
        fill(&memory, 0xEE);
        for task in writing {
            let error = timeout(DEADLINE, task).await.unwrap().unwrap();
            assert!(matches!(error, TransferError::KeyRefused), "round {round}: {error:?}");
        }
        // Time for bytes to arrive late.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let late = memory.whole().to_vec().iter().filter(|&&byte| byte != 0xEE).count();
        assert_eq!(late, 0, "bytes that arrived after the region was withdrawn");
    }
    for (peer, link, _) in peers {
        assert!(link.is_healthy());
        drop(link);
        peer.shutdown().await;
    }
}

#[tokio::test]
async fn a_low_limit_on_locked_memory_is_told() {
    let Some(_alone) = alone() else { return };
    devices();
    let mut command = role::command("faults::a_server_for_others", "low limit");
    // Root may lock what it likes.
    command.uid(65534).gid(65534);
    let done = Program::start(DEADLINE, &mut command, Input::None).finish();
    assert!(done.text().contains("limit checked"), "{}", done.text());
    done.assert_ok();
}

async fn register_under_a_low_limit() {
    let limit = Rlimit { current: Some(4 << 20), maximum: Some(4 << 20) };
    setrlimit(Resource::Memlock, limit).unwrap();
    let owner = RdmaTransport::start(owning()).await.unwrap();
    let large = Memory::allocate(16 << 20).unwrap();
    let error = owner.register(&large, Access::ReadWrite).unwrap_err();
    let message = text(&error);
    let RegisterError::Device { source } = error else { panic!("{error:?}") };
    let is_limit = matches!(
        source.downcast_ref(),
        Some(VerbsError::MemoryLock { limit: Some(bytes), .. }) if *bytes == 4 << 20
    );
    assert!(is_limit, "{source:?}");
    assert!(message.contains("ulimit -l") && message.contains("4096 KiB"), "{message}");
    // What fits can be used, and what failed holds nothing.
    let small = Memory::allocate(1 << 20).unwrap();
    let region = owner.register(&small, Access::ReadWrite).unwrap();
    let peer = RdmaTransport::start(reaching()).await.unwrap();
    let link = peer.connect(owner.endpoint().unwrap()).await.unwrap();
    let local = filled(5, 1 << 20);
    one(&link, Operation::write(local.whole(), span(region.key(), 0, 1 << 20))).await.unwrap();
    assert_eq!(small.whole().to_vec(), local.whole().to_vec());
    // Bytes that are copied go through less staging memory than the settings allow.
    let bytes = Bytes::from(vec![6; 1 << 20]);
    one(&link, Operation::write(bytes.clone(), span(region.key(), 0, 1 << 20))).await.unwrap();
    assert_eq!(small.whole().to_vec(), bytes);
    // Local memory that cannot be registered is copied.
    let unregistered = filled(8, 16 << 20).slice(3 << 20, 1 << 20).unwrap();
    one(&link, Operation::write(unregistered, span(region.key(), 0, 1 << 20))).await.unwrap();
    assert_eq!(small.whole().to_vec(), vec![8; 1 << 20]);
    role::say("limit checked");
}

#[tokio::test]
async fn an_unknown_device_is_told_with_those_that_exist() {
    let Some(_alone) = alone() else { return };
    let mut config = RdmaConfig::default();
    config.devices = vec!["mlx5_99".to_owned()];
    let error = RdmaTransport::start(config).await.unwrap_err();
    assert!(matches!(error, StartError::Ports(_)), "{error:?}");
    let message = text(&error);
    assert!(message.contains("mlx5_99"), "{message}");
    for device in devices() {
        assert!(message.contains(&device), "{message}");
    }
}

#[tokio::test]
async fn a_host_without_the_library_is_told_what_to_install() {
    let Some(_alone) = alone() else { return };
    let folder = tempfile::tempdir().unwrap();
    // The loader takes this file for the library.
    std::fs::write(folder.path().join("libibverbs.so.1"), b"no library").unwrap();
    let mut command: Command = role::command("faults::a_server_for_others", "no library");
    command.env("LD_LIBRARY_PATH", folder.path());
    let done = Program::start(DEADLINE, &mut command, Input::None).finish();
    assert!(done.text().contains("start refused"), "{}", done.text());
    done.assert_ok();
}

async fn start_without_the_library() {
    let error = RdmaTransport::start(RdmaConfig::default()).await.unwrap_err();
    let message = text(&error);
    assert!(message.contains("libibverbs") && message.contains("ibverbs-providers"), "{message}");
    role::say("start refused");
}
