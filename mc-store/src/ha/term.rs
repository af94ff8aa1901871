//! A leader's term: what keeps it, and what ends it.

use std::sync::Arc;
use std::time::Duration;

use mc_ha::election::{Authority, ElectionError, Leadership, MemberId};
use mc_ha::replication::Hub;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use super::cluster::member_id;
use super::journal::JournalWatch;
use super::snapshots::SnapshotRequest;
use crate::abort_on_drop::AbortOnDrop;

/// How often it is looked which standbys are in sync.
const LOOK: Duration = Duration::from_millis(100);

/// The wait before they are recorded again after that failed.
const RETRY: Duration = Duration::from_secs(1);

/// How long a standby that is to take over may need to get the rest of the journal.
const CATCH_UP: Duration = Duration::from_secs(5);

/// How long the journal of a leader may fail before another one leads.
const FAILING: Duration = Duration::from_secs(3);

/// The term of a leader, as its server needs it.
#[derive(Debug)]
pub(crate) struct MayAnswer(pub(crate) Authority);

impl mc_rpc::Authority for MayAnswer {
    fn may_answer(&self) -> bool {
        self.0.is_valid()
    }
}

/// Gives the standbys the journal over the leader's port.
#[derive(Debug)]
pub(crate) struct JournalPort {
    pub(crate) hub: Arc<Hub>,
    pub(crate) snapshots: SnapshotRequest,
}

impl mc_rpc::TakeStream for JournalPort {
    fn take<'a>(
        &'a self,
        stream: Box<dyn mc_rpc::ByteStream>,
        peer: Option<std::net::SocketAddr>,
    ) -> mc_rpc::Taking<'a> {
        let hub = Arc::clone(&self.hub);
        Box::pin(async move {
            let snapshots = self.snapshots.clone();
            let Err(ended) = hub.serve(stream, move || snapshots.ask()).await else { return };
            info!(?peer, %ended, "a standby's stream has ended");
        })
    }
}

/// Keeps a term until it ends.
#[derive(Debug)]
pub(crate) struct RunningTerm {
    over: watch::Receiver<bool>,
    /// Aborting it drops the leadership, which ends the term.
    _task: AbortOnDrop,
}

impl RunningTerm {
    pub(crate) fn start(
        leadership: Leadership,
        hub: Arc<Hub>,
        journal: JournalWatch,
        wishes: mpsc::Receiver<Option<MemberId>>,
    ) -> Self {
        let (told, over) = watch::channel(false);
        let task = tokio::spawn(async move {
            keep(leadership, &hub, &journal, wishes).await;
            // Nobody listens when the master is gone.
            let _ = told.send(true);
        });
        Self { over, _task: AbortOnDrop(task) }
    }

    /// Waits until the term is over.
    pub(crate) async fn over(&self) {
        let mut over = self.over.clone();
        // It also ends when the task has gone.
        let _ = over.wait_for(|over| *over).await;
    }
}

async fn keep(
    leadership: Leadership,
    hub: &Hub,
    journal: &JournalWatch,
    mut wishes: mpsc::Receiver<Option<MemberId>>,
) {
    let authority = leadership.authority().clone();
    let epoch = leadership.epoch().as_u64();
    let mut in_sync = InSync::default();
    let mut timer = tokio::time::interval(LOOK);
    let mut failing_since = None;
    let wish = loop {
        tokio::select! {
            biased;
            () = authority.ended() => {
                warn!(epoch, "the term is over; this master leads no more");
                return;
            }
            wish = wishes.recv() => match wish {
                Some(wish) => break wish,
                None => return,
            },
            _ = timer.tick() => {}
        }
        let near = hub.in_sync();
        if !journal.is_failing() {
            failing_since = None;
        } else if failing_since.get_or_insert_with(Instant::now).elapsed() > FAILING
            && !near.is_empty()
        {
            warn!(epoch, "the journal cannot be written; another master is to lead");
            break None;
        }
        if let Err(error) = in_sync.follow(&leadership, hub, near).await {
            warn!(%error, "cannot record which standbys are in sync");
            timer.reset_after(RETRY);
        }
    };
    let to = wish.or_else(|| foremost(hub));
    let Some(to) = to else { return };
    info!(epoch, %to, "handing over");
    // It gets everything that is acknowledged from now on before it is acknowledged.
    let deadline = Instant::now() + CATCH_UP;
    let has_all =
        || hub.followers().iter().any(|follower| follower.id == to.as_str() && follower.lag == 0);
    while !has_all() && Instant::now() < deadline && authority.is_valid() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // A member may lead that is recorded as in sync, and may have become so since the last look.
    if let Err(error) = in_sync.follow(&leadership, hub, hub.in_sync()).await {
        warn!(%error, "cannot record which standbys are in sync");
    }
    if let Err(error) = leadership.resign(Some(&to)).await {
        warn!(%error, "the others could not be told; one of them leads when the lease is over");
    }
}

/// Which standbys are in sync, as acknowledgements and the election are told.
#[derive(Default)]
struct InSync {
    /// Those that acknowledgements wait for.
    counted: Vec<String>,
    /// Those that the election knows of: counted on all the time, and with everything that was
    /// acknowledged before they were. `None` before the first record.
    recorded: Option<Vec<String>>,
}

impl InSync {
    /// Brings both up to the standbys that are near now. One that has come near is counted on from
    /// now on, and is recorded by a later call if it still lacks something.
    async fn follow(
        &mut self,
        leadership: &Leadership,
        hub: &Hub,
        near: Vec<String>,
    ) -> Result<(), ElectionError> {
        if self.counted == near && self.recorded.as_ref() == Some(&near) {
            return Ok(());
        }
        let known = self.recorded.iter().flatten();
        self.counted = near.iter().chain(known).cloned().collect();
        hub.count_on(&self.counted);
        let complete: Vec<_> =
            near.iter().filter(|id| hub.has_all_acknowledged(id)).cloned().collect();
        if self.recorded.as_ref() != Some(&complete) {
            let members: Vec<MemberId> = complete.iter().filter_map(|id| member_id(id)).collect();
            leadership.set_in_sync(&members).await?;
            info!(standbys = %complete.join(", "), "standbys in sync");
            self.recorded = Some(complete);
        }
        hub.count_on(&near);
        self.counted = near;
        Ok(())
    }
}

/// The standby in sync that has most.
fn foremost(hub: &Hub) -> Option<MemberId> {
    let in_sync = hub.in_sync();
    let followers = hub.followers();
    let of_those = followers.iter().filter(|follower| in_sync.contains(&follower.id));
    of_those.max_by_key(|follower| follower.position).and_then(|follower| member_id(&follower.id))
}
