//! What happens in the cluster, and what of it is right.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mc_store::{ByteSize, Client, Master, MasterConfig, NodeConfig, PutOutcome};
use mc_transport::MemFabric;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::network::{Network, Weather};
use crate::transport::SimulatedTransport;
use crate::world::{Random, Simulated, VirtualClock};

/// Lines of `virtual milliseconds, who, what, outcome`.
pub(crate) type History = Vec<String>;

/// How much happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) clients: u8,
    pub(crate) operations: usize,
    pub(crate) weather: Weather,
}

impl Default for Plan {
    fn default() -> Self {
        let weather = Weather { delay: Duration::from_millis(20), loss: 20, breaks: 5 };
        Self { clients: 3, operations: 200, weather }
    }
}

/// Keys, few enough that clients meet.
const KEYS: u64 = 10;

/// Where the master listens.
const MASTER: &str = "master:50051";

/// How long the last client is cut off: longer than the master waits for it.
const SILENCE: Duration = Duration::from_secs(30);

/// Runs a cluster with one master.
pub(crate) fn run(seed: u64, plan: Plan) -> History {
    history(|log| simulate(Random::new(seed), plan, log))
}

/// Runs a simulation on a runtime of its own.
pub(crate) fn history<F: Future<Output = ()>>(simulate: impl FnOnce(Arc<Log>) -> F) -> History {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    let log = Arc::new(Log::default());
    runtime.block_on(simulate(Arc::clone(&log)));
    drop(runtime);
    std::mem::take(&mut *log.lines.lock().unwrap())
}

/// What has happened so far.
#[derive(Default)]
pub(crate) struct Log {
    lines: Mutex<History>,
    /// The values that were put or may have been, by key.
    put: Mutex<BTreeMap<String, Vec<u64>>>,
}

impl Log {
    pub(crate) fn say(&self, who: impl std::fmt::Display, what: impl std::fmt::Display) {
        let line = format!("{:>8} {who}: {what}", VirtualClock::elapsed().as_millis());
        // Shown when the test fails.
        println!("{line}");
        self.lines.lock().unwrap().push(line);
    }
}

async fn simulate(random: Random, plan: Plan, log: Arc<Log>) {
    VirtualClock::begin();
    let mut config = MasterConfig::default();
    config.shards = 4;
    (config.client_ttl, config.client_return_timeout) = (SILENCE / 3, SILENCE / 3);
    let master = Master::builder().config(config);
    let master = master.environment(Arc::new(Simulated::of_master(&random)));
    let (master, streams) = master.start_over_streams().await.unwrap();
    let network = Network::new(plan.weather, random.fork());
    network.listen(MASTER, Ipv4Addr::new(10, 1, 0, 1), streams);
    let fabric = MemFabric::new();
    let mut clients = JoinSet::new();
    for number in 1..=plan.clients {
        let host = Ipv4Addr::new(10, 0, 0, number);
        let client = join(&fabric, &network, host, MASTER, ByteSize::kib(256), &random).await;
        log.say(host, "joined");
        let (random, log) = (random.fork(), Arc::clone(&log));
        clients.spawn(async move {
            for _ in 0..plan.operations {
                sleep(Duration::from_millis(random.below(400))).await;
                act(&client, host, &random, &log).await;
            }
            client.shutdown().await;
            log.say(host, "left");
        });
    }
    let last = Ipv4Addr::new(10, 0, 0, plan.clients);
    let watch = async {
        sleep(Duration::from_secs(5)).await;
        let all = master.report().segments.len();
        network.cut_off(last, SILENCE);
        log.say("network", format_args!("{last} is cut off"));
        until(|| master.report().segments.len() < all).await;
        log.say("master", format_args!("the segment of {last} is gone"));
        until(|| master.report().segments.len() == all).await;
        log.say("master", format_args!("the segment of {last} is back"));
    };
    watch.await;
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    master.shutdown().await;
}

/// Waits for the condition, for two minutes of virtual time at most.
pub(crate) async fn until(condition: impl Fn() -> bool) {
    let end = VirtualClock::elapsed() + Duration::from_secs(120);
    while !condition() {
        assert!(VirtualClock::elapsed() < end, "not in time");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Connects a client on this host, with a segment of this size.
pub(crate) async fn join(
    fabric: &MemFabric,
    network: &Arc<Network>,
    host: Ipv4Addr,
    master: &str,
    segment: ByteSize,
    random: &Random,
) -> Client {
    let transport = SimulatedTransport::new(fabric, network, host, random);
    let environment = Arc::new(Simulated::new(network, host, random));
    let transport = Arc::new(transport);
    loop {
        let builder = Client::builder()
            .master(master)
            .environment(Arc::clone(&environment) as _)
            .node(NodeConfig::only(Arc::clone(&transport) as _))
            .segment_size(segment)
            .local_buffer(ByteSize::mib(1));
        // A connection may break just then.
        if let Ok(client) = builder.connect().await {
            return client;
        }
    }
}

/// Does one thing, and notes what came of it.
async fn act(client: &Client, host: Ipv4Addr, random: &Random, log: &Log) {
    let key = format!("key-{}", random.below(KEYS));
    match random.below(10) {
        0..3 => {
            let number = random.next();
            log.put.lock().unwrap().entry(key.clone()).or_default().push(number);
            let outcome = match client.put(&key, value(&key, number)).await {
                Ok(PutOutcome::Stored) => "stored".to_owned(),
                Ok(other) => format!("{other:?}"),
                Err(error) => format!("{:?}", error.code()),
            };
            log.say(host, format_args!("put {key} {number:016x}: {outcome}"));
        }
        3..7 => {
            let outcome = match client.get(&key).await {
                Ok(bytes) => {
                    let number = checked(&key, &bytes, log);
                    format!("right bytes {number:016x}")
                }
                Err(error) => format!("{:?}", error.code()),
            };
            log.say(host, format_args!("get {key}: {outcome}"));
        }
        7..9 => {
            let outcome = client.exist(&key).await.map_err(|error| error.code());
            log.say(host, format_args!("exist {key}: {outcome:?}"));
        }
        _ => {
            let outcome = client.remove(&key, false).await.map_err(|error| error.code());
            log.say(host, format_args!("remove {key}: {outcome:?}"));
        }
    }
}

/// The bytes that are put as this number: no two puts have the same.
pub(crate) fn value(key: &str, number: u64) -> Vec<u8> {
    let len = 8 + number % 8192;
    let random = Random::new(number ^ key.len() as u64);
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    random.fill(&mut bytes);
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Returns which put of the key the bytes are of, all of them.
fn checked(key: &str, bytes: &[u8], log: &Log) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let put = log.put.lock().unwrap();
    let is_known = put.get(key).is_some_and(|numbers| numbers.contains(&number));
    assert!(is_known, "{key} has bytes that were never put there");
    assert!(bytes == value(key, number), "{key} has wrong bytes");
    number
}
