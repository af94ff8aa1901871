//! The client: puts and gets objects, and may contribute memory.

mod builder;
mod contribution;
mod data;
mod get;
mod keys;
mod metrics;
mod peers;
mod put;

use std::sync::Arc;

use mc_rpc::MasterClient;
use mc_transport::Node;
use mc_types::{ClientId, Endpoint};
use parking_lot::Mutex;
use tokio::task::JoinSet;

pub use builder::ClientBuilder;
pub use get::GetInto;
pub use metrics::{
    ClientMetrics, ClientOperation, DataPath, LatencyHistogram, OperationMetrics, PathMetrics,
};
pub use put::{Put, PutOutcome};

use contribution::{Contribution, Heartbeat};
use metrics::Metrics;
use peers::Peers;

/// A member of the cluster that puts and gets objects and, if it contributes a
/// segment, keeps those of others.
///
/// Clones share one member: its connections, its segment, its heartbeat. All
/// methods may be called from many tasks. Calls are batched and pipelined over
/// shared connections, so a batch of a hundred objects costs two round trips to
/// the master and one to each peer.
///
/// # Cancellation
/// Dropping a future abandons the call: memory that a transfer still touches
/// stays alive until it ends. A dropped put may leave an unfinished object, which
/// the master takes back after its time-outs.
#[derive(Clone, Debug)]
pub struct Client {
    core: Arc<Core>,
}

/// What all clones share.
#[derive(Debug)]
struct Core {
    id: ClientId,
    master: MasterClient,
    transport: Arc<Node>,
    peers: Peers,
    contribution: Arc<Contribution>,
    heartbeat: Mutex<Option<Heartbeat>>,
    settings: builder::Settings,
    metrics: Metrics,
    /// What goes on by itself in the application's runtime; ends with the client.
    background: Mutex<JoinSet<()>>,
}

impl Client {
    /// Begins to describe a client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// The identity that the master knows this client by.
    #[must_use]
    pub fn id(&self) -> ClientId {
        self.core.id
    }

    /// Where peers reach this client's segment; `None` for a pure client.
    #[must_use]
    pub fn endpoint(&self) -> Option<Endpoint> {
        self.core.contribution.endpoint()
    }

    /// The name of this client's segment; `None` for a pure client.
    #[must_use]
    pub fn segment_name(&self) -> Option<&str> {
        self.core.contribution.name()
    }

    /// The connection to the master, for calls that have no method here.
    #[must_use]
    pub fn master(&self) -> &MasterClient {
        &self.core.master
    }

    /// Leaves the cluster: unmounts the segment, so that the master names it to
    /// nobody any more, then stops serving it. Objects whose only replica was
    /// there are gone. Calls of other clones fail from then on.
    pub async fn shutdown(self) {
        // Taken out first: no lock is held while the thread is waited for.
        let heartbeat = self.core.heartbeat.lock().take();
        if let Some(heartbeat) = heartbeat {
            heartbeat.stop().await;
        }
        self.core.background.lock().abort_all();
        self.core.contribution.withdraw(&self.core.master, self.core.id).await;
        self.core.transport.shutdown().await;
    }
}
