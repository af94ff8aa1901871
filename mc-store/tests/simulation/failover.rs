//! Three masters, of which the one that leads is killed: a standby takes over, and every put that was
//! acknowledged is there.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mc_ha::election::memory::{MemoryCluster, MemoryElection};
use mc_ha::election::{ClusterView, LeaderElection, Member};
use mc_ha::{Durability, MemoryJournal};
use mc_rpc::ServerConfig;
use mc_store::{
    ByteSize, Client, ClusterConfig, HaEnvironment, JournalConfig, Master, MasterConfig,
    MasterStartError, PutOutcome, Standby,
};
use mc_transport::MemFabric;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::network::{Network, Weather};
use crate::workload::{History, Log, history, join, until, value};
use crate::world::{Random, Simulated, VirtualClock};

const MASTERS: u8 = 3;
const CLIENTS: u8 = 3;

/// Puts of each client.
const PUTS: u64 = 60;

/// Memory of each client: nothing is evicted.
const SEGMENT: ByteSize = ByteSize::mib(4);

/// How long a leader that was killed is believed to live.
const LEASE: Duration = Duration::from_secs(2);

/// Runs a cluster whose leader is killed twice.
pub(crate) fn run(seed: u64) -> History {
    history(|log| simulate(Random::new(seed), log))
}

/// The keys whose puts were acknowledged, with their numbers.
type Acknowledged = Arc<Mutex<BTreeMap<String, u64>>>;

/// A host with a master, which stands by or leads.
struct Host {
    address: Ipv4Addr,
    /// Outlives the master's process.
    journal: MemoryJournal,
    process: Option<Process>,
}

/// A master that runs.
struct Process {
    election: Arc<MemoryElection>,
    environment: Arc<Simulated>,
    life: JoinHandle<()>,
}

/// What all hosts share.
struct World {
    network: Arc<Network>,
    cluster: MemoryCluster,
    random: Random,
    log: Arc<Log>,
}

impl World {
    /// Starts the master of a host.
    fn start(&self, host: &mut Host) {
        let environment = Arc::new(Simulated::new(&self.network, host.address, &self.random));
        let election = Arc::new(self.cluster.join());
        let mut journal = JournalConfig::new(Arc::new(host.journal.clone()));
        journal.writer.durability = Durability::Sync;
        journal.threads = NonZeroUsize::MIN;
        let rpc = rpc_address(host.address);
        let member = Member::new(&host.address.to_string(), &rpc).unwrap();
        let mut config = ClusterConfig::new(member, Arc::clone(&election) as _, journal);
        config.replication.semi_synchronous = true;
        config.environment = Arc::clone(&environment) as _;
        let life = live(config, host.address, Arc::clone(&self.network), Arc::clone(&self.log));
        let life = tokio::spawn(life);
        host.process = Some(Process { election, environment, life });
    }

    /// Kills the master of a host: nobody hears of it but by its silence.
    fn kill(&self, host: &mut Host) {
        let Process { election, environment, life } = host.process.take().expect("it runs");
        election.set_cut(true);
        self.network.crash(host.address);
        environment.kill();
        life.abort();
        self.log.say(host.address, "is killed");
    }
}

fn rpc_address(host: Ipv4Addr) -> String {
    format!("{host}:50051")
}

/// What a master does all its life, as the program `mc-master` does.
async fn live(config: ClusterConfig, host: Ipv4Addr, network: Arc<Network>, log: Arc<Log>) {
    let mut settings = MasterConfig::default();
    settings.shards = 4;
    let address = rpc_address(host);
    let mut is_first = true;
    loop {
        let (config, server) = (config.clone(), ServerConfig::default());
        let standby = if std::mem::take(&mut is_first) {
            Standby::start_over_streams(config, settings.clone(), server).await
        } else {
            Standby::start_over_streams_after_term(config, settings.clone(), server).await
        };
        let (standby, streams) = standby.unwrap();
        network.listen(&address, host, streams);
        log.say(host, "stands by");
        let seat = standby.lead().await.unwrap();
        let master = Master::builder().config(settings.clone()).lead(seat);
        let (master, streams) = match master.start_over_streams().await {
            Ok(started) => started,
            Err(MasterStartError::Term(error)) => {
                log.say(host, format_args!("has lost its term: {error}"));
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        network.listen(&address, host, streams);
        log.say(host, "leads");
        master.deposed().await;
        log.say(host, "leads no more");
        master.shutdown().await;
    }
}

async fn simulate(random: Random, log: Arc<Log>) {
    VirtualClock::begin();
    let weather = Weather { delay: Duration::from_millis(20), loss: 20, breaks: 2 };
    let network = Network::new(weather, random.fork());
    let judge = Arc::new(Simulated::of_master(&random));
    let judge = Arc::new(HaEnvironment::new(judge));
    let cluster = MemoryCluster::start_in(&*judge, LEASE, Arc::clone(&judge) as _).unwrap();
    let observer = cluster.join();
    let world = World { network, cluster, random: random.fork(), log: Arc::clone(&log) };
    let mut hosts: Vec<Host> = (1..=MASTERS)
        .map(|number| Host {
            address: Ipv4Addr::new(10, 1, 0, number),
            journal: MemoryJournal::new(),
            process: None,
        })
        .collect();
    hosts.iter_mut().for_each(|host| world.start(host));
    let addresses: Vec<_> = hosts.iter().map(|host| rpc_address(host.address)).collect();
    let addresses = addresses.join(";");

    let (fabric, acknowledged) = (MemFabric::new(), Acknowledged::default());
    let mut clients = JoinSet::new();
    for number in 1..=CLIENTS {
        let host = Ipv4Addr::new(10, 0, 0, number);
        let client = join(&fabric, &world.network, host, &addresses, SEGMENT, &random).await;
        log.say(host, "joined");
        let (random, log, acknowledged) = (random.fork(), Arc::clone(&log), acknowledged.clone());
        clients.spawn(async move {
            work(&client, host, &random, &log, &acknowledged).await;
            client
        });
    }
    for _ in 0..2 {
        sleep(Duration::from_secs(4)).await;
        kill_the_leader(&world, &observer, &mut hosts).await;
    }
    let clients = clients.join_all().await;
    find_all(&clients[0], &acknowledged, &log).await;
    for client in clients {
        client.shutdown().await;
    }
}

/// Kills the master that leads when others are in sync with it, and starts it again when another one
/// leads.
async fn kill_the_leader(world: &World, observer: &MemoryElection, hosts: &mut [Host]) {
    let view = || observer.view().borrow().as_deref().cloned().unwrap();
    let has_standby = || {
        let ClusterView { leader, in_sync, .. } = view();
        leader
            .zip(in_sync)
            .is_some_and(|(leader, set)| set.epoch == leader.epoch && set.members.len() > 1)
    };
    until(has_standby).await;
    let leader = view().leader.unwrap().member;
    let leads = |host: &&mut Host| rpc_address(host.address) == leader.rpc_address();
    let host = hosts.iter_mut().find(leads).unwrap();
    world.kill(host);
    let killed = VirtualClock::elapsed();
    until(|| view().leader.is_some_and(|next| next.member != leader)).await;
    let took = VirtualClock::elapsed() - killed;
    assert!(took < 3 * LEASE, "another one leads after {took:?}");
    world.start(host);
}

/// Puts objects, and gets some of those that clients have put.
async fn work(
    client: &Client,
    host: Ipv4Addr,
    random: &Random,
    log: &Log,
    acknowledged: &Acknowledged,
) {
    for nth in 0..PUTS {
        sleep(Duration::from_millis(random.below(400))).await;
        let (key, number) = (format!("{host}-{nth}"), random.next());
        let outcome = client.put(&key, value(&key, number)).await;
        log.say(
            host,
            format_args!("put {nth}: {:?}", outcome.as_ref().map_err(|error| error.code())),
        );
        if let Ok(PutOutcome::Stored) = outcome {
            acknowledged.lock().unwrap().insert(key, number);
        }
        let some = random.next();
        let known = {
            let acknowledged = acknowledged.lock().unwrap();
            let nth = usize::try_from(some).unwrap().checked_rem(acknowledged.len());
            nth.and_then(|nth| acknowledged.iter().nth(nth))
                .map(|(key, number)| (key.clone(), *number))
        };
        let Some((key, number)) = known else { continue };
        let got = client.get(&key).await;
        if let Ok(bytes) = &got {
            assert!(*bytes == value(&key, number), "{key} has wrong bytes");
        }
        let outcome = got.map(|bytes| bytes.len()).map_err(|error| error.code());
        log.say(host, format_args!("get {key}: {outcome:?}"));
    }
}

/// Gets every object whose put was acknowledged.
async fn find_all(client: &Client, acknowledged: &Acknowledged, log: &Log) {
    let acknowledged = acknowledged.lock().unwrap().clone();
    for (key, number) in &acknowledged {
        let found = timeout(Duration::from_secs(60), async {
            loop {
                match client.get(key).await {
                    Ok(bytes) => return bytes,
                    Err(error) => {
                        log.say("in the end", format_args!("{key}: {:?}", error.code()));
                        sleep(Duration::from_millis(500)).await;
                    }
                }
            }
        });
        let bytes = found.await.unwrap_or_else(|_| panic!("{key} was acknowledged, and is lost"));
        assert!(bytes == value(key, *number), "{key} has wrong bytes");
    }
    log.say("in the end", format_args!("{} objects are there", acknowledged.len()));
}
