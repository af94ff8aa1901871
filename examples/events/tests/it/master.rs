//! `mc-index` beside a real master: whatever happens to the objects, the subscribers and the master, every
//! index ends as the master's own state is.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use mc_store::{Client, Put, ReplicateConfig};
use mc_testkit::{Finished, Input, Program, Random, Signal, binary, eventually_async};

const LIMIT: Duration = Duration::from_secs(60);

fn start(name: &str, args: &[&str]) -> Program {
    Program::start(LIMIT, Command::new(binary(name)).args(args), Input::None)
}

/// A master that publishes events.
struct Master {
    program: Program,
    address: String,
    endpoint: String,
    replay_endpoint: String,
}

impl Master {
    fn start(address: &str, endpoint: &str, replay_endpoint: &str) -> Self {
        let (host, port) = address.rsplit_once(':').unwrap();
        let program = start(
            "mc-master",
            &[
                &format!("--rpc_address={host}"),
                &format!("--rpc_port={port}"),
                "--metrics_host=127.0.0.1",
                "--metrics_port=0",
                "--client_ttl=2",
                "--client_return_timeout=0",
                "--enable_kv_event_publish",
                "--kv_event_publisher_auto_port=false",
                &format!("--kv_event_publisher_endpoint={endpoint}"),
                &format!("--kv_event_publisher_replay_endpoint={replay_endpoint}"),
            ],
        );
        let listening = "Master service listening on ";
        let address = program.wait_out(|line| line.strip_prefix(listening).map(str::to_owned));
        let (endpoint, replay_endpoint) = program.wait_out(|line| {
            let line = line.strip_prefix("KV events (s4) published at ")?;
            let (endpoint, replay) = line.split_once(", replay at ")?;
            Some((endpoint.to_owned(), replay.to_owned()))
        });
        Self { program, address, endpoint, replay_endpoint }
    }

    fn restart(&mut self) {
        self.program.kill();
        *self = Self::start(&self.address, &self.endpoint, &self.replay_endpoint);
    }

    fn node(&self, name: &str) -> Program {
        let program = start(
            "mc-node",
            &[
                "--host=127.0.0.1",
                "--port=0",
                "--data_port=0",
                &format!("--master_server_address={}", self.address),
                &format!("--segment_name={name}"),
                "--global_segment_size=16MB",
            ],
        );
        program.wait_out(|line| line.starts_with("Mooncake client ready: ").then_some(()));
        program
    }

    fn index(&self, more: &[&str]) -> Program {
        let endpoint = format!("--endpoint={}", self.endpoint);
        let replay_endpoint = format!("--replay_endpoint={}", self.replay_endpoint);
        start("mc-index", &[&[&*endpoint, &replay_endpoint], more].concat())
    }

    /// Compares a new index with the master. Returns its summary.
    fn check(&self) -> String {
        let checked = self.index(&["--check", &self.address]).finish();
        assert_eq!(checked.code, Some(0), "{}{}", checked.text(), checked.err);
        checked.text().strip_prefix("equal: ").unwrap().trim_end().to_owned()
    }

    /// Waits until the indexes are as a new one.
    fn check_all(&self, indexes: &[Program]) -> String {
        let summary = self.check();
        for index in indexes {
            index.wait_out(|line| (line == summary).then_some(()));
        }
        summary
    }
}

fn objects(summary: &str) -> usize {
    summary.split(' ').next().unwrap().parse().unwrap()
}

fn key(random: &mut Random) -> String {
    format!("key-{}", random.below(600))
}

/// Puts objects, and whatever else happens to objects.
async fn churn(app: &Client, random: &mut Random, steps: usize) {
    const NODES: [&str; 3] = ["a", "b", "c"];
    for _ in 0..steps {
        let replicas = ReplicateConfig::default().replicas(1 + random.below(2) as u32);
        let value = Bytes::from(vec![7; 1 + random.below(40_000)]);
        // Each may fail: there is no such object, or a node has just left.
        match random.below(40) {
            0..15 => {
                let keys: Vec<String> = (0..20).map(|_| key(random)).collect();
                let puts = keys.iter().map(|key| Put::new(key, value.clone())).collect();
                app.batch_put(puts, &replicas).await;
            }
            15..22 => _ = app.upsert_with(&key(random), value, &replicas).await,
            22..30 => _ = app.remove(&key(random), true).await,
            30..34 => _ = app.copy_to(&key(random), &[NODES[random.below(3)]]).await,
            34..38 => {
                let (from, to) = (random.below(3), 1 + random.below(2));
                _ = app.move_to(&key(random), NODES[from], NODES[(from + to) % 3]).await;
            }
            38 => _ = app.remove_by_regex("^key-.*7$", true).await,
            _ if random.below(4) == 0 => _ = app.remove_all(true).await,
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_index_ends_as_the_master_is() {
    let mut random = Random::seeded("MC_EVENTS_SEED");
    let mut master = Master::start("127.0.0.1:0", "tcp://127.0.0.1:0", "tcp://127.0.0.1:0");
    let (a, mut b, c) = (master.node("a"), master.node("b"), master.node("c"));
    let app = Client::builder().master(&master.address).connect().await.unwrap();
    let mut indexes: Vec<Program> = (0..50).map(|_| master.index(&[])).collect();

    // The first stands still for all of it, the second most of the time.
    indexes[0].freeze();
    for _ in 0..10 {
        indexes[1].freeze();
        churn(&app, &mut random, 40).await;
        indexes[1].resume();
        churn(&app, &mut random, 5).await;
        // One that has gone and comes again.
        indexes.truncate(49);
        indexes.push(master.index(&[]));
    }
    // The objects of a node that is killed are lost, and those of one that leaves.
    app.put_with("lost", "value", &ReplicateConfig::default().prefer("b")).await.unwrap();
    b.kill();
    eventually_async(LIMIT, "the object is lost", async || app.describe("lost").await.is_err())
        .await;
    c.end_by(Signal::TERM);
    churn(&app, &mut random, 40).await;
    app.put("kept", "value").await.unwrap();
    indexes[0].resume();
    let summary = master.check_all(&indexes);
    assert!(objects(&summary) > 0, "{summary}");

    master.restart();
    let put = async || app.put("after", "value").await;
    eventually_async(LIMIT, "the node is back", put).await;
    churn(&app, &mut random, 40).await;
    app.upsert("after", "value").await.unwrap();
    let summary = master.check_all(&indexes);
    assert!(objects(&summary) > 0, "{summary}");

    app.remove_all(true).await.unwrap();
    assert_eq!(objects(&master.check_all(&indexes)), 0);
    app.shutdown().await;
    drop(a);
}

#[test]
fn an_index_is_printed_and_differences_are() {
    let master = Master::start("127.0.0.1:0", "tcp://127.0.0.1:0", "tcp://127.0.0.1:0");
    let other = Master::start("127.0.0.1:0", "tcp://127.0.0.1:0", "tcp://127.0.0.1:0");
    let _node = master.node("a");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let app = runtime.block_on(async {
        let app = Client::builder().master(&master.address).connect().await.unwrap();
        for key in ["b", "a\n"] {
            app.put(key, "value").await.unwrap();
        }
        app
    });
    let once = master.index(&["--once"]).finish().assert_ok();
    let lines: Vec<(&str, &str)> =
        once.text().lines().map(|line| line.split_once('\t').unwrap()).collect();
    let [("a\\n", holder), ("b", same)] = lines[..] else { panic!("{lines:?}") };
    assert!(holder.starts_with("memory=tcp://127.0.0.1:") && holder == same, "{lines:?}");

    let differs = master.index(&["--check", &other.address]).finish();
    assert_eq!(differs.code, Some(1), "{differs:?}");
    let expected = format!("b: index [{holder}], master []\n2 objects differ; ");
    assert!(differs.text().contains(&expected), "{}", differs.text());
    runtime.block_on(app.shutdown());

    let text = master.index(&["--index_memory=100"]).finish();
    text.assert_refused(1, "raise --index_memory");
}

#[test]
fn what_cannot_be_followed_is_refused() {
    let run = |args: &[&str]| -> Finished { start("mc-index", args).finish() };
    run(&["--endpont=tcp://a:1"]).assert_refused(2, "did you mean --endpoint?");
    run(&["--endpoint=http://a:1"]).assert_refused(1, "write tcp://HOST:PORT or ipc://PATH");
    let nobody = "--endpoint=ipc:///no/such/socket";
    run(&[nobody]).assert_refused(1, "check that a publisher runs there");

    let master = start(
        "mc-master",
        &[
            "--rpc_address=127.0.0.1",
            "--rpc_port=0",
            "--metrics_host=127.0.0.1",
            "--metrics_port=0",
            "--enable_kv_event_publish",
            "--kv_event_publisher_endpoint=tcp://127.0.0.1:0",
        ],
    );
    let published = "KV events (s4) published at ";
    let endpoint = master.wait_out(|line| line.strip_prefix(published).map(str::to_owned));
    let endpoint = endpoint.split(',').next().unwrap();
    let no_replay = [&format!("--endpoint={endpoint}"), "--replay_endpoint=ipc:///no/such/socket"];
    run(&no_replay).assert_refused(1, "has a replay endpoint");
    let swapped = [&format!("--endpoint={endpoint}"), &*format!("--replay_endpoint={endpoint}")];
    run(&swapped).assert_refused(1, "which of its endpoints is which");
}
