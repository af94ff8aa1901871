//! The publisher over real sockets, with subscribers that behave and others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_events::{
    BlockStoreEvent, Encoding, EventSocket, EventSystem, KvEvent, Limits, Message, Packer, Parts,
    PublisherConfig, RemoveAllEvent, Snapshot, SnapshotPage, SocketBusy, SocketStats, StartError,
};
use mc_testkit::eventually_async;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::common::{LIMIT, Peer, config, more, number, replay_endpoint, stored, subscribers};

async fn start(config: PublisherConfig) -> EventSystem {
    EventSystem::start(config).await.unwrap()
}

fn decode(payload: &[u8]) -> rmpv::Value {
    rmpv::decode::read_value(&mut &payload[..]).unwrap()
}

#[tokio::test]
async fn a_message_has_topic_number_and_batch() {
    let events = start(PublisherConfig { topic: "mooncake".into(), ..config(Encoding::S4) }).await;
    let mut all = Peer::subscribe(&events.endpoints()[0].endpoint, "").await;
    let mut other = Peer::subscribe(&events.endpoints()[0].endpoint, "other").await;
    subscribers(&events, 2).await;
    let outcomes = ["a", "b"].map(|key| events.publish(stored(key)));
    let frames = all.receive().await;
    assert_eq!(frames[0], b"mooncake");
    assert_eq!(number(&frames[1]), 0);
    let batch = decode(&frames[2]);
    assert_eq!(batch[1].as_array().unwrap().len(), 2);
    assert_eq!(batch[1][0][0].as_str(), Some("BlockStoreEvent"));
    assert_eq!(batch[1][1][1].as_str(), Some("b"));
    for outcome in outcomes {
        assert!(outcome.await);
    }
    assert!(events.shutdown(LIMIT).await);
    assert_eq!(other.0.read_u8().await.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    assert!(!events.publish(stored("late")).await);
    let stats = events.stats();
    assert_eq!((stats.published, stats.batches, stats.dropped, stats.queued), (2, 1, 1, 0));
}

#[tokio::test]
async fn events_of_a_stream_gather() {
    let events = start(config(Encoding::S4)).await;
    for at in 0..200 {
        events.post(stored(format!("{at}")));
        // The publisher may take the event at once.
        tokio::task::yield_now().await;
    }
    assert!(events.shutdown(LIMIT).await);
    let stats = events.stats();
    assert_eq!((stats.published, stats.dropped), (200, 0));
    assert!(stats.batches < 100, "{stats:?}");
}

#[tokio::test]
async fn a_full_queue_drops_and_leaves_out_a_number() {
    let limits = Limits { queue_events: 2, ..Limits::default() };
    let events = start(PublisherConfig { limits, ..config(Encoding::S4) }).await;
    let mut subscriber = Peer::subscribe(&events.endpoints()[0].endpoint, "").await;
    subscribers(&events, 1).await;
    // The publisher shares this thread and cannot take anything in between.
    let outcomes: Vec<_> = (0..4).map(|at| events.publish(stored(format!("{at}")))).collect();
    assert_eq!(subscriber.number().await, 0);
    let mut sent = Vec::new();
    for outcome in outcomes {
        sent.push(outcome.await);
    }
    assert_eq!(sent, [true, true, false, false]);
    assert!(events.publish(stored("after")).await);
    assert_eq!(subscriber.number().await, 2);
    assert_eq!(events.stats().dropped, 2);
}

#[tokio::test]
async fn a_stalled_subscriber_costs_bounded_memory_and_catches_up_by_replay() {
    const MAX: usize = 1 << 20;
    let limits = Limits { subscriber_bytes: MAX, ..Limits::default() };
    let events = start(PublisherConfig { limits, ..config(Encoding::S4) }).await;
    let mut stalled = Peer::subscribe(&events.endpoints()[0].endpoint, "").await;
    subscribers(&events, 1).await;
    // More than the system's buffers hold.
    let mut last = 0;
    while events.stats().skipped < 10 {
        assert!(events.publish(stored("k".repeat(200_000))).await);
        assert!(events.stats().waiting_bytes <= MAX);
        last += 1;
        assert!(last < 10_000, "nothing is skipped");
    }
    let reader = tokio::spawn(async move {
        let mut numbers = Vec::new();
        while numbers.last() != Some(&last) {
            numbers.push(stalled.number().await);
        }
        numbers
    });
    eventually_async(LIMIT, "all is read", async || events.stats().waiting_bytes == 0).await;
    assert!(events.publish(stored("next")).await);
    let mut numbers = reader.await.unwrap();
    assert!(numbers.is_sorted());
    let gap = (0..).zip(&numbers).find(|(expected, number)| expected != *number);
    let (missing, _) = gap.expect("the numbers show a gap");
    let mut replay = Peer::connect(replay_endpoint(&events), "DEALER").await;
    numbers.extend(replay.replay(missing).await.into_iter().map(|(number, _)| number));
    numbers.sort_unstable();
    numbers.dedup();
    assert!(numbers.into_iter().eq(0..=last), "the replay has all that is missing");
}

#[tokio::test]
async fn fifty_subscribers_get_every_message_and_one_reconnects() {
    let events = start(config(Encoding::Mooncake { backend_id: "b".into() })).await;
    let endpoint = &events.endpoints()[0].endpoint;
    let mut peers = Vec::new();
    for _ in 0..50 {
        peers.push(Peer::subscribe(endpoint, "").await);
    }
    subscribers(&events, 50).await;
    for at in 0..20 {
        assert!(events.publish(stored(format!("{at}"))).await);
    }
    for peer in &mut peers {
        for expected in 1..=20 {
            assert_eq!(peer.number().await, expected);
        }
    }
    drop(peers.pop());
    subscribers(&events, 49).await;
    assert!(events.publish(stored("missed")).await);
    let mut back = Peer::subscribe(endpoint, "").await;
    subscribers(&events, 50).await;
    assert!(events.publish(stored("seen")).await);
    assert_eq!(back.number().await, 22);
    let mut replay = Peer::connect(replay_endpoint(&events), "DEALER").await;
    let missed: Vec<u64> = replay.replay(21).await.into_iter().map(|(number, _)| number).collect();
    assert_eq!(missed, [21, 22]);
    assert!(events.publish(RemoveAllEvent).await);
    assert_eq!(back.number().await, 24, "a removal of all leaves out a number");
}

#[tokio::test]
async fn a_restart_has_another_incarnation_and_its_old_socket_file_does_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events");
    // What a killed process leaves.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let endpoint = format!("ipc://{}", path.display());
    let config = PublisherConfig { endpoint: endpoint.clone(), ..config(Encoding::S4) };
    let first = start(config.clone()).await;
    assert_eq!(first.endpoints()[0].endpoint, endpoint);
    let used = EventSystem::start(config.clone()).await.unwrap_err();
    assert!(matches!(used, StartError::InUse { .. }), "{used}");
    let info = async |events: &EventSystem| {
        let mut replay = Peer::connect(replay_endpoint(events), "REQ").await;
        replay.send(&[b"", b"INFO"]).await;
        let frames = replay.receive().await;
        assert_eq!(frames[..2], [b"".to_vec(), b"INFO".to_vec()]);
        decode(&frames[2])
    };
    assert!(first.publish(stored("a")).await);
    let said = info(&first).await;
    assert_eq!(said["incarnation"].as_u64(), Some(first.incarnation()));
    assert_eq!((said["oldest"].as_u64(), said["next"].as_u64()), (Some(0), Some(1)));
    assert_eq!(said["encoding"].as_str(), Some("s4"));
    drop(first);
    eventually_async(LIMIT, "the file is removed", async || !path.exists()).await;
    let second = start(config.clone()).await;
    let said = info(&second).await;
    assert_eq!(said["incarnation"].as_u64(), Some(second.incarnation()));
    assert_eq!(said["next"].as_u64(), Some(0));
    drop(second);
    eventually_async(LIMIT, "the file is removed", async || !path.exists()).await;
    std::fs::write(&path, "precious").unwrap();
    let refused = EventSystem::start(config).await.unwrap_err();
    assert!(matches!(refused, StartError::NotASocket { .. }), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[tokio::test]
async fn hostile_peers_change_nothing() {
    let events = start(config(Encoding::S4)).await;
    let endpoint = &events.endpoints()[0].endpoint;
    let mut good = Peer::subscribe(endpoint, "").await;
    subscribers(&events, 1).await;
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xFF; 100], &[0; 64]] {
        let mut raw = TcpStream::connect(&endpoint["tcp://".len()..]).await.unwrap();
        raw.write_all(bytes).await.unwrap();
    }
    let mut huge = Peer::connect(endpoint, "SUB").await;
    huge.0.write_all(&[2, 0x20, 0, 0, 0, 0, 0, 0, 0]).await.unwrap();
    assert!(huge.0.read_u8().await.is_err(), "its connection ends");
    let mut greedy = Peer::connect(endpoint, "SUB").await;
    for _ in 0..65 {
        greedy.send(&[b"\x01none"]).await;
    }
    assert!(greedy.0.read_u8().await.is_err(), "its connection ends");
    let mut replay = Peer::connect(replay_endpoint(&events), "DEALER").await;
    let long = [b'x'; 400];
    let bad: [&[&[u8]]; 6] =
        [&[b""], &[b"1234567"], &[&long], &[b"x", b"12345678"], &[&b""[..]; 9], &[b"SNAPSHOT:"]];
    for frames in bad {
        replay.send(frames).await;
    }
    assert_eq!(replay.replay(0).await, [], "the connection still answers");
    assert_eq!(events.stats().ignored_requests, bad.len() as u64);
    assert!(events.publish(stored("a")).await);
    assert_eq!(good.number().await, 0);
}

#[tokio::test]
async fn ports_in_use_and_wrong_settings_are_reported() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("tcp://{}", taken.local_addr().unwrap());
    let mut config = PublisherConfig { endpoint: endpoint.clone(), ..config(Encoding::S4) };
    let events = start(config.clone()).await;
    assert_ne!(events.endpoints()[0].endpoint, endpoint);
    config.auto_port = false;
    let error = EventSystem::start(config.clone()).await.unwrap_err();
    assert!(matches!(error, StartError::InUse { .. }), "{error}");
    for wrong in [
        "",
        "tcp://",
        "tcp://host",
        "tcp://:1",
        "tcp://*:65536",
        "tcp://*:+1",
        "tcp://::1:1",
        "udp://*:1",
        "ipc://",
        "ipc://@abstract",
        "*:1",
    ] {
        config.endpoint = wrong.into();
        let error = EventSystem::start(config.clone()).await.unwrap_err();
        assert!(matches!(error, StartError::Endpoint { .. }), "{wrong}: {error}");
    }
    config.endpoint = "ipc:///no/such/folder/events".into();
    let error = EventSystem::start(config.clone()).await.unwrap_err();
    assert!(matches!(error, StartError::Listen { .. }), "{error}");
    for topic in ["a\0", "a\n", &"t".repeat(256)] {
        let config = PublisherConfig { topic: topic.into(), ..config.clone() };
        let error = EventSystem::start(config).await.unwrap_err();
        assert!(matches!(error, StartError::Topic { .. }), "{error}");
    }
    let error = EventSystem::start(PublisherConfig { hwm: 0, ..config }).await.unwrap_err();
    assert!(matches!(error, StartError::Zero { setting: "hwm" }), "{error}");
}

/// A socket that is busy for the first attempts, or for ever.
#[derive(Default)]
struct Busy {
    refusals: AtomicU64,
    sent: AtomicU64,
}

impl EventSocket for Busy {
    fn send(&self, _: &Message) -> Result<(), SocketBusy> {
        let one_less = |left: u64| left.checked_sub(1);
        if self.refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            return Err(SocketBusy);
        }
        self.sent.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn flush(&self) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }

    fn close(&self) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.flush()
    }

    fn stats(&self) -> SocketStats {
        SocketStats::default()
    }
}

#[tokio::test]
async fn a_busy_socket_is_tried_again() {
    let socket = Arc::new(Busy { refusals: AtomicU64::new(2), ..Busy::default() });
    let sockets: Vec<Arc<dyn EventSocket>> = vec![Arc::clone(&socket) as _];
    let config = PublisherConfig { replay_endpoint: String::new(), ..config(Encoding::S4) };
    let parts = Parts { sockets, ..Parts::default() };
    let events = EventSystem::start_with(config, parts).await.unwrap();
    assert!(events.publish(stored("a")).await);
    assert_eq!((events.stats().retries, events.stats().published), (2, 1));
    socket.refusals.store(u64::MAX, Ordering::Relaxed);
    assert!(!events.publish(stored("b")).await);
    let queued = events.publish(stored("c"));
    assert!(!events.shutdown(Duration::from_micros(1)).await, "the time is over before it is sent");
    assert!(!queued.await);
    assert!(!events.is_running());
    assert_eq!(events.stats().dropped, 2);
}

#[derive(Debug)]
struct Custom(usize);

impl KvEvent for Custom {
    fn type_tag(&self) -> &'static str {
        "Custom"
    }

    fn pack(&self, packer: &mut Packer<'_>) {
        packer.array(2).str(self.type_tag()).bin(&vec![0; self.0]);
    }

    fn tenant(&self) -> Option<&str> {
        Some("a")
    }
}

#[tokio::test]
async fn an_endpoint_publishes_one_tenant_and_events_of_ones_own() {
    let mut only_a = more(Encoding::S4, "a");
    only_a.tenant = Some("a".into());
    let more_endpoints = vec![only_a, more(Encoding::Vllm, "v")];
    let events = start(PublisherConfig { more_endpoints, ..config(Encoding::S4) }).await;
    for tenant in ["b", "a"] {
        let event = BlockStoreEvent { tenant: tenant.into(), ..stored(tenant) };
        assert!(events.publish(event).await);
    }
    let custom = |size| Arc::new(Custom(size)) as Arc<dyn KvEvent>;
    assert!(events.publish(custom(1)).await);
    assert!(!events.publish(custom(1 << 20)).await, "it is too large when packed");
    assert!(events.publish(RemoveAllEvent).await);
    let mut seen = Vec::new();
    for endpoint in events.endpoints() {
        let mut peer = Peer::connect(endpoint.replay_endpoint.as_ref().unwrap(), "DEALER").await;
        let name = |(number, payload): (u64, Vec<u8>)| {
            let event = &decode(&payload)[1][0];
            let stored = event[0].as_str() == Some("BlockStoreEvent");
            (number, event[usize::from(stored)].as_str().unwrap_or("cleared").to_owned())
        };
        seen.push(peer.replay(0).await.into_iter().map(name).collect::<Vec<_>>());
    }
    let expected: [&[(u64, &str)]; 3] = [
        &[(0, "b"), (1, "a"), (2, "Custom"), (4, "RemoveAllEvent")],
        &[(0, "a"), (1, "Custom"), (3, "RemoveAllEvent")],
        &[(0, "cleared")],
    ];
    let owned = |list: &&[(u64, &str)]| -> Vec<_> {
        list.iter().map(|&(number, name)| (number, name.to_owned())).collect()
    };
    assert_eq!(seen, expected.iter().map(owned).collect::<Vec<_>>());
}

struct Objects(Vec<String>);

impl Snapshot for Objects {
    fn page(&self, cursor: &[u8], max_objects: usize) -> SnapshotPage {
        let start = if cursor.is_empty() {
            Some(0)
        } else {
            cursor.try_into().ok().map(u64::from_be_bytes)
        };
        let start = start.map_or(self.0.len(), |start| self.0.len().min(start as usize));
        let end = self.0.len().min(start + max_objects);
        let objects = self.0[start..end].iter().map(stored).collect();
        let next = if end < self.0.len() { (end as u64).to_be_bytes().into() } else { Vec::new() };
        SnapshotPage { objects, next }
    }
}

#[tokio::test]
async fn a_late_joiner_gets_all_objects_in_bounded_pages() {
    let keys: Vec<String> = (0..700).map(|at| format!("{at:04000}")).collect();
    let snapshot: Arc<dyn Snapshot> = Arc::new(Objects(keys.clone()));
    let parts = Parts { snapshot: Some(snapshot), ..Parts::default() };
    let events = EventSystem::start_with(config(Encoding::S4), parts).await.unwrap();
    for key in ["x", "y"] {
        assert!(events.publish(stored(key)).await);
    }
    let mut peer = Peer::connect(replay_endpoint(&events), "DEALER").await;
    let (mut cursor, mut seen) = (Vec::new(), Vec::new());
    loop {
        peer.send(&[&[b"SNAPSHOT:", &cursor[..]].concat()]).await;
        let frames = peer.receive().await;
        assert_eq!(frames[0], b"SNAPSHOT:");
        assert_eq!((number(&frames[1]), number(&frames[2])), (events.incarnation(), 2));
        assert!(frames[4].len() <= 1 << 20);
        let batch = decode(&frames[4]);
        seen.extend(batch[1].as_array().unwrap().iter().map(|event| event[1].to_string()));
        cursor.clone_from(&frames[3]);
        if cursor.is_empty() {
            break;
        }
    }
    let keys: Vec<String> = keys.into_iter().map(|key| format!("\"{key}\"")).collect();
    assert_eq!(seen, keys);
    peer.send(&[b"SNAPSHOT:made up"]).await;
    assert_eq!(decode(&peer.receive().await[4])[1].as_array().unwrap().len(), 0);
}
