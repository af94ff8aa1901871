//! The links of a node, by peer.

use std::io;
use std::sync::Arc;

use mc_types::Endpoint;
use tokio::net::UnixStream;

use super::config::ShmConfig;
use super::control::{Control, ControlTask};
use super::frames::{Incoming, Received, send};
use super::hang_up::HangUp;
use super::link::{LinkState, ShmLink};
use super::name::SocketName;
use super::page::PeerPage;
use super::path_cache::Space;
use super::watch::Watch;
use super::wire::{
    ADMISSION_LEN, CLIENT, GREETING_LEN, Greeting, Hello, OWNER, PROOF_LEN, VERSION, Verdict,
    decode_admission,
};
use crate::backend::counters::Counters;
use crate::backend::proof::{NodeSecret, nonce};
use crate::backend::proven_links::ProvenLinks;
use crate::backend::tasks::{Counted, Tasks};
use crate::error::ConnectError;

/// Links to every peer that was asked for.
pub(super) struct Pool {
    config: ShmConfig,
    tasks: Arc<Tasks>,
    counters: Arc<Counters>,
    space: Arc<Space>,
    links: ProvenLinks<ShmLink>,
    watch: Watch,
}

/// The result of a handshake.
struct Admitted {
    stream: UnixStream,
    page: PeerPage,
    max_operation: u64,
}

impl Pool {
    pub(super) fn new(config: ShmConfig, tasks: Arc<Tasks>, counters: Arc<Counters>) -> Self {
        let space = Arc::new(Space::new(config.max_mapped_bytes.as_u64()));
        Self {
            config,
            tasks,
            counters,
            space,
            links: ProvenLinks::default(),
            watch: Watch::default(),
        }
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
        self.links.link(endpoint, secret, self.connect(endpoint, secret)).await
    }

    /// Fails every link, and every later call.
    pub(super) fn close(&self) {
        self.links.close();
        self.watch.settle();
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
        let control = Arc::new(control);
        self.watch.add(&control);
        let state = LinkState {
            endpoint: endpoint.clone(),
            control,
            max_operation,
            connect_timeout: after,
            stall_timeout: self.config.stall_timeout,
            opening: tokio::sync::Mutex::default(),
            tasks: Arc::downgrade(&self.tasks),
            counters: Arc::clone(&self.counters),
            copiers: self.config.copiers.clone(),
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
