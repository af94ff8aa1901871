//! Owners that break the protocol. Connecting or the operation fails with an error of its own, in
//! time, and nothing is left.

use mc_transport::{ConnectError, LinkId};
use mc_types::Endpoint;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::proxy::{Change, Proxy, framed};
use super::*;
use crate::frames::receive;
use crate::wire::{
    Answer, Greeting, HELLO_LEN, LaneAnswer, MAX_REQUEST, PROOF_LEN, PortOffer, RegionAnswer,
    RegionKeys, Request, VERSION, Verdict,
};

fn greeting() -> Greeting {
    Greeting {
        version: VERSION,
        verdict: Verdict::Welcome,
        nonce: [3; 16],
        proof: [0; PROOF_LEN],
        link: LinkId::from_bytes([4; 16]),
        max_operation: 1 << 30,
    }
}

/// A port that the devices of this host can connect to.
fn port() -> PortOffer {
    PortOffer {
        index: 0,
        device: 0,
        is_infiniband: false,
        mtu: 3,
        lid: 0,
        reads_in: 1,
        reads_out: 1,
        message: 1 << 20,
        gids: vec![[0xfe; 16]],
    }
}

/// An owner that answers the handshake with `first`, and every request with `second`.
async fn owner(first: Vec<u8>, second: Option<Answer>) -> (Endpoint, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::new("rdma", &listener.local_addr().unwrap().to_string()).unwrap();
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_exact(&mut [0; HELLO_LEN]).await.unwrap();
        let _ = stream.write_all(&first).await;
        let mut proof = [0; PROOF_LEN];
        if stream.read_exact(&mut proof).await.is_ok()
            && let Some(answer) = second
        {
            while let Ok(frame) = receive(&mut stream, MAX_REQUEST).await {
                let (id, _) = Request::decode(&frame).unwrap();
                // Behind an answer without a request.
                let answers = [Answer::Fenced.encode(999), answer.encode(id)].concat();
                let _ = stream.write_all(&answers).await;
            }
        }
        // Until the peer hangs up.
        while stream.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {}
    });
    (endpoint, task)
}

async fn impatient() -> RdmaTransport {
    let mut config = reaching();
    (config.connect_timeout, config.stall_timeout) = (SHORT * 2, SHORT);
    (config.ack_timeout, config.retries) = (12, 2);
    RdmaTransport::start(config).await.unwrap()
}

async fn refused(peer: &RdmaTransport, first: Vec<u8>, second: Option<Answer>) -> ConnectError {
    let (endpoint, owner) = owner(first, second).await;
    let begun = Instant::now();
    let error = peer.connect(&endpoint).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // The connection is closed, whatever the error.
    tokio::time::timeout(DEADLINE, owner).await.unwrap().unwrap();
    error
}

#[tokio::test]
async fn on_device_an_owner_that_greets_wrongly_is_refused() {
    let Some(_alone) = on_device() else { return };
    let before = objects();
    let peer = impatient().await;
    let greet = |greeting: Greeting| greeting.encode();
    let error = refused(&peer, vec![0x41; 4096], None).await;
    assert!(matches!(error, ConnectError::NotAPeer { .. }), "{error:?}");
    let error = refused(&peer, greet(Greeting { version: 7, ..greeting() }), None).await;
    assert!(matches!(error, ConnectError::VersionMismatch { theirs: 7, .. }), "{error:?}");
    let busy = Greeting { verdict: Verdict::Busy, ..greeting() };
    let error = refused(&peer, greet(busy), None).await;
    assert!(matches!(error, ConnectError::Busy { .. }), "{error:?}");
    // Half of it, all of it, and no ports.
    for first in [greet(greeting())[..40].to_vec(), greet(greeting())] {
        let error = refused(&peer, first, None).await;
        assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
    }
    let ports =
        |ports: Vec<PortOffer>| [greet(greeting()), Answer::Ports(ports).encode(0)].concat();
    let error = refused(&peer, ports(Vec::new()), None).await;
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    for absurd in [
        PortOffer { mtu: 0, ..port() },
        PortOffer { mtu: 200, ..port() },
        PortOffer { message: 1, ..port() },
        PortOffer { device: 255, ..port() },
        PortOffer { gids: vec![[1; 16]; 200], ..port() },
    ] {
        let error = refused(&peer, ports(vec![absurd.clone()]), None).await;
        assert!(matches!(error, ConnectError::NotAPeer { .. }), "{absurd:?}: {error:?}");
    }
    let long = [greet(greeting()), vec![0xff; 64]].concat();
    let error = refused(&peer, long, None).await;
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    peer.shutdown().await;
    drop(peer);
    nothing_is_left(&before).await;
}

#[tokio::test]
async fn on_device_an_owner_with_no_good_queue_pairs_is_refused() {
    let Some(_alone) = on_device() else { return };
    let before = objects();
    let peer = impatient().await;
    let first =
        |offer: PortOffer| [greeting().encode(), Answer::Ports(vec![offer]).encode(0)].concat();
    let made = |number, first| LaneAnswer::Made { number, first, mtu: 3 };
    let failed = || LaneAnswer::Failed("no room, said the owner".to_owned());
    type Expected = fn(&ConnectError) -> bool;
    let not_a_peer: Expected = |error| matches!(error, ConnectError::NotAPeer { .. });
    let unreachable: Expected =
        |error| matches!(error, ConnectError::Unreachable { .. } | ConnectError::TimedOut { .. });
    let gid = peer.shared.ports.ports[0].gids[0].1;
    let reachable = PortOffer { gids: vec![gid], ..port() };
    for (what, offer, answer, expected) in [
        ("too few", port(), Answer::Lanes(vec![made(1, 1)]), not_a_peer),
        ("none", port(), Answer::Lanes(Vec::new()), not_a_peer),
        ("too many", port(), Answer::Lanes(vec![made(1, 1); 100]), not_a_peer),
        ("another answer", port(), Answer::Fenced, not_a_peer),
        ("failed", port(), Answer::Lanes(vec![failed(), failed()]), unreachable),
        ("dead", reachable.clone(), Answer::Lanes(vec![made(0x55, 1); 2]), unreachable),
        (
            "absurd",
            reachable.clone(),
            Answer::Lanes(vec![made(u32::MAX, u32::MAX); 2]),
            unreachable,
        ),
        ("no such address", port(), Answer::Lanes(vec![made(0x55, 1); 2]), unreachable),
        (
            "port 255",
            PortOffer { index: 255, device: 15, ..reachable.clone() },
            Answer::Lanes(vec![failed(), failed()]),
            unreachable,
        ),
    ] {
        let error = refused(&peer, first(offer), Some(answer)).await;
        assert!(expected(&error), "{what}: {error:?}");
        if what == "failed" {
            let ConnectError::Unreachable { source, .. } = &error else { panic!("{error:?}") };
            assert!(source.to_string().contains("no room, said the owner"), "{source}");
        }
    }
    // Many ports: no more queue pairs than a connection may have.
    let ports = (0..16).map(|index| PortOffer { index, ..reachable.clone() }).collect();
    let many = [greeting().encode(), Answer::Ports(ports).encode(0)].concat();
    let error = refused(&peer, many, Some(Answer::Lanes(vec![failed(); 32]))).await;
    assert!(unreachable(&error), "{error:?}");
    peer.shutdown().await;
    drop(peer);
    nothing_is_left(&before).await;
}

/// Has one write made over a link whose owner's answers are changed.
async fn write_with(
    change: impl Fn(RemoteKey, u32, RegionAnswer) -> Vec<u8> + Send + 'static,
) -> Written {
    let owner = RdmaTransport::start(owning()).await.unwrap();
    let memory = Memory::allocate(LEN).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let key = region.key();
    let change: Change = Box::new(move |id, answer| match answer {
        Answer::Region(region) => change(key, id, region),
        other => other.encode(id),
    });
    let proxy = Proxy::start(owner.endpoint().unwrap(), change).await;
    let peer = impatient().await;
    let link = peer.connect(&proxy.endpoint).await.unwrap();
    let write = Operation::write(Bytes::from_static(&[1; 100]), span(key, 0, 100));
    let begun = Instant::now();
    let result = one(&link, write).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let is_healthy = link.is_healthy();
    let is_written = memory.slice(0, 100).unwrap().to_vec() == [1; 100];
    drop(link);
    peer.shutdown().await;
    owner.shutdown().await;
    drop((peer, owner, region));
    Written { result, is_healthy, is_written }
}

struct Written {
    result: Result<(), TransferError>,
    is_healthy: bool,
    is_written: bool,
}

fn opened(id: u32, answer: RegionAnswer, change: impl FnOnce(&mut RegionKeys)) -> Vec<u8> {
    let RegionAnswer::Open(mut keys) = answer else { panic!("{answer:?}") };
    change(&mut keys);
    Answer::Region(RegionAnswer::Open(keys)).encode(id)
}

#[tokio::test]
async fn on_device_nonsense_about_a_region_ends_the_link_or_the_operation() {
    let Some(_alone) = on_device() else { return };
    let before = objects();
    // What cannot be decoded ends the link.
    for bytes in [
        framed(&[19, 1, 0, 0, 0, 77]),
        framed(&[]),
        framed(&[200; 40]),
        u32::MAX.to_le_bytes().to_vec(),
        ((8 << 20) + 1_u32).to_le_bytes().to_vec(),
    ] {
        let done = write_with(move |_, _, _| bytes.clone()).await;
        let error = done.result.unwrap_err();
        assert!(
            matches!(error, TransferError::LinkLost { .. } | TransferError::Protocol(_)),
            "{error:?}"
        );
        assert!(!done.is_healthy && !done.is_written);
    }
    // A region of fewer keys than chunks cannot be decoded, either.
    let done = write_with(|_, id, answer| opened(id, answer, |keys| keys.keys[0].clear())).await;
    assert!(done.result.is_err() && !done.is_healthy);
    // An answer of another kind.
    let done = write_with(|_, id, _| Answer::Fenced.encode(id)).await;
    assert!(matches!(done.result, Err(TransferError::Protocol(_))), "{:?}", done.result);
    // Keys for no device.
    let done = write_with(|_, id, answer| opened(id, answer, |keys| keys.keys.clear())).await;
    assert!(matches!(done.result, Err(TransferError::KeyRefused)), "{:?}", done.result);
    assert!(done.is_healthy);
    // A region that is empty, one without access, and one that is not to be reached.
    let done = write_with(|_, id, answer| {
        opened(id, answer, |keys| (keys.len, keys.keys) = (0, vec![Vec::new()]))
    });
    assert!(matches!(done.await.result, Err(TransferError::OutOfBounds { .. })));
    let done = write_with(|_, id, answer| opened(id, answer, |keys| keys.access = Access::Read));
    assert!(matches!(done.await.result, Err(TransferError::AccessDenied { .. })));
    let done = write_with(|_, id, _| Answer::Region(RegionAnswer::Unavailable).encode(id));
    assert!(matches!(done.await.result, Err(TransferError::Unsupported { .. })));
    // The largest region that can be, whose keys are nonsense: the owner's card refuses.
    let huge = |keys: &mut RegionKeys| {
        (keys.base, keys.len, keys.chunk) = (0, 1 << 40, 1 << 24);
        keys.keys = vec![vec![0x1234_5678; 64 << 10]; 16];
    };
    let done = write_with(move |_, id, answer| opened(id, answer, huge)).await;
    assert!(matches!(done.result, Err(TransferError::WorkFailed(_))), "{:?}", done.result);
    assert!(done.is_healthy && !done.is_written);
    nothing_is_left(&before).await;
}

#[tokio::test]
async fn on_device_an_owner_that_puts_off_takes_the_time_limit() {
    let Some(_alone) = on_device() else { return };
    for answer in [None, Some(RegionAnswer::Preparing)] {
        let done = write_with(move |_, id, _| {
            answer.clone().map_or_else(Vec::new, |answer| Answer::Region(answer).encode(id))
        });
        let result = done.await.result;
        assert!(matches!(result, Err(TransferError::TimedOut { .. })), "{result:?}");
    }
}

#[tokio::test]
async fn on_device_answers_that_nobody_asked_for_are_passed_over() {
    let Some(_alone) = on_device() else { return };
    let done = write_with(|key, id, answer| {
        let mut all = Vec::new();
        for stray in 0..3000_u32 {
            let other = RemoteKey::from_bytes(u128::from(stray).to_le_bytes());
            all.extend(Answer::Withdrawn(other).encode(stray));
            all.extend(Answer::Fenced.encode(1_000_000 + stray));
            all.extend(Answer::Region(RegionAnswer::Refused).encode(2_000_000 + stray));
        }
        // Twice, the second time without a request.
        all.extend(Answer::Withdrawn(key).encode(id));
        all.extend(Answer::Region(answer.clone()).encode(id));
        all.extend(Answer::Region(answer).encode(id));
        all
    });
    let done = done.await;
    done.result.unwrap();
    assert!(done.is_healthy && done.is_written);
}

/// A withdrawal that is told in one breath with the keys is not missed.
#[tokio::test]
async fn on_device_a_region_withdrawn_at_once_is_refused() {
    let Some(_alone) = on_device() else { return };
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let done = write_with(move |key, id, answer| {
        match asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0 => [Answer::Region(answer).encode(id), Answer::Withdrawn(key).encode(0)].concat(),
            _ => Answer::Region(RegionAnswer::Refused).encode(id),
        }
    });
    let done = done.await;
    assert!(matches!(done.result, Err(TransferError::KeyRefused)), "{:?}", done.result);
    assert!(done.is_healthy && !done.is_written);
}
