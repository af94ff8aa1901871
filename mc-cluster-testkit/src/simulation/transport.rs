//! The data path: memory of this process behind delays, lost links and late bytes.

use std::collections::BTreeMap;
use std::fmt;
use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use mc_transport::{
    Access, Capabilities, Completion, Completions, ConnectError, FabricError, Link, LinkId,
    MemFabric, MemLink, MemTransport, Memory, Operation, Outcome, Region, RegionTable,
    RegisterError, RemoteSpan, Staging, Tickets, TransferError, Transport,
};
use mc_types::{Endpoint, RemoteKey};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use super::landing::{Landing, bytes_of};
use super::ledger::{Ledger, Owner};
use super::network::{Ending, Network, Process};
use super::random::Random;

/// How long a link waits for its peer before it counts as lost, as the transport over TCP does.
const STALL: Duration = Duration::from_secs(5);

/// The memories that can be reached over a network.
pub struct Fabric {
    memory: MemFabric,
    network: Arc<Network>,
    ledger: Arc<Ledger>,
    peers: Mutex<BTreeMap<String, Peer>>,
}

/// A process whose memory can be reached.
#[derive(Clone)]
struct Peer {
    process: Process,
    regions: RegionTable,
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric").finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fabric {
    /// Memories that are reached over `network`; `ledger` sees each write.
    #[must_use]
    pub fn new(network: &Arc<Network>, ledger: &Arc<Ledger>) -> Arc<Self> {
        Arc::new(Self {
            memory: MemFabric::new(),
            network: Arc::clone(network),
            ledger: Arc::clone(ledger),
            peers: Mutex::default(),
        })
    }

    /// Adds the memory of `process` under `name`, which no process had before it.
    ///
    /// # Errors
    /// [`FabricError`] when the name is taken or cannot stand in an endpoint.
    pub fn transport(
        self: &Arc<Self>,
        name: &str,
        process: &Process,
        random: &Random,
    ) -> Result<SimulatedTransport, FabricError> {
        let keys = random.fork();
        let regions = RegionTable::with_keys(move || RemoteKey::from_bytes(keys.bytes()));
        let inner = self.memory.transport_with(name, regions.clone())?;
        let peer = Peer { process: process.clone(), regions };
        locked(&self.peers).insert(name.to_owned(), peer);
        Ok(SimulatedTransport {
            inner,
            process: process.clone(),
            fabric: Arc::clone(self),
            links: Mutex::default(),
        })
    }
}

/// The memory of one process, and its links to others.
pub struct SimulatedTransport {
    inner: MemTransport,
    process: Process,
    fabric: Arc<Fabric>,
    links: Mutex<BTreeMap<String, Weak<SimulatedLink>>>,
}

impl fmt::Debug for SimulatedTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedTransport").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Transport for SimulatedTransport {
    type Link = SimulatedLink;

    fn scheme(&self) -> &'static str {
        self.inner.scheme()
    }

    fn endpoint(&self) -> Option<&Endpoint> {
        self.inner.endpoint()
    }

    fn register(&self, memory: &Memory, access: Access) -> Result<Region, RegisterError> {
        self.inner.register(memory, access)
    }

    fn register_with_tickets(
        &self,
        memory: &Memory,
        access: Access,
        tickets: Tickets,
    ) -> Result<Region, RegisterError> {
        self.inner.register_with_tickets(memory, access, tickets)
    }

    fn register_again(
        &self,
        memory: &Memory,
        access: Access,
        tickets: Option<Tickets>,
        key: RemoteKey,
    ) -> Result<Region, RegisterError> {
        self.inner.register_again(memory, access, tickets, key)
    }

    fn register_staged(
        &self,
        memory: &Staging,
        access: Access,
        tickets: Option<Tickets>,
    ) -> Result<Region, RegisterError> {
        self.inner.register_staged(memory, access, tickets)
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Arc<SimulatedLink>, ConnectError> {
        let open = locked(&self.links).get(endpoint.address()).and_then(Weak::upgrade);
        if let Some(link) = open.filter(|link| link.is_healthy()) {
            return Ok(link);
        }
        let unreachable = |kind: io::ErrorKind| ConnectError::Unreachable {
            endpoint: endpoint.clone(),
            source: Arc::new(kind.into()),
        };
        let network = &self.fabric.network;
        let peer = locked(&self.fabric.peers).get(endpoint.address()).cloned();
        let peer = peer.ok_or_else(|| unreachable(io::ErrorKind::ConnectionRefused))?;
        let Peer { process: peer, regions } = peer;
        sleep_until(peer.runs_at(network.arrival(&self.process, &peer))).await;
        let inner = match peer.ended() {
            // As the caller's time-out of the connection.
            Some(Ending::PowerLost) => {
                sleep(STALL).await;
                return Err(unreachable(io::ErrorKind::TimedOut));
            }
            Some(Ending::Killed) => return Err(unreachable(io::ErrorKind::ConnectionRefused)),
            None => self.inner.connect(endpoint).await?,
        };
        if network.breaks() {
            return Err(unreachable(io::ErrorKind::ConnectionReset));
        }
        sleep_until(network.arrival(&peer, &self.process)).await;
        let is_lost = Arc::new(AtomicBool::new(false));
        let id = LinkId::from_bytes(network.random().bytes());
        let landing = Landing {
            regions,
            peer: peer.clone(),
            network: Arc::clone(network),
            ledger: Arc::clone(&self.fabric.ledger),
            link: id,
            is_lost: Arc::clone(&is_lost),
        };
        let carrier = Carrier {
            inner,
            landing,
            own: self.process.clone(),
            peer,
            fabric: Arc::clone(&self.fabric),
            id,
            is_lost,
            on_lost: Notify::new(),
            last: Mutex::new(Instant::now()),
        };
        let link = Arc::new(SimulatedLink(Arc::new(carrier)));
        let mut links = locked(&self.links);
        links.retain(|_, link| link.strong_count() > 0);
        links.insert(endpoint.address().to_owned(), Arc::downgrade(&link));
        Ok(link)
    }
}

/// A link of a [`SimulatedTransport`].
pub struct SimulatedLink(Arc<Carrier>);

struct Carrier {
    inner: Arc<MemLink>,
    landing: Landing,
    own: Process,
    peer: Process,
    fabric: Arc<Fabric>,
    id: LinkId,
    is_lost: Arc<AtomicBool>,
    on_lost: Notify,
    /// When the last operation arrives: none overtakes it.
    last: Mutex<Instant>,
}

impl Link for SimulatedLink {
    fn submit(&self, batch: Vec<Operation>) -> Completions {
        let (to_complete, completions) = Completions::pending(batch.len());
        let carrier = Arc::clone(&self.0);
        let network = &carrier.fabric.network;
        let mut last = locked(&carrier.last);
        let work: Vec<_> = to_complete
            .zip(batch)
            .map(|(completion, operation)| {
                *last = (*last).max(network.arrival(&carrier.own, &carrier.peer));
                let owner = carrier.owner(&operation);
                Carried { completion, operation, arrives: *last, owner }
            })
            .collect();
        drop(last);
        tokio::spawn(async move {
            let give_up = Instant::now() + STALL;
            for carried in work {
                carrier.carry(carried, give_up).await;
            }
        });
        completions
    }

    fn is_healthy(&self) -> bool {
        !self.0.is_lost.load(Relaxed) && self.0.inner.is_healthy()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(u64::MAX);
        (capabilities.tickets, capabilities.cancels) = (true, true);
        capabilities
    }

    fn id(&self) -> Option<LinkId> {
        Some(self.0.id)
    }

    fn fence(&self, lost: LinkId) -> Completions {
        let (mut to_complete, completions) = Completions::pending(1);
        let carrier = Arc::clone(&self.0);
        let completion = to_complete.next().expect("one was asked for");
        tokio::spawn(async move {
            let network = &carrier.fabric.network;
            let give_up = Instant::now() + STALL;
            let arrives = network.arrival(&carrier.own, &carrier.peer);
            let outcome = match carrier.reach(arrives, give_up).await {
                Ok(()) => {
                    carrier.peer.fence(lost);
                    let back = network.arrival(&carrier.peer, &carrier.own);
                    carrier.answer(back, give_up).await.map(|()| Default::default())
                }
                Err(error) => Err(error),
            };
            completion.complete(outcome);
        });
        completions
    }
}

struct Carried {
    completion: Completion,
    operation: Operation,
    arrives: Instant,
    /// The owner of the write's place when the write was submitted.
    owner: Option<Owner>,
}

impl Carrier {
    /// Carries an operation to the peer and its outcome back.
    async fn carry(&self, carried: Carried, give_up: Instant) {
        let Carried { completion, operation, arrives, owner } = carried;
        let network = &self.fabric.network;
        if let Err(lost) = self.reach(arrives, give_up).await {
            self.may_arrive_late(&operation, owner);
            return completion.complete(Err(lost));
        }
        let late = network.late_by().map(|by| (by, operation.clone()));
        if let (Some((by, operation)), Some(_)) = (&late, self.own.ended()) {
            // What is left of a process are bytes that no one asks the peer to refuse.
            self.arrive_later(operation, owner, *by);
            return completion.complete(Err(self.lose()));
        }
        let outcome = self.apply(operation, owner, give_up).await;
        let back = network.arrival(&self.peer, &self.own);
        let answered = self.answer(back, give_up).await;
        if let (Err(_), Some((by, operation))) = (&answered, late) {
            // It arrives twice.
            self.arrive_later(&operation, owner, by);
        }
        completion.complete(answered.and(outcome));
    }

    /// Waits until what was sent has arrived.
    async fn reach(&self, arrives: Instant, give_up: Instant) -> Result<(), TransferError> {
        if self.fabric.network.breaks() {
            return Err(self.lose());
        }
        self.wait(arrives, give_up).await?;
        self.wait(self.peer.runs_at(Instant::now()), give_up).await?;
        match self.peer.ended() {
            None => Ok(()),
            Some(Ending::Killed) => Err(self.lose()),
            Some(Ending::PowerLost) => {
                self.wait(give_up, give_up).await?;
                Err(self.lose())
            }
        }
    }

    /// Waits until the answer has arrived.
    async fn answer(&self, arrives: Instant, give_up: Instant) -> Result<(), TransferError> {
        if self.fabric.network.breaks() {
            return Err(self.lose());
        }
        self.wait(arrives, give_up).await?;
        let now = Instant::now();
        sleep_until(self.own.runs_at(now)).await;
        // Whatever waits for it waits for ever, as everything else of that process.
        if self.own.ended().is_some() {
            pending::<()>().await;
        }
        Ok(())
    }

    async fn wait(&self, until: Instant, give_up: Instant) -> Result<(), TransferError> {
        let lost = self.on_lost.notified();
        if self.is_lost.load(Relaxed) {
            return Err(lost_link());
        }
        tokio::select! {
            biased;
            () = lost => Err(lost_link()),
            () = sleep_until(until.min(give_up)) => {
                if until > give_up { Err(self.lose()) } else { Ok(()) }
            }
        }
    }

    fn lose(&self) -> TransferError {
        self.is_lost.store(true, Relaxed);
        self.on_lost.notify_waiters();
        lost_link()
    }

    /// Returns what the place of a write belongs to.
    fn owner(&self, operation: &Operation) -> Option<Owner> {
        let remote = operation.remote();
        matches!(operation, Operation::Write { .. })
            .then(|| self.fabric.ledger.owner(remote.key, remote.extent))
            .flatten()
    }

    /// Executes an operation at the peer. A cancelled write continues there: the link has its bytes.
    async fn apply(&self, operation: Operation, owner: Option<Owner>, give_up: Instant) -> Outcome {
        if !matches!(operation, Operation::Write { .. }) {
            return self.inner.submit(vec![operation]).await.remove(0);
        }
        if !self.inner.is_healthy() {
            return Err(self.lose());
        }
        let (landing, (landed, outcome)) = (self.landing.clone(), oneshot::channel());
        tokio::spawn(async move {
            // The receiver is gone when the write was cancelled.
            let _ = landed.send(landing.land(&operation, owner).await);
        });
        let lost = self.on_lost.notified();
        if self.is_lost.load(Relaxed) {
            return Err(lost_link());
        }
        tokio::select! {
            biased;
            outcome = outcome => outcome.unwrap_or_else(|_| Err(lost_link())),
            () = lost => Err(lost_link()),
            () = sleep_until(give_up) => Err(self.lose()),
        }
    }

    /// Lets a write whose link was lost arrive later, or a part of it, or never.
    fn may_arrive_late(&self, operation: &Operation, owner: Option<Owner>) {
        if let Some(by) = self.fabric.network.late_by() {
            self.arrive_later(operation, owner, by);
        }
    }

    fn arrive_later(&self, operation: &Operation, owner: Option<Owner>, by: Duration) {
        let Operation::Write { from, to, .. } = operation else { return };
        let bytes = bytes_of(&from.iter().cloned().collect::<Vec<_>>());
        let random = self.fabric.network.random();
        let len = if random.below(2) == 0 {
            bytes.len() as u64
        } else {
            random.below(bytes.len() as u64 + 1)
        };
        let Some(part) = to.part(0, len).filter(|_| len > 0) else { return };
        // The sender's own deadline holds back no bytes that it has sent.
        let to = RemoteSpan::new(part.key, part.extent).with_ticket(part.ticket);
        let write = Operation::write(bytes.slice(..len as usize), to);
        let (inner, peer) = (Arc::clone(&self.inner), self.peer.clone());
        let (landing, id) = (self.landing.clone(), self.id);
        tokio::spawn(async move {
            sleep(by).await;
            sleep_until(peer.runs_at(Instant::now())).await;
            if peer.ended().is_none() && !peer.has_fenced(id) && inner.is_healthy() {
                // A refused write is lost, and has no caller any more.
                let _ = landing.land(&write, owner).await;
            }
        });
    }
}

pub(super) fn lost_link() -> TransferError {
    TransferError::LinkLost { source: Arc::new(io::ErrorKind::ConnectionReset.into()) }
}
