//! The side that owns memory: takes requests and carries them out.
//!
//! One task per connection, which never holds more than a fixed number of
//! requests: it parses what has arrived, answers, and only then receives more.
//! A peer that does not take its answers stops being read, nothing else.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use mc_memory::{Access, MemorySlice};
use mc_places::{Seat, Stage};
use mc_ticket::Ticket;
use mc_trace::TraceContext;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, timeout, timeout_at};

use super::frames::{DIRECT, Frame, ReceiveBuffer, SendQueue, Target};
use super::progress::{ProgressTimeout, Stalled};
use super::socket::Stream;
#[cfg(feature = "tls")]
use super::tls::HandshakeError;
use super::traced::Traced;
use super::wire::{
    MAX_REQUEST_LEN, Opcode, PREFACE_LEN, Preface, REQUEST_LEN, RequestHeader, ResponseHeader,
    Status, TICKET_LEN, TLS_HANDSHAKE, VERSION, Verdict, decode_ticket,
};
use crate::backend::description::Description;
use crate::backend::first::{First, first};
use crate::error::TransferError;
use crate::link_id::LinkId;
use crate::open_links::OpenLink;
use crate::region::{Admission, Claim, RegionTable};
use crate::staged::{AdmittedStaged, Room, StagePeer};

/// Answers collected before they are sent, at most.
const MAX_ANSWERS: usize = 64;

/// Reads of staged memory that are under way for a connection at a time, beside the one that is answered.
const MAX_AHEAD: usize = 16;

/// The cost of a system call, in bytes moved.
const CALL_WEIGHT: usize = 16 << 10;

/// Bytes of a refused peer that are read and dropped, so that our last answer is
/// not lost to a reset.
const LINGER_BYTES: usize = 1 << 20;

/// How long that may take.
const LINGER: Duration = Duration::from_secs(1);

/// The service to peers: regions and time limits.
#[derive(Clone)]
pub(crate) struct Service {
    /// The memory open to them.
    pub(crate) regions: RegionTable,
    /// Bytes of the largest operation.
    pub(crate) max_operation: u64,
    /// The description of this node for peers.
    pub(crate) description: Description,
    /// Time limit for the exchange of prefaces.
    pub(crate) connect_timeout: Duration,
    /// Time that a peer that owes something may go without progress.
    pub(crate) stall_timeout: Duration,
}

/// Serves one peer until it leaves, or breaks the protocol.
///
/// # Errors
/// [`End`], which there always is: peers leave without a word.
pub(crate) async fn serve_stream(stream: Stream, service: &Service, seat: Seat) -> Result<(), End> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| End::Io(error.into()))?;
    let id = LinkId::from_bytes(id);
    let asked = Arc::new(Notify::new());
    let told = Arc::clone(&asked);
    let open = Arc::new(service.regions.links().enter(id, move || told.notify_one()));
    // Dropped before the entry in the table, which says that nothing is touched any more.
    let mut served = pin!(async {
        let greeted = Connection::greet(stream, service, id, seat, Arc::clone(&open));
        Box::pin(greeted).await?.serve().await
    });
    let mut asked = pin!(asked.notified());
    poll_fn(|cx| match asked.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(Err(End::Fenced)),
        Poll::Pending => served.as_mut().poll(cx),
    })
    .await
}

/// A server's first message.
pub(crate) fn preface(max_operation: u64, verdict: Verdict) -> [u8; PREFACE_LEN] {
    Preface { version: VERSION, verdict: verdict as u16, max_operation }.encode()
}

/// A description behind its length, as it follows a preface.
fn with_length(description: &Description) -> Bytes {
    let text = description.encode();
    let len = u32::try_from(text.len()).expect("descriptions are bounded");
    [&len.to_le_bytes()[..], &text].concat().into()
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    #[error("the peer closed or broke the connection: {0}")]
    Io(#[from] io::Error),
    #[error("the peer made no progress for {0:?}")]
    Stalled(Duration),
    #[error("the peer asked over another connection to end this one")]
    Fenced,
    #[error("the peer does not speak this protocol")]
    NotAPeer,
    #[error("the peer speaks TLS; this node has no certificate")]
    SpeaksTls,
    #[cfg(feature = "tls")]
    #[error(transparent)]
    Handshake(HandshakeError),
    #[error("the peer speaks version {theirs} of the protocol")]
    OtherVersion { theirs: u16 },
    #[error("the peer sent a request that this version does not define")]
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

/// A read of staged memory that was asked for, and is answered in its turn.
struct Ahead {
    id: u32,
    admitted: Arc<AdmittedStaged>,
    /// The task that reads it; `None` where it waits for its turn to take a stage.
    reading: Option<ServedRead>,
}

/// A read that runs by itself. Ends when it is dropped, but for a copy under way.
struct ServedRead {
    room: JoinHandle<Result<Room, TransferError>>,
    begun: Instant,
    done: Option<Result<Room, TransferError>>,
}

impl ServedRead {
    /// Waits until it is done, for so long since it began. Loses nothing when it is dropped.
    async fn ready(&mut self, limit: Duration) {
        if self.done.is_none() {
            let room = timeout_at(self.begun + limit, &mut self.room).await;
            // Its copies do not panic; when the runtime ends, no answers are sent any more.
            let failed = || Err(TransferError::DeviceFailed);
            self.done =
                Some(room.map_or_else(|_| failed(), |room| room.unwrap_or_else(|_| failed())));
        }
    }

    /// The bytes, as [`ready`](Self::ready) waits for them.
    async fn room(&mut self, limit: Duration) -> Result<Room, TransferError> {
        self.ready(limit).await;
        self.done.take().unwrap_or(Err(TransferError::DeviceFailed))
    }
}

impl Drop for ServedRead {
    fn drop(&mut self) {
        self.room.abort();
    }
}

/// A write that ended early.
struct EndedWrite {
    refusal: TransferError,
    /// Bytes of its payload that were not received.
    missing: u64,
}

struct Connection {
    stream: Stream,
    seat: Seat,
    /// Held by everything that touches memory for this connection.
    open: Arc<OpenLink>,
    regions: RegionTable,
    max_operation: u64,
    received: ReceiveBuffer,
    answers: SendQueue,
    /// In the order of the requests, all of which are behind `answers`.
    ahead: VecDeque<Ahead>,
    /// The trace that the next requests, or the last ones, belong to.
    traced: Option<Box<Traced>>,
    progress: ProgressTimeout,
    /// The peer as staged regions know it, from its first operation on one on.
    stage_peer: Option<Arc<StagePeer>>,
    /// Whether the peer has shown a valid key. Before, it yields its place in the middle of a
    /// request, and its requests buy it no time.
    is_proved: bool,
    /// Bytes moved since other tasks had a turn.
    since_yield: usize,
    /// Bytes to receive of the next request before its target is known: after a large write
    /// its header only, since the next may be one too, whose payload is better left in the
    /// socket.
    expected: usize,
}

impl Connection {
    /// Exchanges prefaces.
    async fn greet(
        stream: Stream,
        service: &Service,
        id: LinkId,
        seat: Seat,
        open: Arc<OpenLink>,
    ) -> Result<Self, End> {
        let mut connection = Self {
            stream,
            seat,
            open,
            regions: service.regions.clone(),
            max_operation: service.max_operation,
            received: ReceiveBuffer::small(),
            answers: SendQueue::default(),
            ahead: VecDeque::new(),
            traced: None,
            progress: ProgressTimeout::new(service.connect_timeout),
            stage_peer: None,
            is_proved: false,
            since_yield: 0,
            expected: usize::MAX,
        };
        let (theirs, speaks_tls) = loop {
            if let Some(bytes) = connection.received.take::<PREFACE_LEN>() {
                break (Preface::decode(&bytes), bytes[0] == TLS_HANDSHAKE);
            }
            connection.receive(PREFACE_LEN).await?;
        };
        let Some(theirs) = theirs else {
            if speaks_tls {
                let verdict = Verdict::TlsUnavailable;
                connection.answers.push(Frame::bare(&preface(service.max_operation, verdict)));
                connection.flush().await?;
                linger(&connection.stream).await;
                return Err(End::SpeaksTls);
            }
            return Err(End::NotAPeer);
        };
        let verdict =
            if theirs.version == VERSION { Verdict::Welcome } else { Verdict::UnknownVersion };
        let ours = preface(service.max_operation, verdict);
        connection.answers.push(match verdict {
            Verdict::Welcome => {
                let description =
                    Description { connection: Some(id), ..service.description.clone() };
                Frame::new(&ours, with_length(&description).into())
            }
            _ => Frame::bare(&ours),
        });
        connection.flush().await?;
        connection.answers = SendQueue::default();
        if verdict != Verdict::Welcome {
            linger(&connection.stream).await;
            return Err(End::OtherVersion { theirs: theirs.version });
        }
        connection.progress = ProgressTimeout::new(service.stall_timeout);
        connection.seat.place().reached(Stage::Shaken);
        Ok(connection)
    }

    /// Serves the peer to its end. What that needs is allocated once the peer has proved something:
    /// a stranger's connection is small.
    async fn serve(mut self) -> Result<(), End> {
        while !self.is_proved {
            Box::pin(self.answer_arrived()).await?;
            match self.received.len() {
                _ if self.is_proved => {}
                0 => self.receive_whenever().await?,
                _ => _ = Box::pin(self.receive(self.expected)).await?,
            }
        }
        Box::pin(async move {
            loop {
                match self.received.len() {
                    0 => self.receive_whenever().await?,
                    _ => _ = self.receive(self.expected).await?,
                }
                self.answer_arrived().await?;
            }
        })
        .await
    }

    /// Carries out the requests that have arrived.
    async fn answer_arrived(&mut self) -> Result<(), End> {
        loop {
            self.begin_arrived().await?;
            if self.ahead.is_empty() {
                self.flush().await?;
                if self.traced.as_ref().is_some_and(|traced| traced.is_over()) {
                    self.traced = None;
                }
                return Ok(());
            }
            if !self.is_asked_meanwhile().await? {
                self.answer_ahead(self.ahead.len() - 1).await?;
            }
        }
    }

    /// Waits for the read of staged memory that is to be answered next, while the peer asks for nothing
    /// that could be read beside it.
    async fn is_asked_meanwhile(&mut self) -> Result<bool, End> {
        self.flush().await?;
        let (limit, has_room) = (self.device_limit(), self.ahead.len() < MAX_AHEAD);
        let Some(Ahead { reading: Some(reading), .. }) = self.ahead.front_mut() else {
            return Ok(false);
        };
        if !has_room {
            return Ok(false);
        }
        match first(reading.ready(limit), self.stream.readable()).await {
            First::Left(()) => return Ok(false),
            First::Right(readable) => readable?,
        }
        match self.received.try_receive(&self.stream, self.expected) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// How long a device may take for a part of a read before that fails: less than the peer waits.
    fn device_limit(&self) -> Duration {
        self.progress.timeout() / 2
    }

    /// Begins the requests that have arrived, and answers those on memory.
    async fn begin_arrived(&mut self) -> Result<(), End> {
        while let Some(bytes) = self.received.take::<REQUEST_LEN>() {
            // Each request starts the clock anew: a busy peer is not late.
            if self.is_proved {
                self.progress.renew();
            }
            let Err(end) = self.carry_out(&bytes).await else { continue };
            self.answer_ahead(0).await?;
            if matches!(end, End::Malformed | End::TooLarge { .. }) {
                self.flush().await?;
                linger(&self.stream).await;
            }
            return Err(end);
        }
        Ok(())
    }

    async fn carry_out(&mut self, bytes: &[u8; REQUEST_LEN]) -> Result<(), End> {
        let request = match RequestHeader::decode(bytes) {
            Ok(request) => request,
            Err(malformed) => {
                self.answer_ahead(0).await?;
                self.answer(Status::Malformed, malformed.id).await?;
                return Err(End::Malformed);
            }
        };
        if request.opcode == Opcode::Trace {
            let context = request.named_trace().filter(TraceContext::is_sampled);
            self.traced = context.map(|context| Box::new(Traced::new(context, request.id)));
            return Ok(());
        }
        if request.opcode == Opcode::Fence {
            self.answer_ahead(0).await?;
            if (request.offset, request.len) != (0, 0) {
                self.answer(Status::Malformed, request.id).await?;
                return Err(End::Malformed);
            }
            self.regions.links().end(LinkId::from_bytes(request.key.to_bytes())).await;
            return self.answer(Status::Done, request.id).await;
        }
        if request.len > self.max_operation {
            self.answer_ahead(0).await?;
            self.answer(Status::TooLarge, request.id).await?;
            return Err(End::TooLarge { len: request.len });
        }
        let ticket = match request.has_ticket {
            true => Some(self.ticket(request.id).await?),
            false => None,
        };
        let is_write = request.opcode == Opcode::Write;
        let wanted = if is_write { Access::Write } else { Access::Read };
        let RequestHeader { id, key, offset, len, .. } = request;
        let admitted = self.regions.admit_any(key, offset, len, wanted, ticket.as_ref());
        if admitted.is_ok() && !self.is_proved {
            self.is_proved = true;
            self.seat.place().reached(Stage::Proved);
            self.received.enlarge();
            self.progress.renew();
        }
        if let Some(traced) = &mut self.traced {
            traced.request(wanted, len, admitted.is_ok());
        }
        self.expected = match (is_write && len >= DIRECT, request.has_ticket) {
            (false, _) => usize::MAX,
            (true, false) => REQUEST_LEN,
            (true, true) => MAX_REQUEST_LEN,
        };
        let is_staged_read = !is_write && matches!(admitted, Ok(Admission::Staged(_)));
        if !is_staged_read && !self.ahead.is_empty() {
            self.answer_ahead(0).await?;
        }
        match (is_write, admitted) {
            (false, Ok(Admission::Host(admitted))) => {
                self.regions.count_served(wanted, len);
                let header = ResponseHeader { status: Status::Done, id, len };
                self.push(Frame::of_region(&header.encode(), admitted)).await
            }
            (false, Ok(Admission::Staged(admitted))) => {
                self.ahead.push_back(Ahead { id, admitted: Arc::new(admitted), reading: None });
                self.begin_ahead();
                self.answer_ahead(MAX_AHEAD).await
            }
            (false, Err(refusal)) => self.answer(Status::of(&refusal), id).await,
            (true, Ok(admitted)) => {
                let received = match admitted {
                    Admission::Host(admitted) => {
                        self.receive_payload(admitted.memory(), admitted.claim()).await?
                    }
                    Admission::Staged(admitted) => self.receive_staged(&admitted).await?,
                };
                let status = match received {
                    Ok(()) => {
                        self.regions.count_served(wanted, len);
                        Status::Done
                    }
                    Err(EndedWrite { refusal, missing }) => {
                        self.discard_payload(missing).await?;
                        Status::of(&refusal)
                    }
                };
                self.answer(status, id).await
            }
            (true, Err(refusal)) => {
                self.discard_payload(len).await?;
                self.answer(Status::of(&refusal), id).await
            }
        }
    }

    async fn ticket(&mut self, id: u32) -> Result<Ticket, End> {
        let bytes = loop {
            if let Some(bytes) = self.received.take::<TICKET_LEN>() {
                break bytes;
            }
            // The peer may be waiting for these before it sends more.
            self.flush().await?;
            self.receive(TICKET_LEN - self.received.len()).await?;
        };
        match decode_ticket(&bytes) {
            Some(ticket) => Ok(ticket),
            None => {
                self.answer_ahead(0).await?;
                self.answer(Status::Malformed, id).await?;
                Err(End::Malformed)
            }
        }
    }

    /// Receives the payload of a write. It ends early when the region is withdrawn or the
    /// grant ends, with nothing applied from then on.
    async fn receive_payload(
        &mut self,
        memory: &MemorySlice,
        claim: &Claim,
    ) -> Result<Result<(), EndedWrite>, End> {
        let mut target = Target::new(std::slice::from_ref(memory), memory.len() as u64);
        self.receive_into(&mut target, claim).await
    }

    /// [`receive_payload`](Self::receive_payload) for what `target` still misses. When the future
    /// is dropped, the target knows what has arrived.
    async fn receive_into(
        &mut self,
        target: &mut Target<'_>,
        claim: &Claim,
    ) -> Result<Result<(), EndedWrite>, End> {
        let behind = self.expected;
        self.received.drain_to(target);
        while target.missing() > 0 {
            if let Err(refusal) = claim.check() {
                return Ok(Err(EndedWrite { refusal, missing: target.missing() }));
            }
            match self.received.try_receive_payload(&self.stream, target, behind) {
                Ok(moved) => {
                    self.progress.moved(moved);
                    self.moved(moved).await;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let is_withdrawn = || claim.is_withdrawn();
                    let regions = self.regions.clone();
                    // The peer may be waiting for these before it sends more.
                    if let Ok(flushed) = regions.unless_withdrawn(self.flush(), is_withdrawn).await
                    {
                        flushed?;
                        let readable = self.stream.readable();
                        let event = regions.unless_withdrawn(readable, is_withdrawn);
                        if let Ok(readable) = self.progress.wait(event).await? {
                            readable?;
                        }
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Ok(()))
    }

    /// Begins those reads of staged memory for which there are stages.
    ///
    /// Stages are taken in the order of the answers: the answer that is due never waits for a stage that
    /// one behind it holds.
    fn begin_ahead(&mut self) {
        let peer = self.stage_peer();
        for ahead in self.ahead.iter_mut().filter(|ahead| ahead.reading.is_none()) {
            // A read of no bytes has nothing to begin.
            let Some(first) = ahead.admitted.parts().next() else { continue };
            let Some(room) = ahead.admitted.try_read_room(&peer) else { return };
            let admitted = Arc::clone(&ahead.admitted);
            let room = tokio::spawn(async move { admitted.read(first, room).await });
            ahead.reading = Some(ServedRead { room, begun: Instant::now(), done: None });
        }
    }

    /// Answers reads of staged memory until no more than `left` are under way.
    async fn answer_ahead(&mut self, left: usize) -> Result<(), End> {
        while self.ahead.len() > left
            && let Some(Ahead { id, admitted, reading }) = self.ahead.pop_front()
        {
            let first = match reading {
                Some(mut reading) => {
                    // Earlier answers must not hold the stage up.
                    self.flush().await?;
                    // A device that hangs ends this read, and nothing else.
                    let first = reading.room(self.device_limit()).await;
                    self.progress.renew();
                    match first {
                        Ok(room) => Some(room),
                        Err(refusal) => {
                            self.answer(Status::of(&refusal), id).await?;
                            self.begin_ahead();
                            continue;
                        }
                    }
                }
                None => None,
            };
            self.send_staged(id, &admitted, first).await?;
            drop(admitted);
            self.begin_ahead();
        }
        Ok(())
    }

    /// Answers a read of staged memory, part by part, the first of which may be in its room already.
    async fn send_staged(
        &mut self,
        id: u32,
        admitted: &AdmittedStaged,
        mut first: Option<Room>,
    ) -> Result<(), End> {
        let len = admitted.len() as u64;
        let header = ResponseHeader { status: Status::Done, id, len }.encode();
        if len == 0 {
            return self.push(Frame::bare(&header)).await;
        }
        let peer = self.stage_peer();
        for part in admitted.parts() {
            // Earlier answers must not hold the stage up.
            self.flush().await?;
            let (is_first, mut at) = (part.start == 0, part.start);
            loop {
                let room = match first.take() {
                    Some(room) => Ok(room),
                    None => match self.waited(admitted.read_room(&peer)).await {
                        Ok(room) => self.copied(admitted.read(at..part.end, room)).await?,
                        Err(refusal) => Err(refusal),
                    },
                };
                let room = match room {
                    Ok(room) => room,
                    Err(refusal) if is_first && self.answers.is_empty() => {
                        return self.answer(Status::of(&refusal), id).await;
                    }
                    // A payload that is half sent can only be broken off.
                    Err(refusal) => return Err(End::Device(refusal)),
                };
                let len = part.end - at;
                if self.answers.is_empty() {
                    self.answers.push(Frame::of_room(is_first.then_some(&header), room, len));
                } else {
                    self.answers.refill(room, len);
                }
                match self.send_part(admitted, &peer).await? {
                    0 => break,
                    unsent => at = part.end - unsent,
                }
            }
        }
        self.regions.count_served(Access::Read, len);
        Ok(())
    }

    /// Sends the part of an answer that lies in a room, as long as the peer may have that. Copies
    /// the part aside then; where that cannot be, returns how many bytes were not sent, and their
    /// room is given back.
    async fn send_part(
        &mut self,
        admitted: &AdmittedStaged,
        peer: &StagePeer,
    ) -> Result<usize, End> {
        while let Some(room) = self.answers.room() {
            let (limit, is_stage) = (peer.limit(room), matches!(room, Room::Stage(_)));
            let began = Instant::now();
            match timeout(limit, self.flush()).await {
                Ok(flushed) => {
                    flushed?;
                    peer.moved(began.elapsed());
                }
                // It ran out of turns, not of time.
                Err(_) if self.answers.is_empty() => {}
                Err(_) if !is_stage => return Err(End::Stalled(limit)),
                Err(_) => {
                    peer.was_late();
                    // What it is not about to take holds no stage.
                    self.ahead.iter_mut().for_each(|ahead| ahead.reading = None);
                    let copy = |room: &mut Room, len| admitted.set_aside(peer, room, len);
                    if !self.answers.set_aside(copy) {
                        return Ok(self.answers.give_back_room());
                    }
                }
            }
        }
        Ok(0)
    }

    /// [`receive_payload`](Self::receive_payload) for staged memory, part by part. When this
    /// returns, nothing of it is on its way to the device.
    async fn receive_staged(
        &mut self,
        admitted: &AdmittedStaged,
    ) -> Result<Result<(), EndedWrite>, End> {
        let (peer, end) = (self.stage_peer(), admitted.len());
        let refused =
            |refusal, missing: usize| Ok(Err(EndedWrite { refusal, missing: missing as u64 }));
        for part in admitted.parts() {
            let mut at = part.start;
            while at < part.end {
                // The peer may be waiting for these before it sends more.
                self.flush().await?;
                let room = match self.waited(admitted.write_room(&peer)).await {
                    Ok(room) => room,
                    Err(refusal) => return refused(refusal, end - at),
                };
                let (limit, len) = (peer.limit(&room), part.end - at);
                let memory = [room.front(len)];
                let mut target = Target::new(&memory, len as u64);
                let began = Instant::now();
                let received = self.receive_into(&mut target, admitted.claim());
                let received = timeout(limit, received).await;
                let missing = usize::try_from(target.missing()).expect("no more than a part");
                match received {
                    Ok(received) => {
                        if let Err(EndedWrite { refusal, .. }) = received? {
                            return refused(refusal, missing + end - part.end);
                        }
                        peer.moved(began.elapsed());
                    }
                    Err(_) if missing > 0 && matches!(room, Room::Aside(_)) => {
                        return Err(End::Stalled(limit));
                    }
                    // What has arrived is written, and others get the stage.
                    Err(_) => peer.was_late(),
                }
                let arrived = at..part.end - missing;
                if arrived.is_empty() {
                    continue;
                }
                let stage = self.waited(admitted.stage_of(&peer, room, arrived.len())).await;
                at = arrived.end;
                let stage = match stage {
                    Ok(stage) => stage,
                    Err(refusal) => return refused(refusal, end - at),
                };
                let open = Arc::clone(&self.open);
                if let Err(refusal) = self.copied(admitted.write(arrived, stage, open)).await? {
                    return refused(refusal, end - at);
                }
            }
        }
        Ok(Ok(()))
    }

    fn stage_peer(&mut self) -> Arc<StagePeer> {
        let (source, limit) = (self.seat.place().source(), self.progress.timeout());
        let peer = || Arc::new(StagePeer::new(source, limit));
        Arc::clone(self.stage_peer.get_or_insert_with(peer))
    }

    /// Waits for what other peers hold, which is no fault of this one and ends no connection.
    async fn waited<T>(&mut self, room: impl Future<Output = T>) -> T {
        let room = room.await;
        self.progress.renew();
        room
    }

    /// Waits for a copy, as long as a peer might go without progress; waiting is no fault of the
    /// peer.
    async fn copied<T>(&mut self, copied: impl Future<Output = T>) -> Result<T, End> {
        self.progress.renew();
        let copied = self.progress.wait(copied).await?;
        self.progress.renew();
        Ok(copied)
    }

    /// Receives the payload of a refused write into the buffer, and drops it.
    async fn discard_payload(&mut self, len: u64) -> Result<(), End> {
        let mut missing = len - self.received.discard(len);
        while missing > 0 {
            self.flush().await?;
            let moved = self.receive(usize::MAX).await?;
            self.moved(moved).await;
            missing -= self.received.discard(missing);
        }
        Ok(())
    }

    async fn answer(&mut self, status: Status, id: u32) -> Result<(), End> {
        let header = ResponseHeader { status, id, len: 0 };
        self.push(Frame::bare(&header.encode())).await
    }

    async fn push(&mut self, answer: Frame) -> Result<(), End> {
        self.answers.push(answer);
        if self.answers.len() >= MAX_ANSWERS {
            self.flush().await?;
        }
        Ok(())
    }

    /// Sends every answer.
    async fn flush(&mut self) -> Result<(), End> {
        while !self.answers.is_empty() {
            if self.answers.are_withdrawn() && !self.answers.refuse_withdrawn(&self.stream) {
                // A payload that is half sent can only be broken off.
                return Err(End::Withdrawn);
            }
            match self.answers.try_send(&self.stream) {
                Ok(moved) => {
                    self.progress.moved(moved);
                    self.moved(moved).await;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let is_withdrawn = || self.answers.are_withdrawn();
                    let event = self.regions.unless_withdrawn(self.stream.writable(), is_withdrawn);
                    if let Ok(writable) = self.progress.wait(event).await? {
                        writable?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Receives at most `limit` bytes, which must come in time.
    async fn receive(&mut self, limit: usize) -> Result<usize, End> {
        loop {
            match self.received.try_receive(&self.stream, limit) {
                Ok(moved) => {
                    self.progress.moved(moved);
                    return Ok(moved);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let readable = self.stream.readable();
                    if self.is_proved {
                        self.progress.wait(readable).await??;
                        continue;
                    }
                    match self.progress.wait(first(readable, &mut self.seat.go)).await? {
                        First::Left(readable) => readable?,
                        First::Right(_) => return Err(End::Yielded),
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives the beginning of a request. Between requests a peer may be silent for as long as it
    /// likes, while there are places for others.
    async fn receive_whenever(&mut self) -> Result<(), End> {
        // Requests that are refused keep no place, however many come.
        if !self.is_proved && self.seat.go.try_recv().is_ok() {
            return Err(End::Yielded);
        }
        self.seat.place().set_busy(false);
        loop {
            match self.received.try_receive(&self.stream, self.expected) {
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    match first(self.stream.readable(), &mut self.seat.go).await {
                        First::Left(readable) => readable?,
                        First::Right(_) => return Err(End::Yielded),
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.seat.place().set_busy(true);
        self.seat.seen();
        self.progress.renew();
        Ok(())
    }

    /// Lets other tasks run now and then.
    async fn moved(&mut self, bytes: usize) {
        self.since_yield = self.since_yield.saturating_add(bytes.max(CALL_WEIGHT));
        if self.since_yield >= self.stream.turn() {
            self.since_yield = 0;
            yield_now().await;
        }
    }
}

/// Closes our direction and drops what still arrives for a moment, so that our last words
/// are not lost.
pub(crate) async fn linger(stream: &Stream) {
    stream.close_sending();
    let dropping = stream.socket().drop_incoming(LINGER_BYTES);
    // Whether the peer closes or the time is over is the same to us.
    let _ = timeout(LINGER, dropping).await;
}
