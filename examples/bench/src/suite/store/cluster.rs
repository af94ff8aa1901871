//! Master and storage node, each in a process of its own.

use std::net::SocketAddr;

use mc_store::{ByteSize, Client, Master, NodeConfig};
use mc_transport::TcpConfig;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::placement::Placement;
use crate::process::{self, Peer, Role};
use crate::raw;

/// How bytes travel between clients and the storage node.
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

    fn node(self) -> NodeConfig {
        match self {
            Self::Tcp => NodeConfig::default(),
            Self::Shm => NodeConfig::new(TcpConfig::default()),
        }
    }
}

/// What [`serve_master`] is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MasterTask {
    /// Where to run.
    pub(crate) place: Placement,
}

/// What [`serve_master`] says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MasterAddress {
    /// Where the master answers.
    pub(crate) master: SocketAddr,
    /// Where raw round trips are answered.
    pub(crate) raw: SocketAddr,
}

/// Is a master until told to end.
pub(crate) fn serve_master(task: &MasterTask) -> Result<(), BenchError> {
    process::raise_file_limit()?;
    let runtime = process::server_runtime(task.place)?;
    let raw = raw::serve()?;
    let master = runtime
        .block_on(Master::builder().start())
        .map_err(|error| BenchError::start("master")(error.into()))?;
    process::say(&MasterAddress { master: master.local_addr(), raw })?;
    process::wait_for_end();
    runtime.block_on(master.shutdown());
    Ok(())
}

/// What [`serve_node`] is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeTask {
    /// Where to run.
    pub(crate) place: Placement,
    /// The master.
    pub(crate) master: SocketAddr,
    /// Bytes to contribute.
    pub(crate) segment: u64,
    /// How peers reach them.
    pub(crate) carrier: Carrier,
}

/// Contributes a segment until told to end.
pub(crate) fn serve_node(task: &NodeTask) -> Result<(), BenchError> {
    let runtime = process::server_runtime(task.place)?;
    let connecting = Client::builder()
        .master(task.master.to_string())
        .listen(SocketAddr::from(([127, 0, 0, 1], 0)))
        .segment_size(ByteSize::bytes(task.segment))
        .node(task.carrier.node())
        .connect();
    let node =
        runtime.block_on(connecting).map_err(|error| BenchError::start("node")(error.into()))?;
    process::say(&())?;
    process::wait_for_end();
    runtime.block_on(node.shutdown());
    Ok(())
}

/// A master and a storage node, each in a process of its own. The node goes first.
pub(super) struct Cluster {
    _node: Peer,
    _master: Peer,
    address: String,
    carrier: Carrier,
}

impl Cluster {
    pub(super) fn start(
        place: Placement,
        carrier: Carrier,
        segment: usize,
    ) -> Result<Self, BenchError> {
        let (master, said) = Peer::start::<MasterAddress>(&Role::Master(MasterTask { place }))?;
        let task = NodeTask { place, master: said.master, segment: segment as u64, carrier };
        let (node, ()) = Peer::start(&Role::Node(task))?;
        Ok(Self { _node: node, _master: master, address: said.master.to_string(), carrier })
    }

    /// A client in this process.
    pub(super) async fn client(&self) -> Result<Client, BenchError> {
        let builder = Client::builder().master(&self.address).node(self.carrier.node());
        builder.connect().await.map_err(|error| BenchError::start("client")(error.into()))
    }
}
