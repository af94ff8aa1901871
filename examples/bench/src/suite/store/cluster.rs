//! Master and storage node, each in a process of its own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mc_events::PublisherConfig;
use mc_ha::{DirectoryJournal, Durability};
use mc_meta::LocalDiskConfig;
use mc_store::{
    ByteSize, C2cSettings, Client, ClientBuilder, EventPublisher, JournalConfig, LocalDiskOptions,
    Master, MasterConfig, NodeConfig, StorageSettings,
};
use mc_transport::TcpConfig;
use serde::{Deserialize, Serialize};

use super::relay::{Pace, RelayTask};
use crate::error::BenchError;
use crate::placement::Placement;
use crate::process::{self, Peer, Task};
use crate::raw;

/// Where peers reach a node that has a relay before it: an address of this host that
/// no other process uses.
const RELAYED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A lease for runs that remove by force what they have just read: its space stays until the
/// lease ends, and the run waits for it, or needs as much more of the segment.
pub(super) const SHORT_LEASE: Duration = Duration::from_millis(100);

/// The transport between clients and the storage node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Carrier {
    /// Plain TCP.
    Tcp,
    /// Memory of the node that clients map.
    Shm,
}

impl Carrier {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
        }
    }

    pub(super) fn node(self) -> NodeConfig {
        match self {
            Self::Tcp => NodeConfig::default(),
            Self::Shm => NodeConfig::new(TcpConfig::default()),
        }
    }
}

/// The parameters of [`serve_master`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MasterTask {
    /// Where to run.
    place: Placement,
    /// Where to listen; `None` takes any port of the loopback address.
    listen: Option<SocketAddr>,
    /// The time for which a read protects an object; `None` for the default.
    lease: Option<Duration>,
    /// Whether it publishes events.
    events: bool,
    /// The rules of conversions in its clients, as JSON.
    c2c: Option<String>,
    /// Where it keeps its metadata, if it does.
    kept: Option<(PathBuf, Keeping)>,
    /// Where its clients keep a file of each object, if they do.
    shared_tier: Option<String>,
    /// Whether objects are written to the disks of its nodes when their puts end.
    local_disks: bool,
}

impl Task for MasterTask {
    const ROLE: &'static str = "master";
    const NAME: &'static str = "master";
}

/// When a master that keeps its metadata acknowledges a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Keeping {
    /// Before it is on disk.
    Async,
    /// When it is on disk.
    Sync,
}

impl MasterTask {
    /// A master with its defaults.
    pub(crate) const fn at(place: Placement) -> Self {
        Self {
            place,
            listen: None,
            lease: None,
            events: false,
            c2c: None,
            kept: None,
            shared_tier: None,
            local_disks: false,
        }
    }

    /// The same, which keeps its metadata in this directory.
    pub(in crate::suite) fn kept(self, directory: PathBuf, keeping: Keeping) -> Self {
        Self { kept: Some((directory, keeping)), ..self }
    }

    /// The same, which publishes events.
    pub(crate) fn with_events(self) -> Self {
        Self { events: true, ..self }
    }
}

/// The message of [`serve_master`] to its parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MasterAddress {
    /// Where the master answers.
    pub(crate) master: SocketAddr,
    /// Where raw round trips are answered.
    pub(crate) raw: SocketAddr,
    /// Where subscribers of its events connect, if it publishes any.
    pub(crate) events: Option<String>,
}

/// Is a master until told to end.
pub(crate) fn serve_master(task: &MasterTask) -> Result<(), BenchError> {
    process::raise_file_limit()?;
    let runtime = process::server_runtime(task.place)?;
    let raw = raw::serve()?;
    let mut config = MasterConfig::default();
    config.lease_ttl = task.lease.unwrap_or(config.lease_ttl);
    config.local_disk = task.local_disks.then(LocalDiskConfig::default);
    let mut builder = Master::builder().config(config);
    if let Some(directory) = &task.shared_tier {
        builder = builder.storage(StorageSettings::in_directory(directory.as_str()));
    }
    if let Some(address) = task.listen {
        builder = builder.listen(address);
    }
    if task.events {
        let config =
            PublisherConfig { endpoint: "tcp://127.0.0.1:0".into(), ..PublisherConfig::default() };
        let publisher = runtime
            .block_on(EventPublisher::start(config))
            .map_err(|error| BenchError::start("publisher")(error.into()))?;
        builder = builder.events(publisher);
    }
    if let Some(rules) = &task.c2c {
        builder = builder.c2c(C2cSettings::new(2, rules.as_str()));
    }
    if let Some((directory, keeping)) = &task.kept {
        let journal = DirectoryJournal::open(directory)
            .map_err(|error| BenchError::start("journal")(error.into()))?;
        let mut config = JournalConfig::new(Arc::new(journal));
        if *keeping == Keeping::Sync {
            config.writer.durability = Durability::Sync;
        }
        builder = builder.journal(config);
    }
    let master = runtime
        .block_on(builder.start())
        .map_err(|error| BenchError::start("master")(error.into()))?;
    let events = master.events().map(|events| events.endpoints()[0].endpoint.clone());
    process::say(&MasterAddress { master: master.local_addr(), raw, events })?;
    process::wait_for_end();
    runtime.block_on(master.shutdown());
    Ok(())
}

/// The parameters of [`serve_node`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeTask {
    place: Placement,
    master: SocketAddr,
    /// Bytes to contribute.
    segment: u64,
    carrier: Carrier,
    /// Where peers are told to reach it; `None` for where it listens.
    advertise: Option<IpAddr>,
    /// The disk that it has, if any.
    disk: Option<DiskPlan>,
}

impl Task for NodeTask {
    const ROLE: &'static str = "node";
    const NAME: &'static str = "node";
}

/// The disk of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::suite) struct DiskPlan {
    pub(in crate::suite) directory: PathBuf,
    /// Bytes that objects may take.
    pub(in crate::suite) size: u64,
}

impl DiskPlan {
    pub(in crate::suite) fn options(&self) -> LocalDiskOptions {
        LocalDiskOptions::new(&self.directory).size(ByteSize::bytes(self.size))
    }
}

/// Where a node listens.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodePort {
    port: u16,
}

/// Contributes a segment until told to end.
pub(crate) fn serve_node(task: &NodeTask) -> Result<(), BenchError> {
    let runtime = process::server_runtime(task.place)?;
    let mut builder = Client::builder()
        .master(task.master.to_string())
        .listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .segment_size(ByteSize::bytes(task.segment))
        .node(task.carrier.node());
    if let Some(address) = task.advertise {
        builder = builder.advertise(address);
    }
    if let Some(disk) = &task.disk {
        builder = builder.local_disk(disk.options());
    }
    let node = runtime
        .block_on(builder.connect())
        .map_err(|error| BenchError::start("node")(error.into()))?;
    let endpoint = node.endpoint().expect("a node contributes memory");
    let address: SocketAddr = endpoint.address().parse().expect("it listens at an address");
    process::say(&NodePort { port: address.port() })?;
    process::wait_for_end();
    runtime.block_on(node.shutdown());
    Ok(())
}

/// The settings of a [`Cluster`].
#[derive(Clone, Debug)]
pub(in crate::suite) struct Plan {
    /// Where master and node run.
    pub(super) place: Placement,
    /// The transport of bytes.
    pub(super) carrier: Carrier,
    /// Bytes that the node contributes.
    pub(super) segment: usize,
    /// The time for which a read protects an object; `None` for the master's default.
    pub(super) lease: Option<Duration>,
    /// The relay between the node and its peers, if any.
    pub(super) relay: Option<Pace>,
    /// Whether the master publishes events.
    pub(super) events: bool,
    /// The rules of conversions in clients, as JSON.
    pub(super) c2c: Option<String>,
    /// Where the master keeps its metadata, if it does.
    pub(super) kept: Option<(PathBuf, Keeping)>,
    /// Where clients keep a file of each object, if they do.
    pub(super) shared_tier: Option<String>,
    /// The disk of the node, if it has one.
    pub(super) disk: Option<DiskPlan>,
}

impl Plan {
    pub(in crate::suite) const fn new(place: Placement, carrier: Carrier, segment: usize) -> Self {
        Self {
            place,
            carrier,
            segment,
            lease: None,
            relay: None,
            events: false,
            c2c: None,
            kept: None,
            shared_tier: None,
            disk: None,
        }
    }

    /// The same with reads that protect an object for this time.
    pub(in crate::suite) fn with_lease(self, lease: Duration) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// The same with clients that keep a file of each object in this directory.
    pub(in crate::suite) fn with_shared_tier(self, directory: &str) -> Self {
        Self { shared_tier: Some(directory.into()), ..self }
    }

    /// The same with a node that has a disk, on which objects are when their puts have ended.
    pub(in crate::suite) fn with_disk(self, disk: DiskPlan) -> Self {
        Self { disk: Some(disk), ..self }
    }

    /// The same with a master that keeps its metadata in this directory.
    pub(in crate::suite) fn kept(self, directory: PathBuf, keeping: Keeping) -> Self {
        Self { kept: Some((directory, keeping)), ..self }
    }

    /// The same with a master that publishes events.
    pub(in crate::suite) fn with_events(self) -> Self {
        Self { events: true, ..self }
    }

    /// The same with clients that convert objects by these rules.
    pub(in crate::suite) fn with_c2c(self, rules: String) -> Self {
        Self { c2c: Some(rules), ..self }
    }

    fn master_at(&self, listen: Option<SocketAddr>) -> MasterTask {
        let Self { place, lease, events, .. } = *self;
        MasterTask {
            place,
            listen,
            lease,
            events,
            c2c: self.c2c.clone(),
            kept: self.kept.clone(),
            shared_tier: self.shared_tier.clone(),
            local_disks: self.disk.is_some(),
        }
    }

    /// Starts it.
    pub(in crate::suite) fn start(self) -> Result<Cluster, BenchError> {
        let (master, said) = Peer::start::<_, MasterAddress>(&self.master_at(None))?;
        let node = NodeTask {
            place: self.place,
            master: said.master,
            segment: self.segment as u64,
            carrier: self.carrier,
            advertise: self.relay.is_some().then_some(RELAYED.into()),
            disk: self.disk.clone(),
        };
        let (node, NodePort { port }) = Peer::start(&node)?;
        let relay = match self.relay {
            Some(pace) => {
                let task = RelayTask {
                    listen: (RELAYED, port).into(),
                    target: (Ipv4Addr::LOCALHOST, port).into(),
                    pace,
                };
                let (relay, ()) = Peer::start(&task)?;
                Some(relay)
            }
            None => None,
        };
        let MasterAddress { master: address, events, .. } = said;
        Ok(Cluster { _relay: relay, _node: node, master, address, events, plan: self })
    }
}

/// A master and a storage node, each in a process of its own. The node goes first.
pub(in crate::suite) struct Cluster {
    _relay: Option<Peer>,
    _node: Peer,
    master: Peer,
    address: SocketAddr,
    /// Where subscribers of the master's events connect, if it publishes any.
    pub(in crate::suite) events: Option<String>,
    plan: Plan,
}

impl Cluster {
    /// The builder of a client in this process.
    pub(in crate::suite) fn builder(&self) -> ClientBuilder {
        Client::builder().master(self.address.to_string()).node(self.plan.carrier.node())
    }

    /// A client in this process.
    pub(in crate::suite) async fn client(&self) -> Result<Client, BenchError> {
        connect(self.builder()).await
    }

    /// Where the master answers.
    pub(in crate::suite) fn master_address(&self) -> String {
        self.address.to_string()
    }

    /// Kills the master, so that it cannot say good-bye.
    pub(in crate::suite) fn kill_master(&mut self) -> Result<(), BenchError> {
        Ok(self.master.kill()?)
    }

    /// Starts a master where the one was that was killed. It knows what it has kept, if anything.
    pub(in crate::suite) fn start_master_again(&mut self) -> Result<(), BenchError> {
        let task = self.plan.master_at(Some(self.address));
        let (master, said) = Peer::start::<_, MasterAddress>(&task)?;
        self.master = master;
        if said.master != self.address {
            return Err(BenchError::wrong("starting a master again", said.master.to_string()));
        }
        Ok(())
    }
}

pub(in crate::suite) async fn connect(builder: ClientBuilder) -> Result<Client, BenchError> {
    builder.connect().await.map_err(|error| BenchError::start("client")(error.into()))
}
