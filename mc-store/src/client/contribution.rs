//! The segment that a client contributes, and the thread that keeps it mounted.

use std::sync::Arc;
use std::time::Duration;

use mc_meta::{ClientStatus, SegmentSpec};
use mc_rpc::{ClientConfig, MasterClient, RpcError};
use mc_transport::{
    Access, Memory, MemoryOptions, MemorySlice, Node, Region, RegisterError, Transport,
};
use mc_types::{ByteSize, ClientId, Endpoint, Extent, RemoteKey, SegmentId};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::builder::random_u128;
use crate::error::StartError;

/// How long a client that ends waits for its master, which may be gone for good.
const LEAVE: Duration = Duration::from_secs(1);

/// What a client gives to the pool; nothing, for a pure client.
#[derive(Debug)]
pub(super) struct Contribution {
    segment: Option<OwnSegment>,
}

#[derive(Debug)]
struct OwnSegment {
    name: Box<str>,
    endpoint: Endpoint,
    memory: Memory,
    transport: Arc<Node>,
    mounted: Mutex<Option<Mounted>>,
}

/// A segment as it is mounted now. Each mount has a key and an id of its own, so
/// that whoever was told of an earlier one cannot reach this one.
#[derive(Debug)]
struct Mounted {
    id: SegmentId,
    region: Region,
}

impl OwnSegment {
    fn spec(&self, id: SegmentId, remote_key: RemoteKey) -> SegmentSpec {
        SegmentSpec {
            id,
            name: self.name.clone(),
            base: 0,
            size: self.memory.len() as u64,
            endpoint: self.endpoint.clone(),
            remote_key,
        }
    }
}

impl Contribution {
    pub(super) const fn none() -> Self {
        Self { segment: None }
    }

    pub(super) fn new(
        size: ByteSize,
        name: Option<String>,
        memory: &MemoryOptions,
        transport: Arc<Node>,
    ) -> Result<Self, StartError> {
        let len = usize::try_from(size.as_u64()).unwrap_or(usize::MAX);
        let memory = memory.allocate(len).map_err(|source| StartError::Memory { size, source })?;
        let endpoint = transport.endpoint().expect("a transport that listens").clone();
        let name = name.unwrap_or_else(|| endpoint.address().to_owned()).into_boxed_str();
        let mounted = Mutex::new(None);
        Ok(Self { segment: Some(OwnSegment { name, endpoint, memory, transport, mounted }) })
    }

    pub(super) fn endpoint(&self) -> Option<Endpoint> {
        self.segment.as_ref().map(|segment| segment.endpoint.clone())
    }

    pub(super) fn name(&self) -> Option<&str> {
        self.segment.as_ref().map(|segment| &*segment.name)
    }

    /// The bytes at `extent` of the region that `key` opens, if it is ours.
    pub(super) fn local(&self, key: RemoteKey, extent: Extent) -> Option<MemorySlice> {
        let segment = self.segment.as_ref()?;
        let mounted = segment.mounted.lock();
        if mounted.as_ref()?.region.key() != key {
            return None;
        }
        let offset = usize::try_from(extent.offset()).ok()?;
        segment.memory.slice(offset, usize::try_from(extent.len()).ok()?)
    }

    /// Mounts the segment, under a new id and a new key. Whatever it held before
    /// is given up: the old key is withdrawn first, so that no late writer of
    /// the past can touch what is put from now on.
    pub(super) async fn mount(
        &self,
        master: &MasterClient,
        id: ClientId,
    ) -> Result<(), MountFailure> {
        let Some(segment) = &self.segment else { return Ok(()) };
        segment.mounted.lock().take();
        let region = segment.transport.register(&segment.memory, Access::ReadWrite)?;
        let segment_id =
            SegmentId::from_u128(random_u128().map_err(|_| MountFailure::NoRandomness)?);
        let spec = segment.spec(segment_id, region.key());
        // Known before the master tells anybody, so that no peer is refused.
        *segment.mounted.lock() = Some(Mounted { id: segment_id, region });
        master.mount_segment(id, &spec).await?;
        Ok(())
    }

    /// Gives the segment to a master that does not count on it any more: as it is, with
    /// all that it holds, when the master still knows it, and anew otherwise. A master
    /// that does not know it may have given its space to others, or another master may.
    async fn attach(&self, master: &MasterClient, id: ClientId) -> Result<(), MountFailure> {
        let Some(segment) = &self.segment else { return Ok(()) };
        let served = segment.mounted.lock().as_ref().map(|now| (now.id, now.region.key()));
        if let Some((segment_id, key)) = served {
            match master.remount_segment(id, &segment.spec(segment_id, key)).await {
                Ok(()) => {
                    info!(segment = %segment.name, "the segment is back with all that it holds");
                    return Ok(());
                }
                // A master that refuses for any lasting reason does not want it so.
                Err(RpcError::Refused(refusal)) if !refusal.is_retryable() => {
                    info!(
                        segment = %segment.name, %refusal,
                        "the master does not know the segment; mounting it anew, empty"
                    );
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.mount(master, id).await
    }

    /// Unmounts the segment and withdraws its key. A master that cannot be told
    /// finds out by the missing heartbeat.
    pub(super) async fn withdraw(&self, master: &MasterClient, client: ClientId) {
        let Some(segment) = &self.segment else { return };
        let Some(mounted) = segment.mounted.lock().take() else { return };
        let told = tokio::time::timeout(LEAVE, master.unmount_segment(client, mounted.id));
        match told.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                warn!(segment = %segment.name, %error, "could not unmount; the master will notice");
            }
            Err(_) => {
                warn!(segment = %segment.name, "no answer to unmounting; the master will notice");
            }
        }
        mounted.region.revoke();
    }
}

/// Why a segment is not mounted.
#[derive(Debug, thiserror::Error)]
pub(super) enum MountFailure {
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error(transparent)]
    Rpc(#[from] RpcError),
    #[error("the system gave no random bytes for an identity")]
    NoRandomness,
}

impl From<MountFailure> for StartError {
    fn from(failure: MountFailure) -> Self {
        match failure {
            MountFailure::Register(error) => Self::Register(error),
            MountFailure::Rpc(error) => Self::Master(error),
            MountFailure::NoRandomness => {
                Self::NoRandomness(std::io::Error::other("no random bytes"))
            }
        }
    }
}

/// A thread with a runtime and a connection of its own, so that no amount of
/// traffic keeps a living client from saying that it lives.
#[derive(Debug)]
pub(super) struct Heartbeat {
    stop: oneshot::Sender<()>,
    stopped: oneshot::Receiver<()>,
}

impl Heartbeat {
    pub(super) fn start(
        master: String,
        config: ClientConfig,
        interval: Duration,
        client: ClientId,
        contribution: Arc<Contribution>,
    ) -> Result<Self, StartError> {
        let (stop, stop_asked) = oneshot::channel();
        let (on_stopped, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(StartError::Thread)?;
        std::thread::Builder::new()
            .name("mc-heartbeat".into())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = beat(&master, config, interval, client, &contribution) => {}
                        // Also when the client was dropped without a shutdown.
                        _ = stop_asked => {}
                    }
                });
                // Nobody listens when the client was just dropped.
                let _ = on_stopped.send(());
            })
            .map_err(StartError::Thread)?;
        Ok(Self { stop, stopped })
    }

    pub(super) async fn stop(self) {
        // Both fail only if the thread is gone already.
        let _ = self.stop.send(());
        let _ = self.stopped.await;
    }
}

/// Pings for ever, and attaches the segment again when the master does not count on it.
async fn beat(
    address: &str,
    config: ClientConfig,
    interval: Duration,
    client: ClientId,
    contribution: &Contribution,
) {
    let mut timer = tokio::time::interval(interval);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut master = None;
    let mut silent = false;
    loop {
        timer.tick().await;
        if let Err(error) = beat_once(&mut master, address, &config, client, contribution).await {
            if !silent {
                warn!(master = address, %error, "no heartbeat; trying on");
            }
            silent = true;
        } else if silent {
            silent = false;
            info!(master = address, "heartbeat is back");
        }
    }
}

async fn beat_once(
    connection: &mut Option<MasterClient>,
    address: &str,
    config: &ClientConfig,
    client: ClientId,
    contribution: &Contribution,
) -> Result<(), MountFailure> {
    let master = match connection {
        Some(master) => master,
        None => connection.insert(MasterClient::connect(address, config.clone()).await?),
    };
    if master.ping(client).await?.status == ClientStatus::NeedRemount {
        contribution.attach(master, client).await?;
    }
    Ok(())
}
