//! Every encoding, replay and snapshots with libzmq and the decoders of real subscribers.
//!
//! The first run installs them, from the network, into an environment of its own below
//! cargo's target directory; later runs find them there.

use std::cell::Cell;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mc_events::{
    BlockRemovedEvent, BlockStoreEvent, Encoding, EndpointConfig, EventSystem, Limits, Medium,
    Parts, PublisherConfig, RemoveAllEvent, Replica, Snapshot, SnapshotPage, StoreEventInfo,
};
use mc_testkit::{Input, Program, python};
use tokio::task::JoinHandle;

use crate::common::{LIMIT, config, more, subscribers};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/subscriber.py");
const ROUTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/events/router.py");
const PACKAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/requirements.txt");
const HASH: &str = "0x1122334455667788";

fn stored() -> BlockStoreEvent {
    BlockStoreEvent {
        key: HASH.into(),
        replicas: vec![Replica { medium: Medium::Memory, location: "10.0.0.1:1".into() }],
        store_event_info: StoreEventInfo {
            model_name: "llama".into(),
            block_size: 4,
            block_hash: HASH.into(),
            parent_block_hash: "7".into(),
            token_ids: vec![1, 2, 3, 4],
        },
        ..BlockStoreEvent::default()
    }
}

struct OneObject;

impl Snapshot for OneObject {
    fn page(&self, _: &[u8], _: usize) -> SnapshotPage {
        SnapshotPage { objects: vec![stored()], next: Vec::new() }
    }
}

/// Runs the script beside the test, with the endpoints of `events`, once its packages are there.
async fn script(mode: &'static str, names: &[&str], events: &EventSystem) -> JoinHandle<()> {
    let arguments: Vec<String> = std::iter::zip(names, events.endpoints())
        .map(|(name, bound)| {
            let replay = bound.replay_endpoint.as_deref().unwrap();
            let endpoint = &bound.endpoint;
            format!(r#"{{"encoding": "{name}", "endpoint": "{endpoint}", "replay": "{replay}"}}"#)
        })
        .collect();
    let arguments = format!("[{}]", arguments.join(", "));
    let environment =
        || python::environment(env!("CARGO_TARGET_TMPDIR"), "events-python", PACKAGES);
    let interpreter = tokio::task::spawn_blocking(environment).await.unwrap();
    tokio::task::spawn_blocking(move || {
        python::run("the subscriber", Command::new(interpreter).args([SCRIPT, mode, &arguments]));
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn subscribers_on_libzmq_understand_every_encoding() {
    let names = ["s4", "mooncake", "vllm", "vllm-positional"];
    let dir = tempfile::tempdir().unwrap();
    let ipc = format!("ipc://{}", dir.path().join("events").display());
    let mooncake = Encoding::Mooncake { backend_id: "mooncake-0".into() };
    let config = PublisherConfig {
        topic: "s4".into(),
        more_endpoints: vec![
            EndpointConfig { endpoint: ipc, ..more(mooncake, "mooncake") },
            more(Encoding::Vllm, "vllm"),
            more(Encoding::VllmPositional, "vllm-positional"),
        ],
        ..config(Encoding::S4)
    };
    let parts = Parts { snapshot: Some(Arc::new(OneObject)), ..Parts::default() };
    let events = EventSystem::start_with(config, parts).await.unwrap();
    let script = script("decode", &names, &events).await;
    subscribers(&events, names.len()).await;
    assert!(events.publish(stored()).await);
    let removed = BlockRemovedEvent {
        key: HASH.into(),
        medium: Some(Medium::Memory),
        block_hash: HASH.into(),
        ..BlockRemovedEvent::default()
    };
    assert!(events.publish(removed).await);
    assert!(events.publish(RemoveAllEvent).await);
    script.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn fifty_subscribers_on_libzmq_follow_a_restarted_publisher() {
    let mut config = config(Encoding::S4);
    let first = EventSystem::start(config.clone()).await.unwrap();
    let script = script("restart", &["s4"], &first).await;
    subscribers(&first, 50).await;
    assert!(first.publish(stored()).await);
    let bound = first.endpoints()[0].clone();
    assert!(first.shutdown(LIMIT).await);
    drop(first);
    config.endpoint = bound.endpoint;
    config.replay_endpoint = bound.replay_endpoint.unwrap();
    config.auto_port = false;
    let second = EventSystem::start(config).await.unwrap();
    subscribers(&second, 50).await;
    assert!(second.publish(stored()).await);
    script.await.unwrap();
}

/// The objects of a publisher, `0` up to a number.
#[derive(Default)]
struct Objects(AtomicUsize);

impl Snapshot for Objects {
    fn page(&self, cursor: &[u8], max_objects: usize) -> SnapshotPage {
        let start = cursor.try_into().map_or(0, u64::from_be_bytes) as usize;
        let end = self.0.load(Ordering::SeqCst).min(start + max_objects);
        let objects = (start..end).map(object).collect();
        let is_last = end == self.0.load(Ordering::SeqCst);
        let next = if is_last { Vec::new() } else { (end as u64).to_be_bytes().into() };
        SnapshotPage { objects, next }
    }
}

fn object(at: usize) -> BlockStoreEvent {
    BlockStoreEvent { key: at.to_string(), ..stored() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_router_of_the_examples_starts_late_and_follows_gaps_and_a_restart() {
    const HELD: &str = "[['memory', '10.0.0.1:1']]";
    let limits = Limits { queue_events: 4, ..Limits::default() };
    let mut config = PublisherConfig { limits, ..config(Encoding::S4) };
    let objects = Arc::new(Objects(700.into()));
    let parts = || Parts { snapshot: Some(Arc::clone(&objects) as _), sockets: Vec::new() };
    let events = EventSystem::start_with(config.clone(), parts()).await.unwrap();
    let bound = events.endpoints()[0].clone();
    (config.endpoint, config.auto_port) = (bound.endpoint, false);
    config.replay_endpoint = bound.replay_endpoint.unwrap();

    let interpreter =
        || python::environment(env!("CARGO_TARGET_TMPDIR"), "events-python", PACKAGES);
    let mut command = Command::new(tokio::task::spawn_blocking(interpreter).await.unwrap());
    command.args([ROUTER, &config.endpoint, &config.replay_endpoint, "705"]);
    let router = Program::start(LIMIT, &mut command, Input::None);
    let mut printed = 0;
    let mut prints = |holders: &str| {
        printed += 1;
        let lines = Cell::new(0);
        let line = router.wait_out(|line| {
            lines.set(lines.get() + 1);
            (lines.get() == printed).then(|| line.to_owned())
        });
        assert_eq!(line, format!("705 {holders}"), "line {printed}");
    };
    tokio::task::block_in_place(|| prints("None"));
    subscribers(&events, 1).await;
    // More at once than the queue holds: the publisher drops some, this one perhaps.
    let outcomes: Vec<_> = (700..720)
        .map(|at| {
            objects.0.store(at + 1, Ordering::SeqCst);
            events.publish(object(at))
        })
        .collect();
    let mut all = true;
    for outcome in outcomes {
        all &= outcome.await;
    }
    assert!(!all, "nothing was dropped");
    tokio::task::block_in_place(|| prints(HELD));

    events.shutdown(LIMIT).await;
    objects.0.store(1, Ordering::SeqCst);
    let events = EventSystem::start_with(config, parts()).await.unwrap();
    tokio::task::block_in_place(|| prints("None"));
    objects.0.store(706, Ordering::SeqCst);
    assert!(events.publish(object(705)).await);
    tokio::task::block_in_place(|| prints(HELD));
    objects.0.store(0, Ordering::SeqCst);
    assert!(events.publish(RemoveAllEvent).await);
    tokio::task::block_in_place(|| prints("None"));
}
