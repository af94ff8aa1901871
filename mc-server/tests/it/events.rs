//! The events of a master tell subscribers exactly what it holds.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mc_events::subscribe::{EventSubscriber, Index, SubscriberConfig, Update};
use mc_events::{
    BoundEndpoint, Encoding, EndpointConfig, EventSocket, Message, PublisherConfig, Replica,
    SocketBusy, SocketStats, StoreEventInfo,
};
use mc_meta::{
    Effect, EffectSink, ExportCursor, ListCursor, MasterConfig, PutEnd, PutHandle, PutStart,
    Rebuild, ReplicateConfig, SegmentSpec, SharedTierConfig,
};
use mc_server::{EventPublisher, Master};
use mc_testkit::{Random, eventually_async};
use mc_types::{ClientId, KeyRef, MediaType, RemoteKey, SegmentId, Sequence, Time};
use rmpv::Value;

const DEADLINE: Duration = Duration::from_secs(30);
const NODE: ClientId = ClientId::from_u128(100);
const WRITER: ClientId = ClientId::from_u128(1);

/// A socket that keeps what it is sent.
#[derive(Default)]
struct Kept(Mutex<Vec<Message>>);

impl EventSocket for Kept {
    fn send(&self, message: &Message) -> Result<(), SocketBusy> {
        self.0.lock().unwrap().push(message.clone());
        Ok(())
    }

    fn flush(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }

    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }

    fn stats(&self) -> SocketStats {
        SocketStats::default()
    }
}

impl Kept {
    /// The events of all messages, decoded.
    fn events(&self) -> Vec<Value> {
        let decode = |message: &Message| {
            let batch = rmpv::decode::read_value(&mut &message.payload()[..]).unwrap();
            batch.as_array().unwrap()[1].as_array().unwrap().clone()
        };
        self.0.lock().unwrap().iter().flat_map(decode).collect()
    }

    /// The events in few words: type, key, and where or on what.
    fn told(&self) -> Vec<String> {
        self.events().iter().map(in_words).collect()
    }

    fn clear(&self) {
        self.0.lock().unwrap().clear();
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.as_str().unwrap().to_owned(),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(" "),
        Value::Nil => "-".to_owned(),
        other => other.to_string(),
    }
}

fn in_words(event: &Value) -> String {
    match event {
        Value::Array(fields) => {
            let fields: Vec<_> = fields.iter().map(text).filter(|text| !text.is_empty()).collect();
            fields.join(" ")
        }
        Value::Map(pairs) => {
            let of = |name: &str| pairs.iter().find(|(key, _)| key.as_str() == Some(name));
            let shown =
                ["event_type", "type", "object_key", "block_hashes", "medium", "removal_reason"];
            let shown: Vec<_> =
                shown.iter().filter_map(|name| of(name).map(|(_, value)| text(value))).collect();
            shown.join(" ")
        }
        other => panic!("{other}"),
    }
}

/// A master that publishes in these encodings, and what its sockets get.
async fn master(state: mc_meta::Master, encodings: &[Encoding]) -> (Master, Vec<Arc<Kept>>) {
    master_at(state, encodings, &[]).await
}

/// The same; the endpoints with a number in the list tell the reasons of removals.
async fn master_at(
    state: mc_meta::Master,
    encodings: &[Encoding],
    tell_reasons: &[usize],
) -> (Master, Vec<Arc<Kept>>) {
    let kept: Vec<Arc<Kept>> = encodings.iter().map(|_| Arc::default()).collect();
    let endpoint = |(number, encoding): (usize, &Encoding)| EndpointConfig {
        encoding: encoding.clone(),
        removal_reasons: tell_reasons.contains(&number),
        ..EndpointConfig::default()
    };
    let config = PublisherConfig {
        encoding: encodings[0].clone(),
        removal_reasons: tell_reasons.contains(&0),
        more_endpoints: encodings.iter().enumerate().skip(1).map(endpoint).collect(),
        limits: mc_events::Limits { queue_events: 1 << 20, ..mc_events::Limits::default() },
        ..PublisherConfig::default()
    };
    let sockets = kept.iter().map(|kept| Arc::clone(kept) as Arc<dyn EventSocket>).collect();
    let publisher = EventPublisher::start_with(config, sockets).await.unwrap();
    let master = Box::pin(Master::builder().state(state).events(publisher).start());
    (master.await.unwrap(), kept)
}

/// Waits until everything is published.
async fn published(master: &Master) {
    let events = master.events().unwrap();
    assert!(events.publish(mc_events::BlockUpdateEvent::default()).await);
    assert_eq!(events.stats().dropped, 0);
}

fn settings() -> MasterConfig {
    let mut config = MasterConfig::default();
    config.client_ttl = Duration::from_secs(1 << 40);
    config
}

fn state(config: MasterConfig) -> mc_meta::Master {
    let state = mc_meta::Master::new(config, 1).unwrap();
    for number in 0..2 {
        mount(&state, number);
    }
    state
}

fn mount(state: &mc_meta::Master, number: u128) {
    let spec = SegmentSpec {
        id: SegmentId::from_u128(number),
        name: format!("segment-{number}").into(),
        base: 0,
        size: 1 << 20,
        endpoint: format!("mem://node-{number}").parse().unwrap(),
        remote_key: RemoteKey::from_bytes([1; 16]),
        ticket_key: None,
        medium: MediaType::Dram,
    };
    state.mount_segment(Time::ORIGIN, NODE, spec).unwrap();
}

fn key(text: &str) -> KeyRef<'_> {
    KeyRef::new(text).unwrap()
}

/// Puts an object of 64 bytes into the first segment, or not if something is there.
fn put(state: &mc_meta::Master, name: &str, info: Option<&StoreEventInfo>) -> Option<PutHandle> {
    put_of(state, name, 64, info)
}

fn put_of(
    state: &mc_meta::Master,
    name: &str,
    bytes: u64,
    info: Option<&StoreEventInfo>,
) -> Option<PutHandle> {
    let config = ReplicateConfig::default().prefer("segment-0");
    let put = PutStart { key: key(name), slice_lengths: &[bytes], config: &config };
    let handle = state.put_start(Time::ORIGIN, WRITER, &put).ok()?.handle;
    let end = PutEnd { event_info: info, ..PutEnd::new(key(name), handle) };
    state.put_end(Time::ORIGIN, WRITER, &end).ok()?;
    Some(handle)
}

fn info(hash: &str) -> StoreEventInfo {
    StoreEventInfo {
        model_name: "llama".into(),
        block_size: 16,
        block_hash: hash.into(),
        parent_block_hash: "0x1".into(),
        token_ids: vec![7, 8],
    }
}

fn mooncake() -> Encoding {
    Encoding::Mooncake { backend_id: "store".into() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_change_is_told_in_the_form_of_each_encoding() {
    let mut config = settings();
    config.shared_tier = Some(SharedTierConfig::default());
    let (master, kept) = master(state(config), &[Encoding::S4, mooncake(), Encoding::Vllm]).await;
    let (state, now) = (master.state(), Time::ORIGIN);
    published(&master).await;
    assert_eq!(kept[0].told()[0], "RemoveAllEvent", "a new master has nothing");
    assert_eq!(kept[1].told()[0], "cleared AllBlocksCleared -");
    assert_eq!(kept[2].told()[0], "AllBlocksCleared");
    let take = |kept: &Kept| {
        let mut told = kept.told();
        told.retain(|event| event != "BlockUpdateEvent");
        kept.clear();
        told
    };
    kept.iter().for_each(|kept| drop(take(kept)));

    let handle = put(state, "a", Some(&info("0x2"))).unwrap();
    published(&master).await;
    assert_eq!(take(&kept[0]), ["BlockStoreEvent a memory mem://node-0 llama 16 0x2 0x1 7 8"]);
    assert_eq!(take(&kept[1]), ["stored BlockStored a cpu"]);
    assert_eq!(take(&kept[2]), ["BlockStored 2 CPU"]);

    let copy = state.copy_start(now, NODE, key("a"), "segment-0", &["segment-1"]).unwrap();
    state.copy_end(now, NODE, key("a"), copy.handle).unwrap();
    published(&master).await;
    assert_eq!(
        take(&kept[0]),
        ["BlockUpdateEvent a memory mem://node-0 memory mem://node-1"],
        "once, when the copy can be read"
    );
    assert!(take(&kept[1]).is_empty() && take(&kept[2]).is_empty(), "it was in memory before");

    state.file_put_end(now, WRITER, key("a"), handle).unwrap();
    published(&master).await;
    assert_eq!(
        take(&kept[0]),
        ["BlockUpdateEvent a memory mem://node-0 memory mem://node-1 disk "]
    );
    assert_eq!(take(&kept[1]), ["stored BlockStored a disk"]);
    assert_eq!(take(&kept[2]), ["BlockStored 2 DISK"]);

    for number in 0..2 {
        state.unmount_segment(now, NODE, SegmentId::from_u128(number)).unwrap();
    }
    eventually_async(DEADLINE, "the memory is gone", async || {
        published(&master).await;
        let told = kept[1].told();
        (told == ["removed BlockRemoved a cpu"]).then_some(())
    })
    .await;
    take(&kept[1]);
    assert_eq!(take(&kept[2]), ["BlockRemoved 2 CPU"]);
    assert_eq!(take(&kept[0]).last().unwrap(), "BlockUpdateEvent a disk ");

    state.remove(now, key("a"), true).unwrap();
    published(&master).await;
    assert_eq!(take(&kept[0]), ["BlockUpdateEvent a"]);
    assert_eq!(take(&kept[1]), ["removed BlockRemoved a disk"]);
    assert_eq!(take(&kept[2]), ["BlockRemoved 2 DISK"], "the hash is that of the put");
    master.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removals_tell_why_at_the_endpoints_that_are_asked_to() {
    let encodings = [Encoding::S4, Encoding::S4, mooncake(), Encoding::Vllm];
    let (master, kept) = master_at(state(settings()), &encodings, &[1, 2, 3]).await;
    let (state, now) = (master.state(), Time::ORIGIN);
    let removals = |kept: &Kept| -> Vec<String> {
        let told = kept.told().into_iter();
        told.filter(|event| event.contains("Removed") || event.starts_with("BlockUpdateEvent "))
            .collect()
    };
    put(state, "removed", Some(&info("0x1"))).unwrap();
    state.remove(now, key("removed"), false).unwrap();

    put(state, "replaced", Some(&info("0x2"))).unwrap();
    let config = ReplicateConfig::default();
    let again = PutStart { key: key("replaced"), slice_lengths: &[128], config: &config };
    let handle = state.upsert_start(now, WRITER, &again).unwrap().handle;
    state.put_end(now, WRITER, &PutEnd::new(key("replaced"), handle)).unwrap();
    state.remove(now, key("replaced"), false).unwrap();

    // The third has room in neither segment of 1 MiB.
    for name in ["evicted", "lost", "new"] {
        put_of(state, name, 600 << 10, Some(&info("0x3"))).unwrap();
    }
    state.remove(now, key("new"), false).unwrap();
    for number in 0..2 {
        state.unmount_segment(now, NODE, SegmentId::from_u128(number)).unwrap();
    }
    let told = eventually_async(DEADLINE, "the last object is gone", async || {
        published(&master).await;
        let told = removals(&kept[1]);
        (told.len() == 6).then_some(told)
    })
    .await;
    let expected = [
        "removed removed",
        "replaced replaced",
        "replaced removed",
        "evicted evicted",
        "new removed",
        "lost segment_lost",
    ];
    assert_eq!(told, expected.map(|event| format!("BlockUpdateEvent {event}")));
    let unasked = expected.map(|event| event.split_once(' ').unwrap().0);
    assert_eq!(removals(&kept[0]), unasked.map(|event| format!("BlockUpdateEvent {event}")));
    let told: Vec<String> = removals(&kept[2]);
    let of_maps = expected.map(|event| event.split_once(' ').unwrap());
    assert_eq!(told, of_maps.map(|(key, why)| format!("removed BlockRemoved {key} cpu {why}")));
    let told = removals(&kept[3]);
    // The second value of its key was put without metadata.
    let hashes =
        ["1 CPU removed", "2 CPU replaced", "3 CPU evicted", "3 CPU removed", "3 CPU segment_lost"];
    assert_eq!(told, hashes.map(|event| format!("BlockRemoved {event}")));
    master.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_everything_is_one_event_and_spares_what_stays() {
    let (master, kept) = master(state(settings()), &[Encoding::S4, Encoding::Vllm]).await;
    let state = master.state();
    for number in 0..100 {
        put(state, &format!("k{number}"), Some(&info(&number.to_string()))).unwrap();
    }
    // Leased.
    state.get_replica_list(Time::ORIGIN, key("k7")).unwrap();
    published(&master).await;
    kept.iter().for_each(|kept| kept.clear());
    assert_eq!(state.remove_all(Time::ORIGIN, false), 99);
    published(&master).await;
    let stays = "BlockStoreEvent k7 memory mem://node-0 llama 16 7 0x1 7 8";
    assert_eq!(kept[0].told(), ["RemoveAllEvent", stays, "BlockUpdateEvent"]);
    assert_eq!(kept[1].told(), ["AllBlocksCleared", "BlockStored 7 CPU"]);
    master.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuilt_master_announces_what_it_has() {
    let old = state(settings());
    for name in ["a", "b"] {
        put(&old, name, None).unwrap();
    }
    let mut rebuild = Rebuild::new(settings(), 1).unwrap();
    let mut cursor = Some(ExportCursor::default());
    while let Some(at) = cursor {
        let page = old.export(Time::ORIGIN, at);
        page.records.iter().for_each(|record| rebuild.apply(record));
        cursor = page.next;
    }
    let rebuilt = rebuild.finish(Time::ORIGIN).unwrap().master;
    let (master, kept) = master(rebuilt, &[Encoding::S4]).await;
    let mut told = eventually_async(DEADLINE, "both are announced", async || {
        let told = kept[0].told();
        (told.len() == 3).then_some(told)
    })
    .await;
    assert_eq!(told.remove(0), "RemoveAllEvent");
    told.sort();
    assert_eq!(told, ["a", "b"].map(|key| format!("BlockStoreEvent {key} memory mem://node-0 0")));
    master.shutdown().await;
}

/// Keys and where their replicas are, as events of the encoding `s4` tell it.
fn apply(index: &mut BTreeMap<String, String>, event: &Value) {
    let fields = event.as_array().unwrap();
    match fields[0].as_str().unwrap() {
        "RemoveAllEvent" => index.clear(),
        _ if text(&fields[2]).is_empty() => _ = index.remove(&text(&fields[1])),
        _ => _ = index.insert(text(&fields[1]), text(&fields[2])),
    }
}

fn held(state: &mc_meta::Master) -> BTreeMap<String, String> {
    let mut held = BTreeMap::new();
    let mut next = Some(ListCursor::default());
    while let Some(cursor) = next {
        next = state.visit_objects(cursor, 1000, |object| {
            let places: Vec<_> = object
                .placements()
                .iter()
                .map(|placement| format!("memory {}", placement.segment.spec().endpoint))
                .collect();
            held.insert(object.key().to_string(), places.join(" "));
        });
    }
    held
}

/// One random command on one of a few keys.
fn change(state: &mc_meta::Master, random: &mut Random) {
    let now = Time::ORIGIN;
    let name = format!("k{}", random.below(40));
    match random.below(12) {
        0..5 => _ = put(state, &name, None),
        5 => {
            let config = ReplicateConfig::default();
            let put = PutStart { key: key(&name), slice_lengths: &[64], config: &config };
            if let Ok(grant) = state.upsert_start(now, WRITER, &put) {
                let end = PutEnd::new(key(&name), grant.handle);
                let _ = state.put_end(now, WRITER, &end);
            }
        }
        6..8 => _ = state.remove(now, key(&name), true),
        8 => {
            if let Ok(copy) = state.copy_start(now, NODE, key(&name), "segment-0", &["segment-1"]) {
                let _ = state.copy_end(now, NODE, key(&name), copy.handle);
            }
        }
        9 => {
            if let Ok(copy) = state.move_start(now, NODE, key(&name), "segment-0", "segment-1") {
                let _ = state.move_end(now, NODE, key(&name), copy.handle);
            }
        }
        10 => {
            let id = SegmentId::from_u128(1);
            let _ = state.unmount_segment(now, NODE, id);
            mount(state, 1);
        }
        _ => _ = state.remove_all(now, random.below(2) == 0),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_from_events_equals_the_master_whatever_happens_at_once() {
    let mut random = Random::seeded("MC_EVENTS_SEED");
    let (master, kept) = master(state(settings()), &[Encoding::S4]).await;
    let stop = Arc::new(AtomicBool::new(false));
    let changes = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (state, stop) = (Arc::clone(master.state()), Arc::clone(&stop));
            let changes = Arc::clone(&changes);
            let mut random = Random::new(random.next_u64());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    change(&state, &mut random);
                    changes.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    eventually_async(DEADLINE, "many changes", async || {
        (changes.load(Ordering::Relaxed) > 100_000).then_some(())
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // Objects whose segments are gone are removed a little later.
    eventually_async(DEADLINE, "the index equals the master's state", async || {
        published(&master).await;
        let mut index = BTreeMap::new();
        kept[0].events().iter().for_each(|event| apply(&mut index, event));
        index.remove("");
        let held = held(master.state());
        if index == held { Ok(()) } else { Err((index, held)) }
    })
    .await;
    master.shutdown().await;
}

/// A subscriber and what it knows.
struct Joined {
    events: EventSubscriber,
    index: Index,
}

impl Joined {
    async fn connect(bound: &BoundEndpoint) -> Self {
        let config = SubscriberConfig {
            endpoint: bound.endpoint.clone(),
            replay_endpoint: bound.replay_endpoint.clone().unwrap(),
            check_interval: Duration::from_millis(100),
            ..SubscriberConfig::default()
        };
        let events = EventSubscriber::connect(config).await.unwrap();
        Self { events, index: Index::new(1 << 30) }
    }

    fn held(&self) -> BTreeMap<String, String> {
        let places = |replicas: &[Replica]| {
            let all = replicas.iter().map(|replica| format!("memory {}", replica.location));
            all.collect::<Vec<_>>().join(" ")
        };
        self.index.iter().map(|(key, held)| (key.to_owned(), places(held))).collect()
    }

    /// Follows until it knows what the master has, which does not change any more.
    async fn assert_equal(mut self, state: &mc_meta::Master) {
        let follow = async {
            loop {
                let update = self.events.next().await.unwrap();
                let is_current = matches!(update, Update::Current { .. });
                self.index.apply(update).unwrap();
                if is_current && self.held() == held(state) {
                    return;
                }
            }
        };
        if tokio::time::timeout(DEADLINE, follow).await.is_err() {
            assert_eq!(self.held(), held(state));
        }
    }
}

/// Makes the removal of everything take a while, and says when it has begun.
struct SlowRemoval(tokio::sync::mpsc::UnboundedSender<()>);

impl EffectSink for SlowRemoval {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        match effect {
            Effect::RemoveAllBegan => _ = self.0.send(()),
            Effect::Removed { .. } => {
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_micros(20) {
                    std::hint::spin_loop();
                }
            }
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_that_join_while_everything_is_removed_end_equal() {
    const OBJECTS: usize = 8000;
    let config = PublisherConfig {
        endpoint: "tcp://127.0.0.1:0".into(),
        replay_endpoint: "tcp://127.0.0.1:0".into(),
        ..PublisherConfig::default()
    };
    let publisher = EventPublisher::start(config).await.unwrap();
    let bound = publisher.system().endpoints()[0].clone();
    let (began, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let master = Master::builder()
        .state(state(settings()))
        .sink(SlowRemoval(began))
        .events(publisher)
        .start()
        .await
        .unwrap();
    for number in 0..OBJECTS {
        put(master.state(), &number.to_string(), None).unwrap();
    }
    // Some stay.
    for number in 0..5 {
        master.state().get_replica_list(Time::ORIGIN, key(&number.to_string())).unwrap();
    }
    published(&master).await;
    let early = Joined::connect(&bound).await;
    let state = Arc::clone(master.state());
    let removing =
        tokio::task::spawn_blocking(move || state.remove_all(Time::ORIGIN, false) as usize);
    tokio::time::timeout(DEADLINE, begun.recv()).await.expect("a removal").unwrap();
    let mut joined = vec![early];
    while !removing.is_finished() && joined.len() < 20 {
        joined.push(Joined::connect(&bound).await);
    }
    assert_eq!(removing.await.unwrap(), OBJECTS - 5);
    assert!(joined.len() > 2, "several joined meanwhile");
    for subscriber in joined {
        subscriber.assert_equal(master.state()).await;
    }
    master.shutdown().await;
}
