//! Slow peers of a region whose few stages all peers share: they are the ones that wait.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_testkit::{eventually, eventually_async};
use mc_transport::{Link, Memory, Operation, Staging, TcpConfig};
use mc_types::Endpoint;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::staged::{DEADLINE, Device, Owner, Way, pattern};

/// Bytes of a stage, as a GPU's have them.
const STAGE: usize = 1 << 20;

/// A proxy whose connections pass 640 KB/s in each direction, until they may do more. That is
/// progress enough for every time limit but those of the stages.
struct SlowWay {
    endpoint: Endpoint,
    may_hurry: watch::Sender<bool>,
}

impl SlowWay {
    async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint::new("tcp", &listener.local_addr().unwrap().to_string()).unwrap();
        let may_hurry = watch::Sender::new(false);
        let told = may_hurry.clone();
        tokio::spawn(async move {
            let mut directions = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                // What the owner sends must not vanish in the system's buffers.
                let socket = TcpSocket::new_v4().unwrap();
                socket.set_recv_buffer_size(16 << 10).unwrap();
                let Ok(server) = socket.connect(target).await else { return };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                directions.spawn(pass(from_client, to_server, told.subscribe()));
                directions.spawn(pass(from_server, to_client, told.subscribe()));
            }
        });
        Self { endpoint, may_hurry }
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    may_hurry: watch::Receiver<bool>,
) {
    let mut some = vec![0; 16 << 10];
    let mut pace = tokio::time::interval(Duration::from_millis(25));
    while let Ok(read @ 1..) = from.read(&mut some).await {
        if to.write_all(&some[..read]).await.is_err() {
            return;
        }
        if !*may_hurry.borrow() {
            pace.tick().await;
        }
    }
}

async fn owner(way: Way, device: &Device, stages: usize) -> Owner {
    let stages = std::iter::repeat_with(|| Memory::allocate(STAGE).unwrap()).take(stages);
    let staging = Staging::new(device.clone(), stages.collect());
    let config = TcpConfig::listening("127.0.0.1:0".parse().unwrap());
    Owner::with(way, config, &staging, None).await
}

async fn slow_way(owner: &Owner) -> SlowWay {
    SlowWay::to(owner.transport.endpoint().unwrap().address().parse().unwrap()).await
}

/// Bytes a second that this reader gets in about a second.
async fn rate(owner: &Owner, link: &dyn Link) -> f64 {
    let (began, mut read) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(1) {
        read += owner.read(link, 0, 2 * STAGE).await.expect("it is never sent away").len();
    }
    read as f64 / began.elapsed().as_secs_f64()
}

/// Measures a reader alone, and beside eight slow peers.
async fn a_good_reader_keeps_its_rate(way: Way, do_write: bool) {
    const LEN: usize = 8 * STAGE;
    let device = Device::new(LEN);
    let owner = Arc::new(owner(way, &device, 8).await);
    let (_peer, link) = owner.peer().await;
    let alone = rate(&owner, &*link).await;

    let way_there = slow_way(&owner).await;
    let mut slow = JoinSet::new();
    for _ in 0..8 {
        let (owner, endpoint) = (Arc::clone(&owner), way_there.endpoint.clone());
        slow.spawn(async move {
            let into = Memory::allocate(LEN).unwrap();
            loop {
                let (_peer, link) = owner.peer_by(&endpoint).await;
                // One that is sent away for its slowness comes back.
                while link.is_healthy() {
                    let operation = match do_write {
                        true => Operation::write(Bytes::from(vec![0; LEN]), owner.span(0, LEN)),
                        false => Operation::read(owner.span(0, LEN), into.whole()),
                    };
                    let _ = link.submit(vec![operation]).await;
                }
            }
        });
    }
    let before = device.begun();
    let began = || device.begun() >= before + if do_write { 1 } else { 8 };
    eventually(DEADLINE, "the slow peers hold stages", began).await;
    eventually_async(DEADLINE, "half of the rate beside slow peers", async || {
        let beside = rate(&owner, &*link).await;
        println!("{way:?} alone {:.0} MB/s, beside {:.0} MB/s", alone / 1e6, beside / 1e6);
        beside >= alone / 2.0
    })
    .await;
    assert!(link.is_healthy(), "{way:?}");
    slow.abort_all();
    owner.transport.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_hold_up_nobody_else() {
    a_good_reader_keeps_its_rate(Way::Tcp, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_writers_hold_up_nobody_else() {
    a_good_reader_keeps_its_rate(Way::Tcp, true).await;
}

/// Most of them find no room aside, and have to begin in the middle of a part again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_peers_get_and_give_the_right_bytes_whatever_room_there_is() {
    const LEN: usize = 4 * STAGE;
    for way in [Way::Tcp, Way::Tls] {
        let device = Device::new(6 * LEN);
        let owner = Arc::new(owner(way, &device, 1).await);
        let (_peer, link) = owner.peer().await;
        let expected = pattern(6 * LEN);
        owner.write(&*link, 0, expected[..3 * LEN].to_vec()).await.unwrap();
        let way_there = slow_way(&owner).await;
        let mut slow = JoinSet::new();
        let before = device.begun();
        for nth in 0..6 {
            let (owner, endpoint) = (Arc::clone(&owner), way_there.endpoint.clone());
            let bytes = expected[nth * LEN..][..LEN].to_vec();
            slow.spawn(async move {
                let (_peer, link) = owner.peer_by(&endpoint).await;
                if nth >= 3 {
                    return owner.write(&*link, nth * LEN, bytes).await.unwrap();
                }
                let read = owner.read(&*link, nth * LEN, LEN).await.unwrap();
                assert!(read == bytes, "{way:?}: a part arrived as it is not");
                Default::default()
            });
        }
        eventually(DEADLINE, "parts that began anew", || device.begun() >= before + 20).await;
        way_there.may_hurry.send_replace(true);
        while let Some(done) = slow.join_next().await {
            done.unwrap();
        }
        assert!(device.bytes() == expected, "{way:?}");
        owner.transport.shutdown().await;
    }
}
