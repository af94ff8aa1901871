//! Makes a link: connects to a peer, agrees on queue pairs, and tries them.

use std::io;
use std::sync::Arc;

use mc_transport::backend::{Counted, nonce, tune};
use mc_transport::{ConnectError, Link, LinkId, NodeSecret, TcpConfig};
use mc_types::Endpoint;
use parking_lot::RwLock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::control::{Control, send_all};
use super::frames::receive;
use super::lanes::{Recovery, SetUpError};
use super::link::{LinkLimits, LinkState, LinkTasks, RdmaLink};
use super::pairing::{PortPair, pair_ports};
use super::shared::Shared;
use super::wire::{
    Answer, CLIENT, GREETING_LEN, Greeting, Hello, MAX_ANSWER, OWNER, PROOF_LEN, PortOffer,
    VERSION, Verdict,
};

/// A peer that let this side in.
struct Admitted {
    stream: TcpStream,
    link: LinkId,
    max_operation: u64,
    ports: Vec<PortOffer>,
}

impl Shared {
    /// A new link to the peer at `endpoint`, which knows `secret` if there is one. What cannot be
    /// reached by RDMA goes over `fallback`.
    pub(super) async fn connect(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        secret: Option<NodeSecret>,
        fallback: Option<Arc<dyn Link>>,
    ) -> Result<RdmaLink, ConnectError> {
        let after = self.config.connect_timeout;
        let connecting = self.try_connect(endpoint, secret, fallback);
        let late = || Err(ConnectError::TimedOut { endpoint: endpoint.clone(), after });
        tokio::time::timeout(after, connecting).await.unwrap_or_else(|_| late())
    }

    async fn try_connect(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        secret: Option<NodeSecret>,
        fallback: Option<Arc<dyn Link>>,
    ) -> Result<RdmaLink, ConnectError> {
        let unreachable = |source: io::Error| {
            let source = Arc::new(source);
            ConnectError::Unreachable { endpoint: endpoint.clone(), source }
        };
        let admitted = self.admit(endpoint, secret).await?;
        let pairs: Arc<[PortPair]> = pair_ports(&self.ports.offers(), &admitted.ports).into();
        if pairs.is_empty() {
            return Err(unreachable(io::Error::other("no RDMA port is up on both sides")));
        }
        let (reader, writer) = admitted.stream.into_split();
        let (control, to_send) = Control::new(self.config.stall_timeout);
        let (ended, mut has_ended) = mpsc::unbounded_channel();
        let listening = Arc::clone(&control);
        let listen = async move {
            let _ = ended.send(listening.listen(reader).await);
        };
        // They end with this attempt, unless a link takes them over.
        let mut tasks = LinkTasks::default();
        tasks.add(self.tasks.spawn(send_all(writer, to_send)));
        tasks.add(self.tasks.spawn(listen));
        let mut last = io::Error::other("no address was tried");
        for rank in 0..self.ranks(&pairs) {
            let lanes = match self.set_up(&control, &pairs, rank).await {
                Ok(lanes) => lanes,
                Err(SetUpError::Lost(error)) => return Err(unreachable(error)),
                Err(SetUpError::Misunderstood) => {
                    return Err(ConnectError::NotAPeer { endpoint: endpoint.clone() });
                }
                Err(SetUpError::NotCarried(error)) => {
                    last = error;
                    continue;
                }
            };
            let (recoveries, mut to_recover) = mpsc::unbounded_channel();
            let flow = self.flow(lanes, recoveries);
            let failing = Arc::clone(&flow);
            tasks.add(self.tasks.spawn(async move {
                if let Some(end) = has_ended.recv().await {
                    failing.fail(&end);
                }
            }));
            let recovery =
                Recovery { flow: Arc::clone(&flow), control: Arc::clone(&control), rank };
            let (shared, pairs_then) = (Arc::clone(self), Arc::clone(&pairs));
            tasks.add(self.tasks.spawn(async move {
                while let Some(lane) = to_recover.recv().await {
                    shared.recover(&recovery, &pairs_then, lane).await;
                }
            }));
            let message = pairs.iter().map(|pair| pair.message).min().unwrap_or(u32::MAX);
            let state = Arc::new(LinkState {
                endpoint: endpoint.clone(),
                id: admitted.link,
                limits: LinkLimits {
                    max_operation: self.config.max_operation.as_u64().min(admitted.max_operation),
                    request: self.config.max_request.as_u64().min(message.into()).max(1),
                    pieces: self.pieces(),
                },
                flow,
                control,
                local: Arc::clone(&self.local),
                tasks: Arc::downgrade(&self.tasks),
                fallback: RwLock::new(fallback),
            });
            return Ok(RdmaLink::new(state, tasks, Counted::new(&self.counters.links)));
        }
        Err(unreachable(last))
    }

    /// Connects, and does the handshake.
    async fn admit(
        &self,
        endpoint: &Endpoint,
        secret: Option<NodeSecret>,
    ) -> Result<Admitted, ConnectError> {
        let lost = |source: io::Error| {
            let source = Arc::new(source);
            ConnectError::Unreachable { endpoint: endpoint.clone(), source }
        };
        let not_a_peer = || ConnectError::NotAPeer { endpoint: endpoint.clone() };
        let impostor = || ConnectError::Impostor { endpoint: endpoint.clone() };
        if !endpoint.address().contains(':') {
            let expected = "host:port";
            return Err(ConnectError::BadAddress { endpoint: endpoint.clone(), expected });
        }
        let mut stream = mc_net::connect(endpoint.address()).await.map_err(lost)?;
        tune(&stream, TcpConfig::default().congestion_control.as_deref());
        let ours = nonce().map_err(lost)?;
        let hello = Hello { version: VERSION, proven: secret.is_some(), nonce: ours };
        // The peer may have said why it hung up.
        let _ = stream.write_all(&hello.encode()).await;
        let mut greeting = [0; GREETING_LEN];
        stream.read_exact(&mut greeting).await.map_err(lost)?;
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
        stream.write_all(&proof).await.map_err(lost)?;
        let frame = receive(&mut stream, MAX_ANSWER).await.map_err(lost)?;
        match Answer::decode(&frame) {
            Some((_, Answer::Ports(ports))) => Ok(Admitted {
                stream,
                link: greeting.link,
                max_operation: greeting.max_operation,
                ports,
            }),
            Some((_, Answer::Refused(verdict))) => {
                admitted(verdict, endpoint)?;
                Err(not_a_peer())
            }
            _ => Err(not_a_peer()),
        }
    }
}

fn admitted(verdict: Verdict, endpoint: &Endpoint) -> Result<(), ConnectError> {
    let endpoint = endpoint.clone();
    match verdict {
        Verdict::Welcome => Ok(()),
        Verdict::Busy => Err(ConnectError::Busy { endpoint }),
        Verdict::NotProven => Err(ConnectError::NotAdmitted { endpoint }),
        // It speaks our version, and says that it does not.
        Verdict::UnknownVersion => Err(ConnectError::NotAPeer { endpoint }),
    }
}
