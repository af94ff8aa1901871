//! An engine that runs: its node, its memory, and its peers.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mc_store::blocking::{GivenUp, unless};
use mc_tls::ServerTls;
use mc_transport::{Access, Node, Transport as _};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio::time::{timeout, timeout_at};

use super::batches::{Batches, Progress};
use super::error::EngineError;
use super::notifies::Inbox;
use super::peer::{Greeting, Peer, Peers};
use super::protocol::{Hello, Instance, MAX_TEXT, Notify};
use super::regions::{Closing, Regions};
use super::server::Server;
use super::settings::Settings;
use super::transfer::{Pair, Transfer, Work};
use crate::interrupt::is_interrupted;
use crate::store::exit::ShutDown;
use crate::threads::Threads;

/// Threads that serve peers and carry asynchronous transfers out.
const THREADS: usize = 2;

/// Time limit of a call that closes memory for the operations that use it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// The time between two looks whether a signal ends such a call.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// Time limit of each step of a shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The time between two looks whether the files of certificates were renewed.
const CERTIFICATES_INTERVAL: Duration = Duration::from_secs(60);

/// See the module. Every method blocks: the interpreter must be released.
pub(super) struct Engine {
    node: Arc<Node>,
    regions: Arc<Regions>,
    peers: Peers,
    batches: Batches,
    inbox: Arc<Inbox>,
    port: u16,
    timeout: Duration,
    server: AbortHandle,
    threads: Threads,
}

impl Engine {
    /// Starts an engine.
    pub(super) fn start(settings: &Settings) -> Result<Self, EngineError> {
        let threads = Threads::start(THREADS, "mc-engine").map_err(EngineError::Threads)?;
        let started = threads.block_on(unless(is_interrupted, Self::start_in(&threads, settings)));
        let engine = started.unwrap_or(Err(EngineError::Interrupted))?;
        Ok(Self { threads, ..engine })
    }

    async fn start_in(threads: &Threads, settings: &Settings) -> Result<Self, EngineError> {
        let config = settings.node_config()?;
        // The node's own settings: what encrypts the bytes encrypts the requests, too.
        let tls = config.tcp.tls.clone();
        for certificates in config.certificates() {
            threads.spawn(check_certificates(certificates));
        }
        let listener = listen(settings).await?;
        let port = listener.local_addr().map_err(|source| settings.not_listening(source))?.port();
        let node = Arc::new(Node::start(config).await?);
        let endpoint = node.endpoint().expect("the node was told to accept peers").clone();
        let hello = Hello { instance: random_instance()? };
        let (regions, inbox) = (Arc::<Regions>::default(), Arc::<Inbox>::default());
        let server = Server {
            hello,
            endpoint,
            regions: Arc::clone(&regions),
            inbox: Arc::clone(&inbox),
            tls: tls.as_ref().and_then(|tls| tls.server.clone()),
        };
        let server = threads.spawn(Arc::new(server).run(listener)).abort_handle();
        let peers = Peers::new(Greeting { hello, tls: tls.map(|tls| tls.client) });
        let (batches, timeout) = (Batches::default(), settings.timeout);
        Ok(Self {
            node,
            regions,
            peers,
            batches,
            inbox,
            port,
            timeout,
            server,
            threads: Threads::default(),
        })
    }

    /// The port of the session that peers name.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Waits for `work` unless a signal's handler raises.
    fn wait<T>(
        &self,
        work: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        let waited = self.threads.block_on(unless(is_interrupted, work));
        waited.unwrap_or_else(|GivenUp| Err(EngineError::Interrupted))
    }

    /// Opens memory of the caller's, which must stay mapped until [`close`](Self::close) has
    /// succeeded.
    pub(super) fn open(&self, address: usize, len: usize) -> Result<(), EngineError> {
        self.regions.open(&self.node, address, len)
    }

    /// Opens several pieces of memory, or none.
    pub(super) fn open_all(&self, list: &[(usize, usize)]) -> Result<(), EngineError> {
        for (count, &(address, len)) in list.iter().enumerate() {
            if let Err(error) = self.open(address, len) {
                let opened: Vec<_> = list[..count].iter().map(|&(address, _)| address).collect();
                if let Err(left) = self.close_all(&opened) {
                    left.logged();
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Allocates memory, opens it, and returns its address.
    pub(super) fn allocate(&self, len: usize) -> Result<usize, EngineError> {
        self.regions.allocate(&self.node, len)
    }

    /// Closes memory of the caller's. When that succeeds no transfer uses it any more.
    pub(super) fn close(&self, address: usize) -> Result<(), EngineError> {
        self.close_all(&[address])
    }

    /// Closes several pieces of memory. Returns the first failure, after all of them.
    pub(super) fn close_all(&self, addresses: &[usize]) -> Result<(), EngineError> {
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        // All are closed before the first is waited for, so that an interrupt leaves none open.
        let closing: Vec<_> = addresses.iter().map(|&one| self.regions.close(one)).collect();
        let mut outcome = Ok(());
        for closing in closing {
            let settled = closing.and_then(|closing| self.settle(&closing, deadline));
            if matches!(settled, Err(EngineError::Interrupted)) {
                return settled;
            }
            outcome = outcome.and(settled);
        }
        outcome
    }

    /// Frees memory that the engine has allocated, once no transfer uses it.
    pub(super) fn free(&self, address: usize) -> Result<(), EngineError> {
        self.settle(&self.regions.close_managed(address)?, Instant::now() + CLOSE_TIMEOUT)
    }

    /// Waits until nothing uses memory that was closed. A call that fails may be repeated.
    fn settle(&self, closing: &Arc<Closing>, deadline: Instant) -> Result<(), EngineError> {
        let still_used = || EngineError::StillUsed { address: closing.address() };
        self.wait(async {
            let withdrawn = timeout_at(deadline.into(), closing.withdrawn()).await;
            withdrawn.map_err(|_| still_used())
        })?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if closing.settled_within(left.min(SIGNAL_INTERVAL)) {
                self.regions.forget(closing);
                return Ok(());
            }
            if is_interrupted() {
                return Err(EngineError::Interrupted);
            }
            if left.is_zero() {
                return Err(still_used());
            }
        }
    }

    /// Transfers bytes and, if that succeeds, hands `notify` over.
    pub(super) fn transfer(
        &self,
        session: &str,
        access: Access,
        pairs: &[Pair],
        notify: Option<Notify>,
    ) -> Result<(), EngineError> {
        if let Some(len) = notify.as_ref().and_then(Notify::excess) {
            return Err(EngineError::NotifyTooLong { len, max: MAX_TEXT });
        }
        let work = Work::new(access, pairs, &self.regions.lookup())?.stage()?;
        let peer = self.peers.find(session)?;
        self.wait(async {
            self.transfer_with(&peer).run(&work).await?;
            match notify {
                Some(notify) => peer.notify(notify).await,
                None => Ok(()),
            }
        })
    }

    fn transfer_with<'a>(&'a self, peer: &'a Peer) -> Transfer<'a> {
        Transfer { node: &self.node, peer, timeout: self.timeout }
    }

    /// Starts a transfer and returns its number. Asks a new peer for its memory first.
    pub(super) fn submit(
        self: &Arc<Self>,
        session: &str,
        access: Access,
        pairs: &[Pair],
    ) -> Result<u64, EngineError> {
        let work = Work::new(access, pairs, &self.regions.lookup())?.stage()?;
        let peer = self.peers.find(session)?;
        if peer.known().is_none() {
            self.wait(peer.describe())?;
        }
        let (node, timeout) = (Arc::clone(&self.node), self.timeout);
        self.batches.add(|progress| {
            let task = async move {
                let outcome = Transfer { node: &node, peer: &peer, timeout }.run(&work).await;
                // The memory is left alone before the program learns of the end.
                drop(work);
                if let Err(error) = &outcome {
                    error.logged();
                }
                // Fails if the program has forgotten the transfer.
                let _ = progress.send(Progress::of(&outcome));
            };
            self.threads.spawn(task).abort_handle()
        })
    }

    /// The state of a transfer that was submitted.
    pub(super) fn progress(&self, id: u64) -> Progress {
        self.batches.progress(id)
    }

    /// Waits for transfers, and forgets them. Returns whether all have succeeded.
    pub(super) fn wait_for(&self, ids: &[u64]) -> Result<bool, EngineError> {
        let all_done = self.wait(async {
            let mut all_done = true;
            for &id in ids {
                all_done &= self.batches.wait(id).await == Progress::Done;
            }
            Ok(all_done)
        })?;
        self.batches.forget(ids);
        Ok(all_done)
    }

    /// Forgets transfers.
    pub(super) fn forget(&self, ids: &[u64]) {
        self.batches.forget(ids);
    }

    /// Takes the notifies that have come.
    pub(super) fn take_notifies(&self) -> impl Iterator<Item = Notify> {
        self.inbox.take().into_iter()
    }

    /// Returns the address of the memory that the peer registered first; `None` if it has none.
    pub(super) fn first_address(&self, session: &str) -> Result<Option<u64>, EngineError> {
        let peer = self.peers.find(session)?;
        Ok(self.wait(peer.describe())?.ranges.first())
    }

    /// Asks a peer for a sign of life.
    pub(super) fn probe(&self, session: &str) -> Result<(), EngineError> {
        let peer = self.peers.find(session)?;
        self.wait(peer.probe())
    }

    /// Connects to a peer, so that the first transfer need not.
    pub(super) fn warm_up(&self, session: &str) -> Result<(), EngineError> {
        let peer = self.peers.find(session)?;
        self.wait(async {
            let known = peer.describe().await?;
            let session = session.into();
            let connected = self.node.connect(&known.endpoint).await;
            connected.map(drop).map_err(|source| EngineError::Connect { session, source })
        })
    }
}

impl ShutDown for Engine {
    /// Closes all memory and ends all transfers. Afterwards the memory may be freed, which is
    /// logged where it is not so.
    fn shut_down(&self) {
        self.server.abort();
        self.batches.abort_all();
        let closing = self.regions.close_all();
        let is_withdrawn = self.threads.block_on(async {
            let withdrawn = async {
                for closing in &closing {
                    closing.withdrawn().await;
                }
            };
            let is_withdrawn = timeout(SHUTDOWN_TIMEOUT, withdrawn).await.is_ok();
            let _ = timeout(SHUTDOWN_TIMEOUT, self.node.shutdown()).await;
            is_withdrawn
        });
        // One look at each: the links that could use the memory are gone.
        let is_settled =
            is_withdrawn && closing.iter().all(|closing| closing.settled_within(Duration::ZERO));
        if !is_settled {
            tracing::warn!("a transfer still uses memory that was registered; do not free it");
        }
    }
}

async fn listen(settings: &Settings) -> Result<TcpListener, EngineError> {
    let Settings { bind, port, any_port_will_do, .. } = *settings;
    let bound = if any_port_will_do {
        match TcpListener::bind((bind, port)).await {
            Err(error) if port != 0 => {
                tracing::warn!("port {port} cannot be used ({error}); another one is");
                TcpListener::bind((bind, 0)).await
            }
            bound => bound,
        }
    } else {
        mc_net::listen((bind, port)).await
    };
    bound.map_err(|source| settings.not_listening(source))
}

async fn check_certificates(certificates: Arc<ServerTls>) {
    loop {
        tokio::time::sleep(CERTIFICATES_INTERVAL).await;
        let certificates = Arc::clone(&certificates);
        // Reads files. It fails when the runtime ends.
        let _ = tokio::task::spawn_blocking(move || certificates.check()).await;
    }
}

fn random_instance() -> Result<Instance, EngineError> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|error| EngineError::NoRandomness(error.into()))?;
    Ok(Instance(bits))
}
