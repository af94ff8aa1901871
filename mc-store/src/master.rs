//! A master, assembled: the state machine, a server, and a thread for what is due.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
#[cfg(unix)]
use std::path::PathBuf;
use std::sync::Arc;

use mc_meta::{EffectSink, MasterConfig, MasterReport};
use mc_rpc::{
    Authenticate, Clock, DurableWatch, MasterService, Server, ServerConfig, ServerHandle,
    ServerWatch, SystemClock,
};
use mc_ticket::GrantSecret;

use crate::access_warnings::WarnsOfOpenings;
use crate::error::MasterStartError;
use crate::ticker::{STALLED_AFTER, Ticker, TickerWatch};

/// A running master: keeps the cluster's metadata and serves it.
#[derive(Debug)]
pub struct Master {
    state: Arc<mc_meta::Master>,
    server: ServerHandle,
    ticker: Ticker,
    stall_log: AbortOnDrop,
}

/// Ends a task with the master.
#[derive(Debug)]
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

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

    /// What its server counts.
    #[must_use]
    pub fn rpc_watch(&self) -> ServerWatch {
        self.server.watch()
    }

    /// The state machine, for whoever serves it in another way too.
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

    /// Answers the calls that are under way, takes no more, and ends.
    pub async fn shutdown(self) {
        self.server.shutdown().await;
        drop(self.stall_log);
        drop(self.ticker);
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

    /// Holds the answer to every call that changed something until the journal, one of the
    /// [sinks](Self::sink), has made its effects durable; see
    /// [`MasterService::with_durability`](mc_rpc::MasterService::with_durability).
    pub fn durability(mut self, watch: DurableWatch) -> Self {
        self.durability = Some(watch);
        self
    }

    /// The state machine to serve, in place of a new one that [`config`](Self::config) and
    /// [`seed`](Self::seed) describe: one rebuilt from records ([`mc_meta::Rebuild`]), or one with
    /// an eviction policy or allocation strategy of the caller's own. Its times must be those of
    /// [`SystemClock`]. It gets a secret drawn at random unless it [has its
    /// own](mc_meta::Master::with_secret), which a rebuilt one needs if puts that were open are to
    /// end.
    ///
    /// ```
    /// use mc_evict::PolicyKind;
    /// use mc_store::{Master, MasterConfig};
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

    /// Starts the master. Must be called in a tokio runtime, whose tasks then
    /// serve it.
    ///
    /// # Errors
    /// [`MasterStartError`]; nothing is left running then.
    pub async fn start(self) -> Result<Master, MasterStartError> {
        let mut state = match self.state {
            Some(state) => state,
            None => mc_meta::Master::new(self.config, seed(self.seed)?)?,
        };
        if !state.has_own_secret() {
            state = state.with_secret(secret()?);
        }
        for sink in self.sinks {
            state = state.with_sink(sink);
        }
        let tenants_apart = state.tenant_quotas().is_some();
        let state = Arc::new(state);
        let clock = SystemClock::new();
        let service = MasterService::new(Arc::clone(&state), clock);
        let service = match self.durability {
            Some(watch) => service.with_durability(watch),
            None => service,
        };
        let ticked = Arc::clone(&state);
        let ticker =
            Ticker::start(move || ticked.tick(clock.now())).map_err(MasterStartError::Thread)?;
        let mut config = self.server;
        config.liveness.get_or_insert_with(|| Arc::new(ticker.watch()));
        let access = config.authenticator.take();
        let access = access.map(|inner| Arc::new(WarnsOfOpenings::new(inner, tenants_apart)));
        config.authenticator = access.clone().map(|access| access as Arc<dyn Authenticate>);
        let server = Server::bind(&self.listen.to_string(), service, config).await?;
        if let Some(access) = access {
            access.warn();
        }
        #[cfg(unix)]
        let server = match &self.unix_socket {
            Some(path) => server.listen_unix(path)?,
            None => server,
        };
        let stall_log = tokio::spawn(ticker.watch().log_stalls(STALLED_AFTER));
        let stall_log = AbortOnDrop(stall_log);
        Ok(Master { state, server: server.spawn(), ticker, stall_log })
    }
}

fn seed(given: Option<u64>) -> Result<u64, MasterStartError> {
    given.map_or_else(|| getrandom::u64().map_err(no_randomness), Ok)
}

fn secret() -> Result<GrantSecret, MasterStartError> {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret).map_err(no_randomness)?;
    Ok(GrantSecret::from_bytes(secret))
}

fn no_randomness(error: getrandom::Error) -> MasterStartError {
    MasterStartError::NoRandomness(io::Error::other(error))
}
