//! The client: puts and gets objects, and may contribute memory.
//!
//! Clones of a [`Client`] share one [`Core`], which is the parts of a client and nothing else. A part owns its
//! state; it is lent to those above it, and imports none of them:
//!
//! ```text
//! calls   put, get, take, keys, patterns, members, drain, replicas, mounting, vram: methods of Client
//! work    tier_work, tasks, c2c, upkeep, http: by the client itself, as long as there is a core
//! puts    store, late, settle: own the core, since a put that has begun may outlive its caller
//! core    the parts, in one Arc
//! reads   read: a Reader borrows the parts that reads need, as the Writer of `store` does for writes
//! parts   data (Transfers) and probe (PeerHealth), tiers (Tiers), segments, heartbeat, reports, conversions
//! base    master_link (MasterLink), background, settings, metrics, disk_region, checksums, peers, load
//! ```
//!
//! A task that outlives a call holds a `Weak` of the core, so that it ends with the client; a put holds an
//! `Arc`. Nothing else is counted or cloned for a call.

mod admission;
mod background;
mod builder;
#[cfg(feature = "c2c")]
mod c2c;
mod checks;
mod checksums;
#[cfg(feature = "c2c")]
mod conversions;
mod core;
mod data;
mod disk_region;
mod drain;
mod figures;
mod get;
mod heartbeat;
mod hot_cache;
#[cfg(feature = "http")]
mod http;
mod keys;
mod late;
mod load;
mod master_link;
mod members;
mod metrics;
mod mounting;
mod own_load;
mod part;
mod patterns;
mod peers;
mod probe;
mod put;
mod put_keys;
mod ranges;
mod read;
mod replicas;
mod reports;
mod segments;
mod self_check;
mod settings;
mod settle;
mod store;
mod take;
mod tasks;
mod tier_work;
mod tiers;
mod unstoppable;
mod upkeep;
mod vram;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mc_rpc::MasterClient;
use mc_transport::Transport as _;
use mc_types::{BoxFuture, ClientId, Endpoint};

pub use admission::ClientRole;
pub use builder::ClientBuilder;
#[cfg(feature = "config")]
pub(crate) use builder::SOFTWARE;
#[cfg(feature = "c2c")]
pub use c2c::C2cError;
#[cfg(feature = "c2c")]
pub(crate) use conversions::Conversions;
pub use drain::DrainReport;
pub use get::GetInto;
pub use hot_cache::HotCacheConfig;
pub use keys::Stat;
#[cfg(feature = "c2c")]
pub use metrics::{C2cMetrics, C2cSkip};
pub use metrics::{
    ClientMetrics, ClientOperation, DataPath, OperationMetrics, PathMetrics, ReportMetrics,
    TierMetrics,
};
pub use put::{Put, PutMode, PutOutcome};
pub use read::MakeMemory;
pub(crate) use replicas::wait_until_final;
pub use segments::{MountedSegment, SegmentOptions};
pub use tiers::local_disk::{LocalDiskOptions, OwnTier};
pub use vram::{VramError, VramStage};

use self::core::Core;

/// How long a client that leaves goes on writing files.
const LAST_FILES: Duration = Duration::from_secs(5);

/// A member of the cluster that puts and gets objects and, if it contributes
/// segments, keeps those of others.
///
/// Puts, gets and calls about keys are those of [`ObjectStore`](crate::ObjectStore) and
/// [`ReplicatedStore`](crate::ReplicatedStore), which describe them; here a value is whatever becomes
/// bytes, and each kind of call has an error of its own.
///
/// Clones share one member: its connections, its segments, its heartbeat. All
/// methods may be called from many tasks. Calls are batched and pipelined over
/// shared connections, so a batch of a hundred objects costs two round trips to
/// the master and one to each peer.
///
/// # Cancellation
/// Dropping a future abandons the call. A read writes to its target no more from then on, except over
/// RDMA, where it may until the target's last handle is gone. A put or upsert that has begun is given up
/// between its steps, in a task of the runtime that the client was connected in, and stores nothing,
/// unless only the master's answer to its end is missing. A write that is under way may read its memory
/// until it ends; what it sends is not stored. Memory stays alive until nothing touches it any more.
#[derive(Clone, Debug)]
pub struct Client {
    core: Arc<Core>,
}

impl Client {
    /// Begins to describe a client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// The identity that the master knows this client by.
    #[must_use]
    pub fn id(&self) -> ClientId {
        self.core.link.id
    }

    /// Where peers reach this client's segments; `None` for a client that accepts no
    /// peers.
    #[must_use]
    pub fn endpoint(&self) -> Option<Endpoint> {
        self.core.transfers.transport.endpoint().cloned()
    }

    /// The name of the segment that this client began with; `None` for one that began
    /// without. [`segments`](Self::segments) lists all that there are now.
    #[must_use]
    pub fn segment_name(&self) -> Option<&str> {
        self.core.first_segment.get().map(|name| &**name)
    }

    /// The connection to the master, for calls that have no method here.
    #[must_use]
    pub fn master(&self) -> &MasterClient {
        &self.core.link.master
    }

    /// Returns this client's part in the cluster now; segments that are mounted and unmounted
    /// change it.
    ///
    /// ```
    /// # mc_cluster_testkit::with_master(|master| async move {
    /// use mc_store::{Client, ClientRole};
    /// let client = Client::builder().master(master).connect().await?;
    /// assert_eq!(client.role(), ClientRole::PureClient);
    /// # client.shutdown().await;
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn role(&self) -> ClientRole {
        self.core.link.admission.role(!self.core.segments.list().is_empty())
    }

    /// Returns whether it keeps objects in files, of which it writes and deletes some by itself.
    pub(crate) fn writes_files(&self) -> bool {
        self.core.tiers.shared.is_some()
    }

    /// Returns the conversions for other models.
    #[cfg(feature = "c2c")]
    pub(crate) fn conversions(&self) -> Option<&Arc<Conversions>> {
        self.core.c2c.as_ref()
    }

    /// Where the pages of this client are, see `ClientBuilder::http`; `None` when it has
    /// none, as without the feature `http`.
    #[must_use]
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.core.http
    }

    /// Waits until the files of all objects that this client and its clones have put are on the shared
    /// tier, or will not be written. Returns whether that was within `limit`; at once without a shared
    /// tier. A client that [shuts down](Self::shutdown) waits for five seconds.
    pub fn flush_files<'a>(&'a self, limit: Duration) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            match &self.core.tiers.shared {
                Some(shared) => shared.flush(limit).await,
                None => true,
            }
        })
    }

    /// Leaves the cluster: unmounts the segments, so that the master names them to
    /// no other client any more, then stops serving them. Objects whose only replica was
    /// there are gone. A segment that is [kept](ClientBuilder::keep_segment) stays mounted, and waits for
    /// the next process. Returns when all of that is done, also when another call asked for it.
    ///
    /// From the beginning of this call on every other call, of clones as well, fails
    /// with the variant `Closed` of its error, whose code is
    /// [`UnavailableInCurrentStatus`](crate::ErrorCode::UnavailableInCurrentStatus).
    /// Calls that are under way end with the results that they get. Shutting down twice
    /// changes nothing.
    ///
    /// # Cancellation
    /// Calls are refused all the same; call again to leave.
    ///
    /// ```
    /// # mc_cluster_testkit::with_master(|master| async move {
    /// use mc_store::{CallError, Client};
    /// let client = Client::builder().master(master).connect().await?;
    /// client.shutdown().await;
    /// client.shutdown().await;
    /// assert!(matches!(client.exist("key").await, Err(CallError::Closed)));
    /// # Ok(()) });
    /// ```
    pub fn shutdown<'a>(&'a self) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let core = &self.core;
            core.link.admission.close();
            #[cfg(feature = "c2c")]
            if let Some(conversions) = &core.c2c {
                conversions.close();
            }
            core.left
                .get_or_init(|| async {
                    core.liveness.stop().await;
                    core.reports.flush().await;
                    let mut shared = core.tiers.shared.as_ref();
                    if let Some(it) = shared
                        && !it.flush(LAST_FILES).await
                    {
                        // It was waited for long enough.
                        shared = None;
                    }
                    core.background.shutdown().await;
                    tier_work::leave_local_disk(core).await;
                    if let Some(shared) = shared {
                        shared.leave().await;
                    }
                    core.link.tell_reads().await;
                    core.segments.withdraw(&core.link.master, core.link.id).await;
                    core.transfers.transport.shutdown().await;
                })
                .await;
        })
    }
}
