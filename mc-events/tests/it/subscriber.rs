//! Subscribers over real sockets: whatever is lost on the way, their indexes end as the publisher's
//! objects are.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mc_events::subscribe::{
    EventSubscriber, EventTail, Index, SubscribeError, SubscriberConfig, Update,
};
use mc_events::{
    BlockRemovedEvent, BlockStoreEvent, BlockUpdateEvent, Encoding, Event, EventSystem, Limits,
    Medium, Parts, PublisherConfig, RemoveAllEvent, Replica, Snapshot, SnapshotPage,
};
use mc_testkit::{Random, eventually, eventually_async};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::common::{LIMIT, config, replay_endpoint, stored, subscribers};

/// The objects that the publisher's owner has.
#[derive(Clone, Default)]
struct Model(Arc<Mutex<BTreeMap<String, Vec<Replica>>>>);

impl Model {
    fn change(&self, random: &mut Random) -> Event {
        let mut objects = self.0.lock().unwrap();
        let key = format!("key-{}", random.below(200));
        let replica = |at: usize| Replica {
            medium: [Medium::Memory, Medium::SharedFile, Medium::LocalDisk][at % 3],
            // Large, so that the system's buffers are full soon.
            location: format!("{at}-{:-<20000}", ""),
        };
        let replicas: Vec<_> = (0..=random.below(3)).map(replica).collect();
        match random.below(100) {
            0 => {
                objects.clear();
                RemoveAllEvent.into()
            }
            1..30 => {
                objects.remove(&key);
                BlockRemovedEvent { key, ..Default::default() }.into()
            }
            30..60 if objects.contains_key(&key) => {
                objects.insert(key.clone(), replicas.clone());
                BlockUpdateEvent { key, replicas, ..Default::default() }.into()
            }
            _ => {
                objects.insert(key.clone(), replicas.clone());
                BlockStoreEvent { key, replicas, ..Default::default() }.into()
            }
        }
    }

    fn is(&self, index: &Index) -> bool {
        let objects = self.0.lock().unwrap();
        objects.len() == index.len()
            && objects.iter().all(|(key, replicas)| index.replicas(key) == replicas)
    }
}

impl Snapshot for Model {
    fn page(&self, cursor: &[u8], max_objects: usize) -> SnapshotPage {
        let after = String::from_utf8_lossy(cursor);
        let objects = self.0.lock().unwrap();
        let page = objects.range::<str, _>((Bound::Excluded(&*after), Bound::Unbounded));
        let objects: Vec<_> = page
            .take(max_objects.min(40))
            .map(|(key, replicas)| BlockStoreEvent {
                key: key.clone(),
                replicas: replicas.clone(),
                ..Default::default()
            })
            .collect();
        let next = objects.last().map(|object| object.key.clone().into_bytes());
        SnapshotPage { objects, next: next.unwrap_or_default() }
    }
}

/// A proxy whose connections can be cut.
struct Proxy {
    endpoint: String,
    cut: watch::Sender<()>,
}

impl Proxy {
    async fn to(endpoint: &str) -> Self {
        let target = endpoint.strip_prefix("tcp://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
        let cut = watch::Sender::new(());
        let seen = cut.clone();
        tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let (target, mut cut) = (target.clone(), seen.subscribe());
                connections.spawn(async move {
                    let Ok(mut server) = TcpStream::connect(target).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { endpoint, cut }
    }
}

/// An index that is kept, as long as it is not told to stand still.
struct Keeper {
    index: Arc<Mutex<Index>>,
    stalled: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep(config: SubscriberConfig, slow: bool) -> Keeper {
    let index = Arc::new(Mutex::new(Index::new(1 << 30)));
    let (shared, stalled) = (Arc::clone(&index), watch::Sender::new(false));
    let mut may_go = stalled.subscribe();
    let mut events = EventSubscriber::connect(config).await.unwrap();
    let task = tokio::spawn(async move {
        loop {
            may_go.wait_for(|stalled| !stalled).await.unwrap();
            let update = events.next().await.unwrap();
            shared.lock().unwrap().apply(update).unwrap();
            for _ in 0..if slow { 200 } else { 0 } {
                tokio::task::yield_now().await;
            }
        }
    });
    Keeper { index, stalled, task }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_index_ends_as_the_objects_are() {
    const MAX_WAITING: usize = 2 << 20;
    let mut random = Random::seeded("MC_EVENTS_SEED");
    let (mut dropped, mut skipped) = (0, 0);
    for round in 0..4 {
        let limits = Limits {
            subscriber_bytes: MAX_WAITING,
            queue_events: 4,
            replay_messages: [0, 5, 50, 10_000][round],
            ..Limits::default()
        };
        let mut config = PublisherConfig { limits, max_batch_size: 4, ..config(Encoding::S4) };
        let model = Model::default();
        let parts = || Parts { snapshot: Some(Arc::new(model.clone())), ..Parts::default() };
        let mut system = EventSystem::start_with(config.clone(), parts()).await.unwrap();
        let proxies = [
            Proxy::to(&system.endpoints()[0].endpoint).await,
            Proxy::to(replay_endpoint(&system)).await,
        ];
        config.endpoint = system.endpoints()[0].endpoint.clone();
        config.replay_endpoint = replay_endpoint(&system).into();
        config.auto_port = false;
        let subscriber = SubscriberConfig {
            endpoint: proxies[0].endpoint.clone(),
            replay_endpoint: proxies[1].endpoint.clone(),
            check_interval: Duration::from_millis(50),
            max_waiting_bytes: 1 << 20,
            ..SubscriberConfig::default()
        };
        // Not through the proxies, so that its connection is never cut and the system's buffers fill.
        let direct =
            SubscriberConfig { check_interval: subscriber.check_interval, ..follow(&system) };
        let stalled = keep(direct, false).await;
        stalled.stalled.send_replace(true);
        let mut keepers = vec![stalled];
        for step in 0..1_500 {
            let published = system.publish(model.change(&mut random));
            // Else a burst, which may be more than the queue holds.
            if step % 300 < 240 {
                published.await;
            }
            let stats = system.stats();
            assert!(stats.waiting_bytes <= 2 * MAX_WAITING, "{stats:?}");
            match random.below(400) {
                0..4 if keepers.len() < 8 => {
                    keepers.push(keep(subscriber.clone(), random.below(2) == 0).await);
                }
                4 if keepers.len() > 1 => drop(keepers.pop()),
                5..8 => {
                    proxies[random.below(2)].cut.send_replace(());
                }
                8..20 if keepers.len() > 1 => {
                    let keeper = &keepers[1 + random.below(keepers.len() - 1)];
                    keeper.stalled.send_modify(|stalled| *stalled = !*stalled);
                }
                _ => {}
            }
            if step == 900 && round % 2 == 0 {
                dropped += stats.dropped;
                skipped += stats.skipped;
                // The stalled subscriber does not take what waits for it.
                system.shutdown(Duration::from_millis(100)).await;
                system = EventSystem::start_with(config.clone(), parts()).await.unwrap();
            }
        }
        keepers.push(keep(subscriber, false).await);
        for (at, keeper) in keepers.iter().enumerate() {
            keeper.stalled.send_replace(false);
            let what = format!("index {at} of round {round} equals the model");
            eventually(LIMIT, what, || model.is(&keeper.index.lock().unwrap())).await;
        }
        dropped += system.stats().dropped;
        skipped += system.stats().skipped;
    }
    println!("dropped {dropped}, skipped {skipped}");
    assert!(dropped > 0 && skipped > 0, "nothing was missing");
}

#[tokio::test]
async fn events_that_are_missing_before_a_silence_are_found() {
    let limits = Limits { queue_events: 4, ..Limits::default() };
    let config = PublisherConfig { limits, ..config(Encoding::S4) };
    let model = Model::default();
    let parts = Parts { snapshot: Some(Arc::new(model.clone())), ..Parts::default() };
    let system = EventSystem::start_with(config, parts).await.unwrap();
    let check_interval = Duration::from_millis(50);
    let keeper = keep(SubscriberConfig { check_interval, ..follow(&system) }, false).await;
    subscribers(&system, 1).await;
    let mut random = Random::new(1);
    assert!(system.publish(model.change(&mut random)).await);
    eventually(LIMIT, "it is current", || model.is(&keeper.index.lock().unwrap())).await;
    // The publisher shares this thread: it takes none of these before its queue is full. No later
    // message shows that the last ones were dropped.
    let outcomes: Vec<_> = (0..20).map(|_| system.publish(model.change(&mut random))).collect();
    for outcome in outcomes {
        outcome.await;
    }
    assert_eq!(system.stats().dropped, 16);
    eventually(LIMIT, "the rest is found", || model.is(&keeper.index.lock().unwrap())).await;
}

async fn wait_current(events: &mut EventSubscriber) -> Result<u64, SubscribeError> {
    let current = async {
        loop {
            if let Update::Current { next } = events.next().await? {
                return Ok(next);
            }
        }
    };
    tokio::time::timeout(LIMIT, current).await.expect("it catches up")
}

fn follow(system: &EventSystem) -> SubscriberConfig {
    SubscriberConfig {
        endpoint: system.endpoints()[0].endpoint.clone(),
        replay_endpoint: replay_endpoint(system).into(),
        ..SubscriberConfig::default()
    }
}

#[tokio::test]
async fn a_publisher_that_cannot_be_followed_is_an_error() {
    let system = EventSystem::start(config(Encoding::S4)).await.unwrap();
    let mut events = EventSubscriber::connect(follow(&system)).await.unwrap();
    let error = wait_current(&mut events).await.unwrap_err();
    assert!(matches!(error, SubscribeError::NoSnapshot), "{error}");
    assert!(matches!(events.next().await, Err(SubscribeError::Ended)));

    let vllm = EventSystem::start(config(Encoding::Vllm)).await.unwrap();
    let mut events = EventSubscriber::connect(follow(&vllm)).await.unwrap();
    let error = wait_current(&mut events).await.unwrap_err();
    assert!(error.to_string().contains("\"vllm\""), "{error}");

    let both_live = SubscriberConfig {
        replay_endpoint: system.endpoints()[0].endpoint.clone(),
        ..follow(&system)
    };
    let error = EventSubscriber::connect(both_live).await.unwrap_err();
    assert!(error.to_string().contains("has a type"), "{error}");

    let closed = follow(&system);
    drop(system);
    eventually_async(LIMIT, "the ports are closed", async || {
        EventSubscriber::connect(closed.clone()).await.is_err()
    })
    .await;
    for wrong in ["", "tcp://*:1", "tcp://localhost:0", "ipc://"] {
        let wrong = SubscriberConfig { endpoint: wrong.into(), ..closed.clone() };
        let error = EventSubscriber::connect(wrong).await.unwrap_err();
        assert!(matches!(error, SubscribeError::Endpoint { .. }), "{error}");
    }
}

#[tokio::test]
async fn an_index_has_a_limit() {
    let model = Model::default();
    let parts = Parts { snapshot: Some(Arc::new(model)), ..Parts::default() };
    let system = EventSystem::start_with(config(Encoding::S4), parts).await.unwrap();
    let mut events = EventSubscriber::connect(follow(&system)).await.unwrap();
    assert_eq!(wait_current(&mut events).await.unwrap(), 0);
    let mut index = Index::new(2_000);
    for at in 0.. {
        let replicas = vec![Replica { medium: Medium::Memory, location: "m".repeat(1_000) }];
        let event = BlockStoreEvent { key: format!("{}", at % 3), replicas, ..Default::default() };
        assert!(system.publish(event).await);
        let Update::Events(events) = events.next().await.unwrap() else { continue };
        if let Err(full) = index.apply(Update::Events(events)) {
            assert_eq!((at, full.max_bytes, index.len()), (2, 2_000, 1));
            return;
        }
    }
}

/// The number of the next message of a tail, what is missing before it, and the keys of its events.
async fn told(tail: &mut EventTail) -> (u64, u64, Vec<String>) {
    let batch = tokio::time::timeout(LIMIT, tail.next()).await.expect("a message").unwrap();
    let key = |event: &Event| match event {
        Event::Store(event) => event.key.clone(),
        other => panic!("{other:?}"),
    };
    (batch.number, batch.missed, batch.events.iter().map(key).collect())
}

#[tokio::test]
async fn a_tail_tells_what_is_kept_and_then_each_message() {
    // Without a snapshot, and only two messages are kept.
    let limits = Limits { replay_messages: 2, ..Limits::default() };
    let system =
        EventSystem::start(PublisherConfig { limits, ..config(Encoding::S4) }).await.unwrap();
    for key in ["a", "b", "c"] {
        assert!(system.publish(stored(key)).await);
    }
    let mut from_now = EventTail::connect(follow(&system), None).await.unwrap();
    let mut from_first = EventTail::connect(follow(&system), Some(0)).await.unwrap();
    assert_eq!(told(&mut from_first).await, (1, 1, vec!["b".into()]));
    assert_eq!(told(&mut from_first).await, (2, 0, vec!["c".into()]));
    subscribers(&system, 2).await;
    assert!(system.publish(stored("d")).await);
    for tail in [&mut from_now, &mut from_first] {
        assert_eq!(told(tail).await, (3, 0, vec!["d".into()]));
    }
    drop(system);
    let ended = from_now.next().await.unwrap_err();
    assert!(matches!(ended, SubscribeError::Lost { .. }), "{ended}");

    // Only the replay needs its endpoint.
    let unreplayed = PublisherConfig { replay_endpoint: String::new(), ..config(Encoding::S4) };
    let system = EventSystem::start(unreplayed).await.unwrap();
    let endpoint = system.endpoints()[0].endpoint.clone();
    let config = SubscriberConfig { endpoint, ..SubscriberConfig::default() };
    let mut tail = EventTail::connect(config, None).await.unwrap();
    subscribers(&system, 1).await;
    assert!(system.publish(stored("a")).await);
    assert_eq!(told(&mut tail).await, (0, 0, vec!["a".into()]));
}
