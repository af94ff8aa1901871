//! A cluster in this process: a master and storage nodes, each a thread with a
//! runtime of its own, talking TCP over the loopback interface as they would
//! between hosts.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc::{self, SyncSender};
use std::thread::{self, JoinHandle};

use mc_store::{Client, ClientBuilder, ClusterReport, Master, MasterConfig, NodeConfig};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use crate::args::Plan;
use crate::error::ReplayError;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A running cluster; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Cluster {
    master: SocketAddr,
    // Dropped in this order: nodes say goodbye to a master that still listens.
    _nodes: Vec<Member>,
    _master: Member,
}

impl Cluster {
    /// Starts the master, then the nodes. What was started ends again when a
    /// later one fails.
    ///
    /// # Errors
    /// [`ReplayError`] names the part that did not start.
    pub(crate) fn start(plan: &Plan, node: &NodeConfig) -> Result<Self, ReplayError> {
        let mut config = MasterConfig::default();
        config.lease_ttl = plan.lease_ttl;
        let (member, master) = Member::start("the master".into(), async |ready, stop| {
            let started = Master::builder().listen((LOOPBACK, 0).into()).config(config).start();
            match started.await {
                Ok(master) => {
                    ready.tell(Ok(master.local_addr()));
                    stop.requested().await;
                    master.shutdown().await;
                }
                Err(error) => ready.tell(Err(ReplayError::StartMaster(error))),
            }
        })?;
        let nodes = (1..=plan.nodes).map(|number| start_node(number, plan, node, master));
        let nodes = nodes.collect::<Result<_, _>>()?;
        Ok(Self { master, _nodes: nodes, _master: member })
    }

    /// Where the master listens.
    pub(crate) fn master(&self) -> SocketAddr {
        self.master
    }
}

fn start_node(
    number: u32,
    plan: &Plan,
    node: &NodeConfig,
    master: SocketAddr,
) -> Result<Member, ReplayError> {
    let (size, node) = (plan.segment, node.clone());
    let (member, ()) = Member::start(format!("node {number}"), async move |ready, stop| {
        let joined = Client::builder()
            .master(master.to_string())
            .listen((LOOPBACK, 0).into())
            .segment_size(size)
            .segment_name(format!("node-{number}"))
            .node(node)
            .connect();
        match joined.await {
            Ok(client) => {
                ready.tell(Ok(()));
                stop.requested().await;
                client.shutdown().await;
            }
            Err(source) => ready.tell(Err(ReplayError::StartNode { number, size, source })),
        }
    })?;
    Ok(member)
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
