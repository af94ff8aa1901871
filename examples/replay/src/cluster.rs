//! A cluster in this process: a master and storage nodes, each a thread with a
//! runtime of its own, talking TCP over the loopback interface as they would
//! between hosts.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc::{self, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mc_store::{
    Client, ClientBuilder, ClusterReport, LocalDiskOptions, Master, MasterBuilder, MasterConfig,
    NodeConfig, StorageSettings,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use crate::args::Plan;
use crate::error::ReplayError;
use crate::tier::{TierDirectory, TierKind, TierUse};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Time for nodes to have their disks ready, and between two looks.
const DISKS_READY: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A running cluster; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Cluster {
    address: SocketAddr,
    // Dropped in this order: nodes say goodbye to a master that still listens, and the tier's directory
    // is removed when no member writes to it any more.
    nodes: Vec<Node>,
    master: Member,
    tier: Option<TierDirectory>,
}

/// A storage node.
#[derive(Debug)]
struct Node {
    _member: Member,
    client: Client,
}

impl Cluster {
    /// Starts the master, then the nodes. What was started ends again when a
    /// later one fails.
    ///
    /// # Errors
    /// [`ReplayError`] names the part that did not start.
    pub(crate) fn start(
        plan: &Plan,
        node: &NodeConfig,
        tier: Option<TierDirectory>,
    ) -> Result<Self, ReplayError> {
        let builder = describe_master(plan, tier.as_ref());
        let (master, (address, state)) =
            Member::start("the master".into(), async |ready, stop| match builder.start().await {
                Ok(master) => {
                    ready.tell(Ok((master.local_addr(), master.state().clone())));
                    stop.requested().await;
                    master.shutdown().await;
                }
                Err(error) => ready.tell(Err(ReplayError::StartMaster(error))),
            })?;
        let start = |number| start_node(number, plan, node, tier.as_ref(), address);
        let nodes = (1..=plan.nodes).map(start).collect::<Result<_, _>>()?;
        if tier.as_ref().is_some_and(|tier| tier.kind() == TierKind::Ssd) {
            await_disks(plan.nodes, || state.report().local_disks.len())?;
        }
        Ok(Self { address, nodes, master, tier })
    }

    /// Where the master listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the use of the nodes' disks: bytes read, and failures.
    pub(crate) fn disk_use(&self) -> TierUse {
        let mut all = TierUse::default();
        for node in &self.nodes {
            all += TierUse::of(node.client.metrics().local_disk.as_ref());
        }
        all
    }

    /// Ends the cluster and removes what it has on disks.
    ///
    /// # Errors
    /// [`ReplayError::RemoveTier`].
    pub(crate) fn end(self) -> Result<(), ReplayError> {
        let Self { nodes, master, tier, .. } = self;
        drop(nodes);
        drop(master);
        tier.map_or(Ok(()), TierDirectory::remove)
    }
}

/// Describes a master with the tier. A disk gets a block when it would be evicted, and the block stays
/// in memory until it is written: none is lost however slow the disk is, because puts wait.
fn describe_master(plan: &Plan, tier: Option<&TierDirectory>) -> MasterBuilder {
    let mut config = MasterConfig::default();
    config.lease_ttl = plan.lease_ttl;
    config.eviction_policy = plan.eviction_policy;
    config.eviction_high_watermark_ratio = plan.high_watermark;
    let builder = Master::builder().listen((LOOPBACK, 0).into());
    let builder = match tier {
        None => builder,
        Some(tier) => match tier.kind() {
            TierKind::Ssd => {
                config.local_disk.get_or_insert_default().on_evict = true;
                config.promotion.get_or_insert_default();
                builder
            }
            TierKind::Dfs => builder.storage(StorageSettings::in_directory(tier.path())),
        },
    };
    builder.config(config)
}

/// Waits until the master knows the disks of all nodes: a block that is evicted before would be lost.
fn await_disks(nodes: u32, mounted: impl Fn() -> usize) -> Result<(), ReplayError> {
    let deadline = Instant::now() + DISKS_READY;
    loop {
        let mounted = mounted();
        if mounted >= nodes as usize {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(ReplayError::Disks { mounted, nodes, wait: DISKS_READY });
        }
        thread::sleep(LOOK_AGAIN);
    }
}

fn start_node(
    number: u32,
    plan: &Plan,
    node: &NodeConfig,
    tier: Option<&TierDirectory>,
    master: SocketAddr,
) -> Result<Node, ReplayError> {
    let size = plan.segment;
    let builder = Client::builder()
        .master(master.to_string())
        .listen((LOOPBACK, 0).into())
        .segment_size(size)
        .segment_name(format!("node-{number}"))
        .node(node.clone());
    let builder = match tier.filter(|tier| tier.kind() == TierKind::Ssd) {
        None => builder,
        Some(tier) => {
            builder.local_disk(LocalDiskOptions::new(tier.of_node(number)).size(plan.disk))
        }
    };
    let (member, client) = Member::start(format!("node {number}"), async move |ready, stop| {
        match builder.connect().await {
            Ok(client) => {
                ready.tell(Ok(client.clone()));
                stop.requested().await;
                client.shutdown().await;
            }
            Err(source) => ready.tell(Err(ReplayError::StartNode { number, size, source })),
        }
    })?;
    Ok(Node { _member: member, client })
}

/// A thread that serves until it is dropped.
#[derive(Debug)]
struct Member {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Where a member says whether it started.
struct Ready<T>(SyncSender<Result<T, ReplayError>>);

impl<T> Ready<T> {
    fn tell(&self, outcome: Result<T, ReplayError>) {
        // The thread that started the member waits for this, unless it panicked.
        let _ = self.0.send(outcome);
    }
}

/// Where a member hears that it should end.
struct Stop(oneshot::Receiver<()>);

impl Stop {
    async fn requested(self) {
        // A sender that went away asks for the same.
        let _ = self.0.await;
    }
}

impl Member {
    /// Runs `serve` on a thread of its own and waits until it is ready.
    fn start<T, S, F>(name: String, serve: S) -> Result<(Self, T), ReplayError>
    where
        T: Send + 'static,
        S: FnOnce(Ready<T>, Stop) -> F + Send + 'static,
        F: Future<Output = ()>,
    {
        let runtime = runtime(&name)?;
        let (stop, stopped) = oneshot::channel();
        let (ready, started) = mpsc::sync_channel(1);
        let thread = thread::Builder::new()
            .name(name.clone())
            .spawn(move || runtime.block_on(serve(Ready(ready), Stop(stopped))))
            .map_err(|source| ReplayError::Thread { name: name.clone(), source })?;
        let member = Self { stop: Some(stop), thread: Some(thread) };
        match started.recv() {
            Ok(outcome) => Ok((member, outcome?)),
            Err(mpsc::RecvError) => Err(ReplayError::Panicked { name }),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It only fails if the member panicked, which was reported then.
            let _ = thread.join();
        }
    }
}

/// A runtime for the one thread of `name`.
pub(crate) fn runtime(name: &str) -> Result<Runtime, ReplayError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|source| ReplayError::Thread { name: name.into(), source })
}

/// A pure client that only asks for totals.
#[derive(Debug)]
pub(crate) struct Probe {
    runtime: Runtime,
    client: Client,
}

impl Probe {
    /// Joins the cluster that `client` describes.
    ///
    /// # Errors
    /// [`ReplayError::Join`] when there is no master.
    pub(crate) fn connect(client: ClientBuilder) -> Result<Self, ReplayError> {
        let runtime = runtime("the probe")?;
        let client = runtime.block_on(client.connect());
        Ok(Self { runtime, client: client.map_err(ReplayError::Join)? })
    }

    /// The cluster's totals now.
    ///
    /// # Errors
    /// [`ReplayError::Totals`] when the master does not answer.
    pub(crate) fn report(&self) -> Result<ClusterReport, ReplayError> {
        self.runtime.block_on(self.client.cluster_report()).map_err(ReplayError::Totals)
    }
}
