//! The side that owns memory: admits peers and gives them descriptors.
//!
//! One task per connection. Peers that map a region never ask for it again; nothing
//! here takes part in their reads and writes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mc_places::{Places, Seat, Source, Stage};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::config::ShmConfig;
use super::frames::{Incoming, Turn, send};
use super::page::{Page, SLOTS};
use super::wire::{
    Answer, CLIENT, GrantedRegion, Greeting, HELLO_LEN, Hello, OWNER, PROOF_LEN, REQUEST_LEN,
    Request, RequestKind, Status, VERSION, Verdict, encode_admission,
};
use crate::backend::counters::Counters;
use crate::backend::first::{First, first};
use crate::backend::proof::{NodeSecret, Nonce, Proof, nonce};
use crate::backend::tasks::{Counted, Tasks};
use crate::region::Registered;
use crate::stream::server::{Service, serve_stream};

/// Streams that one connection may have: one that works, and some that are ending.
const MAX_STREAMS: usize = 4;

/// State that all connections of a server share.
pub(super) struct Server {
    pub(super) config: ShmConfig,
    pub(super) secret: NodeSecret,
    pub(super) page: Arc<Page>,
    /// The service of streams.
    pub(super) service: Service,
    pub(super) counters: Arc<Counters>,
    /// One for each connection and stream.
    pub(super) places: Arc<Places>,
    pub(super) tasks: Weak<Tasks>,
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
    #[error("the peer had mapped nothing, and another one needed its place")]
    Yielded,
    #[error("the peer was told that it is not served: {0:?}")]
    Refused(Verdict),
    #[error("the peer sent a request that this version does not define")]
    Malformed,
}

impl Server {
    fn seat(&self, source: Source) -> Option<Seat> {
        let (seat, yielded) = self.places.take(source);
        self.counters.yielded.fetch_add(yielded as u64, Ordering::Relaxed);
        seat
    }

    pub(super) fn refusal(&self, verdict: Verdict) -> Greeting {
        Greeting {
            version: VERSION,
            verdict,
            nonce: [0; 16],
            proof: [0; PROOF_LEN],
            max_operation: self.service.max_operation,
        }
    }

    /// Serves one peer until it leaves, or breaks the protocol.
    pub(super) async fn serve(
        self: Arc<Self>,
        stream: UnixStream,
        mut seat: Seat,
    ) -> Result<(), End> {
        let (stream, source) = (&stream, seat.place().source());
        let limit = self.config.connect_timeout;
        let admitted = timeout(limit, self.admit(stream)).await;
        admitted.map_err(|_| End::TimedOut(limit))??;
        seat.place().reached(Stage::Shaken);
        let mut withdrawals = self.page.withdrawals();
        let streams = Arc::new(AtomicUsize::new(0));
        let mut incoming = Incoming::<REQUEST_LEN>::new();
        // A peer that maps nothing need not know what is withdrawn.
        let mut maps = false;
        let mut turn = Turn::default();
        loop {
            turn.taken().await;
            let changed = async {
                if !maps || withdrawals.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            let asked = first(incoming.bytes(stream), changed);
            let event = match first(asked, &mut seat.go).await {
                First::Left(event) => event,
                First::Right(_) => return Err(End::Yielded),
            };
            let (answer, descriptor) = match event {
                First::Left(request) => self.answer(&request?, source, &streams),
                First::Right(()) => (Answer::bare(Status::Withdrawn, 0), None),
            };
            seat.seen();
            if answer.region.is_some() || descriptor.is_some() {
                maps |= answer.region.is_some();
                // What it has mapped it may be using at any time.
                seat.place().reached(Stage::Proved);
                seat.place().set_busy(true);
            }
            let descriptor = descriptor.as_ref().map(AsFd::as_fd);
            let limit = self.config.stall_timeout;
            let sent = timeout(limit, send(stream, &answer.encode(), descriptor)).await;
            sent.map_err(|_| End::TimedOut(limit))??;
            if answer.status == Status::Malformed {
                return Err(End::Malformed);
            }
        }
    }

    /// The handshake.
    async fn admit(&self, stream: &UnixStream) -> Result<(), End> {
        let hello = Incoming::<HELLO_LEN>::new().bytes(stream).await?;
        let hello = Hello::decode(&hello).ok_or(End::NotAPeer)?;
        let verdict = match () {
            () if hello.version != VERSION => Verdict::UnknownVersion,
            () if !self.config.admits(stream.peer_cred()?.uid()) => Verdict::WrongUser,
            () if self.config.require_proof && !hello.proven => Verdict::NotProven,
            () => Verdict::Welcome,
        };
        if verdict != Verdict::Welcome {
            send(stream, &self.refusal(verdict).encode(), None).await?;
            return Err(End::Refused(verdict));
        }
        let ours: Nonce = nonce()?;
        let mut greeting = Greeting { nonce: ours, ..self.refusal(verdict) };
        if hello.proven {
            greeting.proof = self.secret.proof(OWNER, &hello.nonce, &ours);
        }
        send(stream, &greeting.encode(), None).await?;
        let proof: Proof = Incoming::<PROOF_LEN>::new().bytes(stream).await?;
        if hello.proven && !self.secret.is_proven(CLIENT, &hello.nonce, &ours, &proof) {
            send(stream, &encode_admission(Verdict::NotProven, 0), None).await?;
            return Err(End::Refused(Verdict::NotProven));
        }
        let page = self.page.for_peers();
        Ok(send(stream, &encode_admission(Verdict::Welcome, SLOTS), Some(page)).await?)
    }

    fn answer(
        &self,
        request: &[u8; REQUEST_LEN],
        source: Source,
        streams: &Arc<AtomicUsize>,
    ) -> (Answer, Option<OwnedFd>) {
        match Request::decode(request) {
            Ok(Request { id, kind: RequestKind::Region(key) }) => self.region(id, key),
            Ok(Request { id, kind: RequestKind::Stream }) => match self.stream(source, streams) {
                Some(stream) => (Answer::bare(Status::Granted, id), Some(stream)),
                None => (Answer::bare(Status::Busy, id), None),
            },
            Err(id) => (Answer::bare(Status::Malformed, id), None),
        }
    }

    fn region(&self, id: u32, key: mc_types::RemoteKey) -> (Answer, Option<OwnedFd>) {
        let found = self.service.regions.visit(key, |region| {
            let Registered::Host(memory) = &region.memory else { return None };
            memory.shareable()?;
            let slot = self.page.slot_of(&mut region.attached)?;
            Some((memory.clone(), region.access, slot))
        });
        let Some(found) = found else {
            return (Answer::bare(Status::KeyRefused, id), None);
        };
        let Some((memory, access, (slot, generation))) = found else {
            return (Answer::bare(Status::NotShareable, id), None);
        };
        match memory.share(access) {
            Ok(descriptor) => {
                let len = memory.len() as u64;
                let region = Some(GrantedRegion { access, len, slot, generation });
                (Answer { status: Status::Granted, id, region }, Some(descriptor))
            }
            Err(error) => {
                warn!(%error, "memory could not be shared; its peers use a stream");
                (Answer::bare(Status::NotShareable, id), None)
            }
        }
    }

    /// One end of a new stream, whose other end is served.
    fn stream(&self, source: Source, streams: &Arc<AtomicUsize>) -> Option<OwnedFd> {
        if streams.load(Ordering::Relaxed) >= MAX_STREAMS {
            return None;
        }
        let (seat, tasks) = (self.seat(source)?, self.tasks.upgrade()?);
        let pair = || -> io::Result<(UnixStream, StdStream)> {
            let (ours, theirs) = StdStream::pair()?;
            ours.set_nonblocking(true)?;
            theirs.set_nonblocking(true)?;
            Ok((UnixStream::from_std(ours)?, theirs))
        };
        let (ours, theirs) = pair().inspect_err(|error| warn!(%error, "no stream")).ok()?;
        let open = (Counted::new(streams), Counted::new(&self.counters.connections));
        let service = self.service.clone();
        tasks.spawn(async move {
            let _open = open;
            if let Err(end) = serve_stream(ours.into(), &service, seat).await {
                debug!(reason = %end, "stream ended");
            }
        });
        Some(theirs.into())
    }
}
