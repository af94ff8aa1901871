//! The side that owns memory: takes requests and carries them out.
//!
//! A task for each connection, and one for each of its streams, of which QUIC limits
//! the number. A stream holds what has arrived of one request and answers that were not
//! sent; a peer that does not take its answers stops being read, nothing else.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mc_places::{OpenCall, Place, Places, Seat, Source, Stage};
use mc_ticket::Ticket;
use mc_tls::ServerTls;
use mc_transport::backend::headers::{
    Opcode, REQUEST_LEN, RequestHeader, ResponseHeader, Status, TICKET_LEN, decode_ticket,
};
use mc_transport::backend::{
    Admission, AdmittedStaged, Claim, Counted, Counters, Description, First, OpenLink, Room,
    StagePeer, Tasks, first,
};
use mc_transport::{Access, LinkId, MemorySlice, RegionTable, TransferError};
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{
    Connection, ConnectionError, Endpoint, Incoming, RecvStream, SendStream, ServerConfig,
};
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::clock::{Clock, Stalled};
use super::config::QuicConfig;
use super::fault::{CLOSED, MALFORMED, STALLED};
use super::flow::{FlowError, Inflow, Outflow};
use super::hello::PROTOCOL;
use super::hello::{HELLO_LEN, Hello};
use super::tuning::Paths;

/// Requests of one stream, at most.
pub(super) const MAX_REQUESTS: usize = 1024;

/// Connections that begin at the same moment and may wait for this node to look at them.
const MAX_INCOMING: usize = 256;

/// Bytes that each of them may send meanwhile, which are kept.
const INCOMING_BYTES: u64 = 64 << 10;

/// Bytes of answers from which on it is seen to that the peer takes them after the
/// stream has ended.
const WORTH_WAITING: u64 = 64 << 10;

/// State that all connections of a server share.
pub(super) struct Server {
    config: QuicConfig,
    tls: Arc<ServerTls>,
    /// Settings that all connections share, with the key of the proofs of address.
    base: ServerConfig,
    paths: Paths,
    regions: RegionTable,
    description: Description,
    counters: Arc<Counters>,
    pub(super) places: Arc<Places>,
}

impl Server {
    pub(super) fn new(
        config: QuicConfig,
        tls: Arc<ServerTls>,
        regions: RegionTable,
        description: Description,
        counters: Arc<Counters>,
    ) -> Self {
        let mut base = ServerConfig::with_crypto(Arc::new(crypto(&tls)));
        base.migration(config.allow_migration)
            .max_incoming(MAX_INCOMING)
            .incoming_buffer_size(INCOMING_BYTES)
            .incoming_buffer_size_total(INCOMING_BYTES * MAX_INCOMING as u64);
        let paths = Paths::of_server(&config);
        // Peers that have proved something may idle for as long as there are places.
        let idle = Duration::MAX;
        let (max, of_address) = (config.max_connections, config.max_connections_per_address);
        let places = Places::new(max, of_address, idle);
        Self { config, tls, base, paths, regions, description, counters, places }
    }

    /// The settings of the endpoint.
    pub(super) fn settings(&self) -> ServerConfig {
        self.base.clone()
    }

    /// Returns whether half of the places are taken, in all or by this source: a client with
    /// forged addresses must not take the places of others.
    fn is_half_full(&self, source: Source) -> bool {
        let (all, of_source) = self.places.taken(source);
        let config = &self.config;
        all >= config.max_connections / 2 || of_source >= config.max_connections_per_address / 2
    }
}

/// The certificates as they are now. A server of mc-tls takes no early data, which could
/// be sent again by an eavesdropper.
fn crypto(tls: &ServerTls) -> QuicServerConfig {
    QuicServerConfig::try_from(tls.current(PROTOCOL))
        .expect("the suites of mc-tls have the one for the first packets")
}

/// Accepts peers until the transport ends.
pub(super) async fn accept(endpoint: Endpoint, server: Arc<Server>, tasks: Weak<Tasks>) {
    while let Some(incoming) = endpoint.accept().await {
        let address = incoming.remote_address();
        let source = Source::of(address);
        if !incoming.remote_address_validated() && server.is_half_full(source) {
            // One whose address is not shown may be asked for it.
            let _ = incoming.retry();
            continue;
        }
        let (seat, yielded) = server.places.take(source);
        server.counters.yielded.fetch_add(yielded as u64, Ordering::Relaxed);
        let Some(mut seat) = seat else {
            debug!(%address, "refused: as many connections as allowed, and all at work");
            server.counters.refused.fetch_add(1, Ordering::Relaxed);
            incoming.refuse();
            continue;
        };
        let Some(running) = tasks.upgrade() else { return };
        let (server, tasks) = (Arc::clone(&server), Weak::clone(&tasks));
        let place = Arc::clone(seat.place());
        let task = running.spawn(async move {
            let _open = Counted::new(&server.counters.connections);
            if let Err(end) = serve(incoming, &server, &tasks, &mut seat).await {
                debug!(%address, reason = %end, "connection ended");
            }
        });
        if let Some(task) = task {
            Seat::run_in(&place, task);
        }
    }
}

/// Why a connection or stream ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the peer closed or broke the connection: {0}")]
    Connection(#[from] ConnectionError),
    #[error("the peer ended or broke the stream: {0}")]
    Flow(#[from] FlowError),
    #[error("no progress for {0:?}")]
    Stalled(Duration),
    #[error("the peer sent what this version does not define")]
    Malformed,
    #[error("the peer asked for {len} bytes at once")]
    TooLarge { len: u64 },
    #[error("the peer was idle, and another one needed its place")]
    Yielded,
    #[error("a region was withdrawn while the peer was reading it")]
    Withdrawn,
    #[error("a read ended in the middle: {0}")]
    Device(TransferError),
}

impl From<Stalled> for End {
    fn from(stalled: Stalled) -> Self {
        Self::Stalled(stalled.after)
    }
}

/// Closes a connection that may still have streams, whose tasks hold it.
struct Closing(Connection);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close(CLOSED, b"");
    }
}

async fn serve(
    incoming: Incoming,
    server: &Arc<Server>,
    tasks: &Weak<Tasks>,
    seat: &mut Seat,
) -> Result<(), End> {
    let mut config = server.base.clone();
    config.crypto = Arc::new(crypto(&server.tls));
    config.transport_config(server.paths.to(incoming.remote_address().ip()));
    let connecting = incoming.accept_with(Arc::new(config))?;
    let clock = Clock::new(server.config.connect_timeout);
    let greeted = clock.watch(async {
        let connection = connecting.await?;
        let entry = greet(&connection, server, &clock).await?;
        Ok::<_, End>((connection, entry))
    });
    let (connection, entry) = greeted.await??;
    let connection = Closing(connection);
    seat.place().reached(Stage::Shaken);
    let source = seat.place().source();
    let peer = Arc::new(StagePeer::new(source, server.config.stall_timeout));
    loop {
        let (send, receive) = match first(connection.0.accept_bi(), &mut seat.go).await {
            First::Left(stream) => stream?,
            First::Right(_) => {
                connection.0.close(CLOSED, b"idle, and another needs the place");
                return Err(End::Yielded);
            }
        };
        seat.seen();
        let Some(tasks) = tasks.upgrade() else { return Ok(()) };
        let (server, entry) = (Arc::clone(server), Arc::clone(&entry));
        let peer = (Arc::clone(seat.place()), Arc::clone(&peer));
        tasks.spawn(serve_stream(connection.0.clone(), server, entry, peer, (send, receive)));
    }
}

/// Answers the first stream, on which each side says hello.
async fn greet(
    connection: &Connection,
    server: &Server,
    clock: &Clock,
) -> Result<Arc<OpenLink>, End> {
    let (send, receive) = connection.accept_bi().await?;
    let mut inflow = Inflow::new(receive, clock);
    let theirs = inflow.header::<HELLO_LEN>().await?;
    let theirs = theirs.and_then(|bytes| Hello::decode(&bytes));
    let Some(theirs) = theirs.filter(|theirs| theirs.description_len == 0) else {
        connection.close(MALFORMED, b"not a hello of this version");
        return Err(End::Malformed);
    };
    // Before the client can ask for anything.
    let open = connection.clone();
    let end = move || open.close(CLOSED, b"ended over another link");
    let entry = Arc::new(server.regions.links().enter(theirs.link, end));
    let max_operation = server.config.max_operation.as_u64();
    let description = server.description.encode();
    let description_len = description.len() as u64;
    let ours = Hello { max_operation, link: LinkId::from_bytes([0; 16]), description_len };
    let mut outflow = Outflow::new(send, clock);
    outflow.header(&ours.encode()).await?;
    outflow.header(&description).await?;
    outflow.finish().await?;
    Ok(entry)
}

async fn serve_stream(
    connection: Connection,
    server: Arc<Server>,
    entry: Arc<OpenLink>,
    (place, peer): (Arc<Place>, Arc<StagePeer>),
    (send, receive): (SendStream, RecvStream),
) {
    let clock = Clock::new(server.config.stall_timeout);
    let mut stream = Stream {
        regions: &server.regions,
        entry: &entry,
        place: &place,
        peer: &peer,
        at_work: None,
        max_operation: server.config.max_operation.as_u64(),
        received: Inflow::new(receive, &clock),
        answers: Outflow::new(send, &clock),
        clock: &clock,
    };
    let served = clock.watch(stream.serve()).await.unwrap_or_else(|stalled| Err(stalled.into()));
    let Err(end) = served else { return };
    debug!(reason = %end, "stream ended");
    match end {
        End::Malformed => connection.close(MALFORMED, b"not a request of this version"),
        End::TooLarge { .. } => connection.close(MALFORMED, b"more than this node said it takes"),
        End::Stalled(_) | End::Withdrawn | End::Device(_) => stream.abandon(),
        // The side that ended it knows.
        _ => {}
    }
}

/// A write that ended early.
struct Refused {
    refusal: TransferError,
    /// Bytes of its payload that were not received.
    missing: u64,
}

struct Stream<'a> {
    regions: &'a RegionTable,
    entry: &'a Arc<OpenLink>,
    place: &'a Arc<Place>,
    peer: &'a StagePeer,
    /// From the first request that knew a key to the end of the stream.
    at_work: Option<OpenCall>,
    max_operation: u64,
    received: Inflow<'a>,
    answers: Outflow<'a>,
    clock: &'a Clock,
}

impl Stream<'_> {
    async fn serve(&mut self) -> Result<(), End> {
        for served in 0.. {
            if self.received.is_empty() {
                // The peer may be waiting for these before it sends more.
                self.answers.flush().await?;
            }
            let Some(bytes) = self.received.header::<REQUEST_LEN>().await? else { break };
            if served >= MAX_REQUESTS {
                return Err(End::Malformed);
            }
            self.carry_out(&bytes).await?;
            self.clock.renew();
        }
        self.answers.finish().await?;
        if self.answers.handed_over() >= WORTH_WAITING {
            self.answers.acknowledged().await;
        }
        Ok(())
    }

    async fn carry_out(&mut self, bytes: &[u8; REQUEST_LEN]) -> Result<(), End> {
        let request = RequestHeader::decode(bytes).map_err(|_| End::Malformed)?;
        if request.len > self.max_operation {
            return Err(End::TooLarge { len: request.len });
        }
        let wanted = match request.opcode {
            Opcode::Read => Access::Read,
            Opcode::Write => Access::Write,
            // Its description does not offer it.
            Opcode::Trace => return Err(End::Malformed),
            Opcode::Fence => return self.fence(&request).await,
        };
        let ticket = match request.has_ticket {
            true => Some(self.ticket().await?),
            false => None,
        };
        let RequestHeader { id, key, offset, len, .. } = request;
        let admitted = self.regions.admit_any(key, offset, len, wanted, ticket.as_ref());
        if admitted.is_ok() && self.at_work.is_none() {
            self.place.reached(Stage::Proved);
            self.at_work = Some(self.place.call());
        }
        match (wanted, admitted) {
            (Access::Read, Ok(Admission::Staged(admitted))) => {
                self.send_staged(id, &admitted).await?;
            }
            (Access::Read, Ok(Admission::Host(admitted))) => {
                self.regions.count_served(wanted, len);
                self.answer(Status::Done, id, len).await?;
                let sent = self.answers.memory(admitted.memory(), None, None);
                let is_withdrawn = || admitted.is_withdrawn();
                let sent = self.regions.unless_withdrawn(sent, is_withdrawn).await;
                sent.map_err(|_| End::Withdrawn)??;
            }
            (Access::Read, Err(refusal)) => {
                self.answer(Status::of(&refusal), id, 0).await?;
            }
            (_, Ok(admitted)) => {
                let received = match admitted {
                    Admission::Host(admitted) => {
                        self.receive(admitted.memory(), admitted.claim()).await?
                    }
                    Admission::Staged(admitted) => self.receive_staged(&admitted).await?,
                };
                let status = match received {
                    Ok(()) => {
                        self.regions.count_served(wanted, len);
                        Status::Done
                    }
                    Err(Refused { refusal, missing }) => {
                        self.received.discard(missing).await?;
                        Status::of(&refusal)
                    }
                };
                self.answer(status, id, 0).await?;
            }
            (_, Err(refusal)) => {
                self.received.discard(len).await?;
                self.answer(Status::of(&refusal), id, 0).await?;
            }
        }
        Ok(())
    }

    async fn ticket(&mut self) -> Result<Ticket, End> {
        let bytes = self.received.header::<TICKET_LEN>().await?;
        let bytes = bytes.ok_or(FlowError::Truncated)?;
        decode_ticket(&bytes).ok_or(End::Malformed)
    }

    /// Receives the payload of a write. It ends early when the region is withdrawn or the
    /// grant ends, with nothing applied from then on.
    async fn receive(
        &mut self,
        memory: &MemorySlice,
        claim: &Claim,
    ) -> Result<Result<(), Refused>, End> {
        self.receive_from(&mut 0, memory, claim).await
    }

    /// [`receive`](Self::receive) for the bytes of `memory` from `at` on, which moves with what
    /// arrives, and says how much that is when the future is dropped.
    async fn receive_from(
        &mut self,
        at: &mut usize,
        memory: &MemorySlice,
        claim: &Claim,
    ) -> Result<Result<(), Refused>, End> {
        while *at < memory.len() {
            let missing = memory.len() - *at;
            let next = self.received.take(missing);
            let next = self.regions.unless_withdrawn(next, || claim.is_withdrawn()).await;
            let Ok(next) = next else {
                let (refusal, missing) = (TransferError::KeyRefused, missing as u64);
                return Ok(Err(Refused { refusal, missing }));
            };
            let bytes = next?.ok_or(FlowError::Truncated)?;
            if let Err(refusal) = claim.check() {
                let missing = (missing - bytes.len()) as u64;
                return Ok(Err(Refused { refusal, missing }));
            }
            let copied = memory.copy_from(*at, &bytes);
            copied.expect("the bytes were cut to what the memory, which can be written, has left");
            *at += bytes.len();
        }
        Ok(Ok(()))
    }

    /// Answers a read of staged memory, part by part.
    async fn send_staged(&mut self, id: u32, admitted: &AdmittedStaged) -> Result<(), End> {
        let (len, mut is_begun) = (admitted.len() as u64, false);
        if len == 0 {
            return self.answer(Status::Done, id, 0).await;
        }
        for part in admitted.parts() {
            // Earlier answers must not hold the stage up.
            self.answers.flush().await?;
            let mut at = part.start;
            while at < part.end {
                let room = match self.clock.paused(admitted.read_room(self.peer)).await {
                    Ok(room) => self.copied(admitted.read(at..part.end, room)).await,
                    Err(refusal) => Err(refusal),
                };
                let room = match room {
                    Ok(room) => room,
                    Err(refusal) if at == 0 && !is_begun => {
                        return self.answer(Status::of(&refusal), id, 0).await;
                    }
                    // A payload that is half sent can only be broken off.
                    Err(refusal) => return Err(End::Device(refusal)),
                };
                if !is_begun {
                    is_begun = true;
                    self.answer(Status::Done, id, len).await?;
                }
                at += self.send_part(admitted, room, part.end - at).await?;
            }
        }
        self.regions.count_served(Access::Read, len);
        Ok(())
    }

    /// Sends the first `len` bytes of a room, as long as the peer may have that; how many were
    /// sent. They are copied aside then, or else others get the stage.
    async fn send_part(
        &mut self,
        admitted: &AdmittedStaged,
        mut room: Room,
        len: usize,
    ) -> Result<usize, End> {
        let before = self.answers.bytes_read();
        loop {
            let read = self.answers.bytes_read() - before;
            let sent = usize::try_from(read).expect("no more than a part");
            let rest = room.front(len).part(sent, len - sent).expect("a part of the part");
            let (limit, began) = (self.peer.limit(&room), Instant::now());
            match timeout(limit, self.answers.memory(&rest, None, None)).await {
                Ok(moved) => {
                    moved?;
                    self.peer.moved(began.elapsed());
                    return Ok(len);
                }
                Err(_) if matches!(room, Room::Aside(_)) => return Err(End::Stalled(limit)),
                Err(_) => {
                    self.peer.was_late();
                    if !admitted.set_aside(self.peer, &mut room, len) {
                        let read = self.answers.bytes_read() - before;
                        return Ok(usize::try_from(read).expect("no more than a part"));
                    }
                }
            }
        }
    }

    /// [`receive`](Self::receive) for staged memory, part by part. When this returns, nothing
    /// of it is on its way to the device.
    async fn receive_staged(
        &mut self,
        admitted: &AdmittedStaged,
    ) -> Result<Result<(), Refused>, End> {
        let end = admitted.len();
        let refused =
            |refusal, missing: usize| Ok(Err(Refused { refusal, missing: missing as u64 }));
        for part in admitted.parts() {
            let mut at = part.start;
            while at < part.end {
                // The peer may be waiting for these before it sends more.
                self.answers.flush().await?;
                let room = match self.clock.paused(admitted.write_room(self.peer)).await {
                    Ok(room) => room,
                    Err(refusal) => return refused(refusal, end - at),
                };
                let limit = self.peer.limit(&room);
                let (memory, mut arrived) = (room.front(part.end - at), 0);
                let began = Instant::now();
                let received = self.receive_from(&mut arrived, &memory, admitted.claim());
                match timeout(limit, received).await {
                    Ok(received) => {
                        if let Err(Refused { refusal, missing }) = received? {
                            let missing = missing + (end - part.end) as u64;
                            return Ok(Err(Refused { refusal, missing }));
                        }
                        self.peer.moved(began.elapsed());
                    }
                    Err(_) if matches!(room, Room::Aside(_)) => return Err(End::Stalled(limit)),
                    // What has arrived is written, and others get the stage.
                    Err(_) => self.peer.was_late(),
                }
                if arrived == 0 {
                    continue;
                }
                let stage = admitted.stage_of(self.peer, room, arrived);
                let stage = self.clock.paused(stage).await;
                let written = at..at + arrived;
                at = written.end;
                let stage = match stage {
                    Ok(stage) => stage,
                    Err(refusal) => return refused(refusal, end - at),
                };
                let entry = Arc::clone(self.entry);
                if let Err(refusal) = self.copied(admitted.write(written, stage, entry)).await {
                    return refused(refusal, end - at);
                }
            }
        }
        Ok(Ok(()))
    }

    /// Waits for a copy; waiting is no fault of the peer.
    async fn copied<T>(&self, copied: impl Future<Output = T>) -> T {
        self.clock.renew();
        let copied = copied.await;
        self.clock.renew();
        copied
    }

    /// Ends another link.
    async fn fence(&mut self, request: &RequestHeader) -> Result<(), End> {
        let lost = LinkId::from_bytes(request.key.to_bytes());
        if (request.offset, request.len) != (0, 0) || lost == self.entry.id() {
            return Err(End::Malformed);
        }
        let _at_work = self.place.call();
        self.regions.links().end(lost).await;
        self.answer(Status::Done, request.id, 0).await
    }

    async fn answer(&mut self, status: Status, id: u32, len: u64) -> Result<(), End> {
        let header = ResponseHeader { status, id, len };
        Ok(self.answers.header(&header.encode()).await?)
    }

    /// Drops the stream in both directions.
    fn abandon(&mut self) {
        self.received.stop(STALLED);
        self.answers.reset(STALLED);
    }
}
