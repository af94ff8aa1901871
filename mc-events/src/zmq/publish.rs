//! A PUB socket.

use std::collections::VecDeque;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, BufWriter};
use tokio::sync::Notify;

use super::accept::{Accepting, HANDSHAKE_TIMEOUT, Serve, Visit, accept};
use super::endpoint::{Connection, Listener};
use super::wire::{self, Bounds, Incoming};
use crate::error::SocketBusy;
use crate::socket::{EventSocket, SocketStats};
use crate::stream::Message;

/// Limit on the subscriptions of a connection.
const MAX_SUBSCRIPTIONS: usize = 64;
/// Memory of a waiting message beside its payload.
const MESSAGE_SIZE: usize = 128;
/// Messages that a connection takes from its queue at a time.
const WRITE_AT_ONCE: usize = 64;
const WRITE_BUFFER: usize = 64 << 10;

/// A PUB socket that waits for no subscriber and holds a bounded number of bytes for all of them.
#[derive(Debug)]
pub(crate) struct PubSocket {
    shared: Arc<Shared>,
    accepting: Mutex<Option<Accepting>>,
}

#[derive(Debug)]
struct Shared {
    subscribers: Mutex<Vec<Arc<Subscriber>>>,
    max_messages: usize,
    max_bytes: usize,
    skipped: AtomicU64,
    /// Wakes those that wait until everything is written.
    written: Notify,
}

#[derive(Debug, Default)]
struct Subscriber {
    queue: Mutex<SubscriberQueue>,
    /// Whether there is a subscription.
    subscribes: AtomicBool,
    wake: Notify,
}

#[derive(Debug, Default)]
struct SubscriberQueue {
    subscriptions: Vec<Vec<u8>>,
    /// Bytes of the subscriptions, which are inside the share.
    subscription_bytes: usize,
    waiting: VecDeque<Outgoing>,
    /// The answer to the last heartbeat. A peer that wants to know whether this side lives needs no
    /// other one.
    pong: Option<Vec<u8>>,
    /// Bytes that wait or are being written.
    bytes: usize,
}

#[derive(Clone, Debug)]
enum Outgoing {
    Message(Message),
    Pong(Vec<u8>),
}

impl Outgoing {
    fn size(&self) -> usize {
        match self {
            Self::Message(message) => MESSAGE_SIZE + message.payload().len(),
            Self::Pong(bytes) => MESSAGE_SIZE + bytes.len(),
        }
    }
}

impl PubSocket {
    pub(crate) fn new(
        listener: Listener,
        hwm: usize,
        max_bytes: usize,
        connections: usize,
    ) -> Self {
        let shared = Arc::new(Shared {
            subscribers: Mutex::default(),
            max_messages: hwm,
            max_bytes,
            skipped: AtomicU64::new(0),
            written: Notify::new(),
        });
        let accepting = accept(listener, connections, Arc::clone(&shared));
        Self { shared, accepting: Mutex::new(Some(accepting)) }
    }
}

impl EventSocket for PubSocket {
    fn send(&self, message: &Message) -> Result<(), SocketBusy> {
        let subscribers = self.shared.subscribers.lock();
        let share = self.shared.share(&subscribers);
        for subscriber in &*subscribers {
            let mut queue = subscriber.queue.lock();
            let wanted = queue.subscriptions.iter().any(|topic| message.topic().starts_with(topic));
            if !wanted {
                continue;
            }
            if queue.push(message.clone(), self.shared.max_messages, share) {
                subscriber.wake.notify_one();
            } else {
                self.shared.skipped.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn flush(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            loop {
                let mut written = pin!(self.shared.written.notified());
                written.as_mut().enable();
                if self.stats().waiting_bytes == 0 {
                    return;
                }
                written.await;
            }
        })
    }

    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let accepting = self.accepting.lock().take();
        Box::pin(async {
            if let Some(accepting) = accepting {
                accepting.end().await;
            }
        })
    }

    fn stats(&self) -> SocketStats {
        let mut stats = SocketStats {
            skipped: self.shared.skipped.load(Ordering::Relaxed),
            ..SocketStats::default()
        };
        for subscriber in &*self.shared.subscribers.lock() {
            let queue = subscriber.queue.lock();
            stats.subscribers += usize::from(!queue.subscriptions.is_empty());
            stats.waiting_bytes += queue.bytes;
        }
        stats
    }
}

impl SubscriberQueue {
    /// Returns whether there was room.
    fn push(&mut self, message: Message, max_messages: usize, max_bytes: usize) -> bool {
        let outgoing = Outgoing::Message(message);
        let size = outgoing.size();
        // A message that is larger than the share goes to a subscriber for which nothing waits.
        let held = self.bytes + self.subscription_bytes;
        let too_many_bytes = self.bytes > 0 && held + size > max_bytes;
        if self.waiting.len() >= max_messages || too_many_bytes {
            return false;
        }
        self.bytes += size;
        self.waiting.push_back(outgoing);
        true
    }

    /// Answers a heartbeat, in the place of an answer that still waits.
    fn answer(&mut self, pong: Vec<u8>) {
        self.bytes += MESSAGE_SIZE + pong.len();
        if let Some(unsent) = self.pong.replace(pong) {
            self.bytes -= MESSAGE_SIZE + unsent.len();
        }
    }

    /// Takes what is to be written next.
    fn take(&mut self) -> Vec<Outgoing> {
        let count = self.waiting.len().min(WRITE_AT_ONCE);
        let pong = self.pong.take().map(Outgoing::Pong);
        pong.into_iter().chain(self.waiting.drain(..count)).collect()
    }

    /// Takes a request for, or against, a topic.
    fn subscribe(&mut self, frames: &[Vec<u8>]) -> io::Result<()> {
        let [frame] = frames else { return Ok(()) };
        match frame.split_first() {
            Some((1, _)) if self.subscriptions.len() >= MAX_SUBSCRIPTIONS => {
                return Err(io::Error::other("the peer has too many subscriptions"));
            }
            Some((1, topic)) => {
                self.subscription_bytes += topic.len();
                self.subscriptions.push(topic.into());
            }
            Some((0, topic)) => {
                if let Some(at) = self.subscriptions.iter().position(|known| known == topic) {
                    self.subscription_bytes -= topic.len();
                    self.subscriptions.swap_remove(at);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Serve for Shared {
    async fn serve(
        self: Arc<Self>,
        mut connection: Box<dyn Connection>,
        visit: Visit,
    ) -> io::Result<()> {
        let hands = wire::shake_hands(&mut connection, "PUB", &["SUB", "XSUB"]);
        tokio::time::timeout(HANDSHAKE_TIMEOUT, hands).await??;
        visit.greeted();
        let subscriber = Arc::new(Subscriber::default());
        self.subscribers.lock().push(Arc::clone(&subscriber));
        let _leaving = Leaving { shared: &self, subscriber: &subscriber };
        let (reader, writer) = tokio::io::split(connection);
        let reader = BufReader::with_capacity(wire::MAX_FRAME, reader);
        let writer = BufWriter::with_capacity(WRITE_BUFFER, writer);
        tokio::select! {
            ended = self.read(reader, &subscriber, &visit) => ended,
            ended = self.write(writer, &subscriber, &visit) => ended,
        }
    }
}

/// Takes the subscriber from the list when its connection ends.
struct Leaving<'a> {
    shared: &'a Shared,
    subscriber: &'a Arc<Subscriber>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.shared.subscribers.lock().retain(|other| !Arc::ptr_eq(other, self.subscriber));
        self.shared.written.notify_waiters();
    }
}

impl Shared {
    /// The bytes that may be held for each of those that subscribe.
    fn share(&self, subscribers: &[Arc<Subscriber>]) -> usize {
        let subscribes = |of: &&Arc<Subscriber>| of.subscribes.load(Ordering::Relaxed);
        self.max_bytes / subscribers.iter().filter(subscribes).count().max(1)
    }

    async fn read(
        &self,
        mut reader: impl AsyncRead + Unpin,
        subscriber: &Subscriber,
        visit: &Visit,
    ) -> io::Result<()> {
        loop {
            match wire::read(&mut reader, Bounds::REQUEST).await? {
                Incoming::Message { frames, .. } => {
                    let subscribes = {
                        let mut queue = subscriber.queue.lock();
                        queue.subscribe(&frames)?;
                        !queue.subscriptions.is_empty()
                    };
                    subscriber.subscribes.store(subscribes, Ordering::Relaxed);
                    if subscribes {
                        visit.asked();
                    }
                }
                Incoming::Ping(context) => {
                    subscriber.queue.lock().answer(wire::pong(&context));
                    subscriber.wake.notify_one();
                }
            }
        }
    }

    async fn write(
        &self,
        mut writer: impl AsyncWrite + Unpin,
        subscriber: &Subscriber,
        visit: &Visit,
    ) -> io::Result<()> {
        let mut head = Vec::new();
        loop {
            let taken = subscriber.queue.lock().take();
            if taken.is_empty() {
                subscriber.wake.notified().await;
                continue;
            }
            for outgoing in &taken {
                match outgoing {
                    Outgoing::Message(message) => {
                        let number = message.number().to_be_bytes();
                        head.clear();
                        wire::append_head(
                            &mut head,
                            &[message.topic(), &number],
                            message.payload().len(),
                        );
                        writer.write_all(&head).await?;
                        writer.write_all(message.payload()).await?;
                    }
                    Outgoing::Pong(bytes) => writer.write_all(bytes).await?,
                }
            }
            writer.flush().await?;
            if taken.iter().any(|outgoing| matches!(outgoing, Outgoing::Message(_))) {
                visit.read();
            }
            let written: usize = taken.iter().map(Outgoing::size).sum();
            subscriber.queue.lock().bytes -= written;
            self.written.notify_waiters();
        }
    }
}
