//! The side that owns memory: admits peers, and makes queue pairs for them.
//!
//! One task for each connection. The queue pairs of a connection end with it, and nothing here
//! takes part in what they carry.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use mc_places::{Place, Places, Seat, Stage};
use mc_transport::backend::{First, OpenLink, first, nonce, tune};
use mc_transport::{LinkId, NodeSecret, TcpConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;
use tracing::debug;

use super::config::RdmaConfig;
use super::frames::receive;
use super::ports::Ports;
use super::served::{Notices, Outgoing, Serving};
use super::verbs::{Path, PathAddress, QueuePair, VerbsError};
use super::wire::{
    Answer, CLIENT, Greeting, HELLO_LEN, Hello, LaneAnswer, LaneOffer, MAX_REQUEST, OWNER,
    PROOF_LEN, RegionAnswer, Request, VERSION, Verdict,
};

/// Answers that a peer may leave unread.
const MAX_UNREAD: usize = 4;

/// Connections that may have queue pairs before they have named a region's key, and those of one
/// host. A peer that reaches the node's other port learns the secret that admits it here.
const MAX_UNPROVED: usize = 64;
const MAX_UNPROVED_OF_HOST: usize = 16;

/// State that all connections of a server share.
pub(super) struct Server {
    config: RdmaConfig,
    secret: NodeSecret,
    ports: Arc<Ports>,
    serving: Serving,
    /// Places of connections that have queue pairs and have named no key. The oldest yields.
    unproved: Arc<Places>,
}

/// The proofs that a connection has given, which decide about its place.
struct Standing<'a> {
    place: &'a Place,
    /// Has it named the key of a region?
    is_proved: bool,
    /// Taken with its first queue pair; free again when it names a key.
    unproved: Option<Seat>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("the peer closed or broke the connection: {0}")]
    Io(#[from] io::Error),
    #[error("the peer took more than {0:?}")]
    TimedOut(Duration),
    #[error("the peer does not speak this protocol")]
    NotAPeer,
    #[error("the peer was told that it is not served: {0:?}")]
    Refused(Verdict),
    #[error("the peer sent a request that this version does not define")]
    Malformed,
    #[error("the peer had the connection fenced, or another one needed its place")]
    Ended,
}

impl Standing<'_> {
    /// Notes that the connection has named a key. It may use what it was given at any time, so that
    /// it keeps its place.
    fn prove(&mut self) {
        self.is_proved = true;
        self.unproved = None;
        self.place.reached(Stage::Proved);
        self.place.set_busy(true);
    }

    /// Notes that the connection is given queue pairs; `false` when it must not have any.
    fn take_queue_pairs(&mut self, unproved: &Arc<Places>) -> bool {
        if self.is_proved || self.unproved.is_some() {
            return true;
        }
        self.unproved = unproved.take(self.place.source()).0;
        let Some(seat) = &self.unproved else { return false };
        // It is told to go, and not cut off.
        seat.place().reached(Stage::Shaken);
        // Its place is not wanted as long as it has this one.
        self.place.reached(Stage::Proved);
        self.place.set_busy(true);
        true
    }

    /// Resolves when the connection has to give its queue pairs up.
    async fn yielded(&mut self) {
        match &mut self.unproved {
            Some(seat) => drop((&mut seat.go).await),
            None => std::future::pending().await,
        }
    }
}

impl Server {
    pub(super) fn new(
        config: RdmaConfig,
        secret: NodeSecret,
        ports: Arc<Ports>,
        serving: Serving,
    ) -> Self {
        let unproved = Places::new(MAX_UNPROVED, MAX_UNPROVED_OF_HOST, Duration::MAX);
        Self { config, secret, ports, serving, unproved }
    }

    /// The greeting of a peer that is not served.
    pub(super) fn refusal(&self, verdict: Verdict) -> Greeting {
        Greeting {
            version: VERSION,
            verdict,
            nonce: [0; 16],
            proof: [0; PROOF_LEN],
            link: LinkId::from_bytes([0; 16]),
            max_operation: self.config.max_operation.as_u64(),
        }
    }

    /// Serves one peer until it leaves, or breaks the protocol.
    pub(super) async fn serve(
        self: Arc<Self>,
        mut stream: TcpStream,
        mut seat: Seat,
    ) -> Result<(), End> {
        tune(&stream, TcpConfig::default().congestion_control.as_deref());
        let id = LinkId::from_bytes(nonce()?);
        let limit = self.config.connect_timeout;
        let admitted = timeout(limit, self.admit(&mut stream, id)).await;
        admitted.map_err(|_| End::TimedOut(limit))??;
        seat.place().reached(Stage::Shaken);
        let fenced = Arc::new(Notify::new());
        let notify = Arc::clone(&fenced);
        // Declared before what is dropped before it: the link has ended once its queue pairs are
        // gone.
        let open = self.serving.regions.links().enter(id, move || notify.notify_one());
        let open = Arc::new(open);
        let (reader, writer) = stream.into_split();
        let (notices, outgoing) = mpsc::unbounded_channel();
        let stall = self.config.stall_timeout;
        let place = Arc::clone(seat.place());
        let served = async {
            let talk = first(
                self.answer_all(reader, &notices, &place, &open),
                write_all(writer, outgoing, stall),
            );
            match talk.await {
                First::Left(end) => end,
                First::Right(end) => end,
            }
        };
        let ended = first(fenced.notified(), &mut seat.go);
        match first(served, ended).await {
            First::Left(end) => end,
            First::Right(_) => Err(End::Ended),
        }
    }

    /// The handshake.
    async fn admit(&self, stream: &mut TcpStream, link: LinkId) -> Result<(), End> {
        let mut hello = [0; HELLO_LEN];
        stream.read_exact(&mut hello).await?;
        let hello = Hello::decode(&hello).ok_or(End::NotAPeer)?;
        let verdict = match () {
            () if hello.version != VERSION => Verdict::UnknownVersion,
            () if self.config.require_proof && !hello.proven => Verdict::NotProven,
            () => Verdict::Welcome,
        };
        if verdict != Verdict::Welcome {
            stream.write_all(&self.refusal(verdict).encode()).await?;
            return Err(End::Refused(verdict));
        }
        let ours = nonce()?;
        let mut greeting = Greeting { nonce: ours, link, ..self.refusal(verdict) };
        if hello.proven {
            greeting.proof = self.secret.proof(OWNER, &hello.nonce, &ours);
        }
        stream.write_all(&greeting.encode()).await?;
        let mut proof = [0; PROOF_LEN];
        stream.read_exact(&mut proof).await?;
        if hello.proven && !self.secret.is_proven(CLIENT, &hello.nonce, &ours, &proof) {
            stream.write_all(&Answer::Refused(Verdict::NotProven).encode(0)).await?;
            return Err(End::Refused(Verdict::NotProven));
        }
        Ok(stream.write_all(&Answer::Ports(self.ports.offers()).encode(0)).await?)
    }

    /// Answers requests until the peer leaves. Its queue pairs live as long as this.
    async fn answer_all(
        &self,
        mut reader: OwnedReadHalf,
        notices: &Notices,
        place: &Place,
        open: &Arc<OpenLink>,
    ) -> Result<(), End> {
        let unread = Arc::new(Semaphore::new(MAX_UNREAD));
        let mut lanes = HashMap::new();
        let mut standing = Standing { place, is_proved: false, unproved: None };
        loop {
            let frame = match first(receive(&mut reader, MAX_REQUEST), standing.yielded()).await {
                First::Left(frame) => frame?,
                First::Right(()) => return Err(End::Ended),
            };
            let (id, request) = Request::decode(&frame).ok_or(End::Malformed)?;
            let permit = Arc::clone(&unread).acquire_owned().await;
            let answer = match request {
                Request::Lanes(offers) => {
                    if !standing.take_queue_pairs(&self.unproved) {
                        return Err(End::Ended);
                    }
                    Answer::Lanes(self.make_lanes(&mut lanes, offers, open).await)
                }
                Request::Region(key) => {
                    let region = self.serving.answer(key, notices);
                    if region != RegionAnswer::Refused {
                        standing.prove();
                    }
                    Answer::Region(region)
                }
                Request::Fence(lost) => {
                    self.serving.regions.links().end(lost).await;
                    Answer::Fenced
                }
            };
            let frame = answer.encode(id);
            if notices.send(Outgoing { frame, _permit: permit.ok() }).is_err() {
                return Ok(());
            }
        }
    }

    /// Makes queue pairs, in the place of those that the lanes had.
    async fn make_lanes(
        &self,
        lanes: &mut HashMap<u16, QueuePair>,
        offers: Vec<LaneOffer>,
        open: &Arc<OpenLink>,
    ) -> Vec<LaneAnswer> {
        let mut made = Vec::with_capacity(offers.len());
        for offer in offers {
            let old = lanes.remove(&offer.lane);
            let (ports, config) = (Arc::clone(&self.ports), self.config.clone());
            let open = Arc::clone(open);
            let work = move || {
                drop(old);
                // The connection may end meanwhile; its link has not while the old pair lives.
                drop(open);
                make_lane(&ports, &config, &offer)
            };
            // Calls of the system that take up to milliseconds.
            match tokio::task::spawn_blocking(work).await {
                Ok(Ok((pair, answer))) => {
                    made.push(answer);
                    lanes.insert(offer.lane, pair);
                }
                Ok(Err(reason)) => made.push(LaneAnswer::Failed(reason)),
                Err(_) => made.push(LaneAnswer::Failed("the node is shutting down".to_owned())),
            }
        }
        made
    }
}

/// Makes this side's queue pair of a lane; returns it with its description for the peer.
fn make_lane(
    ports: &Ports,
    config: &RdmaConfig,
    offer: &LaneOffer,
) -> Result<(QueuePair, LaneAnswer), String> {
    let port = ports.ports.get(usize::from(offer.port));
    let port = port.ok_or_else(|| "no such port".to_owned())?;
    let open = ports.device_of(port);
    let told = |error: VerbsError| {
        debug!(error = &error as &dyn std::error::Error, "no queue pair for a peer");
        error.to_string()
    };
    let state = open.device.port(port.number).map_err(told)?;
    let limits = open.device.limits();
    let nth = usize::from(offer.gid);
    let (gid_index, gid) = port.gids.get(nth).copied().unwrap_or((0, [0; 16]));
    // It posts nothing, so its queue is as short as it can be.
    let pair = QueuePair::new(&open.serving, 1, 1, 0).map_err(told)?;
    let first = pair.random_packet_number().map_err(told)?;
    let mtu = state.mtu.min(offer.mtu);
    let path = Path {
        port: port.number,
        gid_index,
        gid,
        is_infiniband: state.is_infiniband,
        mtu,
        peer: PathAddress { gid: offer.address, lid: offer.lid },
        peer_number: offer.number,
        peer_first: offer.first,
        first,
        reads_in: limits.reads_in.min(offer.reads_out).max(1),
        reads_out: 1,
    };
    pair.connect(&path, &config.marks(), config.timing()).map_err(told)?;
    let answer = LaneAnswer::Made { number: pair.number(), first, mtu };
    Ok((pair, answer))
}

async fn write_all(
    mut writer: OwnedWriteHalf,
    mut outgoing: UnboundedReceiver<Outgoing>,
    limit: Duration,
) -> Result<(), End> {
    while let Some(next) = outgoing.recv().await {
        let sent = timeout(limit, writer.write_all(&next.frame)).await;
        sent.map_err(|_| End::TimedOut(limit))??;
    }
    Ok(())
}
