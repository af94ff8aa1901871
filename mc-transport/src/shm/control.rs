//! The side that reaches out: asks an owner for its regions, and hears when they are
//! withdrawn or the owner is gone.
//!
//! An operation on a region that is not known leaves a request and
//! waits. One task per link puts requests on the wire, takes the answers and maps
//! what comes with them. It alone uses the socket, which ends with it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mc_memory::MemoryError;
use mc_types::RemoteKey;
use parking_lot::{Mutex, RwLock};
use tokio::net::UnixStream;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::frames::{Incoming, Received, Turn};
use super::hang_up::HangUp;
use super::page::PeerPage;
use super::path_cache::{Mapped, PathCache, RegionPath, Space};
use super::wire::{
    ANSWER_LEN, Answer, BadAnswer, GrantedRegion, REQUEST_LEN, Request, RequestKind, Status,
};
use crate::backend::first::{First, first};
use crate::backend::tasks::Counted;
use crate::error::{ProtocolViolation, TransferError};
use crate::link_id::LinkId;
use crate::stream::link::StreamLink;
use crate::transport::Link;

/// Questions that an owner may leave open. One that owes so many answers owes the
/// next one, too.
const MAX_ASKED: usize = 1024;

/// The result of a request for a region.
pub(super) type RegionResult = Result<RegionPath, TransferError>;

/// The result of a request for a stream.
pub(super) type StreamResult = Result<OwnedFd, TransferError>;

/// State shared by the link's handle, its operations and its task.
pub(super) struct Control {
    pub(super) path_cache: RwLock<PathCache>,
    /// To regions that cannot be mapped. Opened when it is first needed, and again
    /// when it broke.
    stream: Mutex<Option<Arc<StreamLink>>>,
    /// The owner's id of the last stream, also after it broke.
    stream_id: Mutex<Option<LinkId>>,
    pending: Mutex<PendingRequests>,
    /// There is something to send, or the link has failed.
    wake: Notify,
    healthy: AtomicBool,
    hang_up: HangUp,
    /// Time limit for an answer.
    answer_timeout: Duration,
}

#[derive(Default)]
struct PendingRequests {
    unsent: VecDeque<Request>,
    /// Questions in the order in which their answers come.
    unanswered: VecDeque<Request>,
    regions: HashMap<RemoteKey, Vec<oneshot::Sender<RegionResult>>>,
    streams: VecDeque<oneshot::Sender<StreamResult>>,
    next_id: u32,
    /// Why the link takes no questions any more.
    broken: Option<TransferError>,
}

impl Control {
    pub(super) fn new(max_mapped: usize, answer_timeout: Duration, hang_up: HangUp) -> Self {
        Self {
            path_cache: RwLock::new(PathCache::new(max_mapped)),
            stream: Mutex::default(),
            stream_id: Mutex::default(),
            pending: Mutex::default(),
            wake: Notify::new(),
            healthy: AtomicBool::new(true),
            hang_up,
            answer_timeout,
        }
    }

    pub(super) fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Acquire)
    }

    /// Gives the link up if the owner has gone and the link's task was not run since.
    pub(super) fn look_for_hang_up(&self) {
        if self.is_healthy() && self.hang_up.has_come() {
            self.owner_has_gone();
        }
    }

    /// Gives the link up because the owner has gone.
    pub(super) fn owner_has_gone(&self) {
        let source = Arc::new(io::ErrorKind::ConnectionReset.into());
        self.fail(TransferError::LinkLost { source });
    }

    /// Unmaps the regions that were withdrawn.
    pub(super) fn drop_withdrawn(&self) {
        let mappings = self.path_cache.write().sweep();
        drop(mappings);
    }

    pub(super) fn hang_up(&self) -> &HangUp {
        &self.hang_up
    }

    /// The error that the link failed with.
    pub(super) fn reason(&self) -> TransferError {
        self.pending.lock().broken.clone().unwrap_or(TransferError::Closed)
    }

    /// Fails the link with `reason`, unless it has failed before.
    pub(super) fn fail(&self, reason: TransferError) {
        let mut pending = self.pending.lock();
        if pending.broken.is_some() {
            return;
        }
        let dropped =
            PendingRequests { broken: Some(reason.clone()), ..PendingRequests::default() };
        let given_up = std::mem::replace(&mut *pending, dropped);
        self.healthy.store(false, Ordering::Release);
        drop(pending);
        self.hang_up.forget();
        // Those who waited too long went away.
        for waiting in given_up.regions.into_values().flatten() {
            let _ = waiting.send(Err(reason.clone()));
        }
        for waiting in given_up.streams {
            let _ = waiting.send(Err(reason.clone()));
        }
        let mappings = self.path_cache.write().close();
        drop(mappings);
        let stream = self.stream.lock().take();
        if let Some(stream) = stream {
            stream.close(reason);
        }
        self.wake.notify_one();
    }

    /// The stream, if there is one that works.
    pub(super) fn working_stream(&self) -> Option<Arc<StreamLink>> {
        self.stream.lock().as_ref().filter(|stream| stream.is_healthy()).cloned()
    }

    /// The owner's id of the last stream.
    pub(super) fn stream_id(&self) -> Option<LinkId> {
        *self.stream_id.lock()
    }

    /// Keeps a new stream for as long as the link lasts.
    pub(super) fn keep_stream(&self, stream: &Arc<StreamLink>) {
        *self.stream_id.lock() = stream.id();
        let broken = self.stream.lock().replace(Arc::clone(stream));
        drop(broken);
        // The link may have failed before.
        if !self.is_healthy() {
            let late = self.stream.lock().take();
            if let Some(late) = late {
                late.close(self.reason());
            }
        }
    }

    /// Asks for regions, and waits for the answers; one for each key.
    pub(super) async fn open(&self, keys: &[RemoteKey]) -> Vec<RegionResult> {
        let pending: Vec<_> = keys.iter().map(|key| self.ask_region(*key)).collect();
        let mut found = Vec::with_capacity(keys.len());
        let deadline = tokio::time::Instant::now() + self.answer_timeout;
        for waiting in pending {
            let answer = async { self.heard(waiting?.await) };
            let answer = tokio::time::timeout_at(deadline, answer).await;
            found.push(answer.unwrap_or_else(|_| Err(self.late())));
        }
        found
    }

    /// Asks for a stream, and waits for the answer.
    pub(super) async fn open_stream(&self) -> StreamResult {
        let (answer, waiting) = oneshot::channel();
        {
            let mut pending = self.pending.lock();
            pending.ask(RequestKind::Stream, || self.late())?;
            pending.streams.push_back(answer);
        }
        self.wake.notify_one();
        let heard = timeout(self.answer_timeout, waiting).await;
        heard.map_or_else(|_| Err(self.late()), |heard| self.heard(heard))
    }

    fn heard<T>(
        &self,
        answer: Result<Result<T, TransferError>, oneshot::error::RecvError>,
    ) -> Result<T, TransferError> {
        answer.unwrap_or_else(|_| Err(self.reason()))
    }

    fn late(&self) -> TransferError {
        TransferError::TimedOut { after: self.answer_timeout }
    }

    fn ask_region(&self, key: RemoteKey) -> Result<oneshot::Receiver<RegionResult>, TransferError> {
        let (answer, waiting) = oneshot::channel();
        let mut pending = self.pending.lock();
        if let Some(others) = pending.regions.get_mut(&key) {
            // Those who waited too long went away.
            others.retain(|other| !other.is_closed());
            others.push(answer);
            return Ok(waiting);
        }
        pending.ask(RequestKind::Region(key), || self.late())?;
        pending.regions.insert(key, vec![answer]);
        drop(pending);
        self.wake.notify_one();
        Ok(waiting)
    }

    fn remember(&self, key: RemoteKey, path: RegionPath) {
        let given_up = self.path_cache.write().insert(key, path);
        drop(given_up);
    }
}

impl PendingRequests {
    fn ask(
        &mut self,
        kind: RequestKind,
        late: impl FnOnce() -> TransferError,
    ) -> Result<(), TransferError> {
        if let Some(reason) = &self.broken {
            return Err(reason.clone());
        }
        if self.unsent.len() + self.unanswered.len() >= MAX_ASKED {
            return Err(late());
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.unsent.push_back(Request { id, kind });
        Ok(())
    }
}

/// The task of a link. Dropping it gives the link up.
pub(super) struct ControlTask {
    pub(super) control: Arc<Control>,
    pub(super) stream: UnixStream,
    pub(super) page: Arc<PeerPage>,
    pub(super) space: Arc<Space>,
    pub(super) _open: Counted,
}

impl ControlTask {
    /// Sends requests and takes answers until the link fails.
    pub(super) async fn run(self) {
        let reason = self.attend().await;
        debug!(%reason, "link ended");
        self.control.fail(reason);
    }

    async fn attend(&self) -> TransferError {
        let mut incoming = Incoming::<ANSWER_LEN>::new();
        let mut outgoing = Vec::new();
        let mut turn = Turn::default();
        while self.control.is_healthy() {
            turn.taken().await;
            let lost = |error| TransferError::LinkLost { source: Arc::new(error) };
            // Answers are taken while questions wait to be sent: an owner that waits
            // for room for its answers takes no questions.
            match first(incoming.message(&self.stream), self.send(&mut outgoing)).await {
                First::Left(Ok((bytes, received))) => match self.take(&bytes, received) {
                    Ok(()) => {}
                    Err(violation) => return TransferError::Protocol(violation),
                },
                First::Left(Err(error)) | First::Right(Err(error)) => return lost(error),
                First::Right(Ok(())) => {}
            }
        }
        self.control.reason()
    }

    /// Sends some of what is to be sent, or waits until there is something.
    async fn send(&self, outgoing: &mut Vec<u8>) -> io::Result<()> {
        if outgoing.is_empty() {
            let mut pending = self.control.pending.lock();
            let PendingRequests { unsent, unanswered, .. } = &mut *pending;
            outgoing.reserve(unsent.len() * REQUEST_LEN);
            outgoing.extend(unsent.iter().flat_map(|request| request.encode()));
            unanswered.append(unsent);
        }
        if outgoing.is_empty() {
            self.control.wake.notified().await;
            return Ok(());
        }
        // Waiting for room ends when the link fails, too.
        match first(self.stream.writable(), self.control.wake.notified()).await {
            First::Left(writable) => writable?,
            First::Right(()) => return Ok(()),
        }
        match self.stream.try_write(outgoing) {
            Ok(sent) => {
                outgoing.drain(..sent);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn take(
        &self,
        bytes: &[u8; ANSWER_LEN],
        mut received: Received,
    ) -> Result<(), ProtocolViolation> {
        let answer = Answer::decode(bytes).map_err(|bad| match bad {
            BadAnswer::Status(status) => ProtocolViolation::UnknownStatus { status },
            BadAnswer::Reserved => ProtocolViolation::ReservedNotZero,
        })?;
        let granted = answer.status == Status::Granted;
        // When the process has no room for the descriptor the system drops it.
        let dropped = granted && received.count == 0 && received.cut;
        let expected = usize::from(granted && !dropped);
        if received.count != expected || (received.cut && !dropped) {
            return Err(ProtocolViolation::WrongDescriptors { expected, got: received.count });
        }
        if answer.status == Status::Withdrawn {
            self.control.drop_withdrawn();
            return Ok(());
        }
        let due = self.control.pending.lock().unanswered.pop_front();
        let Some(Request { kind, .. }) = due.filter(|due| due.id == answer.id) else {
            let expected = due.map(|due| due.id);
            return Err(ProtocolViolation::WrongId { expected, got: answer.id });
        };
        let descriptor = received.first.take();
        match (kind, answer.status) {
            (_, Status::Malformed) => Err(ProtocolViolation::RequestNotUnderstood),
            (RequestKind::Region(key), _) => self.take_region(key, &answer, descriptor),
            (RequestKind::Stream, status) => self.take_stream(status, &answer, descriptor),
        }
    }

    fn take_region(
        &self,
        key: RemoteKey,
        answer: &Answer,
        descriptor: Option<OwnedFd>,
    ) -> Result<(), ProtocolViolation> {
        let found = match (answer.status, answer.region) {
            (Status::Granted, Some(region)) => Ok(self.way_to(key, &region, descriptor)?),
            (Status::KeyRefused, None) => Err(TransferError::KeyRefused),
            (Status::NotShareable, None) => {
                self.control.remember(key, RegionPath::Streamed);
                Ok(RegionPath::Streamed)
            }
            _ => return Err(ProtocolViolation::WrongGrant),
        };
        let waiting = self.control.pending.lock().regions.remove(&key).unwrap_or_default();
        // Those who waited too long went away.
        for waiting in waiting {
            let _ = waiting.send(found.clone());
        }
        Ok(())
    }

    /// Maps what was granted. Where this process has no room for it, a stream does
    /// for now.
    fn way_to(
        &self,
        key: RemoteKey,
        region: &GrantedRegion,
        descriptor: Option<OwnedFd>,
    ) -> Result<RegionPath, ProtocolViolation> {
        if !self.page.has(region.slot, region.generation) {
            return Err(ProtocolViolation::WrongGrant);
        }
        let Some(descriptor) = descriptor else {
            warn!("no descriptor is left for a region of a peer; raise the limit (ulimit -n)");
            return Ok(RegionPath::Streamed);
        };
        let Some(taken) = self.space.take(region.len) else {
            warn!("the regions of peers take all the space they may; raise max_mapped_bytes");
            return Ok(RegionPath::Streamed);
        };
        match Mapped::new(region, descriptor, Arc::clone(&self.page), taken) {
            Ok(mapped) => {
                let path = RegionPath::Mapped(Arc::new(mapped));
                self.control.remember(key, path.clone());
                Ok(path)
            }
            Err(error @ MemoryError::Refused { .. }) => {
                warn!(%error, "a region of a peer could not be mapped");
                Ok(RegionPath::Streamed)
            }
            Err(error) => {
                warn!(%error, "a peer offers memory that is not safe to touch");
                Err(ProtocolViolation::UnsafeMemory)
            }
        }
    }

    fn take_stream(
        &self,
        status: Status,
        answer: &Answer,
        descriptor: Option<OwnedFd>,
    ) -> Result<(), ProtocolViolation> {
        let found = match (status, answer.region) {
            (Status::Granted, None) => match descriptor {
                Some(socket) if is_stream(&socket) => Ok(socket),
                Some(_) => return Err(ProtocolViolation::WrongGrant),
                None => Err(TransferError::LinkLost {
                    source: Arc::new(io::Error::from_raw_os_error(libc::EMFILE)),
                }),
            },
            (Status::Busy, None) => Err(TransferError::LinkLost {
                source: Arc::new(io::Error::other("the peer has as many streams as it allows")),
            }),
            _ => return Err(ProtocolViolation::WrongGrant),
        };
        // It went away if it waited too long; the stream ends then.
        if let Some(waiting) = self.control.pending.lock().streams.pop_front() {
            let _ = waiting.send(found);
        }
        Ok(())
    }
}

impl Drop for ControlTask {
    fn drop(&mut self) {
        self.control.fail(TransferError::Closed);
    }
}

/// Checks that a descriptor from a peer is what was requested.
fn is_stream(descriptor: &OwnedFd) -> bool {
    use rustix::net::sockopt::{socket_domain, socket_type};
    socket_domain(descriptor) == Ok(rustix::net::AddressFamily::UNIX)
        && socket_type(descriptor) == Ok(rustix::net::SocketType::STREAM)
}
