//! The side that owns memory: admits peers, and makes queue pairs for them.
//!
//! One task for each connection. The queue pairs of a connection end with it, and nothing here
//! takes part in what they carry.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mc_places::{Places, Seat, Source, Stage};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::config::RdmaConfig;
use super::frames::receive;
use super::ports::Ports;
use super::served::{Notices, Outgoing, Serving};
use super::verbs::{Path, PathAddress, QueuePair, Timing, VerbsError};
use super::wire::{
    Answer, CLIENT, Greeting, HELLO_LEN, Hello, LaneAnswer, LaneOffer, MAX_REQUEST, OWNER,
    PROOF_LEN, Request, VERSION, Verdict,
};
use crate::counters::Counters;
use crate::first::{First, first};
use crate::link_id::LinkId;
use crate::open_links::OpenLink;
use crate::proof::{NodeSecret, nonce};
use crate::tasks::{Counted, Tasks};
use crate::tcp::tune;

/// Answers that a peer may leave unread.
const MAX_UNREAD: usize = 4;

/// The pause when the process has no descriptors left for a connection.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// State that all connections of a server share.
pub(super) struct Server {
    pub(super) config: RdmaConfig,
    pub(super) secret: NodeSecret,
    pub(super) ports: Arc<Ports>,
    pub(super) serving: Serving,
    pub(super) counters: Arc<Counters>,
    pub(super) places: Arc<Places>,
    pub(super) tasks: Weak<Tasks>,
}

/// Accepts peers until the transport ends.
pub(super) async fn accept(listener: TcpListener, server: Arc<Server>) {
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // The connection died while it waited, or descriptors ran out; either way the
                // listener itself is sound.
                server.counters.yielded.fetch_add(server.places.shed() as u64, Ordering::Relaxed);
                warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_BACKOFF).await;
                continue;
            }
        };
        let (seat, yielded) = server.places.take(Source::of(peer));
        server.counters.yielded.fetch_add(yielded as u64, Ordering::Relaxed);
        let Some(seat) = seat else {
            debug!(%peer, "refused: as many connections as allowed, and all at work");
            server.counters.refused.fetch_add(1, Ordering::Relaxed);
            // A new socket's buffer has room for these few bytes.
            let _ = stream.try_write(&server.refusal(Verdict::Busy).encode());
            continue;
        };
        let Some(tasks) = server.tasks.upgrade() else { return };
        let server = Arc::clone(&server);
        let place = Arc::clone(seat.place());
        let task = tasks.spawn(async move {
            let _open = Counted::new(&server.counters.connections);
            tune::tune(&stream, &crate::TcpConfig::default());
            if let Err(end) = server.serve(stream, seat).await {
                debug!(%peer, reason = %end, "connection ended");
            }
        });
        if let Some(task) = task {
            Seat::run_in(&place, task);
        }
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum End {
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

impl Server {
    fn refusal(&self, verdict: Verdict) -> Greeting {
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
    async fn serve(&self, mut stream: TcpStream, mut seat: Seat) -> Result<(), End> {
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
        place: &mc_places::Place,
        open: &Arc<OpenLink>,
    ) -> Result<(), End> {
        let unread = Arc::new(Semaphore::new(MAX_UNREAD));
        let mut lanes = HashMap::new();
        loop {
            let frame = receive(&mut reader, MAX_REQUEST).await?;
            let (id, request) = Request::decode(&frame).ok_or(End::Malformed)?;
            let permit = Arc::clone(&unread).acquire_owned().await;
            let answer = match request {
                Request::Lanes(offers) => {
                    // What it was given it may be using at any time.
                    place.reached(Stage::Proved);
                    place.set_busy(true);
                    Answer::Lanes(self.make_lanes(&mut lanes, offers, open).await)
                }
                Request::Region(key) => Answer::Region(self.serving.answer(key, notices)),
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
                Ok(Ok((pair, first))) => {
                    made.push(LaneAnswer::Made { number: pair.number(), first });
                    lanes.insert(offer.lane, pair);
                }
                Ok(Err(reason)) => made.push(LaneAnswer::Failed(reason)),
                Err(_) => made.push(LaneAnswer::Failed("the node is shutting down".to_owned())),
            }
        }
        made
    }
}

/// Makes this side's queue pair of a lane; returns it with the number of its first packet.
fn make_lane(
    ports: &Ports,
    config: &RdmaConfig,
    offer: &LaneOffer,
) -> Result<(QueuePair, u32), String> {
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
    let gid_index = port.gids.get(nth).map_or(0, |&(index, _)| index);
    let first = first_packet().map_err(|error| error.to_string())?;
    // It posts nothing, so its queue is as short as it can be.
    let pair = QueuePair::new(&open.serving, 1, 1, 0).map_err(told)?;
    let path = Path {
        port: port.number,
        gid_index,
        is_infiniband: state.is_infiniband,
        mtu: state.mtu.min(offer.mtu),
        peer: PathAddress { gid: offer.address, lid: offer.lid },
        peer_number: offer.number,
        peer_first: offer.first,
        first,
        reads_in: limits.reads_in.min(offer.reads_out).max(1),
        reads_out: 1,
    };
    let timing = Timing { timeout: config.ack_timeout, retries: config.retries };
    pair.connect(&path, timing).map_err(told)?;
    Ok((pair, first))
}

/// A random number for a first packet: 24 bits, so that packets of an earlier connection with the
/// same numbers are unlikely.
pub(super) fn first_packet() -> io::Result<u32> {
    let bits = nonce()?;
    Ok(u32::from_le_bytes([bits[0], bits[1], bits[2], 0]))
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
