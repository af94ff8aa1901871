//! Makes a link: connects to a peer, agrees on queue pairs, and tries them.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mc_types::Endpoint;
use parking_lot::RwLock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::config::RdmaConfig;
use super::control::{Control, send_all};
use super::flow::{Flight, Flow, LaneSpec};
use super::frames::receive;
use super::link::{LinkLimits, LinkState, RdmaLink};
use super::local::LocalMemory;
use super::poller::Poller;
use super::ports::{MAX_GIDS, Ports};
use super::server::first_packet;
use super::verbs::{
    CompletionQueue, Done, Path, PathAddress, QueuePair, SendQueue, Timing, VerbsError,
};
use super::wire::{
    Answer, CLIENT, GREETING_LEN, Greeting, Hello, LaneAnswer, LaneOffer, MAX_ANSWER, MAX_LANES,
    OWNER, PROOF_LEN, PortOffer, Request, SCHEME, VERSION, Verdict,
};
use crate::counters::Counters;
use crate::error::ConnectError;
use crate::link_id::LinkId;
use crate::proof::{NodeSecret, nonce};
use crate::tasks::{Counted, Tasks};
use crate::tcp::tune;
use crate::transport::Link;

/// Bytes that a write may carry inside of its request, where the device allows it.
const INLINE: u32 = 220;

/// Pieces of local memory of a request.
const PIECES: u32 = 16;

/// The pause between two looks for the completion of a probe.
const PROBE_EVERY: Duration = Duration::from_micros(200);

/// What all links of a transport share.
pub(super) struct Shared {
    pub(super) config: RdmaConfig,
    pub(super) ports: Arc<Ports>,
    pub(super) local: Arc<LocalMemory>,
    pub(super) poller: Arc<Poller>,
    pub(super) tasks: Arc<Tasks>,
    pub(super) counters: Arc<Counters>,
}

/// A peer that let this side in.
struct Admitted {
    stream: TcpStream,
    link: LinkId,
    max_operation: u64,
    ports: Vec<PortOffer>,
}

/// The queue pairs of a link, before they carry anything.
struct Prepared {
    specs: Vec<LaneSpec>,
    queues: Vec<(Arc<CompletionQueue>, u64)>,
    pairs: Vec<QueuePair>,
    offers: Vec<LaneOffer>,
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
        let paths = paths(&self.ports, &admitted.ports);
        if paths.is_empty() {
            return Err(unreachable(io::Error::other("no RDMA port is up on both sides")));
        }
        let (reader, writer) = admitted.stream.into_split();
        let (control, to_send) = Control::new(self.config.stall_timeout);
        let sending = self.tasks.spawn(send_all(writer, to_send));
        let listening = Arc::clone(&control);
        let (ended, mut has_ended) = mpsc::unbounded_channel();
        let listening = self.tasks.spawn(async move {
            let _ = ended.send(listening.listen(reader).await);
        });
        let (Some(sending), Some(listening)) = (sending, listening) else {
            return Err(ConnectError::Closed);
        };
        // Ended unless a link takes them over.
        let mut tasks = TaskGuard(vec![sending, listening]);
        let mut last = io::Error::other("no path was tried");
        for rank in 0..MAX_GIDS {
            if rank > 0 && !self.has_rank(&paths, rank) {
                break;
            }
            let (shared, chosen) = (Arc::clone(self), paths.clone());
            let prepared = blocking(move || shared.prepare(&chosen, rank)).await;
            let prepared = prepared.map_err(|error| unreachable(io::Error::other(error)))?;
            let asked = control.ask(&Request::Lanes(prepared.offers.clone())).await;
            let answers = match asked.map_err(|error| unreachable(io::Error::other(error)))? {
                Answer::Lanes(answers) if answers.len() == prepared.specs.len() => answers,
                _ => return Err(ConnectError::NotAPeer { endpoint: endpoint.clone() }),
            };
            let (shared, chosen) = (Arc::clone(self), paths.clone());
            let tried = blocking(move || shared.try_lanes(prepared, &chosen, &answers)).await;
            let (specs, queues, lanes) = tried;
            if lanes.iter().all(Result::is_err) {
                last = lanes.into_iter().find_map(Result::err).unwrap_or(last);
                continue;
            }
            let (recoveries, mut to_recover) = mpsc::unbounded_channel();
            let flow = Flow::new(
                Arc::clone(&self.ports),
                Arc::clone(&self.local),
                Arc::clone(&self.poller),
                queues,
                specs,
                self.config.stall_timeout,
                recoveries,
            );
            for (lane, tried) in lanes.into_iter().enumerate() {
                match tried {
                    Ok(queue) => flow.install(lane, queue),
                    Err(cause) => flow.give_up(lane, cause),
                }
            }
            let message = paths.iter().map(|path| path.message).min().unwrap_or(u32::MAX);
            let limits = LinkLimits {
                max_operation: self.config.max_operation.as_u64().min(admitted.max_operation),
                request: self.config.max_request.as_u64().min(message.into()).max(1),
                pieces: self.pieces(),
            };
            let state = Arc::new(LinkState {
                endpoint: endpoint.clone(),
                id: admitted.link,
                limits,
                flow: Arc::clone(&flow),
                control: Arc::clone(&control),
                local: Arc::clone(&self.local),
                tasks: Arc::downgrade(&self.tasks),
                fallback: RwLock::new(fallback),
            });
            let failing = Arc::clone(&flow);
            let watching = self.tasks.spawn(async move {
                if let Some(end) = has_ended.recv().await {
                    failing.fail(&end);
                }
            });
            let (shared, recovering) = (Arc::clone(self), Arc::clone(&flow));
            let chosen = paths.clone();
            let control = Arc::clone(&control);
            let recovering = self.tasks.spawn(async move {
                while let Some(lane) = to_recover.recv().await {
                    shared.recover(&recovering, &control, &chosen, lane, rank).await;
                }
            });
            tasks.0.extend(watching.into_iter().chain(recovering));
            let open = Counted::new(&self.counters.links);
            return Ok(RdmaLink::new(state, std::mem::take(&mut tasks.0), open));
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
        let mut stream = TcpStream::connect(endpoint.address()).await.map_err(lost)?;
        tune::tune(&stream, &crate::TcpConfig::default());
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

    fn has_rank(&self, paths: &[PortPath], rank: usize) -> bool {
        paths.iter().any(|path| {
            self.ports.ports[path.port].gids.len() > rank || path.peer.gids.len() > rank
        })
    }

    fn pieces(&self) -> usize {
        let devices = self.ports.devices.iter();
        let least = devices.map(|open| open.device.limits().pieces).min();
        least.unwrap_or(1).min(PIECES) as usize
    }

    fn depth(&self, device: usize) -> u32 {
        self.config.queue_depth.clamp(2, self.ports.devices[device].device.limits().queue.max(2))
    }

    /// Makes completion queues and queue pairs for the paths.
    fn prepare(&self, paths: &[PortPath], rank: usize) -> Result<Prepared, VerbsError> {
        let (mut specs, mut queues) = (Vec::new(), Vec::new());
        let (mut pairs, mut offers) = (Vec::new(), Vec::new());
        let mut places: Vec<usize> = Vec::new();
        let of_path = self.config.queue_pairs_per_path.get().min(MAX_LANES / paths.len().max(1));
        for (path, _) in paths.iter().flat_map(|path| (0..of_path.max(1)).map(move |n| (path, n))) {
            let device = self.ports.ports[path.port].device;
            let open = &self.ports.devices[device];
            let queue = match places.iter().position(|&known| known == device) {
                Some(known) => known,
                None => {
                    let on_device =
                        paths.iter().filter(|it| self.ports.ports[it.port].device == device);
                    let lanes = (on_device.count() * of_path.max(1)) as u32;
                    // Each request may complete with an error, and a lane may be replaced before
                    // these were taken.
                    let len =
                        (2 * lanes * self.depth(device) + 16).min(open.device.limits().completions);
                    let number = self.poller.number();
                    let channel = Some((&open.channel, number));
                    queues.push((CompletionQueue::new(&open.device, len, channel)?, number));
                    places.push(device);
                    places.len() - 1
                }
            };
            let lane = specs.len();
            specs.push(LaneSpec {
                port: path.port,
                device,
                queue,
                peer_device: usize::from(path.peer.device),
            });
            let (pair, offer) = self.offer(&queues[queue].0, path, lane, rank)?;
            pairs.push(pair);
            offers.push(offer);
        }
        Ok(Prepared { specs, queues, pairs, offers })
    }

    /// Makes this side's queue pair of a lane.
    fn offer(
        &self,
        queue: &Arc<CompletionQueue>,
        path: &PortPath,
        lane: usize,
        rank: usize,
    ) -> Result<(QueuePair, LaneOffer), VerbsError> {
        let port = &self.ports.ports[path.port];
        let open = self.ports.device_of(port);
        let state = open.device.port(port.number)?;
        let limits = open.device.limits();
        let pieces = self.pieces() as u32;
        let pair = QueuePair::new(queue, self.depth(port.device), pieces, INLINE)?;
        let address = port.address(rank.min(port.gids.len().saturating_sub(1)), state.lid);
        let first = first_packet().unwrap_or_default();
        let offer = LaneOffer {
            lane: lane as u16,
            port: path.peer.index,
            gid: rank.min(path.peer.gids.len().saturating_sub(1)) as u8,
            address: address.gid,
            lid: address.lid,
            mtu: state.mtu,
            reads_in: limits.reads_in,
            reads_out: limits.reads_out,
            number: pair.number(),
            first,
        };
        Ok((pair, offer))
    }

    /// Connects this side's queue pair of a lane to the peer's.
    fn connect_lane(
        &self,
        pair: &QueuePair,
        path: &PortPath,
        offer: &LaneOffer,
        answer: &LaneAnswer,
    ) -> io::Result<()> {
        let (number, first) = match answer {
            LaneAnswer::Made { number, first } => (*number, *first),
            LaneAnswer::Failed(reason) => {
                return Err(io::Error::other(format!("the peer has no queue pair: {reason}")));
            }
        };
        let port = &self.ports.ports[path.port];
        let peer = path.peer.gids.get(usize::from(offer.gid)).copied().unwrap_or([0; 16]);
        let index = port.gids.iter().find(|(_, gid)| *gid == offer.address);
        let path = Path {
            port: port.number,
            gid_index: index.map_or(0, |&(index, _)| index),
            is_infiniband: path.peer.is_infiniband,
            mtu: offer.mtu.min(path.peer.mtu),
            peer: PathAddress { gid: peer, lid: path.peer.lid },
            peer_number: number,
            peer_first: first,
            first: offer.first,
            reads_in: 1,
            reads_out: offer.reads_out.min(path.peer.reads_in).max(1),
        };
        let timing = Timing { timeout: self.config.ack_timeout, retries: self.config.retries };
        pair.connect(&path, timing).map_err(io::Error::other)
    }

    /// Connects the queue pairs, and sends something over each.
    #[allow(clippy::type_complexity, reason = "the parts of a flow")]
    fn try_lanes(
        &self,
        prepared: Prepared,
        paths: &[PortPath],
        answers: &[LaneAnswer],
    ) -> (Vec<LaneSpec>, Vec<(Arc<CompletionQueue>, u64)>, Vec<io::Result<SendQueue<Flight>>>) {
        let Prepared { specs, queues, pairs, offers } = prepared;
        let of_path = specs.len() / paths.len();
        let mut lanes: Vec<io::Result<(SendQueue<Flight>, Option<u64>)>> = Vec::new();
        for (lane, pair) in pairs.into_iter().enumerate() {
            let (path, offer) = (&paths[lane / of_path], &offers[lane]);
            let depth = self.depth(specs[lane].device) as usize;
            let connected = self.connect_lane(&pair, path, offer, &answers[lane]);
            lanes.push(connected.and_then(|()| {
                let tag = (lane as u32) << 16;
                let mut queue = SendQueue::new(pair, depth, self.pieces(), tag);
                let probe = queue.post_probe().map_err(io::Error::other)?;
                Ok((queue, Some(probe)))
            }));
        }
        let deadline = Instant::now() + self.config.connect_timeout;
        loop {
            let mut done = Vec::new();
            for (queue, _) in &queues {
                let _ = queue.take(&mut done);
            }
            for Done { number, result } in done {
                let lane = (number >> 48) as usize;
                let Some(one) = lanes.get_mut(lane) else { continue };
                match result {
                    Ok(()) => {
                        if let Ok((_, probe)) = one {
                            *probe = None;
                        }
                    }
                    Err(error) => *one = Err(io::Error::other(error)),
                }
            }
            let waiting = lanes.iter().flatten().any(|(_, probe)| probe.is_some());
            if !waiting || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(PROBE_EVERY);
        }
        let tried = lanes.into_iter().map(|lane| match lane {
            Ok((queue, None)) => Ok(queue),
            Ok((_, Some(_))) => Err(io::ErrorKind::TimedOut.into()),
            Err(error) => Err(error),
        });
        (specs, queues, tried.collect())
    }

    /// Sets a lane up again.
    async fn recover(
        self: &Arc<Self>,
        flow: &Arc<Flow>,
        control: &Arc<Control>,
        paths: &[PortPath],
        lane: usize,
        rank: usize,
    ) {
        if flow.failure().is_some() {
            return;
        }
        let of_path = flow.lanes.len() / paths.len();
        let path = paths[lane / of_path].clone();
        let spec = flow.lanes[lane];
        let queue = Arc::clone(&flow.queues[spec.queue].0);
        let (shared, theirs) = (Arc::clone(self), path.clone());
        let made = blocking(move || shared.offer(&queue, &theirs, lane, rank)).await;
        let is_usable = self.ports.is_usable(&self.ports.ports[spec.port]);
        let (pair, offer) = match made {
            Ok((pair, offer)) if is_usable => (Some(pair), offer),
            made => {
                // The peer is asked all the same: it destroys the queue pair of before.
                if let Err(error) = &made {
                    tracing::debug!(%error, "no queue pair to replace one");
                }
                (None, dead_offer(lane, &path))
            }
        };
        let answer = match control.ask(&Request::Lanes(vec![offer])).await {
            Ok(Answer::Lanes(answers)) if answers.len() == 1 => answers.into_iter().next(),
            Ok(_) => None,
            Err(error) => return flow.fail(&error),
        };
        let (Some(answer), Some(pair)) = (answer, pair) else {
            return flow.give_up(lane, io::Error::other("the RDMA port is down"));
        };
        let (shared, depth, tag) = (Arc::clone(self), self.depth(spec.device), flow.next_tag(lane));
        let connected = blocking(move || {
            shared.connect_lane(&pair, &path, &offer, &answer)?;
            Ok(SendQueue::new(pair, depth as usize, shared.pieces(), tag))
        });
        match connected.await {
            Ok(queue) => flow.install(lane, queue),
            Err(cause) => flow.give_up(lane, cause),
        }
    }
}

/// An offer that the peer cannot connect to.
fn dead_offer(lane: usize, path: &PortPath) -> LaneOffer {
    LaneOffer {
        lane: lane as u16,
        port: path.peer.index,
        gid: 0,
        address: [0; 16],
        lid: 0,
        mtu: 1,
        reads_in: 1,
        reads_out: 1,
        number: 0,
        first: 0,
    }
}

/// Tasks that end when this is dropped.
struct TaskGuard(Vec<tokio::task::AbortHandle>);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.iter().for_each(tokio::task::AbortHandle::abort);
    }
}

/// A port of this side, and the peer's that it is connected to.
#[derive(Clone, Debug)]
struct PortPath {
    /// By its place in [`Ports::ports`].
    port: usize,
    peer: PortOffer,
    /// Bytes of the longest message.
    message: u32,
}

/// Which ports to connect: each port of the side that has more of them once, to the one of the
/// other side whose address is most alike, so that ports of one subnet meet.
fn paths(ports: &Ports, theirs: &[PortOffer]) -> Vec<PortPath> {
    let ours = ports.offers();
    let path = |ours: &PortOffer, theirs: &PortOffer| PortPath {
        port: usize::from(ours.index),
        peer: theirs.clone(),
        message: ours.message.min(theirs.message),
    };
    if ours.len() >= theirs.len() {
        let chosen = ours
            .iter()
            .enumerate()
            .filter_map(|(nth, one)| Some(path(one, most_alike(one, theirs, nth)?)));
        chosen.collect()
    } else {
        let chosen = theirs
            .iter()
            .enumerate()
            .filter_map(|(nth, one)| Some(path(most_alike(one, &ours, nth)?, one)));
        chosen.collect()
    }
}

/// The port of `others` whose address begins as that of `one` for longest; of equal ones they take
/// turns.
fn most_alike<'a>(one: &PortOffer, others: &'a [PortOffer], nth: usize) -> Option<&'a PortOffer> {
    let alike = |other: &PortOffer| match (one.gids.first(), other.gids.first()) {
        (Some(one), Some(other)) => {
            (u128::from_be_bytes(*one) ^ u128::from_be_bytes(*other)).leading_zeros().min(120)
        }
        _ => 0,
    };
    let fitting: Vec<_> =
        others.iter().filter(|other| other.is_infiniband == one.is_infiniband).collect();
    let most = fitting.iter().map(|other| alike(other)).max()?;
    let best: Vec<_> = fitting.into_iter().filter(|other| alike(other) == most).collect();
    best.get(nth % best.len()).copied()
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

/// Runs calls of the system that take up to milliseconds.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and drops this task, too.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Checks that an endpoint is one of this transport.
pub(super) fn check_scheme(endpoint: &Endpoint) -> Result<(), ConnectError> {
    if endpoint.scheme() == SCHEME {
        return Ok(());
    }
    Err(ConnectError::WrongScheme { scheme: SCHEME, endpoint: endpoint.clone() })
}
