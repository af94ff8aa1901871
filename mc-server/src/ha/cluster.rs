//! One master among several: a standby that follows, and the seat of a leader.

use core::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mc_environment::{Environment, System};
use mc_ha::election::{
    Candidacy, CandidacySettings, ElectionError, Leader, LeaderElection, Leadership, Member,
    Standing, await_leadership,
};
use mc_ha::replication::{Applier, ApplierSettings, HubSettings, ReplicationError, follow};
use mc_ha::{JournalError, MetadataJournal, Position, RecoverError, Replica};
use mc_meta::MasterConfig;
use mc_rpc::{
    BindError, ClientConfig, HaReport, HaRole, JournalStream, RpcError, Server, ServerConfig,
    ServerHandle, Streams,
};
use mc_types::{BoxFuture, Epoch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

use super::journal::JournalConfig;
use super::status::Status;
use crate::abort_on_drop::AbortOnDrop;
use crate::grpc::with_grpc;

/// How a master takes part in a cluster of masters.
#[derive(Clone)]
#[non_exhaustive]
pub struct ClusterConfig {
    /// This master among the others.
    pub member: Member,
    /// How one of them is made the leader.
    pub election: Arc<dyn LeaderElection>,
    /// How patient this one is as a candidate.
    pub candidacy: CandidacySettings,
    /// This master's own journal.
    pub journal: JournalConfig,
    /// The standbys that must have a change before it is acknowledged.
    pub replication: HubSettings,
    /// How a standby connects to the leader: TLS and the token of an administrator.
    pub client: ClientConfig,
    /// The surroundings of this master, as a standby and as the leader. Its
    /// [`to_master`](Environment::to_master) connects to the leader.
    pub environment: Arc<dyn Environment>,
}

impl ClusterConfig {
    /// This member of that election, with the defaults.
    #[must_use]
    pub fn new(member: Member, election: Arc<dyn LeaderElection>, journal: JournalConfig) -> Self {
        let mut client = ClientConfig::default();
        client.connect_timeout = Duration::from_secs(1);
        let candidacy = CandidacySettings::default();
        let replication = HubSettings::default();
        let environment = Arc::new(System);
        Self { member, election, candidacy, journal, replication, client, environment }
    }
}

impl fmt::Debug for ClusterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterConfig").field("member", &self.member).finish_non_exhaustive()
    }
}

/// Why a standby cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StandbyError {
    /// Its journal cannot be read.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// Its address cannot be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The master cannot take part in the election.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// The thread that keeps the journal has panicked.
    #[error("the thread that keeps the journal has failed; please report this with the log")]
    Applier,
}

impl StandbyError {
    /// Returns whether the same may succeed later: the journal's medium failed, and may be mended.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Recover(error) if error.is_retryable())
    }
}

/// A master that follows the leader and waits for its own turn to lead.
///
/// It refuses calls and names the leader, answers administrators who ask for its state, and keeps the
/// leader's journal and the state that comes of it. Dropping it ends it.
#[derive(Debug)]
pub struct Standby {
    config: ClusterConfig,
    server: ServerHandle,
    status: Arc<Status>,
    applier: Arc<Applier>,
    following: AbortOnDrop,
    /// Registers this member, when the election service did not answer at the start.
    registration: Option<JoinSet<Result<(), ElectionError>>>,
}

/// The place of a leader, to be [taken](crate::MasterBuilder::lead) by a master.
pub struct LeaderSeat {
    pub(crate) config: ClusterConfig,
    pub(crate) leadership: Leadership,
    /// `None` for a journal that is new.
    pub(crate) replica: Option<Replica>,
    pub(crate) status: Arc<Status>,
}

impl fmt::Debug for LeaderSeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderSeat")
            .field("epoch", &self.leadership.epoch())
            .finish_non_exhaustive()
    }
}

impl LeaderSeat {
    /// The master's state in the cluster, for its pages.
    #[must_use]
    pub fn report(&self) -> Arc<dyn HaReport> {
        Arc::clone(&self.status) as Arc<dyn HaReport>
    }
}

/// The wait before a leader that could not be followed is tried again.
const RETRY: Duration = Duration::from_millis(200);

/// The longest wait before an election service is asked again that does not answer.
const MAX_RETRY: Duration = Duration::from_secs(2);

/// How long a leader without any object has to yield to a member with a journal of another history.
const YIELD: Duration = Duration::from_secs(5);

impl Standby {
    /// Registers as a member, reads the journal, listens and follows the leader. `master` are the
    /// settings with which this master is to lead. Must be called in a tokio runtime.
    ///
    /// An election service that does not answer is waited for beside this: the standby registers
    /// when it does, and says meanwhile what it waits for.
    ///
    /// # Errors
    /// [`StandbyError`]; nothing is left running then.
    pub fn start(
        config: ClusterConfig,
        master: MasterConfig,
        listen: SocketAddr,
        server: ServerConfig,
    ) -> BoxFuture<'static, Result<Self, StandbyError>> {
        Box::pin(async move {
            let prepared = Prepared::register(config, master).await?;
            let server = Server::bind(&listen.to_string(), prepared.service(), server).await?;
            Ok(prepared.serve(server))
        })
    }

    /// Starts as [`start`](Self::start) after a term of this member, which is registered still: it
    /// needs nothing from the election service, whose failure may have ended the term.
    ///
    /// # Errors
    /// As [`start`](Self::start), except for those of the election.
    pub fn start_after_term(
        config: ClusterConfig,
        master: MasterConfig,
        listen: SocketAddr,
        server: ServerConfig,
    ) -> BoxFuture<'static, Result<Self, StandbyError>> {
        Box::pin(async move {
            let prepared = Prepared::read(config, master).await?;
            let server = Server::bind(&listen.to_string(), prepared.service(), server).await?;
            Ok(prepared.serve(server))
        })
    }

    /// [`start`](Self::start)s a standby that listens nowhere: its connections are streams that are
    /// [handed in](Streams::hand_in), as those of
    /// [`MasterBuilder::start_over_streams`](crate::MasterBuilder::start_over_streams).
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_over_streams(
        config: ClusterConfig,
        master: MasterConfig,
        server: ServerConfig,
    ) -> BoxFuture<'static, Result<(Self, Streams), StandbyError>> {
        Box::pin(async move {
            let prepared = Prepared::register(config, master).await?;
            let (server, streams) = Server::over_streams(prepared.service(), server)?;
            Ok((prepared.serve(server), streams))
        })
    }

    /// Starts as [`start_over_streams`](Self::start_over_streams) after a term of this member, as
    /// [`start_after_term`](Self::start_after_term) does.
    ///
    /// # Errors
    /// As [`start_after_term`](Self::start_after_term).
    pub fn start_over_streams_after_term(
        config: ClusterConfig,
        master: MasterConfig,
        server: ServerConfig,
    ) -> BoxFuture<'static, Result<(Self, Streams), StandbyError>> {
        Box::pin(async move {
            let prepared = Prepared::read(config, master).await?;
            let (server, streams) = Server::over_streams(prepared.service(), server)?;
            Ok((prepared.serve(server), streams))
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Its state in the cluster.
    #[must_use]
    pub fn report(&self) -> Arc<dyn HaReport> {
        Arc::clone(&self.status) as Arc<dyn HaReport>
    }

    /// Waits until this member is the leader. Its port is free then, for the master that leads.
    /// Cancelling ends the standby.
    ///
    /// # Errors
    /// [`StandbyError::Election`] when it can take no further part in the election,
    /// [`StandbyError::Applier`] when its journal is kept no more.
    pub fn lead(self) -> BoxFuture<'static, Result<LeaderSeat, StandbyError>> {
        Box::pin(self.take_over())
    }

    async fn take_over(self) -> Result<LeaderSeat, StandbyError> {
        let Self { config, server, status, applier, following, registration } = self;
        let clock = config.environment.clock().now();
        let mut candidacy = Candidacy::new(config.member.id().clone(), config.candidacy);
        status.waits(candidacy.waits());
        if let Some(mut registration) = registration {
            match registration.join_next().await {
                Some(Ok(registered)) => registered?,
                // It panicked, or its runtime ends.
                Some(Err(_)) | None => return Err(ElectionError::Closed.into()),
            }
        }
        let leadership = tokio::select! {
            leadership = await_leadership(&*config.election, &mut candidacy, &clock) => leadership?,
            () = applier.ended() => return Err(StandbyError::Applier),
        };
        info!(epoch = leadership.epoch().as_u64(), "elected; taking over");
        status.becomes(HaRole::Recovering, Some(leadership.epoch()));
        drop(following);
        // The task that followed lets its share go when it is next polled.
        let mut applier = applier;
        let applier = loop {
            match Arc::try_unwrap(applier) {
                Ok(applier) => break applier,
                Err(shared) => {
                    tokio::task::yield_now().await;
                    applier = shared;
                }
            }
        };
        let mut replica = applier.close().await.map_err(|_| StandbyError::Applier)?;
        if let Some(replica) = &mut replica
            && follows_directly(&leadership, replica.position())
        {
            replica.trust_leases();
        }
        server.close().await;
        Ok(LeaderSeat { config, leadership, replica, status })
    }
}

/// Returns whether no other master can have led between the one that the journal is of and this term.
fn follows_directly(leadership: &Leadership, position: Position) -> bool {
    let (epoch, last_unclean) = (leadership.epoch(), leadership.last_unclean());
    last_unclean < epoch && position.epoch.as_u64() + 1 == epoch.as_u64()
}

/// A standby that neither listens nor follows yet.
struct Prepared {
    config: ClusterConfig,
    status: Arc<Status>,
    applier: Arc<Applier>,
    /// Registers it, when the election service did not answer at once.
    registration: Option<JoinSet<Result<(), ElectionError>>>,
}

impl Prepared {
    /// Registers as a member, and reads the journal.
    ///
    /// In this order: members whose journals hold nothing do not lead while one is there whose does,
    /// however long it reads.
    async fn register(config: ClusterConfig, master: MasterConfig) -> Result<Self, StandbyError> {
        let journal = Arc::clone(&config.journal.journal);
        let look = move || standing_of(&*journal);
        let standing = config.environment.blocking(look).completed().await;
        let standing = standing.map_err(RecoverError::Journal)?;
        let election = &config.election;
        let registration = match election.register(config.member.clone(), standing).await {
            Ok(()) => None,
            Err(error) if error.is_retryable() => {
                warn!(%error, "waiting for the election service; no master leads without it");
                let mut registration = JoinSet::new();
                registration.spawn(register_later(Arc::clone(election), config.member.clone()));
                Some(registration)
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self { registration, ..Self::read(config, master).await? })
    }

    /// Reads the journal.
    async fn read(config: ClusterConfig, master: MasterConfig) -> Result<Self, RecoverError> {
        let JournalConfig { journal, threads, snapshots, .. } = config.journal.clone();
        let mut settings = ApplierSettings::default();
        (settings.threads, settings.snapshots) = (threads, snapshots);
        let environment = Arc::clone(&config.environment);
        let read = move || Applier::start_in(&*environment, journal, master, settings);
        let applier = Arc::new(config.environment.blocking(read).completed().await?);
        let (member, election) = (config.member.clone(), Arc::clone(&config.election));
        let durability = config.journal.writer.durability;
        let status = Arc::new(Status::standby(member, election, durability, &applier));
        Ok(Self { config, status, applier, registration: None })
    }

    fn service(&self) -> mc_rpc::Standby {
        mc_rpc::Standby::new(Arc::clone(&self.status) as Arc<dyn HaReport>)
    }

    /// Serves and follows the leader, as a member that is registered.
    fn serve(self, server: Server) -> Standby {
        let server = with_grpc(server).spawn();
        let (member, standing) = (&self.config.member, standing(&self.applier));
        self.config.election.set_standing(standing);
        let position = standing.position;
        info!(member = %member.id(), address = member.rpc_address(), %position, "waiting as a standby");
        let Self { config, status, applier, registration } = self;
        let following = tokio::spawn(follow_leaders(config.clone(), Arc::clone(&applier)));
        let following = AbortOnDrop(following);
        Standby { config, server, status, applier, following, registration }
    }
}

/// Registers as soon as the election service answers.
async fn register_later(
    election: Arc<dyn LeaderElection>,
    member: Member,
) -> Result<(), ElectionError> {
    let mut pause = RETRY;
    loop {
        tokio::time::sleep(pause).await;
        match election.register(member.clone(), election.standing()).await {
            Ok(()) => {
                info!(member = %member.id(), "the election service answers; registered");
                return Ok(());
            }
            Err(error) if error.is_retryable() => pause = (2 * pause).min(MAX_RETRY),
            Err(error) => return Err(error),
        }
    }
}

fn standing(applier: &Applier) -> Standing {
    let state = applier.state();
    let state = state.borrow();
    Standing { position: state.durable, history: state.history }
}

fn standing_of(journal: &dyn MetadataJournal) -> Result<Standing, JournalError> {
    let Some(position) = journal.last() else { return Ok(Standing::EMPTY) };
    let history = journal.identity()?.map(|identity| identity.history());
    Ok(Standing { position, history })
}

/// Follows one leader after the other, for ever.
async fn follow_leaders(config: ClusterConfig, applier: Arc<Applier>) {
    // At each change: when no master leads, the standing decides what this member may do.
    let tell = async {
        let mut state = applier.state();
        while state.changed().await.is_ok() {
            config.election.set_standing(standing(&applier));
        }
    };
    let mut following = Following { config: &config, applier: &applier, told: None, refused: None };
    tokio::join!(tell, following.follow());
}

/// A standby's knowledge of the leaders that it follows.
struct Following<'a> {
    config: &'a ClusterConfig,
    applier: &'a Applier,
    /// Why it was not possible last, as the log says.
    told: Option<String>,
    /// The term whose history is another one, and since when that is known.
    refused: Option<(Epoch, Instant)>,
}

impl Following<'_> {
    async fn follow(&mut self) {
        let me = self.config.member.id();
        let mut leader = self.config.election.leader();
        loop {
            let now = leader.borrow_and_update().clone();
            let changed = match now {
                Some(now) if now.member.id() != me => {
                    let failure = tokio::select! {
                        biased;
                        changed = leader.changed() => Err(changed),
                        failure = follow_one(self.config, &now, self.applier) => Ok(failure),
                    };
                    match failure {
                        Err(changed) => changed,
                        Ok(failure) => {
                            self.note(&now, &failure).await;
                            tokio::time::sleep(RETRY).await;
                            continue;
                        }
                    }
                }
                _ => leader.changed().await,
            };
            if changed.is_err() {
                // The election has ended, and with it this member's part.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Tells why a leader cannot be followed. One that goes on leading with another history than the
    /// journal's is followed after the journal was set aside.
    async fn note(&mut self, leader: &Leader, failure: &FollowError) {
        let text = failure.to_string();
        if self.told.as_ref() != Some(&text) {
            warn!(
                leader = leader.member.rpc_address(),
                failure = text,
                "cannot follow the leader's journal; retrying"
            );
            self.told = Some(text);
        }
        if !failure.is_of_other_history() {
            self.refused = None;
            return;
        }
        let since = match self.refused {
            Some((epoch, since)) if epoch == leader.epoch => since,
            _ => Instant::now(),
        };
        self.refused = Some((leader.epoch, since));
        if since.elapsed() < YIELD {
            return;
        }
        match self.applier.set_aside().await {
            Ok(aside) => warn!(
                aside = aside
                    .map_or_else(|| "lost with the memory".into(), |at| at.display().to_string()),
                leader = leader.member.rpc_address(),
                "the leader has another history than this master's journal, and objects of its own; the \
                 journal was set aside, to be started as a master's --metadata_dir or removed"
            ),
            Err(error) => warn!(%error, "the journal cannot be set aside"),
        }
    }
}

/// Why a leader is not followed any more.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Connect(#[from] RpcError),
    #[error(transparent)]
    Replication(#[from] ReplicationError),
}

impl FollowError {
    fn is_of_other_history(&self) -> bool {
        match self {
            Self::Replication(ReplicationError::Applier(failure)) => {
                matches!(**failure, ReplicationError::OtherHistory { .. })
            }
            _ => false,
        }
    }
}

/// Follows this leader until that fails.
async fn follow_one(config: &ClusterConfig, leader: &Leader, applier: &Applier) -> FollowError {
    let address = leader.member.rpc_address();
    let mut client = config.client.clone();
    if let Some(network) = config.environment.to_master() {
        client.environment(network);
    }
    let stream = match JournalStream::connect(address, client).await {
        Ok(stream) => stream,
        Err(error) => return error.into(),
    };
    info!(leader = address, epoch = leader.epoch.as_u64(), "following the leader's journal");
    match follow(stream.stream, config.member.id().as_str(), applier).await {
        Ok(never) => match never {},
        Err(error) => error.into(),
    }
}
