//! Clients find the master that leads, and follow when another one does.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mc_ha::election::etcd::EtcdElection;
use mc_ha::election::{Authority, LeaderElection, Leadership, Member, Standing, Takeover};
use mc_ha::etcd::EtcdConfig;
use mc_rpc::{HaReport, HaRole, HaStatus, Refusal, ServerConfig, ServerHandle, Term};
use mc_store::{
    ByteSize, Client, ClientBuilder, ClientConfig, ErrorCode, Master, StartError, blocking,
};
use mc_testkit::{EtcdCluster, eventually, eventually_async};
use mc_types::Epoch;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long a leader that has died is believed to live.
const LEASE: Duration = Duration::from_secs(1);

/// Long enough for a loaded machine; a test that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// How soon after the next leader has begun a call has its answer, on a loaded machine too.
const SOON: Duration = Duration::from_secs(3);

/// The term of a master whose election follows its start.
#[derive(Debug, Default)]
struct Lead(OnceLock<Authority>);

impl mc_rpc::Authority for Lead {
    fn may_answer(&self) -> bool {
        self.0.get().is_some_and(Authority::is_valid)
    }
}

/// A master that is a member of a cluster in etcd.
struct Candidate {
    master: Master,
    election: EtcdElection,
    lead: Arc<Lead>,
    epoch: Epoch,
}

impl Candidate {
    /// A master that leads in the term with this number if it is elected.
    async fn start(etcd: &EtcdConfig, epoch: u64) -> Self {
        let (lead, epoch) = (Arc::new(Lead::default()), Epoch::new(epoch));
        let mut server = ServerConfig::default();
        server.term = Some(Term { epoch, authority: lead.clone() });
        let master = Master::builder().server(server).start().await.unwrap();
        let election = EtcdElection::start(etcd).unwrap();
        let address = master.local_addr().to_string();
        let member = Member::new(&format!("m{}", epoch.as_u64()), &address).unwrap();
        election.register(member, Standing::EMPTY).await.unwrap();
        Self { master, election, lead, epoch }
    }

    /// Campaigns until it leads.
    async fn win(&self) -> Leadership {
        let campaign = async || self.election.campaign(Takeover::InSync).await;
        let leadership =
            eventually_async(DEADLINE, "the term of the last leader is over", campaign).await;
        assert_eq!(leadership.epoch(), self.epoch);
        self.lead.0.set(leadership.authority().clone()).unwrap();
        leadership
    }

    fn has_segment(&self, name: &str) -> bool {
        self.master.report().segments.iter().any(|segment| &*segment.spec.name == name)
    }
}

/// An async and a blocking client with a segment each.
struct Clients {
    asynchronous: Client,
    blocking: Arc<blocking::Client>,
}

impl Clients {
    async fn connect(master: &str) -> Self {
        let member = |name: &str| {
            Client::builder().master(master).segment_size(ByteSize::mib(1)).segment_name(name)
        };
        let asynchronous = member("async").connect().await.unwrap();
        // Every address is listened on: peers are told the one towards the leader.
        let endpoint = asynchronous.endpoint().unwrap().to_string();
        assert!(endpoint.contains("127.0.0.1:"), "{endpoint}");
        let builder = member("blocking");
        let blocking = apart(move || builder.connect_blocking().unwrap()).await;
        Self { asynchronous, blocking: Arc::new(blocking) }
    }

    /// Both clients use a leader that has begun only now, and soon.
    async fn follow(&self, leader: &Candidate) {
        let begun = Instant::now();
        assert!(!self.asynchronous.exist("k").await.unwrap());
        let after_async = begun.elapsed();
        let blocking = Arc::clone(&self.blocking);
        assert!(!apart(move || blocking.exist("k").unwrap()).await);
        let after_both = begun.elapsed();
        println!("followed after {after_async:?}, and by the blocking client {after_both:?}");
        assert!(after_both < SOON, "{after_async:?}, {after_both:?}");
        for name in ["async", "blocking"] {
            let follows = || leader.has_segment(name);
            eventually(DEADLINE, "the heartbeat follows, too", follows).await;
        }
        self.asynchronous.put("k", "value").await.unwrap();
        let blocking = Arc::clone(&self.blocking);
        assert_eq!(&*apart(move || blocking.get("k").unwrap()).await, b"value");
    }

    async fn leave(self) {
        self.asynchronous.shutdown().await;
        apart(move || drop(self.blocking)).await;
    }
}

/// Runs what blocks.
async fn apart<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(run).await.unwrap()
}

/// A cluster in this etcd, as it is configured and as clients name it.
fn cluster(etcd: &EtcdCluster, cluster_id: &str) -> (EtcdConfig, String) {
    let url = format!("etcd://{}/{cluster_id}", etcd.endpoints().join(";"));
    (EtcdConfig::new(&url).unwrap().with_lease_ttl(LEASE).unwrap(), url)
}

/// The leader hands over, then its successor dies, and clients follow to the third master. They
/// are given the address that `named` makes of that of the cluster and those of its masters.
async fn clients_follow(cluster_id: &str, named: impl FnOnce(String, &[Candidate]) -> String) {
    if !EtcdCluster::is_installed() {
        return;
    }
    let etcd = EtcdCluster::start(1);
    let (config, url) = cluster(&etcd, cluster_id);
    let mut candidates = Vec::new();
    for epoch in 1..=3 {
        candidates.push(Candidate::start(&config, epoch).await);
    }
    let first = candidates[0].win().await;
    let clients = Clients::connect(&named(url, &candidates)).await;
    clients.follow(&candidates[0]).await;

    first.resign(None).await.unwrap();
    let second = candidates[1].win().await;
    clients.follow(&candidates[1]).await;

    let dead = candidates.remove(1);
    drop((second, dead.election));
    dead.master.shutdown().await;
    let _third = candidates[1].win().await;
    clients.follow(&candidates[1]).await;

    clients.leave().await;
    for candidate in candidates {
        candidate.master.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_follow_the_leader_that_etcd_names() {
    clients_follow("blue", |url, _| url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_follow_the_leader_of_a_list() {
    clients_follow("list", |_, masters| {
        let addresses = masters.iter().map(|it| it.master.local_addr().to_string());
        addresses.collect::<Vec<_>>().join(";")
    })
    .await;
}

/// A member that leads no master, and knows of none that does.
#[derive(Debug)]
struct Leaderless;

impl HaReport for Leaderless {
    fn ha_status(&self) -> HaStatus {
        HaStatus { role: HaRole::Standby, ..HaStatus::default() }
    }

    fn hand_over(&self, _: Option<&str>) -> Result<(), Refusal> {
        Ok(())
    }
}

async fn standby() -> ServerHandle {
    let service = mc_rpc::Standby::new(Arc::new(Leaderless));
    let server = mc_rpc::Server::bind("127.0.0.1:0", service, ServerConfig::default());
    server.await.unwrap().spawn()
}

/// How often etcd was asked for keys.
async fn questions(etcd: &EtcdCluster) -> u64 {
    let mut stream = TcpStream::connect(etcd.address(0)).await.unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nhost: etcd\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    let is_range = |line: &&str| {
        line.starts_with("grpc_server_started_total{") && line.contains(r#"grpc_method="Range""#)
    };
    let line = page.lines().find(is_range).expect("etcd counts its calls");
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clients_of_a_process_ask_etcd_together_and_poll_the_masters_that_they_know() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let etcd = EtcdCluster::start(1);
    let (_, url) = cluster(&etcd, "crowd");
    let standbys = [standby().await, standby().await];
    for (number, standby) in standbys.iter().enumerate() {
        let address = standby.local_addr();
        let member = format!(r#"{{"rpc_address":"{address}","epoch":1,"sequence":0}}"#);
        etcd.ctl(&["put", &format!("/mc-store/crowd/members/m{number}"), &member]);
    }
    let before = questions(&etcd).await;
    // Each with settings of its own, as those of one application that know nothing of each other.
    let mut calls = Vec::new();
    for _ in 0..6 {
        let mut rpc = mc_rpc::ClientConfig::default();
        rpc.call_timeout = 2 * DEADLINE;
        rpc.resolver("etcd", Arc::new(mc_store::EtcdResolver::new()));
        let key = || mc_types::KeyRef::new("k").unwrap();
        let client = mc_rpc::MasterClient::lazy(&url, rpc.clone());
        calls.push(tokio::spawn(async move { client.exist(key()).await }));
        let client = mc_rpc::blocking::MasterClient::lazy(&url, rpc);
        calls.push(tokio::task::spawn_blocking(move || client.exist(key())));
    }
    let refused = || standbys.iter().map(|standby| standby.metrics().turned_away).sum::<u64>();
    eventually(DEADLINE, "they poll the standbys", || refused() > 100).await;
    assert_eq!(questions(&etcd).await - before, 1);
    // One of those that they know leads.
    let [first, second] = standbys;
    let at = first.local_addr();
    first.close().await;
    let master = Master::builder().listen(at).start().await.unwrap();
    for call in calls {
        assert!(!call.await.unwrap().unwrap());
    }
    assert_eq!(questions(&etcd).await - before, 1);
    second.close().await;
    master.shutdown().await;
}

async fn refused(builder: ClientBuilder) -> (String, ErrorCode) {
    match builder.connect().await.unwrap_err() {
        StartError::Master(error) => (error.to_string(), error.code()),
        error => panic!("{error}"),
    }
}

#[tokio::test]
async fn what_is_misspelt_fails_at_once_with_its_reason() {
    for (master, reason) in [
        ("etcd://", "empty"),
        ("etcd:///x", "empty"),
        ("etcd://host", "no port"),
        ("etcd://host:port:1", "neither a name nor an address"),
        ("etcd://host:1/b c", "not a cluster id"),
        ("http://host:1", "begins with http://"),
        ("host:1;;host:2", "names no master"),
        ("host:1,", "names no master"),
    ] {
        let (error, code) = refused(Client::builder().master(master)).await;
        assert!(error.contains(reason), "{master}: {error}");
        assert_eq!(code, ErrorCode::InvalidParams, "{master}");
    }
    // The cluster of the settings, when the address names none.
    let settings = "master = 'etcd://host:1'\ncluster_id = 'team blue'";
    let config = ClientConfig::from_toml(settings).unwrap();
    let (error, _) = refused(ClientBuilder::from_config(&config).unwrap()).await;
    assert!(error.contains("\"team blue\" is not a cluster id"), "{error}");
}

#[tokio::test]
async fn etcd_that_is_down_is_named_with_the_cause() {
    let (error, code) = refused(Client::builder().master("etcd://127.0.0.1:1;127.0.0.1:2")).await;
    for part in ["127.0.0.1:1: ", "127.0.0.1:2: ", "refused", "check that it runs"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(code, ErrorCode::RpcFail);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_without_a_leader_is_waited_for() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let etcd = EtcdCluster::start(1);
    let (config, url) = cluster(&etcd, "green");
    let (error, code) = refused(Client::builder().master(&*url)).await;
    assert!(error.contains("no master leads the cluster \"green\""), "{error}");
    assert_eq!(code, ErrorCode::RpcFail);
    // A call of a client waits for the leader.
    let mut rpc = mc_rpc::ClientConfig::default();
    rpc.resolver("etcd", Arc::new(mc_store::EtcdResolver::new()));
    let client = mc_rpc::MasterClient::lazy(&url, rpc);
    let call = tokio::spawn(async move { client.exist(mc_types::KeyRef::new("k").unwrap()).await });
    let candidate = Candidate::start(&config, 1).await;
    let _leads = candidate.win().await;
    assert!(!call.await.unwrap().unwrap());
    candidate.master.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_of_etcd_come_from_a_file() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let etcd = EtcdCluster::start(1);
    etcd.ctl(&["user", "add", "root:s3cret"]);
    etcd.ctl(&["user", "grant-role", "root", "root"]);
    let (config, url) = cluster(&etcd, "default");
    let candidate = Candidate::start(&config, 1).await;
    let _leads = candidate.win().await;
    etcd.ctl(&["auth", "enable"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    let settings = format!("etcd_user = 'root'\netcd_password_file = '{}'", file.display());
    let config = ClientConfig::from_toml(&settings).unwrap();
    let builder = ClientBuilder::from_config(&config).unwrap().master(&*url);
    for (password, reason) in [(None, "password"), (Some("wrong"), "rejects user \"root\"")] {
        if let Some(password) = password {
            std::fs::write(&file, password).unwrap();
        }
        let (error, code) = refused(builder.clone()).await;
        assert!(error.contains(reason), "{error}");
        assert_eq!(code, ErrorCode::InvalidParams, "{error}");
    }
    std::fs::write(&file, "s3cret\n").unwrap();
    let client = builder.connect().await.unwrap();
    assert!(!client.exist("k").await.unwrap());
    client.shutdown().await;
    candidate.master.shutdown().await;
}
