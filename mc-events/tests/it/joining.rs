//! Many subscribers that join together while objects change all the time, as routers do after a
//! failover: each list takes longer than the publisher keeps its messages, and all become current.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mc_events::replay::END_OF_REPLAY;
use mc_events::subscribe::{EventSubscriber, Index, SubscriberConfig, Update};
use mc_events::{
    BlockRemovedEvent, BlockStoreEvent, Encoding, Event, EventSystem, Limits, Medium, Parts,
    PublisherConfig, Replica, Snapshot, SnapshotPage,
};
use mc_testkit::{Random, eventually};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::common::{Peer, config, number, replay_endpoint};

#[derive(Clone, Copy)]
struct Load {
    subscribers: usize,
    objects: usize,
    /// Changes a second.
    changes: usize,
    /// Changes in a message.
    batch: usize,
    /// Messages that the publisher keeps.
    kept: usize,
    /// Bytes of messages that a subscriber keeps.
    waiting: usize,
    limit: Duration,
}

/// Numbers of keys, with the number of the change that made them.
#[derive(Clone, Default)]
struct Objects(Arc<Mutex<BTreeMap<usize, u64>>>);

fn key(number: usize) -> String {
    format!("a-key-of-{number:08}")
}

fn replicas(change: u64) -> Vec<Replica> {
    vec![Replica { medium: Medium::Memory, location: format!("10.0.0.{}:1", change % 97) }]
}

fn stored(number: usize, change: u64) -> BlockStoreEvent {
    BlockStoreEvent { key: key(number), replicas: replicas(change), ..Default::default() }
}

impl Objects {
    /// Removes one time in four, and stores else.
    fn change(&self, random: &mut Random, load: Load, change: u64) -> Event {
        let number = random.below(load.objects);
        let mut objects = self.0.lock().unwrap();
        if random.below(4) == 0 {
            objects.remove(&number);
            return BlockRemovedEvent { key: key(number), ..Default::default() }.into();
        }
        objects.insert(number, change);
        stored(number, change).into()
    }

    fn are(&self, index: &Index) -> bool {
        let objects = self.0.lock().unwrap();
        let is =
            |(number, change): (&usize, &u64)| index.replicas(&key(*number)) == replicas(*change);
        objects.len() == index.len() && objects.iter().all(is)
    }
}

impl Snapshot for Objects {
    fn page(&self, cursor: &[u8], max_objects: usize) -> SnapshotPage {
        let after = cursor.try_into().map(usize::from_be_bytes);
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let objects = self.0.lock().unwrap();
        let page: Vec<_> = objects.range((after, Bound::Unbounded)).take(max_objects).collect();
        let next = page.get(max_objects - 1).map(|(number, _)| number.to_be_bytes().to_vec());
        let objects = page.into_iter().map(|(number, change)| stored(*number, *change)).collect();
        SnapshotPage { objects, next: next.unwrap_or_default() }
    }
}

/// Follows until it is current, says so, and continues.
async fn follow(
    config: SubscriberConfig,
    mut joined: watch::Receiver<bool>,
    current: mpsc::UnboundedSender<Duration>,
    index: Arc<Mutex<Index>>,
) {
    joined.wait_for(|joined| *joined).await.unwrap();
    let began = Instant::now();
    let mut events = EventSubscriber::connect(config).await.unwrap();
    let mut was_current = false;
    loop {
        let update = events.next().await.unwrap();
        if matches!(update, Update::Current { .. }) && !std::mem::replace(&mut was_current, true) {
            current.send(began.elapsed()).unwrap();
        }
        index.lock().unwrap().apply(update).unwrap();
    }
}

/// How long it takes until the last of them is current.
async fn all_become_current(load: Load) -> Duration {
    let objects = Objects::default();
    objects.0.lock().unwrap().extend((0..load.objects).map(|number| (number, 0)));
    let parts = Parts { snapshot: Some(Arc::new(objects.clone())), ..Parts::default() };
    let mut config = config(Encoding::S4);
    config.max_batch_size = load.batch;
    config.limits = Limits { replay_messages: load.kept, ..Limits::default() };
    // As in a process of its own: tasks of subscribers take no turns of the publisher.
    let publishing = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let start = async move { EventSystem::start_with(config, parts).await.unwrap() };
    let system = Arc::new(publishing.spawn(start).await.unwrap());

    let (ends, mut ended) = watch::channel(false);
    let (changing, changed) = (Arc::clone(&system), objects.clone());
    let changes = publishing.spawn(async move {
        let mut random = Random::seeded("MC_EVENTS_SEED");
        let mut pace = tokio::time::interval(Duration::from_millis(10));
        let mut made = 0;
        while !*ended.borrow_and_update() {
            pace.tick().await;
            for _ in 0..load.changes / 100 {
                made += 1;
                changing.post(changed.change(&mut random, load, made));
            }
        }
    });
    let subscriber = SubscriberConfig {
        endpoint: system.endpoints()[0].endpoint.clone(),
        replay_endpoint: replay_endpoint(&system).into(),
        check_interval: Duration::from_millis(200),
        max_waiting_bytes: load.waiting,
        ..SubscriberConfig::default()
    };
    let (joins, current) = (watch::Sender::new(false), mpsc::unbounded_channel());
    let (told, mut current) = current;
    let mut subscribers = JoinSet::new();
    let indexes: Vec<_> = (0..load.subscribers)
        .map(|_| {
            let index = Arc::new(Mutex::new(Index::new(1 << 30)));
            let of_task = Arc::clone(&index);
            let follows = follow(subscriber.clone(), joins.subscribe(), told.clone(), of_task);
            subscribers.spawn(follows);
            index
        })
        .collect();
    joins.send_replace(true);
    let mut last = Duration::ZERO;
    let deadline = tokio::time::Instant::now() + load.limit;
    for nth in 0..load.subscribers {
        let next = tokio::time::timeout_at(deadline, current.recv()).await;
        let next = next.unwrap_or_else(|_| panic!("{nth} are current after {:?}", load.limit));
        last = last.max(next.unwrap());
    }
    ends.send_replace(true);
    changes.await.unwrap();
    assert_eq!(system.stats().dropped, 0, "the publisher kept up");
    for (at, index) in indexes.iter().enumerate() {
        let what = format!("index {at} is as the objects are");
        eventually(load.limit, what, || objects.are(&index.lock().unwrap())).await;
    }
    system.shutdown(Duration::ZERO).await;
    publishing.shutdown_background();
    last
}

/// The number of the first page that a new subscriber gets.
async fn first_page(system: &EventSystem) -> u64 {
    let mut peer = Peer::connect(replay_endpoint(system), "DEALER").await;
    peer.send(&[b"SNAPSHOT:"]).await;
    number(&peer.receive().await[2])
}

#[tokio::test]
async fn pages_are_shared_until_a_message_is_missing() {
    let parts = Parts { snapshot: Some(Arc::new(Objects::default())), ..Parts::default() };
    let system = EventSystem::start_with(config(Encoding::S4), parts).await.unwrap();
    assert_eq!(first_page(&system).await, 0);
    assert!(system.publish(stored(1, 1)).await);
    assert_eq!(first_page(&system).await, 0, "the message on top of it is kept");
    let too_large = BlockStoreEvent { key: "k".repeat(1 << 20), ..Default::default() };
    assert!(!system.publish(too_large).await);
    assert!(system.publish(stored(2, 1)).await);
    // No subscriber gets the message that was left out.
    assert!(first_page(&system).await >= 2);
}

#[tokio::test]
async fn messages_are_sent_again_up_to_the_number_asked_for() {
    let system = EventSystem::start(config(Encoding::S4)).await.unwrap();
    for nth in 0..9 {
        assert!(system.publish(stored(nth, 1)).await);
    }
    let mut peer = Peer::connect(replay_endpoint(&system), "DEALER").await;
    for (start, end, expected) in [
        (3_u64, 5_u64, &[3, 4][..]),
        (7, 100, &[7, 8]),
        (5, 5, &[]),
        (6, 2, &[]),
        (u64::MAX, u64::MAX, &[]),
    ] {
        peer.send(&[&[start.to_be_bytes(), end.to_be_bytes()].concat()]).await;
        let mut numbers = Vec::new();
        loop {
            let number = number(&peer.receive().await[0]);
            if number == END_OF_REPLAY {
                break;
            }
            numbers.push(number);
        }
        assert_eq!(numbers, expected, "from {start} to {end}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_that_join_together_all_become_current() {
    let load = Load {
        subscribers: 12,
        objects: 100_000,
        changes: 5_000,
        batch: 10,
        // Half a second of them, and a second: a list of all takes several.
        kept: 250,
        waiting: 256 << 10,
        limit: Duration::from_secs(30),
    };
    println!("all are current after {:?}", all_become_current(load).await);
}

/// The aim: on two processors, which publish and follow, all are current after 24 s. Before messages were
/// sent again only as far as a page needs, none was after 200 s.
///
/// `cargo test --release -p mc-events --test it -- --ignored --nocapture a_fleet`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute of two processors and 3 GB of memory; the command is above"]
async fn a_fleet_of_routers_becomes_current() {
    let defaults = (Limits::default(), SubscriberConfig::default());
    let load = Load {
        subscribers: 12,
        objects: 800_000,
        changes: 20_000,
        batch: PublisherConfig::default().max_batch_size,
        kept: defaults.0.replay_messages,
        waiting: defaults.1.max_waiting_bytes,
        limit: Duration::from_secs(60),
    };
    println!("all are current after {:?}", all_become_current(load).await);
}
