//! Elections in etcd, version 3.4 or newer.
//!
//! The keys of a cluster begin with `/mc-store/<cluster id>/`:
//!
//! | key | value |
//! |---|---|
//! | `leader` | `{"epoch":7,"id":"a","rpc_address":"host:50051","lease_ms":2000,"nonce":9}`, or `{"epoch":7,"successor":"b"}` when the leader has resigned |
//! | `members/<id>` | `{"rpc_address":"host:50051","epoch":7,"sequence":42,"history":"0f…"}`: where the member's journal ends, and of which history it is. It has a lease of etcd |
//! | `in-sync` | `{"epoch":7,"members":["a","b"],"history":"0f…","last_unclean":1}` |
//! | `progress` | `{"epoch":7,"marks":[[40,1000],[42,3000]],"common":41}`: changes that the leader had, and milliseconds of its term, and the last change that all members in sync had; written with each renewal |
//!
//! That is all: how much etcd stores depends on the number of members, not on the cache.
//!
//! A leader writes its key again every sixth of its lease, in a transaction that finds the key
//! unchanged. Another member takes over, in a transaction that finds the revision of the last
//! renewal unchanged, when a whole lease has passed by its own clock since it first saw that
//! renewal. So each member measures a time on its own clock, and the leader's authority, which
//! counts from before the renewal was sent, ends first. `in-sync` is written in a transaction that
//! finds the term's value in `leader`: a deposed leader changes nothing.
//!
//! The leader's key has no lease of etcd, because leases of etcd end early or late when etcd's own
//! leader was frozen: when it continues, it renews leases although it is deposed, and has its
//! successor end leases that were renewed there (etcd's issue 15247; Debian 12 has such a version).
//! Two members could lead then. Members' leases may end early: they come back. The price is one
//! write a second, whose history the members have etcd forget; see
//! [`EtcdConfig::with_history`].
//!
//! All this runs on a thread of its own, so that nothing else in the process delays a renewal.

mod find;
mod history;
mod keys;
mod registration;
mod shared;
mod sighting;
mod term;
mod watcher;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use super::LeaderElection;
use super::candidacy::Takeover;
use super::clock::{BootClock, Clock};
use super::error::ElectionError;
use super::leadership::Leadership;
use super::member::{ClusterView, Leader, Member, Standing};
use super::outage::ServiceOutage;
use crate::etcd::{Client, EtcdConfig};

pub use find::{MasterLookup, Masters, find_leader};

use keys::Keys;
use shared::{Context, Etcd};
use watcher::Known;

/// Time for ending the registration when an election is closed.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// One member's part in the election of a cluster. Dropping it ends the registration; a
/// [`Leadership`] outlives it.
#[derive(Debug)]
pub struct EtcdElection {
    context: Arc<Context>,
    registered: Mutex<Option<(Member, AbortHandle)>>,
    standing: watch::Sender<Standing>,
    view: watch::Receiver<Option<Arc<ClusterView>>>,
    leader: watch::Receiver<Option<Leader>>,
}

impl EtcdElection {
    /// Starts the thread of an election, which connects to etcd by itself. Reads the files of TLS.
    ///
    /// # Errors
    /// [`ElectionError::Tls`] and [`ElectionError::Thread`]. An etcd that cannot be reached is none:
    /// the calls fail.
    pub fn start(config: &EtcdConfig) -> Result<Self, ElectionError> {
        Self::start_with_clock(config, Arc::new(BootClock))
    }

    /// Starts as [`start`](Self::start), and measures leases by this clock.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with_clock(
        config: &EtcdConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ElectionError> {
        let thread = |source| ElectionError::Thread { source: Arc::new(source) };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(thread)?;
        let etcd = {
            let _entered = runtime.enter();
            Arc::new(Etcd {
                client: Client::new(config)?,
                keys: Keys::new(config.prefix()),
                clock,
                ttl: config.lease_ttl(),
                sighting: Mutex::new(None),
                highest: AtomicU64::new(0),
                registration: Mutex::new(None),
            })
        };
        let (open, closed) = oneshot::channel();
        let (view, leader) = (watch::Sender::new(None), watch::Sender::new(None));
        let election = Self {
            registered: Mutex::new(None),
            standing: watch::Sender::new(Standing::EMPTY),
            view: view.subscribe(),
            leader: leader.subscribe(),
            context: Arc::new(Context {
                etcd: Arc::clone(&etcd),
                runtime: runtime.handle().clone(),
                _open: open,
            }),
        };
        runtime.spawn(watcher::follow(Arc::clone(&etcd), view, leader));
        if let Some(history) = config.history() {
            runtime.spawn(history::compact(
                Arc::clone(&etcd),
                election.view.clone(),
                history,
                config.compacts_for_others(),
            ));
        }
        let run = move || {
            runtime.block_on(async {
                // Nothing is sent: the sender is dropped.
                let _ = closed.await;
                // What is not ended in time ends by itself.
                let _ = tokio::time::timeout(CLOSE_LIMIT, etcd.end_registration()).await;
            });
        };
        thread::Builder::new().name("election".into()).spawn(run).map_err(thread)?;
        Ok(election)
    }
}

#[async_trait]
impl LeaderElection for EtcdElection {
    async fn register(&self, member: Member, standing: Standing) -> Result<(), ElectionError> {
        self.standing.send_replace(standing);
        let (told, first) = oneshot::channel();
        let task = registration::keep(
            Arc::clone(&self.context.etcd),
            member.clone(),
            self.standing.subscribe(),
            self.view.clone(),
            told,
        );
        let task = self.context.runtime.spawn(task).abort_handle();
        if let Some((_, before)) = self.registered.lock().replace((member, task)) {
            before.abort();
        }
        first.await.unwrap_or(Err(ElectionError::Closed))
    }

    fn set_standing(&self, standing: Standing) {
        self.standing.send_if_modified(|there| std::mem::replace(there, standing) != standing);
    }

    fn standing(&self) -> Standing {
        *self.standing.borrow()
    }

    async fn campaign(&self, takeover: Takeover) -> Result<Leadership, ElectionError> {
        let member = self.registered.lock().as_ref().map(|(member, _)| member.clone());
        let member = member.ok_or(ElectionError::NotRegistered)?;
        let (context, standing) = (Arc::clone(&self.context), self.standing.subscribe());
        self.context.run(term::campaign(context, member, standing, takeover)).await
    }

    fn view(&self) -> watch::Receiver<Option<Arc<ClusterView>>> {
        self.view.clone()
    }

    fn leader(&self) -> watch::Receiver<Option<Leader>> {
        self.leader.clone()
    }

    async fn read(&self) -> Result<ClusterView, ElectionError> {
        let etcd = Arc::clone(&self.context.etcd);
        let read = async move {
            let read = etcd.client.range(etcd.keys.all()).await?;
            Ok(Known::read(read).view(&etcd.keys))
        };
        self.context.run(read).await
    }

    fn outage(&self) -> Option<ServiceOutage> {
        self.context.etcd.client.outage()
    }
}

impl Drop for EtcdElection {
    fn drop(&mut self) {
        if let Some((_, task)) = self.registered.lock().take() {
            task.abort();
        }
    }
}
