//! Peers that connect to an owner and break the protocol. A peer that keeps it is served all the
//! while, and nothing is left of the others.

use std::net::SocketAddr;

use mc_testkit::{Random, eventually};
use mc_transport::{ConnectError, LinkId, NodeSecret};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::recovery::nowhere;
use super::*;
use crate::frames::receive;
use crate::wire::{
    Answer, GREETING_LEN, Greeting, Hello, LaneAnswer, LaneOffer, MAX_ANSWER, MAX_LANES, PROOF_LEN,
    RegionAnswer, Request, VERSION, Verdict,
};

/// A connection that says what it likes.
struct Raw {
    stream: TcpStream,
    link: LinkId,
}

fn address(owner: &RdmaTransport) -> SocketAddr {
    owner.endpoint().unwrap().address().parse().unwrap()
}

fn hello() -> Hello {
    Hello { version: VERSION, proven: false, nonce: [7; 16] }
}

async fn greeted(stream: &mut TcpStream, hello: &Hello) -> Greeting {
    stream.write_all(&hello.encode()).await.unwrap();
    let mut greeting = [0; GREETING_LEN];
    stream.read_exact(&mut greeting).await.unwrap();
    Greeting::decode(&greeting).unwrap()
}

impl Raw {
    /// A connection behind the handshake.
    async fn connect(owner: &RdmaTransport) -> Self {
        let mut stream = TcpStream::connect(address(owner)).await.unwrap();
        let greeting = greeted(&mut stream, &hello()).await;
        stream.write_all(&[0; PROOF_LEN]).await.unwrap();
        let mut raw = Self { stream, link: greeting.link };
        assert!(matches!(raw.hear().await, Some((_, Answer::Ports(_)))));
        raw
    }

    /// The next answer; `None` when the owner hung up.
    async fn hear(&mut self) -> Option<(u32, Answer)> {
        let frame = timeout(DEADLINE, receive(&mut self.stream, MAX_ANSWER)).await;
        frame
            .expect("the owner answers or hangs up")
            .ok()
            .map(|frame| Answer::decode(&frame).unwrap())
    }

    async fn ask(&mut self, request: &Request) -> Option<Answer> {
        self.stream.write_all(&request.encode(5)).await.unwrap();
        self.hear().await.map(|(_, answer)| answer)
    }

    async fn lanes(&mut self, offers: Vec<LaneOffer>) -> Option<Vec<LaneAnswer>> {
        match self.ask(&Request::Lanes(offers)).await? {
            Answer::Lanes(answers) => Some(answers),
            other => panic!("{other:?}"),
        }
    }

    /// Sends bytes, for which the owner has to hang up.
    async fn expect_hang_up(mut self, bytes: &[u8]) {
        // It may hang up before it has read all.
        let _ = self.stream.write_all(bytes).await;
        let end = timeout(DEADLINE, self.stream.read(&mut [0; 64])).await;
        assert!(matches!(end.expect("the owner hangs up"), Ok(0) | Err(_)));
    }
}

/// An owner with short time limits, and a peer that keeps the protocol.
async fn rig() -> Rig {
    let mut config = owning();
    (config.connect_timeout, config.stall_timeout) = (SHORT, SHORT);
    Rig::with(config, reaching()).await
}

/// Waits until no connection but the link of the good peer is left.
async fn only_the_good_peer_is_left(rig: &Rig) {
    eventually(DEADLINE, "the others are gone", || rig.owner.stats().connections == 1).await;
    rig.works().await;
}

#[tokio::test]
async fn on_device_garbage_is_hung_up_on() {
    let Some(_alone) = on_device() else { return };
    let rig = rig().await;
    let mut random = Random::seeded("MC_TEST_RDMA_SEED");
    for round in 0..40 {
        let len = 1 + random.below(4096);
        let bytes: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
        if round % 2 == 0 {
            // In place of the handshake.
            let mut stream = TcpStream::connect(address(&rig.owner)).await.unwrap();
            let _ = stream.write_all(&bytes).await;
            let _ = timeout(DEADLINE, stream.read(&mut [0; 64])).await.expect("hung up on");
        } else {
            // Behind it, as frames with a length that fits.
            let frame = proxy::framed(&bytes[..bytes.len().min(1000)]);
            Raw::connect(&rig.owner).await.expect_hang_up(&frame).await;
        }
    }
    only_the_good_peer_is_left(&rig).await;
    rig.shutdown().await;
}

#[tokio::test]
async fn on_device_frames_that_are_too_long_or_empty_are_hung_up_on() {
    let Some(_alone) = on_device() else { return };
    let rig = rig().await;
    for len in [u32::MAX, 1 << 30, (16 << 10) + 1, 0, 1] {
        Raw::connect(&rig.owner).await.expect_hang_up(&framed_of(len)).await;
    }
    // Announced and not sent: takes no memory, and goes with the connection.
    let mut raw = Raw::connect(&rig.owner).await;
    raw.stream.write_all(&(16_u32 << 10).to_le_bytes()).await.unwrap();
    rig.works().await;
    drop(raw);
    only_the_good_peer_is_left(&rig).await;
    rig.shutdown().await;
}

/// A frame that announces `len` bytes and has a few zeros.
fn framed_of(len: u32) -> Vec<u8> {
    [&len.to_le_bytes()[..], &[0; 64]].concat()
}

#[tokio::test]
async fn on_device_half_a_handshake_takes_the_time_limit() {
    let Some(_alone) = on_device() else { return };
    let rig = rig().await;
    let mut all = Vec::new();
    for index in 0..60 {
        let mut stream = TcpStream::connect(address(&rig.owner)).await.unwrap();
        let bytes = hello().encode();
        stream.write_all(&bytes[..[0, 7, bytes.len()][index % 3]]).await.unwrap();
        all.push(stream);
    }
    let begun = Instant::now();
    only_the_good_peer_is_left(&rig).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    rig.shutdown().await;
}

#[tokio::test]
async fn on_device_absurd_lanes_are_refused_and_reclaimed() {
    let Some(_alone) = on_device() else { return };
    let rig = rig().await;
    rig.works().await;
    let before = objects();
    let absurd = [
        LaneOffer { port: 255, ..nowhere(0) },
        LaneOffer { gid: 255, ..nowhere(1) },
        LaneOffer { number: u32::MAX, first: u32::MAX, ..nowhere(2) },
        LaneOffer { lid: u16::MAX, address: [255; 16], ..nowhere(3) },
        LaneOffer { reads_in: 255, reads_out: 255, ..nowhere(4) },
        LaneOffer { reads_in: 0, reads_out: 0, ..nowhere(5) },
    ];
    let mut raw = Raw::connect(&rig.owner).await;
    let answers = raw.lanes(absurd.to_vec()).await.unwrap();
    assert_eq!(answers.len(), absurd.len());
    assert!(matches!(answers[0], LaneAnswer::Failed(_)), "{:?}", answers[0]);
    assert_eq!(raw.lanes(Vec::new()).await.unwrap(), []);
    rig.works().await;
    drop(raw);

    for offer in [LaneOffer { mtu: 0, ..nowhere(0) }, LaneOffer { mtu: 6, ..nowhere(0) }] {
        assert_eq!(Raw::connect(&rig.owner).await.lanes(vec![offer]).await, None);
    }
    let lane = u16::MAX;
    assert_eq!(Raw::connect(&rig.owner).await.lanes(vec![nowhere(lane)]).await, None);
    let too_many = vec![nowhere(0); MAX_LANES + 1];
    assert_eq!(Raw::connect(&rig.owner).await.lanes(too_many).await, None);
    only_the_good_peer_is_left(&rig).await;
    nothing_is_left(&before).await;
    rig.shutdown().await;
}

/// An offer that the owner can connect to: its own address.
fn somewhere(lane: u16, gid: [u8; 16]) -> LaneOffer {
    LaneOffer { address: gid, number: 0x11, ..nowhere(lane) }
}

#[tokio::test]
async fn on_device_lanes_asked_for_again_and_again_do_not_add_up() {
    let Some(_alone) = on_device() else { return };
    let rig = rig().await;
    rig.works().await;
    let before = objects();
    let gid = rig.peer.shared.ports.ports[0].gids[0].1;
    let mut raw = Raw::connect(&rig.owner).await;
    for _ in 0..5 {
        let offers = (0..MAX_LANES as u16).map(|lane| somewhere(lane, gid)).collect();
        let answers = raw.lanes(offers).await.unwrap();
        let made =
            answers.iter().filter(|answer| matches!(answer, LaneAnswer::Made { .. })).count();
        assert_eq!(made, MAX_LANES, "{:?}", answers[0]);
        assert_eq!(objects()["qp"], before["qp"] + MAX_LANES);
    }
    // One lane, many times.
    let answers = raw.lanes(vec![somewhere(0, gid); MAX_LANES]).await.unwrap();
    assert_eq!(answers.len(), MAX_LANES);
    assert_eq!(objects()["qp"], before["qp"] + MAX_LANES);
    rig.works().await;
    drop(raw);
    nothing_is_left(&before).await;
    // Not even of one that leaves without waiting for the answer.
    for _ in 0..10 {
        let mut raw = Raw::connect(&rig.owner).await;
        let offers = (0..MAX_LANES as u16).map(|lane| somewhere(lane, gid)).collect();
        raw.stream.write_all(&Request::Lanes(offers).encode(1)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    only_the_good_peer_is_left(&rig).await;
    nothing_is_left(&before).await;
    rig.shutdown().await;
}

/// Peers that were admitted, and have shown no key of a region, take queue pairs from each other, not
/// from those that have.
#[tokio::test]
async fn on_device_peers_without_a_key_share_few_queue_pairs() {
    const CONNECTIONS: usize = 40;
    const LANES: usize = 4;
    let Some(_alone) = on_device() else { return };
    let rig = rig().await;
    let gid = rig.peer.shared.ports.ports[0].gids[0].1;
    let offers = || (0..LANES as u16).map(|lane| somewhere(lane, gid)).collect::<Vec<_>>();
    rig.works().await;
    let before = objects()["qp"];
    let mut proved = Raw::connect(&rig.owner).await;
    assert_eq!(proved.lanes(offers()).await.unwrap().len(), LANES);
    let answer = proved.ask(&Request::Region(rig.region.key())).await.unwrap();
    assert!(matches!(answer, Answer::Region(RegionAnswer::Open(_))), "{answer:?}");
    let mut strangers = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stranger = Raw::connect(&rig.owner).await;
        let unknown = RemoteKey::from_bytes([9; 16]);
        let answer = stranger.ask(&Request::Region(unknown)).await.unwrap();
        assert_eq!(answer, Answer::Region(RegionAnswer::Refused));
        assert_eq!(stranger.lanes(offers()).await.unwrap().len(), LANES, "others make room");
        strangers.push(stranger);
    }
    // The one that has shown a key, and sixteen of this host that have not.
    eventually(DEADLINE, "strangers have given their queue pairs up", || {
        objects()["qp"] <= before + 17 * LANES
    })
    .await;
    assert_eq!(strangers[0].hear().await, None, "the first had to go");
    assert_eq!(proved.lanes(offers()).await.unwrap().len(), LANES);
    rig.works().await;
    drop((strangers, proved));
    only_the_good_peer_is_left(&rig).await;
    rig.shutdown().await;
}

#[tokio::test]
async fn on_device_a_peer_that_asks_and_does_not_read_is_hung_up_on() {
    let Some(_alone) = on_device() else { return };
    let mut config = owning();
    (config.connect_timeout, config.stall_timeout) = (SHORT, SHORT);
    // Answers of some KiB.
    config.registration_chunk = mc_types::ByteSize::kib(4);
    let rig = Rig::with(config, reaching()).await;
    let mut raw = Raw::connect(&rig.owner).await;
    let question = Request::Region(rig.region.key());
    let answer = raw.ask(&question).await.unwrap();
    let size = answer.encode(0).len();
    assert!(matches!(answer, Answer::Region(RegionAnswer::Open(_))) && size > 1000);
    let questions = question.encode(5).repeat(1000);
    let begun = Instant::now();
    let mut sent = 0;
    while timeout(DEADLINE, raw.stream.write_all(&questions)).await.expect("hung up on").is_ok() {
        sent += 1000;
        assert!(sent < 1_000_000, "{sent} questions, and none of {size} bytes was read");
    }
    println!("hung up on after {sent} questions and {:?}", begun.elapsed());
    only_the_good_peer_is_left(&rig).await;
    rig.shutdown().await;
}

#[tokio::test]
async fn on_device_questions_for_unknown_regions_are_answered() {
    let Some(_alone) = on_device() else { return };
    let rig = rig().await;
    let mut raw = Raw::connect(&rig.owner).await;
    for round in 0..1000_u128 {
        let key = RemoteKey::from_bytes(round.to_le_bytes());
        let answer = raw.ask(&Request::Region(key)).await.unwrap();
        assert_eq!(answer, Answer::Region(RegionAnswer::Refused));
    }
    drop(raw);
    only_the_good_peer_is_left(&rig).await;
    rig.shutdown().await;
}

#[tokio::test]
async fn on_device_a_flood_of_fences_ends_nothing_but_the_link_named() {
    let Some(_alone) = on_device() else { return };
    let rig = rig().await;
    let mut raw = Raw::connect(&rig.owner).await;
    for round in 0..1000_u128 {
        let link = LinkId::from_bytes(round.to_le_bytes());
        assert_eq!(raw.ask(&Request::Fence(link)).await, Some(Answer::Fenced));
    }
    rig.works().await;
    // Its own, which hangs neither side.
    let own = raw.link;
    assert_eq!(raw.ask(&Request::Fence(own)).await, None);
    // Two that end one another.
    let (mut one, mut other) = (Raw::connect(&rig.owner).await, Raw::connect(&rig.owner).await);
    let (first, second) = (Request::Fence(other.link), Request::Fence(one.link));
    let ended = tokio::join!(one.ask(&first), other.ask(&second));
    assert!(ended.0.is_none() || ended.1.is_none());
    drop((one, other));
    only_the_good_peer_is_left(&rig).await;
    rig.shutdown().await;
}

#[tokio::test]
async fn on_device_a_secret_admits_those_that_know_it() {
    let Some(_alone) = on_device() else { return };
    let mut config = owning();
    config.require_proof = true;
    let owner = RdmaTransport::start(config).await.unwrap();
    let endpoint = owner.endpoint().unwrap();
    let peer = RdmaTransport::start(reaching()).await.unwrap();
    let plain = peer.connect(endpoint).await.unwrap_err();
    assert!(matches!(plain, ConnectError::NotAdmitted { .. }), "{plain:?}");
    let wrong = NodeSecret::from_bytes([1; 16]);
    let wrong = peer.connect_proven(endpoint, wrong, None).await.unwrap_err();
    assert!(matches!(wrong, ConnectError::Impostor { .. }), "{wrong:?}");
    let link = peer.connect_proven(endpoint, owner.secret(), None).await.unwrap();
    assert!(link.is_healthy());

    // One that claims to know it, and does not.
    let mut stream = TcpStream::connect(address(&owner)).await.unwrap();
    let greeting = greeted(&mut stream, &Hello { proven: true, ..hello() }).await;
    assert_eq!(greeting.verdict, Verdict::Welcome);
    // The owner's proof, sent back to it.
    stream.write_all(&greeting.proof).await.unwrap();
    let frame = receive(&mut stream, MAX_ANSWER).await.unwrap();
    let (_, answer) = Answer::decode(&frame).unwrap();
    assert_eq!(answer, Answer::Refused(Verdict::NotProven));
    assert_eq!(stream.read(&mut [0; 8]).await.unwrap_or(0), 0);

    // One that speaks another version.
    let mut stream = TcpStream::connect(address(&owner)).await.unwrap();
    let greeting = greeted(&mut stream, &Hello { version: 9, ..hello() }).await;
    assert_eq!((greeting.verdict, greeting.version), (Verdict::UnknownVersion, VERSION));
    drop(link);
    peer.shutdown().await;
    owner.shutdown().await;
}
