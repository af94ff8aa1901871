//! A master, assembled: the state machine, a server, and what lets time pass.

use std::net::{Ipv4Addr, SocketAddr};
#[cfg(unix)]
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mc_environment::{BootTime, Environment, System};
use mc_meta::{EffectSink, MasterConfig, MasterReport};
use mc_rpc::{
    Authenticate, C2cSettings, Clock, DurableWatch, History, MasterService, NodeLoads, Server,
    ServerConfig, ServerHandle, ServerWatch, StorageSettings, Streams,
};
use mc_ticket::{ClockEpoch, GrantSecret};
use mc_types::{BoxFuture, Time};

use crate::abort_on_drop::AbortOnDrop;
use crate::access_warnings::WarnsOfOpenings;
use crate::error::MasterStartError;
use crate::events::{EventPublisher, RunningEvents};
use crate::grpc::with_grpc;
use crate::ha::{
    Alone, HandOverError, JournalConfig, JournalWatch, Keeper, Keeping, Kept, LeaderSeat,
};
use crate::ticker::{STALLED_AFTER, Ticker, TickerWatch};

/// A running master: keeps the cluster's metadata and serves it.
#[derive(Debug)]
pub struct Master {
    state: Arc<mc_meta::Master>,
    history: Arc<History>,
    loads: Arc<NodeLoads>,
    server: ServerHandle,
    ticker: Ticker,
    stall_log: AbortOnDrop,
    events: Option<RunningEvents>,
    keeper: Option<Keeper>,
    environment: Arc<dyn Environment>,
    clock: SinceStart,
}

/// Time limit for sending the last events.
const EVENT_FLUSH: Duration = Duration::from_secs(1);

/// Describes a [`Master`].
#[must_use]
pub struct MasterBuilder {
    listen: SocketAddr,
    config: MasterConfig,
    server: ServerConfig,
    #[cfg(unix)]
    unix_socket: Option<PathBuf>,
    seed: Option<u64>,
    sinks: Vec<Box<dyn EffectSink>>,
    state: Option<mc_meta::Master>,
    durability: Option<DurableWatch>,
    c2c: Option<C2cSettings>,
    storage: StorageSettings,
    events: Option<EventPublisher>,
    keeping: Option<Keeping>,
    environment: Arc<dyn Environment>,
}

/// A master without its server.
struct Assembled {
    state: Arc<mc_meta::Master>,
    history: Arc<History>,
    loads: Arc<NodeLoads>,
    ticker: Ticker,
    access: Option<Arc<WarnsOfOpenings>>,
    events: Option<RunningEvents>,
    kept: Option<Kept>,
    environment: Arc<dyn Environment>,
    clock: SinceStart,
}

/// The assembled master, its RPC service, and the server's settings.
type Assembly = (Assembled, MasterService<SinceStart>, ServerConfig);

/// The time since the master started, by its environment's clock.
#[derive(Clone, Copy, Debug)]
struct SinceStart(BootTime);

impl Clock for SinceStart {
    fn now(&self) -> Time {
        Time::ORIGIN + self.0.clock().now().since(self.0)
    }
}

/// The parts that a master cannot work without.
#[derive(Debug)]
struct Parts {
    ticker: TickerWatch,
    journal: Option<JournalWatch>,
}

impl mc_rpc::Liveness for Parts {
    fn is_well(&self) -> bool {
        let writes = self.journal.as_ref().is_none_or(|journal| journal.trouble().is_none());
        self.ticker.is_well() && writes
    }
}

impl Master {
    /// Begins to describe a master. Without further words it listens on any port
    /// of the loopback address.
    pub fn builder() -> MasterBuilder {
        MasterBuilder {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            config: MasterConfig::default(),
            server: ServerConfig::default(),
            #[cfg(unix)]
            unix_socket: None,
            seed: None,
            sinks: Vec::new(),
            state: None,
            durability: None,
            c2c: None,
            storage: StorageSettings::default(),
            events: None,
            keeping: None,
            environment: Arc::new(System),
        }
    }

    /// Where clients reach it.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// The totals.
    #[must_use]
    pub fn report(&self) -> MasterReport {
        self.state.report()
    }

    /// Returns the clock whose times the [state](Self::state) is given: the time since this master started.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock)
    }

    /// Returns a watch of the server's counters.
    #[must_use]
    pub fn rpc_watch(&self) -> ServerWatch {
        self.server.watch()
    }

    /// The totals of the last hour.
    #[must_use]
    pub fn history(&self) -> &Arc<History> {
        &self.history
    }

    /// How busy and how fast nodes are, as they say themselves and of each other.
    #[must_use]
    pub fn loads(&self) -> &Arc<NodeLoads> {
        &self.loads
    }

    /// Takes connections of this process itself, such as those of another of its ports. They show the same
    /// credentials as others, and nothing of them crosses a network.
    #[must_use]
    pub fn streams(&self) -> &Streams {
        self.server.streams()
    }

    /// The state machine, for programs that serve it in another way, too.
    #[must_use]
    pub fn state(&self) -> &Arc<mc_meta::Master> {
        &self.state
    }

    /// Sees whether time passes for the state machine. A master whose ticker has
    /// [failed](TickerWatch::failed) neither expires nor evicts any more and should be ended.
    #[must_use]
    pub fn ticker_watch(&self) -> TickerWatch {
        self.ticker.watch()
    }

    /// The publisher of its [events](MasterBuilder::events): endpoints and statistics.
    #[must_use]
    pub fn events(&self) -> Option<&Arc<mc_events::EventSystem>> {
        self.events.as_ref().map(|events| &events.system)
    }

    /// Sees the state of its [journal](MasterBuilder::journal). A master whose journal has [given
    /// up](JournalWatch::gave_up) acknowledges nothing any more and should be ended.
    #[must_use]
    pub fn journal_watch(&self) -> Option<JournalWatch> {
        self.keeper.as_ref().map(Keeper::watch)
    }

    /// Returns what this master says of its [journal](MasterBuilder::journal) and its part among others.
    #[must_use]
    pub fn ha_report(&self) -> Option<Arc<dyn mc_rpc::HaReport>> {
        self.keeper.as_ref().map(Keeper::report)
    }

    /// Waits until the [term](MasterBuilder::lead) of this master is over, because it has handed over
    /// or lost its lease. It answers nothing any more then, and should be
    /// [ended](Self::shutdown). A master that is alone waits for ever.
    pub fn deposed<'a>(&'a self) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            match &self.keeper {
                Some(keeper) => keeper.over().await,
                None => std::future::pending().await,
            }
        })
    }

    /// Hands the [term](MasterBuilder::lead) over to the standby that has most of the journal, when one
    /// is in sync. Everything that was acknowledged is there before the term ends; calls that are under
    /// way meanwhile wait. For a master that does not lead there is nothing to do.
    ///
    /// # Errors
    /// The reason why the term goes on: no standby is in sync, or it did not get the rest in time.
    pub fn hand_over<'a>(&'a self) -> BoxFuture<'a, Result<(), HandOverError>> {
        Box::pin(async move {
            match &self.keeper {
                Some(keeper) => keeper.hand_over().await,
                None => Ok(()),
            }
        })
    }

    /// Answers the calls that are under way, takes no more, sends the events that are queued within a
    /// second, and ends.
    ///
    /// A leader ends its term at first, so that it answers nothing any more: another master may lead
    /// at once. What it acknowledged and no standby has yet may be lost then; it should
    /// [hand over](Self::hand_over) before.
    pub fn shutdown(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let mut keeper = self.keeper;
            let leads = keeper.as_mut().is_some_and(Keeper::end_term);
            if leads {
                self.server.close().await;
            } else {
                self.server.shutdown().await;
            }
            drop(self.stall_log);
            drop(self.ticker);
            if let Some(events) = self.events {
                events.system.shutdown(EVENT_FLUSH).await;
            }
            if let Some(keeper) = keeper {
                keeper.close().await;
                // A journal that is dropped may still write. A panic was reported when it happened.
                let _ = self.environment.blocking(move || drop(keeper)).await;
            }
        })
    }
}

impl MasterBuilder {
    /// Where to listen.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// How to keep objects.
    pub fn config(mut self, config: MasterConfig) -> Self {
        self.config = config;
        self
    }

    /// How to serve.
    pub fn server(mut self, config: ServerConfig) -> Self {
        self.server = config;
        self
    }

    /// A Unix socket to listen at too, which only this process's user may connect to.
    #[cfg(unix)]
    pub fn listen_unix(mut self, path: impl Into<PathBuf>) -> Self {
        self.unix_socket = Some(path.into());
        self
    }

    /// Makes placement and eviction repeatable. The default is drawn at random.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Adds a sink, which receives every change after the sinks that were added before.
    pub fn sink(mut self, sink: impl EffectSink + 'static) -> Self {
        self.sinks.push(Box::new(sink));
        self
    }

    /// Publishes what becomes of the objects, as one more [sink](Self::sink).
    pub fn events(mut self, publisher: EventPublisher) -> Self {
        self.events = Some(publisher);
        self
    }

    /// Holds the answer to every call that changed something until the journal, one of the
    /// [sinks](Self::sink), has made its effects durable; see
    /// [`MasterService::with_durability`](mc_rpc::MasterService::with_durability).
    pub fn durability(mut self, watch: DurableWatch) -> Self {
        self.durability = Some(watch);
        self
    }

    /// Keeps the metadata in a journal, and begins with what it holds: objects of a former life are
    /// there again when their clients are back. The settings may be others than the former
    /// master's, but for the memory allocator. It replaces [`state`](Self::state) and
    /// [`durability`](Self::durability).
    ///
    /// Starting takes about half a second for a million objects.
    pub fn journal(mut self, config: JournalConfig) -> Self {
        self.keeping = Some(Keeping::Alone(config));
        self
    }

    /// Leads a cluster of masters from the seat that a [`Standby`](crate::Standby) has won, with its
    /// state and its journal, as [`journal`](Self::journal) does, and in its
    /// [environment](crate::ClusterConfig::environment). The address to listen on is the standby's.
    pub fn lead(mut self, seat: LeaderSeat) -> Self {
        self.environment = Arc::clone(&seat.config.environment);
        self.keeping = Some(Keeping::Leader(Box::new(seat)));
        self
    }

    /// Has clients convert objects for other models by these rules. They are passed on as they are;
    /// `mc_c2c::C2cConfig::from_json` checks them.
    pub fn c2c(mut self, settings: C2cSettings) -> Self {
        self.c2c = Some(settings);
        self
    }

    /// Has clients keep a file of each object in a directory that all of them have mounted, or an object in a bucket. The
    /// [settings](Self::config) say how many bytes the files may take
    /// ([`MasterConfig::shared_tier`](mc_meta::MasterConfig::shared_tier)).
    pub fn storage(mut self, settings: StorageSettings) -> Self {
        self.storage = settings;
        self
    }

    /// The state machine to serve, in place of a new one that [`config`](Self::config) and
    /// [`seed`](Self::seed) describe: one rebuilt from records ([`mc_meta::Rebuild`]), or one with
    /// an eviction policy or allocation strategy of the caller's own. Its time goes on from
    /// [`Time::ORIGIN`] when the master starts. It gets a secret drawn at random unless it [has its
    /// own](mc_meta::Master::with_secret), which a rebuilt one needs if puts that were open are to
    /// end.
    ///
    /// ```
    /// use mc_evict::PolicyKind;
    /// use mc_server::{Master, MasterConfig};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let state = mc_meta::Master::new(MasterConfig::default(), 1)?
    ///     .with_eviction_policy(|| PolicyKind::Fifo.build());
    /// let master = Master::builder().state(state).start().await?;
    /// master.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn state(mut self, state: mc_meta::Master) -> Self {
        self.state = Some(state);
        self
    }

    /// Sets the master's surroundings: its clock, its randomness and the thread of its ticks. The
    /// default is [`System`]; [`Environment`] tells how to simulate a cluster.
    pub fn environment(mut self, environment: Arc<dyn Environment>) -> Self {
        self.environment = environment;
        self
    }

    /// Starts the master. Must be called in a tokio runtime, whose tasks then
    /// serve it.
    ///
    /// # Errors
    /// [`MasterStartError`]; nothing is left running then.
    pub fn start(mut self) -> BoxFuture<'static, Result<Master, MasterStartError>> {
        Box::pin(async move {
            let listen = self.listen.to_string();
            #[cfg(unix)]
            let unix_socket = self.unix_socket.take();
            let (assembled, service, config) = self.begin().await?;
            let server = Server::bind(&listen, service, config).await?;
            #[cfg(unix)]
            let server = match &unix_socket {
                Some(path) => server.listen_unix(path)?,
                None => server,
            };
            Ok(assembled.serve(server))
        })
    }

    /// [`start`](Self::start) of a master that listens nowhere: its connections are streams that are
    /// [handed in](Streams::hand_in), for a simulated network or one of the application's own.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (master, streams) = mc_server::Master::builder().start_over_streams().await?;
    /// let (_client, stream) = tokio::io::duplex(64 << 10);
    /// streams.hand_in(stream, "10.0.0.7:40000".parse()?)?;
    /// master.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_over_streams(
        self,
    ) -> BoxFuture<'static, Result<(Master, Streams), MasterStartError>> {
        Box::pin(async move {
            let (assembled, service, config) = self.begin().await?;
            let (server, streams) = Server::over_streams(service, config)?;
            Ok((assembled.serve(server), streams))
        })
    }

    /// Assembles it, where that may block if it reads a journal, and begins its term.
    async fn begin(self) -> Result<Assembly, MasterStartError> {
        if self.keeping.is_none() {
            return self.assemble();
        }
        let environment = Arc::clone(&self.environment);
        let assembly = environment.blocking(move || self.assemble()).completed().await?;
        if let Some(kept) = &assembly.0.kept {
            kept.begin().await.map_err(MasterStartError::Term)?;
        }
        Ok(assembly)
    }

    /// Makes the state machine: the journal's, the caller's or a new one, with its secret and all sinks but
    /// that of the events.
    fn make_state(&mut self) -> Result<(mc_meta::Master, Option<Kept>), MasterStartError> {
        let random = || self.environment.random_u128().map_err(MasterStartError::NoRandomness);
        let (state, kept) = match self.keeping.take() {
            Some(keeping) => {
                let opened = keeping.open(&self.config, self.seed, &self.environment);
                let (state, kept) = opened.map_err(MasterStartError::Journal)?;
                (Some(state), Some(kept))
            }
            None => (self.state.take(), None),
        };
        let config = std::mem::take(&mut self.config);
        let mut state = match (state, self.seed) {
            (Some(state), _) => state,
            (None, Some(seed)) => mc_meta::Master::new(config, seed)?,
            (None, None) => mc_meta::Master::new(config, random()? as u64)?,
        };
        if let Some(kept) = &kept {
            state = state.with_sink(kept.sink());
        }
        if !state.has_own_secret() {
            state = state.with_secret(GrantSecret::from_bytes(random()?.to_ne_bytes()));
        }
        for sink in self.sinks.drain(..) {
            state = state.with_sink(sink);
        }
        Ok((state, kept))
    }

    fn assemble(mut self) -> Result<Assembly, MasterStartError> {
        if self.storage.root.is_some() || self.storage.shared_tier.is_some() {
            self.config.shared_tier.get_or_insert_default();
        }
        let (mut state, mut kept) = self.make_state()?;
        let environment = self.environment;
        let tenants_apart = state.tenant_quotas().is_some();
        if let Some(publisher) = &self.events {
            state = state.with_sink(publisher.sink(tenants_apart));
        }
        let state = Arc::new(state);
        let events = self.events.map(|publisher| publisher.attach(&state));
        let start = environment.clock().now();
        let epoch = environment.random_u128().map_err(MasterStartError::NoRandomness)?;
        let history = Arc::new(History::default());
        history.note(SinceStart(start).now(), || state.report().totals);
        let mut service = MasterService::new(Arc::clone(&state), SinceStart(start))
            .with_clock_epoch(ClockEpoch::new(epoch as u64))
            .with_history(Arc::clone(&history))
            .with_ha(Arc::new(Alone(None)));
        let loads = Arc::clone(service.loads());
        if let Some(watch) = kept.as_ref().map(Kept::durability).or(self.durability) {
            service = service.with_durability(watch);
        }
        service = service.with_storage(self.storage);
        if let Some(settings) = self.c2c {
            service = service.with_c2c(settings);
        }
        let (ticked, noted) = (Arc::clone(&state), Arc::clone(&history));
        let tick = move || {
            let now = SinceStart(start).now();
            noted.note(now, || ticked.report().totals);
            ticked.tick(now)
        };
        let ticker = Ticker::start_in(&*environment, tick).map_err(MasterStartError::Thread)?;
        let mut config = self.server;
        if let Some(kept) = &mut kept {
            let now = move || SinceStart(start).now();
            let attended = kept.attend(&state, now, service, &mut config);
            service = attended.map_err(MasterStartError::Journal)?;
        }
        let parts = Parts { ticker: ticker.watch(), journal: kept.as_ref().map(Kept::watch) };
        config.liveness.get_or_insert_with(|| Arc::new(parts));
        config.environment.get_or_insert_with(|| Arc::clone(&environment));
        let access = config.authenticator.take();
        let access = access.map(|inner| Arc::new(WarnsOfOpenings::new(inner, tenants_apart)));
        config.authenticator = access.clone().map(|access| access as Arc<dyn Authenticate>);
        let clock = SinceStart(start);
        let assembled =
            Assembled { state, history, loads, ticker, access, events, kept, environment, clock };
        Ok((assembled, service, config))
    }
}

impl Assembled {
    fn serve(self, server: Server) -> Master {
        if let Some(access) = &self.access {
            access.warn();
        }
        let stall_log = AbortOnDrop(tokio::spawn(self.ticker.watch().log_stalls(STALLED_AFTER)));
        let keeper = self.kept.map(|kept| kept.serve(self.ticker.watch()));
        Master {
            state: self.state,
            history: self.history,
            loads: self.loads,
            server: with_grpc(server).spawn(),
            ticker: self.ticker,
            stall_log,
            events: self.events,
            keeper,
            environment: self.environment,
            clock: self.clock,
        }
    }
}
