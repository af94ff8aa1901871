//! The connection of a link over which its queue pairs are set up and regions are asked for.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mc_transport::{ProtocolViolation, TransferError};
use mc_types::RemoteKey;
use parking_lot::{Mutex, RwLock};
use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::frames::receive;
use super::transfer::RemoteRegion;
use super::wire::{Answer, MAX_ANSWER, RegionAnswer, Request};

/// Regions of the peer that are remembered; those not in use are forgotten when there are more.
const MAX_REGIONS: usize = 4096;

/// The pauses between two questions for a region that is being registered.
const PREPARING: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// How a region of the peer is reached.
#[derive(Clone)]
pub(super) enum RegionPath {
    /// Over the RDMA devices.
    Rdma(Arc<RemoteRegion>),
    /// Over another transport.
    Elsewhere,
}

/// A request without an answer.
struct Pending {
    /// The region that it asks for.
    key: Option<RemoteKey>,
    answer: oneshot::Sender<Answer>,
}

/// See the module.
pub(super) struct Control {
    outgoing: mpsc::UnboundedSender<Vec<u8>>,
    /// Requests without an answer; `None` once there are no more answers.
    pending: Mutex<Option<HashMap<u32, Pending>>>,
    next: AtomicU32,
    pub(super) regions: RwLock<HashMap<RemoteKey, RegionPath>>,
    answer_timeout: Duration,
}

impl Control {
    /// A connection, and what is to be sent over it.
    pub(super) fn new(answer_timeout: Duration) -> (Arc<Self>, mpsc::UnboundedReceiver<Vec<u8>>) {
        let (outgoing, to_send) = mpsc::unbounded_channel();
        let control = Self {
            outgoing,
            pending: Mutex::new(Some(HashMap::new())),
            next: AtomicU32::new(1),
            regions: RwLock::default(),
            answer_timeout,
        };
        (Arc::new(control), to_send)
    }

    /// Sends a request, and waits for its answer.
    ///
    /// # Errors
    /// [`TransferError::LinkLost`] and [`TransferError::TimedOut`].
    pub(super) async fn ask(&self, request: &Request) -> Result<Answer, TransferError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, receiver) = oneshot::channel();
        let key = match request {
            Request::Region(key) => Some(*key),
            _ => None,
        };
        let lost = || {
            let source = Arc::new(io::ErrorKind::ConnectionReset.into());
            TransferError::LinkLost { source }
        };
        self.pending.lock().as_mut().ok_or_else(lost)?.insert(id, Pending { key, answer });
        self.outgoing.send(request.encode(id)).map_err(|_| lost())?;
        let answer = timeout(self.answer_timeout, receiver).await;
        self.take(id);
        match answer {
            Ok(answer) => answer.map_err(|_| lost()),
            Err(_) => Err(TransferError::TimedOut { after: self.answer_timeout }),
        }
    }

    /// Asks how a region is reached, unless that is known. With `may_go_elsewhere` a region that
    /// is being registered is not waited for: the path is not remembered then.
    pub(super) async fn region(
        &self,
        key: RemoteKey,
        may_go_elsewhere: bool,
    ) -> Result<RegionPath, TransferError> {
        let known = || self.regions.read().get(&key).cloned();
        if let Some(known) = known() {
            return Ok(known);
        }
        let waiting = async {
            let mut pause = PREPARING.0;
            loop {
                let answer = self.ask(&Request::Region(key)).await?;
                let Answer::Region(answer) = answer else {
                    return Err(TransferError::Protocol(ProtocolViolation::WrongGrant));
                };
                match answer {
                    // Remembered by `listen`; if not, the region was withdrawn since then.
                    RegionAnswer::Open(_) => {
                        if let Some(known) = known() {
                            return Ok(known);
                        }
                    }
                    RegionAnswer::Refused => return Err(TransferError::KeyRefused),
                    RegionAnswer::Preparing if may_go_elsewhere => {
                        return Ok(RegionPath::Elsewhere);
                    }
                    RegionAnswer::Preparing => {
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(PREPARING.1);
                    }
                    RegionAnswer::Unavailable => {
                        return Ok(self.remember(key, RegionPath::Elsewhere));
                    }
                }
            }
        };
        let after = self.answer_timeout;
        timeout(after, waiting).await.unwrap_or(Err(TransferError::TimedOut { after }))
    }

    fn remember(&self, key: RemoteKey, path: RegionPath) -> RegionPath {
        let mut regions = self.regions.write();
        if regions.len() >= MAX_REGIONS {
            // Requests that are under way learn of a withdrawal through the table.
            let is_used = |path: &RegionPath| match path {
                RegionPath::Rdma(region) => Arc::strong_count(region) > 1,
                RegionPath::Elsewhere => false,
            };
            regions.retain(|_, path| is_used(path));
        }
        // Two that asked at the same time share one.
        regions.entry(key).or_insert(path).clone()
    }

    /// Takes what the peer says until the connection ends; returns why it did.
    pub(super) async fn listen(&self, mut reader: OwnedReadHalf) -> TransferError {
        let end = loop {
            let frame = match receive(&mut reader, MAX_ANSWER).await {
                Ok(frame) => frame,
                Err(error) => break TransferError::LinkLost { source: Arc::new(error) },
            };
            match Answer::decode(&frame) {
                Some((_, Answer::Withdrawn(key))) => {
                    if let Some(RegionPath::Rdma(region)) = self.regions.write().remove(&key) {
                        region.withdraw();
                    }
                }
                Some((id, answer)) => {
                    let Some(pending) = self.take(id) else { continue };
                    // Here, so that a withdrawal that is told next finds the region.
                    if let (Some(key), Answer::Region(RegionAnswer::Open(keys))) =
                        (pending.key, &answer)
                    {
                        self.remember(key, RegionPath::Rdma(RemoteRegion::new(keys.clone())));
                    }
                    let _ = pending.answer.send(answer);
                }
                None => break TransferError::Protocol(ProtocolViolation::WrongGrant),
            }
        };
        self.pending.lock().take();
        end
    }

    fn take(&self, id: u32) -> Option<Pending> {
        self.pending.lock().as_mut()?.remove(&id)
    }
}

/// Sends requests until the connection ends.
pub(super) async fn send_all(
    mut writer: OwnedWriteHalf,
    mut requests: mpsc::UnboundedReceiver<Vec<u8>>,
) {
    while let Some(request) = requests.recv().await {
        if writer.write_all(&request).await.is_err() {
            return;
        }
    }
}
