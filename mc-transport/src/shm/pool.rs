//! The links of a node, by peer.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mc_types::Endpoint;
use parking_lot::Mutex;
use tokio::net::UnixStream;

use super::config::ShmConfig;
use super::control::{Control, ControlTask};
use super::frames::{Incoming, Received, send};
use super::hang_up::HangUp;
use super::link::{LinkState, ShmLink};
use super::name::SocketName;
use super::page::PeerPage;
use super::path_cache::Space;
use super::wire::{
    ADMISSION_LEN, GREETING_LEN, Greeting, Hello, PROOF_LEN, VERSION, Verdict, decode_admission,
};
use super::{CLIENT, OWNER};
use crate::counters::Counters;
use crate::error::{ConnectError, TransferError};
use crate::link_id::LinkId;
use crate::proof::{NodeSecret, nonce};
use crate::tasks::{Counted, Tasks};
use crate::transport::Link;

/// Peers that are remembered though no link to them is left.
const MAX_REMEMBERED: usize = 1024;

/// Links to every peer that was asked for.
pub(super) struct Pool {
    config: ShmConfig,
    tasks: Arc<Tasks>,
    counters: Arc<Counters>,
    space: Arc<Space>,
    peers: Mutex<HashMap<Who, Arc<Peer>>>,
    closed: AtomicBool,
}

/// A link whose peer did not prove itself is not taken for one whose peer did.
type Who = (Endpoint, Option<[u8; 16]>);

#[derive(Default)]
struct Peer {
    link: Mutex<Option<Arc<ShmLink>>>,
    /// A stream of a lost link, which may not have ended yet.
    lost: Mutex<Option<LinkId>>,
    /// Held while connecting, so that a crowd of callers makes one connection.
    connecting: tokio::sync::Mutex<()>,
}

impl Peer {
    fn healthy(&self) -> Option<Arc<ShmLink>> {
        let mut link = self.link.lock();
        if let Some(gone) = link.take_if(|link| !link.is_healthy()) {
            let mut lost = self.lost.lock();
            *lost = gone.id().or(*lost);
        }
        link.clone()
    }

    /// Makes the owner end what a lost link had under way before `link` takes its place:
    /// what is tried again must not be overtaken by what was tried before.
    async fn fence(&self, link: &ShmLink) -> Result<(), TransferError> {
        let lost = *self.lost.lock();
        if let Some(lost) = lost {
            link.fence(lost).await.remove(0)?;
            self.lost.lock().take();
        }
        Ok(())
    }
}

/// The result of a handshake.
struct Admitted {
    stream: UnixStream,
    page: PeerPage,
    max_operation: u64,
}

impl Pool {
    pub(super) fn new(config: ShmConfig, tasks: Arc<Tasks>, counters: Arc<Counters>) -> Self {
        let (peers, closed) = (Mutex::default(), AtomicBool::new(false));
        let space = Arc::new(Space::new(config.max_mapped_bytes.as_u64()));
        Self { config, tasks, counters, space, peers, closed }
    }

    /// Regions of peers that are mapped.
    pub(super) fn mapped_regions(&self) -> usize {
        self.space.regions()
    }

    /// The link to the peer at `endpoint`, which knows `secret` if there is one.
    pub(super) async fn link(
        &self,
        endpoint: &Endpoint,
        secret: Option<NodeSecret>,
    ) -> Result<Arc<ShmLink>, ConnectError> {
        let peer = self.peer(endpoint, secret)?;
        if let Some(link) = peer.healthy() {
            return Ok(link);
        }
        let _connecting = peer.connecting.lock().await;
        match peer.healthy() {
            Some(link) => Ok(link),
            None => {
                let link = self.connect(endpoint, secret).await?;
                peer.fence(&link).await.map_err(|error| {
                    let source = Arc::new(io::Error::other(error));
                    ConnectError::Unreachable { endpoint: endpoint.clone(), source }
                })?;
                self.keep(&peer, link)
            }
        }
    }

    /// Fails every link, and every later call.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let peers = std::mem::take(&mut *self.peers.lock());
        for peer in peers.values() {
            let link = peer.link.lock().take();
            if let Some(link) = link {
                link.close(TransferError::Closed);
            }
        }
    }

    fn peer(
        &self,
        endpoint: &Endpoint,
        secret: Option<NodeSecret>,
    ) -> Result<Arc<Peer>, ConnectError> {
        let mut peers = self.peers.lock();
        if self.closed.load(Ordering::SeqCst) {
            return Err(ConnectError::Closed);
        }
        let who = (endpoint.clone(), secret.map(NodeSecret::to_bytes));
        if let Some(peer) = peers.get(&who) {
            return Ok(Arc::clone(peer));
        }
        // A new peer is rare enough to look for those that are gone. Where something may
        // be under way still, that is remembered; as far as it goes, since owners with
        // random names do not come back.
        let room = peers.len() < MAX_REMEMBERED;
        peers.retain(|_, peer| {
            let used = Arc::strong_count(peer) > 1 || peer.healthy().is_some();
            used || (room && peer.lost.lock().is_some())
        });
        let peer = Arc::<Peer>::default();
        peers.insert(who, Arc::clone(&peer));
        Ok(peer)
    }

    fn keep(&self, peer: &Peer, link: ShmLink) -> Result<Arc<ShmLink>, ConnectError> {
        let link = Arc::new(link);
        *peer.link.lock() = Some(Arc::clone(&link));
        // `close` may have passed this peer between our first check and now.
        if self.closed.load(Ordering::SeqCst) {
            link.close(TransferError::Closed);
            return Err(ConnectError::Closed);
        }
        Ok(link)
    }

    async fn connect(
        &self,
        endpoint: &Endpoint,
        secret: Option<NodeSecret>,
    ) -> Result<ShmLink, ConnectError> {
        let after = self.config.connect_timeout;
        let admitted = tokio::time::timeout(after, self.state(endpoint, secret)).await;
        let late = || Err(ConnectError::TimedOut { endpoint: endpoint.clone(), after });
        let Admitted { stream, page, max_operation } = admitted.unwrap_or_else(|_| late())?;
        let hang_up = HangUp::of(&stream).map_err(|source| {
            let source = Arc::new(source);
            ConnectError::Unreachable { endpoint: endpoint.clone(), source }
        })?;
        let control = Control::new(self.config.max_mapped_regions, after, hang_up);
        let state = LinkState {
            endpoint: endpoint.clone(),
            control: Arc::new(control),
            max_operation,
            connect_timeout: after,
            stall_timeout: self.config.stall_timeout,
            opening: tokio::sync::Mutex::default(),
            tasks: Arc::downgrade(&self.tasks),
            counters: Arc::clone(&self.counters),
        };
        let task = ControlTask {
            control: Arc::clone(&state.control),
            stream,
            page: Arc::new(page),
            space: Arc::clone(&self.space),
            _open: Counted::new(&self.counters.links),
        };
        self.tasks.spawn(task.run());
        Ok(ShmLink::new(state))
    }

    /// Connects, and does the handshake.
    async fn state(
        &self,
        endpoint: &Endpoint,
        secret: Option<NodeSecret>,
    ) -> Result<Admitted, ConnectError> {
        let name = SocketName::of(endpoint).ok_or_else(|| ConnectError::BadAddress {
            endpoint: endpoint.clone(),
            expected: SocketName::FORM,
        })?;
        let lost = |source: io::Error| {
            let source = Arc::new(source);
            ConnectError::Unreachable { endpoint: endpoint.clone(), source }
        };
        let not_a_peer = || ConnectError::NotAPeer { endpoint: endpoint.clone() };
        let impostor = || ConnectError::Impostor { endpoint: endpoint.clone() };
        let stream = name.connect().await.map_err(lost)?;
        if !self.config.admits(stream.peer_cred().map_err(lost)?.uid()) {
            return Err(impostor());
        }
        let ours = nonce().map_err(lost)?;
        let hello = Hello { version: VERSION, proven: secret.is_some(), nonce: ours };
        // The peer may have said why it hung up.
        let _ = send(&stream, &hello.encode(), None).await;
        let greeting = Incoming::<GREETING_LEN>::new().bytes(&stream).await.map_err(lost)?;
        let greeting = Greeting::decode(&greeting).ok_or_else(not_a_peer)?;
        if greeting.version != VERSION {
            let (ours, theirs) = (VERSION, greeting.version);
            return Err(ConnectError::VersionMismatch { endpoint: endpoint.clone(), ours, theirs });
        }
        admitted(greeting.verdict, endpoint)?;
        let mut proof = [0; PROOF_LEN];
        if let Some(secret) = secret {
            if !secret.is_proven(OWNER, &ours, &greeting.nonce, &greeting.proof) {
                return Err(impostor());
            }
            proof = secret.proof(CLIENT, &ours, &greeting.nonce);
        }
        send(&stream, &proof, None).await.map_err(lost)?;
        let (admission, received) =
            Incoming::<ADMISSION_LEN>::new().message(&stream).await.map_err(lost)?;
        let (verdict, slots) = decode_admission(&admission).ok_or_else(not_a_peer)?;
        admitted(verdict, endpoint)?;
        let Received { first: Some(page), count: 1, cut: false } = received else {
            return Err(not_a_peer());
        };
        let page = PeerPage::map(page, slots).map_err(|error| lost(io::Error::other(error)))?;
        let max_operation = self.config.max_operation.as_u64().min(greeting.max_operation);
        Ok(Admitted { stream, page, max_operation })
    }
}

fn admitted(verdict: Verdict, endpoint: &Endpoint) -> Result<(), ConnectError> {
    let endpoint = endpoint.clone();
    match verdict {
        Verdict::Welcome => Ok(()),
        Verdict::Busy => Err(ConnectError::Busy { endpoint }),
        Verdict::WrongUser | Verdict::NotProven => Err(ConnectError::NotAdmitted { endpoint }),
        // It speaks our version, and says that it does not.
        Verdict::UnknownVersion => Err(ConnectError::NotAPeer { endpoint }),
    }
}
