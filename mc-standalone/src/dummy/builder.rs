//! How a thin client is described and started.

use std::sync::Arc;
use std::time::Duration;

use mc_types::{BoxFuture, ByteSize};
use tokio::sync::oneshot;

use super::arena::Arena;
use super::keeper::keep;
use super::shared::{Settings, Shared};
use super::{Core, DummyClient};
use crate::error::DummyError;
use crate::server::DEFAULT_PORT;

/// Describes a [`DummyClient`].
///
/// ```no_run
/// # async fn f() -> Result<(), mc_standalone::DummyError> {
/// use mc_standalone::DummyClient;
/// use mc_store::ByteSize;
/// let client = DummyClient::builder()
///     .server("127.0.0.1:50052") // the default
///     .local_buffer(ByteSize::gib(4))
///     .connect()
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct DummyClientBuilder {
    server: String,
    local_buffer: ByteSize,
    call_timeout: Duration,
    question_timeout: Duration,
    connect_timeout: Duration,
    trusted_users: Vec<u32>,
}

impl Default for DummyClientBuilder {
    fn default() -> Self {
        Self {
            server: format!("127.0.0.1:{DEFAULT_PORT}"),
            local_buffer: ByteSize::mib(512),
            call_timeout: Duration::from_secs(60),
            question_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(10),
            trusted_users: Vec::new(),
        }
    }
}

impl DummyClientBuilder {
    /// Where the node agent is, as `host:port`.
    pub fn server(mut self, address: impl Into<String>) -> Self {
        self.server = address.into();
        self
    }

    /// The size of the local buffer, from which values are put and into which they are
    /// read. It limits the values that [`put`](mc_store::ObjectStore::put) and
    /// [`get`](mc_store::ObjectStore::get) carry, one by one and all at the same time. Only what was
    /// used of it takes memory. The default is 512 MiB.
    pub fn local_buffer(mut self, size: ByteSize) -> Self {
        self.local_buffer = size;
        self
    }

    /// How long a call may take, with the time that it waits for room in the local buffer
    /// and for other calls. The default is 60 s.
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// How long a question may take that moves no data: whether objects are there, and what they
    /// are. An engine that asks does without them rather than wait. The default is 5 s, and no
    /// question takes longer than [a call](Self::call_timeout).
    pub fn question_timeout(mut self, timeout: Duration) -> Self {
        self.question_timeout = timeout;
        self
    }

    /// How long one attempt to connect may take. The default is 10 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Shares memory with a node agent of these users, by number, too. The default are
    /// this process's user and root.
    pub fn trust_users(mut self, users: impl IntoIterator<Item = u32>) -> Self {
        self.trusted_users = users.into_iter().collect();
        self
    }

    /// Connects. Must be called in a tokio runtime, one of whose tasks then keeps the
    /// connection.
    ///
    /// # Errors
    /// [`DummyError`]; nothing is left running then.
    pub fn connect(self) -> BoxFuture<'static, Result<DummyClient, DummyError>> {
        Box::pin(async move {
            let settings = Settings {
                address: self.server.into(),
                call_timeout: self.call_timeout,
                question_timeout: self.question_timeout.min(self.call_timeout),
                connect_timeout: self.connect_timeout,
                trusted_users: self.trusted_users,
            };
            let shared = Arc::new(Shared::new(settings, Arena::new(self.local_buffer)?));
            let (on_first, first) = oneshot::channel();
            let keeper = tokio::spawn(keep(Arc::clone(&shared), on_first));
            // From here on the keeper ends when this future is dropped.
            let core = Core { shared, keeper };
            match first.await {
                Ok(Ok(())) => Ok(DummyClient { core: Arc::new(core) }),
                Ok(Err(error)) => Err(error),
                Err(_) => Err(core.shared.gone(std::io::ErrorKind::ConnectionAborted.into())),
            }
        })
    }
}
