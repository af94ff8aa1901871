//! Queue pairs that the peer destroys under load.

use std::sync::atomic::Ordering;

use mc_testkit::eventually;

use super::proxy::{Proxy, unchanged};
use super::*;
use crate::wire::{LaneOffer, Request};

/// How often a queue pair is destroyed.
const ROUNDS: usize = 50;

/// Bytes of each transfer.
const PART: usize = 256 << 10;

/// An offer that leads nowhere: the owner destroys the queue pair that the lane had.
pub(super) fn nowhere(lane: u16) -> LaneOffer {
    LaneOffer {
        lane,
        port: 0,
        gid: 0,
        address: [0; 16],
        lid: 0,
        mtu: 1,
        reads_in: 1,
        reads_out: 1,
        number: 0,
        first: 0,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_device_queue_pairs_destroyed_by_the_peer_are_replaced_unnoticed() {
    let Some(_alone) = on_device() else { return };
    let before_all = objects();
    let owner = RdmaTransport::start(owning()).await.unwrap();
    let memory = Memory::allocate(4 * PART).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let mut config = reaching();
    (config.ack_timeout, config.retries) = (12, 4);
    let peer = RdmaTransport::start(config).await.unwrap();
    let proxy = Proxy::start(owner.endpoint().unwrap(), unchanged()).await;
    let link = peer.connect(&proxy.endpoint).await.unwrap();
    let lanes = link.queue_pairs();

    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let loads: Vec<_> = (0..4)
        .map(|place| {
            let (link, is_over, key) = (Arc::clone(&link), Arc::clone(&is_over), region.key());
            tokio::spawn(async move {
                let (from, into) =
                    (Memory::allocate(PART).unwrap(), Memory::allocate(PART).unwrap());
                let mut random = mc_testkit::Random::new(place as u64);
                let (mut count, mut wrong) = (0, 0);
                while !is_over.load(Ordering::SeqCst) {
                    let word = random.next_u64().to_le_bytes();
                    let bytes: Vec<u8> = word.iter().copied().cycle().take(PART).collect();
                    from.whole().copy_from(0, &bytes).unwrap();
                    let there = span(key, place * PART, PART);
                    one(&link, Operation::write(from.whole(), there)).await.unwrap();
                    one(&link, Operation::read(there, into.whole())).await.unwrap();
                    wrong += usize::from(into.whole().to_vec() != bytes);
                    count += 2;
                }
                (count, wrong)
            })
        })
        .collect();
    let mut before = None;
    for round in 0..ROUNDS {
        let asked = proxy.lanes_asked.load(Ordering::SeqCst);
        proxy.ask(&Request::Lanes(vec![nowhere((round % lanes) as u16)]));
        eventually(DEADLINE, "the queue pair is replaced", || {
            proxy.lanes_asked.load(Ordering::SeqCst) > asked && link.queue_pairs() == lanes
        })
        .await;
        // The first replacements may differ from the first pairs.
        if round == 1 {
            before = Some(objects());
        }
    }
    assert_eq!(proxy.answered.load(Ordering::SeqCst), ROUNDS);
    nothing_is_left(&before.unwrap()).await;
    is_over.store(true, Ordering::SeqCst);
    let mut transfers = 0;
    for load in loads {
        let (count, wrong) = load.await.unwrap();
        assert_eq!(wrong, 0, "wrong transfers");
        transfers += count;
    }
    println!("{transfers} transfers over {ROUNDS} replacements");
    assert!(link.is_healthy());
    drop(link);
    peer.shutdown().await;
    proxy.hang_up().await;
    drop(region);
    owner.shutdown().await;
    drop((peer, owner));
    nothing_is_left(&before_all).await;
}
