//! Paths that fail. These need the guest's two devices and the cable between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mc_testkit::eventually;
use mc_transport::{BootTime, Link as _, Operation, TransferError, Transport as _};
use tokio::time::timeout;

use crate::rig::{
    Cable, DEADLINE, Rig, alone, arrived, fill, filled, nothing_is_left, objects, one, owning,
    rdma, reaching, released,
};

/// Bytes of a transfer that lasts long enough to be disturbed.
const LONG: usize = 32 << 20;

#[tokio::test]
async fn a_port_that_goes_down_ends_its_link_and_comes_back() {
    let Some(_alone) = alone() else { return };
    let before = objects();
    let mut cable = Cable::default();
    let rig = Rig::new(LONG).await;
    let local = filled(1, LONG);
    one(&rig.link, Operation::write(local.slice(0, 4096).unwrap(), rig.span(0, 4096)))
        .await
        .unwrap();
    let write = Operation::write(local.whole(), rig.span(0, LONG));
    let under_way = tokio::spawn(rig.link.submit(vec![write]).into_future());
    arrived(&rig.memory, 1 << 20, 1).await;
    cable.cut();
    let cut = Instant::now();
    let error = timeout(DEADLINE, under_way).await.unwrap().unwrap().remove(0).unwrap_err();
    println!("{error:?} after {:?}", cut.elapsed());
    assert!(matches!(error, TransferError::LinkLost { .. }), "{error:?}");
    assert!(cut.elapsed() < Duration::from_secs(10), "{:?}", cut.elapsed());
    assert!(!rig.link.is_healthy());
    released(local).await;
    let refused = rig.peer.connect(rig.owner.endpoint().unwrap()).await;
    assert!(refused.is_err(), "no port is up");

    cable.mend();
    // The thread of the transport has yet to learn of the port.
    let endpoint = rig.owner.endpoint().unwrap();
    let link = mc_testkit::eventually_async(DEADLINE, "a new link", async || {
        rig.peer.connect(endpoint).await
    });
    let link = link.await;
    let local = filled(2, LONG);
    one(&link, Operation::write(local.whole(), rig.span(0, LONG))).await.unwrap();
    assert!(rig.memory.whole().to_vec() == vec![2; LONG]);
    drop(link);
    rig.shutdown().await;
    nothing_is_left(&before);
}

/// Packets are lost, and no port notices: the card gives up after its retries.
#[tokio::test]
async fn a_path_that_loses_everything_ends_its_link() {
    let Some(_alone) = alone() else { return };
    let mut cable = Cable::default();
    let mut config = reaching();
    (config.ack_timeout, config.retries) = (12, 3);
    let rig = Rig::with(1 << 20, owning(), config).await;
    let local = filled(1, 1 << 20);
    let write = || Operation::write(local.whole(), rig.span(0, 1 << 20));
    one(&rig.link, write()).await.unwrap();
    cable.lose_packets();
    let begun = Instant::now();
    let error = timeout(DEADLINE, one(&rig.link, write())).await.unwrap().unwrap_err();
    println!("{error:?} after {:?}", begun.elapsed());
    assert!(matches!(error, TransferError::LinkLost { .. }), "{error:?}");
    cable.mend();
    fill(&rig.memory, 9);
    let link = timeout(DEADLINE, rig.peer.connect(rig.owner.endpoint().unwrap())).await;
    let link = link.unwrap().unwrap();
    assert!(rig.memory.whole().to_vec() == vec![9; 1 << 20], "no byte arrived late");
    one(&link, write()).await.unwrap();
    drop(link);
    rig.shutdown().await;
}

/// A path that comes back in time is not noticed by the caller.
#[tokio::test]
async fn a_path_that_comes_back_goes_on() {
    let Some(_alone) = alone() else { return };
    let mut cable = Cable::default();
    let rig = Rig::new(LONG).await;
    let local = filled(3, LONG);
    let write = || Operation::write(local.whole(), rig.span(0, LONG));
    one(&rig.link, write()).await.unwrap();
    fill(&rig.memory, 0);
    let under_way = tokio::spawn(rig.link.submit(vec![write()]).into_future());
    arrived(&rig.memory, 1 << 20, 3).await;
    cable.lose_packets();
    // Less than the card's retries take, and more than one of them.
    tokio::time::sleep(Duration::from_millis(700)).await;
    cable.mend();
    timeout(DEADLINE, under_way).await.unwrap().unwrap().remove(0).unwrap();
    assert!(rig.memory.whole().to_vec() == vec![3; LONG]);
    assert!(rig.link.is_healthy());
    rig.shutdown().await;
}

/// The grant of a write ends while its packets are lost: it fails at that moment, and none of it
/// arrives when the path is back.
#[tokio::test]
async fn a_write_that_outlives_its_grant_is_ended_and_arrives_no_more() {
    let Some(_alone) = alone() else { return };
    let mut cable = Cable::default();
    let mut config = reaching();
    // The card itself would try for half a minute.
    (config.ack_timeout, config.retries) = (20, 6);
    let rig = Rig::with(4 << 20, owning(), config).await;
    let local = filled(4, 4 << 20);
    let whole = rig.span(0, 4 << 20);
    one(&rig.link, Operation::write(local.whole(), whole)).await.unwrap();
    // The transport's thread sleeps by now.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    cable.lose_packets();
    fill(&rig.memory, 0);
    let (begun, grant) = (Instant::now(), Duration::from_millis(400));
    let until = BootTime::now() + grant;
    let write = Operation::write(local.whole(), whole.until(until));
    let error = timeout(DEADLINE, one(&rig.link, write)).await.unwrap().unwrap_err();
    println!("{error:?} after {:?}", begun.elapsed());
    assert!(matches!(error, TransferError::GrantEnded), "{error:?}");
    assert!(begun.elapsed() >= grant, "{:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    fill(&rig.memory, 0xEE);
    cable.mend();
    let deadline = Instant::now() + Duration::from_secs(6);
    while Instant::now() < deadline {
        let late = rig.memory.whole().to_vec().iter().filter(|&&byte| byte != 0xEE).count();
        assert_eq!(late, 0, "bytes that arrived after the grant had ended");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let link = rig.peer.connect(rig.owner.endpoint().unwrap()).await.unwrap();
    one(&link, Operation::write(local.whole(), whole)).await.unwrap();
    drop(link);
    rig.shutdown().await;
}

/// Requests that take too long are ended by this side, however long the card keeps trying.
#[tokio::test]
async fn a_request_that_stalls_ends_its_link() {
    let Some(_alone) = alone() else { return };
    let mut cable = Cable::default();
    let mut config = reaching();
    // The card itself would try for half a minute.
    (config.ack_timeout, config.retries) = (20, 6);
    config.stall_timeout = Duration::from_millis(500);
    let rig = Rig::with(1 << 20, owning(), config).await;
    let local = filled(1, 1 << 20);
    let write = || Operation::write(local.whole(), rig.span(0, 1 << 20));
    one(&rig.link, write()).await.unwrap();
    // The transport's thread sleeps by now.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    cable.lose_packets();
    let begun = Instant::now();
    let error = timeout(DEADLINE, one(&rig.link, write())).await.unwrap().unwrap_err();
    println!("{error:?} after {:?}", begun.elapsed());
    assert!(matches!(error, TransferError::LinkLost { .. }), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(!rig.link.is_healthy());
    cable.mend();
    rig.shutdown().await;
    released(local).await;
}

/// The peer's device is removed under load. Software RDMA works until the last process has closed
/// the device; a card fails what is under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_is_removed_fails_what_is_under_way() {
    let Some(_alone) = alone() else { return };
    let rig = Rig::new(1 << 20).await;
    let local = filled(5, 1 << 20);
    one(&rig.link, Operation::write(local.whole(), rig.span(0, 1 << 20))).await.unwrap();
    let done = Arc::new(AtomicUsize::new(0));
    let under_way = {
        let (link, done) = (Arc::clone(&rig.link), Arc::clone(&done));
        let (local, whole) = (local.clone(), rig.span(0, 1 << 20));
        tokio::spawn(async move {
            loop {
                if let Err(error) = one(&link, Operation::write(local.whole(), whole)).await {
                    break error;
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    eventually(DEADLINE, "transfers run", || done.load(Ordering::Relaxed) > 0).await;
    let removing = std::thread::spawn(|| rdma("link delete rxe1"));
    // The kernel says nothing to a process that has the device open: time for it to act.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = done.load(Ordering::Relaxed);
    let goes_on = || under_way.is_finished() || done.load(Ordering::Relaxed) > before;
    eventually(DEADLINE, "the transfers go on or fail", goes_on).await;
    println!("{before}, then {} transfers", done.load(Ordering::Relaxed));
    if under_way.is_finished() {
        let error = under_way.await.unwrap();
        assert!(matches!(error, TransferError::LinkLost { .. }), "{error:?}");
        assert!(!rig.link.is_healthy());
    } else {
        assert!(!removing.is_finished(), "the device is there, and used");
    }
    rig.shutdown().await;
    eventually(DEADLINE, "the device is gone", || removing.is_finished()).await;
    removing.join().unwrap();
    rdma("link add rxe1 type rxe netdev nic1");
    Cable::default().mend();
    let rig = Rig::new(1 << 20).await;
    one(&rig.link, Operation::write(local.whole(), rig.span(0, 1 << 20))).await.unwrap();
    rig.shutdown().await;
}
