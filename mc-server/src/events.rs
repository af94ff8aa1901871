//! Events of a master: from its effects to mc-events.

mod infos;
mod removal;
mod sink;

use mc_types::BoxFuture;
use std::sync::{Arc, OnceLock, Weak};

use mc_events::{
    Encoding, EventSocket, EventSystem, Parts, PublisherConfig, Snapshot, SnapshotPage, StartError,
};
use mc_meta::ListCursor;

use self::infos::Infos;
use self::sink::{EventSink, Publishing, Wanted};

/// Objects that one step announces, and events that may wait before the next one.
const ANNOUNCED_AT_ONCE: usize = 256;

/// The time between two looks at the queue.
const ANNOUNCE_PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

/// Bytes of metadata that are kept, unless the builder says otherwise.
const DEFAULT_INFO_BYTES: usize = 256 << 20;

/// Publishes what becomes of a master's objects, in the order of the changes of each key. Give it to
/// [`MasterBuilder::events`](crate::MasterBuilder::events).
///
/// ```
/// use mc_events::PublisherConfig;
/// use mc_server::{EventPublisher, Master};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = PublisherConfig {
///     endpoint: "tcp://127.0.0.1:0".into(),
///     replay_endpoint: "tcp://127.0.0.1:0".into(),
///     ..PublisherConfig::default()
/// };
/// let publisher = EventPublisher::start(config).await?;
/// println!("subscribe to {}", publisher.system().endpoints()[0].endpoint);
/// let master = Master::builder().events(publisher).start().await?;
/// master.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct EventPublisher {
    system: Arc<EventSystem>,
    objects: Arc<LiveObjects>,
    wanted: Wanted,
    info_bytes: usize,
}

impl EventPublisher {
    /// Opens the endpoints. The first event is that all objects are gone, because those of an
    /// earlier master are.
    ///
    /// # Errors
    /// A setting is wrong, or an endpoint cannot be opened.
    pub async fn start(config: PublisherConfig) -> Result<Self, StartError> {
        Self::start_with(config, Vec::new()).await
    }

    /// As [`start`](Self::start), with sockets of your own for the first endpoints.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(
        config: PublisherConfig,
        sockets: Vec<Arc<dyn EventSocket>>,
    ) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(async move {
            let wanted = Wanted::by(&config);
            let objects = Arc::new(LiveObjects::default());
            let snapshot = Some(Arc::clone(&objects) as Arc<dyn Snapshot>);
            let system = EventSystem::start_with(config, Parts { snapshot, sockets }).await?;
            drop(system.publish(mc_events::RemoveAllEvent));
            Ok(Self { system: Arc::new(system), objects, wanted, info_bytes: DEFAULT_INFO_BYTES })
        })
    }

    /// The most bytes of [`StoreEventInfo`](mc_events::StoreEventInfo) that are kept while their
    /// objects live; 256 MiB unless set. Only an endpoint with an encoding of vLLM needs them: for
    /// removals, which name the block's hash, and for snapshots. An object that finds no room is
    /// published without its metadata there, so not at all.
    #[must_use]
    pub const fn info_bytes(mut self, bytes: usize) -> Self {
        self.info_bytes = bytes;
        self
    }

    /// The publisher: its endpoints and statistics.
    #[must_use]
    pub const fn system(&self) -> &Arc<EventSystem> {
        &self.system
    }

    /// The sink of a master whose tenants' keys are told apart or not.
    pub(crate) fn sink(&self, tenants_apart: bool) -> EventSink {
        let system = Arc::clone(&self.system);
        let infos = Infos::new(if self.wanted.infos { self.info_bytes } else { 0 });
        let publishing = Arc::new(Publishing::new(system, self.wanted, tenants_apart, infos));
        let _ = self.objects.publishing.set(Arc::clone(&publishing));
        EventSink(publishing)
    }

    /// Serves snapshots of the master from now on, and announces the objects that it was rebuilt
    /// with.
    pub(crate) fn attach(self, master: &Arc<mc_meta::Master>) -> RunningEvents {
        let _ = self.objects.master.set(Arc::downgrade(master));
        let has_objects = master.report().totals.objects > 0;
        let announcing =
            has_objects.then(|| tokio::spawn(announce(self.objects, Arc::clone(&self.system))));
        RunningEvents { system: self.system, announcing }
    }
}

/// The events of a running master.
#[derive(Debug)]
pub(crate) struct RunningEvents {
    pub(crate) system: Arc<EventSystem>,
    announcing: Option<tokio::task::JoinHandle<()>>,
}

impl Drop for RunningEvents {
    fn drop(&mut self) {
        if let Some(task) = &self.announcing {
            task.abort();
        }
    }
}

/// Publishes every object that is there, as fast as the events are sent.
async fn announce(objects: Arc<LiveObjects>, system: Arc<EventSystem>) {
    let mut next = Some(ListCursor::default());
    while let (Some(cursor), true) = (next, system.is_running()) {
        let Some((master, publishing)) = objects.parts() else { return };
        next = master.visit_objects(cursor, ANNOUNCED_AT_ONCE, |object| {
            publishing.publish_whole(object);
        });
        drop(master);
        // So the queue keeps its places for the changes of clients.
        while system.stats().queued > ANNOUNCED_AT_ONCE && system.is_running() {
            tokio::time::sleep(ANNOUNCE_PAUSE).await;
        }
    }
}

/// The objects of a master, for subscribers that join late.
#[derive(Debug, Default)]
struct LiveObjects {
    master: OnceLock<Weak<mc_meta::Master>>,
    publishing: OnceLock<Arc<Publishing>>,
}

impl LiveObjects {
    /// `None` before the master is there and after its end.
    fn parts(&self) -> Option<(Arc<mc_meta::Master>, &Publishing)> {
        Some((self.master.get()?.upgrade()?, self.publishing.get()?))
    }
}

impl Snapshot for LiveObjects {
    fn page(&self, cursor: &[u8], max_objects: usize) -> SnapshotPage {
        let cursor = match cursor.try_into() {
            Ok(number) => Some(ListCursor::from_u64(u64::from_be_bytes(number))),
            Err(_) => cursor.is_empty().then(ListCursor::default),
        };
        let (Some(cursor), Some((master, publishing))) = (cursor, self.parts()) else {
            return SnapshotPage::default();
        };
        publishing.listing();
        let mut objects = Vec::new();
        let next = master.visit_objects(cursor, max_objects, |object| {
            objects.push(publishing.store_event(object, None));
        });
        let next = next.map_or_else(Vec::new, |next| next.to_u64().to_be_bytes().to_vec());
        SnapshotPage { objects, next }
    }
}

impl Wanted {
    fn by(config: &PublisherConfig) -> Self {
        let endpoints = config.endpoints();
        let has = |is: fn(&Encoding) -> bool| endpoints.iter().any(|each| is(&each.encoding));
        Self {
            updates: has(|encoding| *encoding == Encoding::S4),
            media: has(|encoding| *encoding != Encoding::S4),
            infos: has(|encoding| matches!(encoding, Encoding::Vllm | Encoding::VllmPositional)),
        }
    }
}
