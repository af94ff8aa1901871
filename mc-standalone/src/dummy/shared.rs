//! The state that a thin client's handles and its keeper share: the memories that the node agent
//! reaches, and the current connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mc_transport::{Access, Memory, MemorySlice};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::arena::Arena;
use super::backed::Backed;
use super::get::Guess;
use super::session::Session;
use crate::error::DummyError;
use crate::is_ours;
use crate::socket::Frame;
use crate::wire::{Call, Reply, Span};

/// Settings that do not change while a thin client lives.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) address: Arc<str>,
    pub(super) call_timeout: Duration,
    /// Time limit of calls that move no data and change nothing.
    pub(super) question_timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) trusted_users: Vec<u32>,
}

impl Settings {
    /// Whether memory is shared with a node agent of `user`.
    pub(super) fn trusts(&self, user: u32) -> bool {
        is_ours(user) || self.trusted_users.contains(&user)
    }
}

/// The number of the local buffer.
const ARENA: u32 = 0;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) arena: Arena,
    pub(super) guess: Guess,
    /// Memories that the application registered.
    registered: RwLock<Registered>,
    /// Held while memory is registered, so that a new connection gets all of it.
    registering: AsyncMutex<()>,
    state: RwLock<State>,
    /// Changes with `state`.
    connected: watch::Sender<bool>,
    /// Memory that calls held when their connection broke. A node agent that lives may still touch
    /// it; the next one that admits us has made sure that none does.
    unsettled: Mutex<Vec<Memory>>,
}

#[derive(Debug, Default)]
struct Registered {
    memories: Vec<(u32, Arc<Backed>)>,
    last: u32,
}

#[derive(Debug)]
enum State {
    Connected(Arc<Session>),
    Away(DummyError),
}

impl Shared {
    pub(super) fn new(settings: Settings, arena: Arena) -> Self {
        let never = io::Error::new(io::ErrorKind::NotConnected, "not connected yet");
        let source = Arc::new(never);
        let address = Arc::clone(&settings.address);
        Self {
            settings,
            arena,
            guess: Guess::default(),
            registered: RwLock::default(),
            registering: AsyncMutex::default(),
            state: RwLock::new(State::Away(DummyError::RealClientGone { address, source })),
            connected: watch::Sender::new(false),
            unsettled: Mutex::default(),
        }
    }

    pub(super) fn gone(&self, source: io::Error) -> DummyError {
        let address = Arc::clone(&self.settings.address);
        DummyError::RealClientGone { address, source: Arc::new(source) }
    }

    /// The node agent answered something else than was asked.
    pub(super) fn wrong_answer(&self) -> DummyError {
        let address = Arc::clone(&self.settings.address);
        DummyError::NotARealClient { address, reason: "its answer is not to what was asked" }
    }

    /// The connection of the moment.
    pub(super) fn session(&self) -> Result<Arc<Session>, DummyError> {
        match &*self.state.read() {
            State::Connected(session) => Ok(Arc::clone(session)),
            State::Away(error) => Err(error.clone()),
        }
    }

    pub(super) fn connected(&self, session: Arc<Session>) {
        *self.state.write() = State::Connected(session);
        self.connected.send_replace(true);
    }

    /// Notes that there is no connection, why, and what its calls held.
    pub(super) fn away(&self, error: DummyError, held: Vec<Memory>) {
        *self.state.write() = State::Away(error);
        self.unsettled.lock().extend(held);
        self.connected.send_replace(false);
    }

    /// Notes that the memory that calls of earlier connections held is not touched any more.
    pub(super) fn settled(&self) {
        let free = std::mem::take(&mut *self.unsettled.lock());
        drop(free);
    }

    pub(super) async fn wait_until_connected(&self, patience: Duration) -> Result<(), DummyError> {
        let mut connected = self.connected.subscribe();
        let waited = timeout(patience, connected.wait_for(|&connected| connected)).await;
        match waited {
            Ok(_) => Ok(()), // the sender is here
            Err(_) => self.session().map(drop),
        }
    }

    /// When a call that begins now has to be over.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.settings.call_timeout
    }

    /// Waits for the answer to a question, for as long as one may take.
    pub(super) async fn answer<T, E: From<DummyError>>(
        &self,
        question: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let Settings { address, question_timeout: after, .. } = &self.settings;
        let late = |_| DummyError::TimedOut { address: Arc::clone(address), after: *after };
        timeout(*after, question).await.map_err(late)?
    }

    /// Makes a call that names `held`.
    pub(super) async fn call(
        &self,
        call: &Call<'_>,
        held: Vec<Memory>,
        deadline: Instant,
    ) -> Result<Reply, DummyError> {
        let session = self.session()?;
        let answered = timeout_at(deadline, session.call(call, held));
        answered.await.unwrap_or_else(|_| {
            let Settings { address, call_timeout: after, .. } = &self.settings;
            Err(DummyError::TimedOut { address: Arc::clone(address), after: *after })
        })
    }

    /// The name that `slice` has for the node agent, which then finds its pages there: those
    /// that it touched first would be charged to it.
    pub(super) fn span(&self, slice: &MemorySlice) -> Result<Span, DummyError> {
        let (memory, base) = match slice.memory().origin() {
            Some(origin) => (origin.memory(), origin.offset()),
            None => (slice.memory(), 0),
        };
        let (offset, len) = (base + slice.offset(), slice.len());
        let number = if memory.is_same(self.arena.memory()) {
            self.arena.backed().ensure(offset, len)?;
            ARENA
        } else {
            let (number, backed) = self.registered(memory).ok_or(DummyError::NotRegistered)?;
            backed.ensure(offset, len)?;
            number
        };
        Ok(Span { memory: number, offset: offset as u64, len: len as u64 })
    }

    /// The number of memory that the application registered.
    fn registered(&self, memory: &Memory) -> Option<(u32, Arc<Backed>)> {
        let registered = self.registered.read();
        let mut memories = registered.memories.iter();
        memories.find(|(_, known)| known.memory().is_same(memory)).cloned()
    }

    pub(super) async fn register(&self, memory: &Memory) -> Result<(), DummyError> {
        let _alone = self.registering.lock().await;
        if memory.is_same(self.arena.memory()) || self.registered(memory).is_some() {
            return Ok(());
        }
        let session = self.session()?;
        let number = {
            let mut registered = self.registered.write();
            // Numbers are not used again before four billion others were.
            registered.last = registered.last.checked_add(1).unwrap_or(ARENA + 1);
            registered.last
        };
        self.share(&session, number, memory).await?;
        let backed = Arc::new(Backed::new(memory.clone()));
        self.registered.write().memories.push((number, backed));
        Ok(())
    }

    pub(super) async fn unregister(&self, memory: &Memory) -> Result<(), DummyError> {
        let _alone = self.registering.lock().await;
        let number = {
            let memories = &mut self.registered.write().memories;
            let at = memories.iter().position(|(_, known)| known.memory().is_same(memory));
            memories.swap_remove(at.ok_or(DummyError::NotRegistered)?).0
        };
        let call = Call::Unregister { memory: number };
        match self.call(&call, Vec::new(), self.deadline()).await {
            Ok(_) | Err(DummyError::RealClientGone { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Shares all memory with a node agent that does not know it yet, and uses it from
    /// then on.
    pub(super) async fn adopt(&self, session: &Arc<Session>) -> Result<(), DummyError> {
        let _alone = self.registering.lock().await;
        self.settled();
        self.share(session, ARENA, self.arena.memory()).await?;
        let memories = self.registered.read().memories.clone();
        for (number, backed) in &memories {
            self.share(session, *number, backed.memory()).await?;
        }
        self.connected(Arc::clone(session));
        Ok(())
    }

    async fn share(
        &self,
        session: &Arc<Session>,
        number: u32,
        memory: &Memory,
    ) -> Result<(), DummyError> {
        let refused = |error| DummyError::Memory(Arc::new(error));
        let descriptor = memory.share(Access::ReadWrite).map_err(refused)?;
        let call = Call::Register { memory: number, len: memory.len() as u64 };
        let shared =
            session.call_with(&call, Vec::new(), |frame: Frame| frame.with_descriptor(descriptor));
        let patience = self.settings.connect_timeout;
        let answered = timeout(patience, shared).await.unwrap_or_else(|_| {
            let address = Arc::clone(&self.settings.address);
            Err(DummyError::TimedOut { address, after: patience })
        });
        answered.map(drop)
    }
}
