//! The publisher and its queue.

use mc_types::BoxFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::JoinHandle;
use tracing::{error, warn};

use crate::config::{EndpointConfig, PublisherConfig};
use crate::error::StartError;
use crate::event::Event;
use crate::queue::{Entry, Pushed, Queue};
use crate::snapshot::Snapshot;
use crate::socket::EventSocket;
use crate::stats::EventStats;
use crate::stream::{Message, Ring, Stream};
use crate::zmq::{Listener, PubSocket, ReplayServer, ReplaySource, unix_micros};

/// The most bytes of events in one message of more than one.
const MAX_BATCH_BYTES: usize = 1 << 20;
/// Without a send interval: a message that follows another within this time is one of a stream, in
/// which events gather for [`STREAM_INTERVAL`]. Messages of one or two events each would cost a master
/// a tenth of its puts.
const STREAM: Duration = Duration::from_millis(5);
const STREAM_INTERVAL: Duration = Duration::from_millis(1);
/// Turns of other tasks for which the publisher waits for an event before it sleeps.
const YIELDS: usize = 16;
/// Pauses between the attempts to send a message; after the last the message is dropped.
const RETRY_PAUSES: [Duration; 3] =
    [Duration::from_millis(1), Duration::from_millis(10), Duration::from_millis(100)];

/// Publishes events. Dropping it ends the publisher at once and closes the sockets.
pub struct EventSystem {
    shared: Arc<WorkerState>,
    endpoints: Vec<BoundEndpoint>,
    incarnation: u64,
    publisher: Mutex<Option<JoinHandle<()>>>,
    replay: Mutex<Vec<ReplayServer>>,
}

/// The outcome of [`EventSystem::publish`], which need not be waited for.
#[derive(Debug)]
pub struct Published(oneshot::Receiver<bool>);

impl Future for Published {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        Pin::new(&mut self.0).poll(cx).map(|outcome| outcome.unwrap_or(false))
    }
}

/// An endpoint that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundEndpoint {
    /// Where subscribers connect, with the port that was free.
    pub endpoint: String,
    /// Where subscribers ask for messages again.
    pub replay_endpoint: Option<String>,
}

/// Tells the outcome of an event, where it is wanted.
type Done = Option<oneshot::Sender<bool>>;

struct WorkerState {
    queue: Mutex<Queue<Done>>,
    wake: Notify,
    sockets: Mutex<Vec<Arc<dyn EventSocket>>>,
    published: AtomicU64,
    batches: AtomicU64,
    bytes: AtomicU64,
    retries: AtomicU64,
    dropped: AtomicU64,
    lag_micros: AtomicU64,
    ignored_requests: Arc<AtomicU64>,
}

impl EventSystem {
    /// Opens the endpoints and starts the publisher, on the runtime that this is called on.
    ///
    /// # Errors
    /// A setting is wrong or an endpoint cannot be opened; nothing stays open then.
    pub async fn start(config: PublisherConfig) -> Result<Self, StartError> {
        Self::start_with(config, Parts::default()).await
    }

    /// As [`start`](Self::start), with parts of your own.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(
        config: PublisherConfig,
        parts: Parts,
    ) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(async move {
            config.check()?;
            let limits = &config.limits;
            let incarnation = getrandom::u64().map_err(StartError::Random)?;
            let ignored_requests = Arc::new(AtomicU64::new(0));
            let mut own_sockets = parts.sockets.into_iter();
            let (mut outputs, mut endpoints, mut replay) = (Vec::new(), Vec::new(), Vec::new());
            for endpoint in config.endpoints() {
                let EndpointConfig {
                    endpoint,
                    replay_endpoint,
                    topic,
                    encoding,
                    tenant,
                    removal_reasons,
                } = endpoint;
                let ring = if replay_endpoint.is_empty() {
                    Ring::new(0, 0)
                } else {
                    Ring::new(limits.replay_messages, limits.replay_bytes)
                };
                let stream = Stream::new(encoding, topic.into(), tenant, ring);
                let stream = Arc::new(Mutex::new(stream.removal_reasons(removal_reasons)));
                let (socket, endpoint) = match own_sockets.next() {
                    Some(socket) => (socket, endpoint),
                    None => {
                        let (listener, endpoint) =
                            Listener::bind(&endpoint, config.auto_port).await?;
                        let share = limits.subscriber_bytes;
                        let socket =
                            PubSocket::new(listener, config.hwm, share, limits.connections);
                        (Arc::new(socket) as Arc<dyn EventSocket>, endpoint)
                    }
                };
                let mut bound = BoundEndpoint { endpoint, replay_endpoint: None };
                if !replay_endpoint.is_empty() {
                    let (listener, text) =
                        Listener::bind(&replay_endpoint, config.auto_port).await?;
                    let source = ReplaySource {
                        stream: Arc::clone(&stream),
                        incarnation,
                        snapshot: parts.snapshot.clone(),
                        ignored: Arc::clone(&ignored_requests),
                        turn: Semaphore::new(1),
                        pages: Arc::default(),
                    };
                    replay.push(ReplayServer::new(listener, limits.connections, source));
                    bound.replay_endpoint = Some(text);
                }
                endpoints.push(bound);
                outputs.push(Output { stream, socket });
            }
            let shared = Arc::new(WorkerState {
                queue: Mutex::new(Queue::new(limits.queue_events, limits.queue_bytes)),
                wake: Notify::new(),
                sockets: Mutex::new(
                    outputs.iter().map(|output| Arc::clone(&output.socket)).collect(),
                ),
                published: AtomicU64::new(0),
                batches: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
                retries: AtomicU64::new(0),
                dropped: AtomicU64::new(0),
                lag_micros: AtomicU64::new(0),
                ignored_requests,
            });
            let publisher = Publisher {
                shared: Arc::clone(&shared),
                outputs,
                max_batch_size: config.max_batch_size,
                send_interval: config.send_interval,
            };
            let publisher = Mutex::new(Some(tokio::spawn(publisher.run())));
            Ok(Self { shared, endpoints, incarnation, publisher, replay: Mutex::new(replay) })
        })
    }

    /// Queues an event. Never blocks, and may be called from any thread.
    ///
    /// The future yields true once the event was handed to the sockets of all endpoints, and false
    /// if it was dropped: the queue was full, the event too large, or the system has ended. Then the
    /// next message leaves out a number. The event is published even if the future is dropped.
    pub fn publish(&self, event: impl Into<Event>) -> Published {
        let (done, outcome) = oneshot::channel();
        self.push(event.into(), Some(done));
        Published(outcome)
    }

    /// Queues an event as [`publish`](Self::publish) does, without an outcome. Costs its caller less.
    pub fn post(&self, event: impl Into<Event>) {
        self.push(event.into(), None);
    }

    fn push(&self, event: Event, done: Done) {
        let pushed = self.shared.queue.lock().push(event, done);
        match pushed {
            Pushed::Queued { sleeps: true } => self.shared.wake.notify_one(),
            Pushed::Queued { sleeps: false } => {}
            Pushed::Dropped | Pushed::Closed => self.shared.count_dropped(1),
        }
    }

    /// The endpoints, in the order of the settings.
    #[must_use]
    pub fn endpoints(&self) -> &[BoundEndpoint] {
        &self.endpoints
    }

    /// A random number that differs from every other start's. Numbers of messages with another
    /// incarnation have nothing to do with each other.
    #[must_use]
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Whether events are published: not after a shutdown, and not after an event of your own
    /// panicked.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.shared.queue.lock().is_closed()
    }

    /// Counts since the start.
    #[must_use]
    pub fn stats(&self) -> EventStats {
        let shared = &*self.shared;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = EventStats {
            queued: shared.queue.lock().len(),
            published: count(&shared.published),
            batches: count(&shared.batches),
            bytes: count(&shared.bytes),
            retries: count(&shared.retries),
            dropped: count(&shared.dropped),
            lag: Duration::from_micros(count(&shared.lag_micros)),
            ignored_requests: count(&shared.ignored_requests),
            ..EventStats::default()
        };
        for socket in &*shared.sockets.lock() {
            let socket = socket.stats();
            stats.subscribers += socket.subscribers;
            stats.waiting_bytes += socket.waiting_bytes;
            stats.skipped += socket.skipped;
        }
        stats
    }

    /// Takes no more events, sends those in the queue and closes the sockets, within the time
    /// `limit`. Their ports are free then. Returns whether all events and messages were handed to
    /// the operating system; the events that were not are dropped.
    ///
    /// # Cancellation
    /// Dropping the future leaves the system without new events; call again or drop the system.
    pub fn shutdown<'a>(&'a self, limit: Duration) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            self.shared.queue.lock().close();
            self.shared.wake.notify_one();
            let mut publisher = self.publisher.lock().take().map(AbortOnDrop);
            let sockets = self.shared.sockets.lock().clone();
            let flush = async {
                if let Some(running) = &mut publisher {
                    let _ = (&mut running.0).await;
                    publisher = None;
                }
                for socket in &sockets {
                    socket.flush().await;
                }
            };
            let flushed = tokio::time::timeout(limit, flush).await.is_ok();
            if let Some(mut running) = publisher {
                running.0.abort();
                let _ = (&mut running.0).await;
            }
            let replay = std::mem::take(&mut *self.replay.lock());
            for server in replay {
                server.close().await;
            }
            for socket in sockets {
                socket.close().await;
            }
            flushed
        })
    }
}

impl Drop for EventSystem {
    fn drop(&mut self) {
        drop(self.publisher.lock().take().map(AbortOnDrop));
    }
}

impl std::fmt::Debug for EventSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventSystem").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

/// Parts that may be your own.
#[derive(Default)]
pub struct Parts {
    /// The owner of the objects, for late joiners.
    pub snapshot: Option<Arc<dyn Snapshot>>,
    /// Sockets for the first endpoints, which are not opened then.
    pub sockets: Vec<Arc<dyn EventSocket>>,
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl WorkerState {
    fn count_dropped(&self, events: u64) {
        let before = self.dropped.fetch_add(events, Ordering::Relaxed);
        // One line for each power of two.
        if before.checked_ilog2() < (before + events).checked_ilog2() {
            warn!(dropped = before + events, "events were dropped; subscribers see a gap");
        }
    }

    fn drop_queued(&self) {
        let left = self.queue.lock().clear();
        self.count_dropped(left as u64);
    }
}

/// Events that count as dropped when this is dropped.
struct Unsent<'a> {
    shared: &'a WorkerState,
    events: u64,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        self.shared.count_dropped(self.events);
    }
}

/// Where the messages of one endpoint are made and sent.
struct Output {
    stream: Arc<Mutex<Stream>>,
    socket: Arc<dyn EventSocket>,
}

/// The task that sends what is queued.
struct Publisher {
    shared: Arc<WorkerState>,
    outputs: Vec<Output>,
    max_batch_size: usize,
    send_interval: Duration,
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if std::thread::panicking() {
            error!("the publisher of events panicked and has ended");
        }
        self.shared.queue.lock().close();
        self.shared.drop_queued();
    }
}

impl Publisher {
    async fn run(self) {
        let mut entries = Vec::new();
        let mut last_sent: Option<Instant> = None;
        loop {
            let (taken, closed) = {
                let mut queue = self.shared.queue.lock();
                let taken = queue.take(self.max_batch_size, MAX_BATCH_BYTES, &mut entries);
                if entries.is_empty() {
                    queue.sleep();
                }
                (taken, queue.is_closed())
            };
            if taken.gap {
                for output in &self.outputs {
                    output.stream.lock().skip_number();
                }
            }
            if !entries.is_empty() {
                self.publish(&mut entries, taken.queued_at).await;
                let sent = Instant::now();
                let streams = last_sent.replace(sent).is_some_and(|last| sent - last < STREAM);
                let gathers = self.send_interval.is_zero() && streams;
                self.pause(if gathers { STREAM_INTERVAL } else { self.send_interval }).await;
            } else if closed {
                return;
            } else {
                self.shared.wake.notified().await;
            }
        }
    }

    /// Lets other tasks run, and events gather until there is a full batch or the interval is over.
    async fn pause(&self, interval: Duration) {
        if !interval.is_zero() {
            let is_full = {
                let queue = self.shared.queue.lock();
                queue.len() >= self.max_batch_size || queue.is_closed()
            };
            if !is_full {
                tokio::time::sleep(interval).await;
            }
        }
        // To wake this task costs the caller of `publish` a system call. In a burst it stays awake.
        for _ in 0..YIELDS {
            tokio::task::yield_now().await;
            if self.shared.queue.lock().len() > 0 {
                return;
            }
        }
    }

    /// Sends a message of the entries, and empties the list.
    async fn publish(&self, entries: &mut Vec<Entry<Done>>, queued_at: Instant) {
        let mut unsent = Unsent { shared: &self.shared, events: entries.len() as u64 };
        let (mut sent, mut too_large) = (true, 0);
        let micros = unix_micros();
        for output in &self.outputs {
            let events = entries.iter().map(|entry| &entry.event);
            let batch = output.stream.lock().batch(micros, events);
            too_large += batch.too_large;
            if let Some(message) = batch.message {
                sent &= self.send(&*output.socket, &message).await;
            }
        }
        let lag = u64::try_from(queued_at.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.shared.lag_micros.store(lag, Ordering::Relaxed);
        if sent && too_large == 0 {
            let count = std::mem::take(&mut unsent.events);
            self.shared.published.fetch_add(count, Ordering::Relaxed);
        }
        // Counted before those who wait learn of it.
        drop(unsent);
        for Entry { done, .. } in entries.drain(..) {
            if let Some(done) = done {
                let _ = done.send(sent && too_large == 0);
            }
        }
    }

    /// Returns whether the socket took the message.
    async fn send(&self, socket: &dyn EventSocket, message: &Message) -> bool {
        for pause in RETRY_PAUSES {
            if socket.send(message).is_ok() {
                self.shared.batches.fetch_add(1, Ordering::Relaxed);
                let bytes = message.payload().len() as u64;
                self.shared.bytes.fetch_add(bytes, Ordering::Relaxed);
                return true;
            }
            self.shared.retries.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(pause).await;
        }
        false
    }
}
