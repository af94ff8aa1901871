//! Every encoding, replay and snapshots with libzmq and the decoders of real subscribers.
//!
//! The first run installs them, from the network, into an environment of its own below
//! cargo's target directory; later runs find them there.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::process::Command;
use std::sync::Arc;

use common::{LIMIT, config, more, subscribers};
use mc_events::{
    BlockRemovedEvent, BlockStoreEvent, Encoding, EndpointConfig, EventSystem, Medium, Parts,
    PublisherConfig, RemoveAllEvent, Replica, Snapshot, SnapshotPage, StoreEventInfo,
};
use mc_testkit::python;
use tokio::task::JoinHandle;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/subscriber.py");
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
